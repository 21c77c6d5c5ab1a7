"""95% intervals over patients: of means, of means over groups, of ratios, and of shares.

Samples of one patient are alike, so the spread that counts is the one between patients. Each patient is left
out in turn (the jackknife, CR3 in the words of cluster-robust regression), and the interval is Student's:

    mean = sum_c S_c / N,   N = sum_c n_c                 S_c, n_c: sum and number of the values of patient c
    d_c  = (S_c - n_c mean) / (N - n_c)                   what the mean moves by without patient c
    se^2 = (C - 1) / C sum_c d_c^2
    df   = (tr M)^2 / tr(M M),  M = covariance of the d_c (Bell and McCaffrey 2002; independent values)
         = C - 1 where all patients have equally many values, fewer where some have most of them

A percentile bootstrap of patients is too narrow: `bench/intervals.py` prints how often both hold the truth.
It is also why fewer than `MIN_PATIENTS` patients have no interval: that of two is wider than most scales.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from mie.errors import MieError
from mie.scoring.clusters import Clusters, ClustersLike, as_clusters, numbered, patients_in_words
from mie.scoring.statistics.arrays import Floats, numbers

LEVEL: Final = 0.95
# Patients, or images where the patient is unknown, that an interval needs.
MIN_PATIENTS: Final = 3
_TAIL: Final = (1 - LEVEL) / 2
_NORMAL: Final = 1.959963984540054  # the quantile of the normal distribution at 1 - _TAIL
_ROUNDING: Final = 1e-12  # a relative standard error below this is none
_END: Final = 1e-6  # values this close to an end of their range lie on it: DICE adds a smoothing term

Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% interval. Without one `low` and `high` are nan, and `reason` says why."""

    value: float
    low: float
    high: float
    patients: int
    unknown: int  # images without a known patient, each counted as a patient of its own
    reason: str = ""
    se: float = np.nan
    df: float = np.nan
    range: Range | None = None  # of values that all lie on its two ends: a share
    effective: float = np.nan  # of a share: how many independent values say as much

    @property
    def entry(self) -> dict[str, Any]:
        """For JSON documents: `ci95`, `patients`, `images_without_patient`, and where it applies why not."""
        entry: dict[str, Any] = {
            "ci95": [self.low, self.high],
            "patients": self.patients,
            "images_without_patient": self.unknown,
        }
        return {**entry, "no_interval": self.reason} if self.reason else entry

    def capped(self, cap: float | None) -> Interval:
        """The interval of values that were cut off at `cap`, if there is one: it ends there."""
        return self if cap is None else replace(self, high=min(self.high, cap))

    def p_value(self, null: float = 0.0) -> float:
        """The two-sided p of the mean being `null`: under .05 exactly where the interval leaves it out.

        nan without an interval, and where all values are equal but not to `null`: then nothing is known of
        their spread.
        """
        if self.reason:
            return np.nan
        if self.range is not None:
            low, high = self.range
            share, supposed = (self.value - low) / (high - low), (null - low) / (high - low)
            return _share_p_value(share, self.effective, min(max(supposed, 0.0), 1.0))
        if self.se <= _ROUNDING * max(abs(self.value), abs(null)):
            return 1.0 if self.value == null else np.nan
        return float(2 * stdtr(self.df, -abs(self.value - null) / self.se))


def mean_interval(
    values: ArrayLike, clusters: ClustersLike = None, *, bounds: Range | None = None
) -> Interval:
    """The mean of `values`, `(N,)`, with its interval over patients.

    `clusters` says which values belong to one patient; without it every value stands alone. `bounds` is the
    range that values can take: the interval never leaves it. Where all values lie on its two ends, as
    successes and failures do, the interval is Wilson's for the effective number of values (Korn and Graubard
    1998), which has a width even where all values are equal. A range that a value leaves is ignored.

    A nan among the values is refused (`MieError`). Infinite values have a mean but no interval.

    >>> found = mean_interval([0.5, 0.7, 0.9, 0.6], ["a", "a", "b", "c"], bounds=(0, 1))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.patients
    (0.675, 0.2, 1, 3)
    >>> mean_interval([0.5, 0.7], ["a", "b"]).reason
    '2 patients: an interval needs at least 3'
    """
    found = numbers(values)
    groups = as_clusters(clusters, len(found))
    return _interval(found, np.zeros(len(found), np.int64), groups, bounds)


def macro_interval(
    values: ArrayLike, strata: ArrayLike, clusters: ClustersLike = None, *, bounds: Range | None = None
) -> Interval:
    """The mean over strata `(N,)` of the means of `values`, `(N,)`; a patient may lie in several strata.

    A stratum of one patient shows no spread: it is given the average spread between patients of the others.
    Where all strata are such, there is no interval. A nan is refused, infinite values have no interval.
    """
    found = numbers(values)
    names = np.asarray(strata)
    if len(names) != len(found):
        raise MieError("values and strata differ in number", expected=len(found), found=len(names))
    codes = np.unique(names, return_inverse=True)[1]
    return _interval(found, codes, as_clusters(clusters, len(found)), bounds)


def ratio_interval(above: ArrayLike, below: ArrayLike, clusters: ClustersLike = None) -> Interval:
    """sum(above) / sum(below) of two columns `(N,)` whose rows belong together.

    No interval where `below` has a negative value, or one of the columns an infinite one. A nan is refused.
    """
    over, under = numbers(above), numbers(below)
    groups = as_clusters(clusters, len(over))
    if len(under) != len(over):
        raise MieError("the columns of a ratio differ in length", expected=len(over), found=len(under))
    counts = groups.patients, groups.unknown
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(over.sum() / under.sum()) if under.any() else np.nan
    reason = _too_few(groups)
    if not np.isfinite([over, under]).all():
        reason = "some values are infinite"
    elif (under < 0).any():
        reason = "some denominators are negative"
    if reason:
        return Interval(value, np.nan, np.nan, *counts, reason)
    code = numbered(groups.codes)[1]
    sums, sizes = (_sums(code, column) for column in (over, under))
    if (sizes > 0).sum() < MIN_PATIENTS:
        return Interval(value, np.nan, np.nan, *counts, f"fewer than {MIN_PATIENTS} denominators above 0")
    _, se, df = _jackknife(sums, sizes)
    reach = se * _quantile(df)
    return Interval(value, value - reach, value + reach, *counts, se=se, df=df)


def jackknife_intervals(
    values: Floats, without: Floats, sizes: Sequence[int] | NDArray[Any]
) -> tuple[Floats, Floats]:
    """Bounds `(m,)` of m numbers, from what they are `(C, m)` without each of C patients of `sizes` rows."""
    count = len(without)
    weights = np.asarray(sizes, np.float64)[:, None]
    se = np.sqrt((count - 1) / count * ((without - values) ** 2).sum(axis=0))
    reach = se * _quantile(_degrees_of_freedom(1 / (weights.sum() - weights), weights))
    return values - reach, values + reach


def wilson(successes: float, n: float, z: float = _NORMAL) -> tuple[float, float]:
    """The Wilson score interval of a share, 95% by default; sound at 0, at n, and for small n.

    Neither needs to be whole, which `scipy.stats.binomtest` asks for: a weighted share of an effective number
    of answers has an interval too. A nan is refused, and so is n = 0.

    >>> [round(x, 4) for x in wilson(9, 10)]
    [0.5958, 0.9821]
    """
    numbers([successes, n], finite=True)
    if n <= 0:
        raise MieError("a share of nothing", expected="n above 0", found=n)
    share, square = min(max(successes / n, 0.0), 1.0), z * z
    centre = share + square / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + square / n)), min(1.0, (centre + spread) / (1 + square / n))


def _interval(values: Floats, strata: NDArray[np.int64], groups: Clusters, bounds: Range | None) -> Interval:
    """The mean over strata, numbered from 0, of their means."""
    counts = groups.patients, groups.unknown
    reason = _too_few(groups)
    if not np.isfinite(values).all():
        reason = "some values are infinite"
    if reason:
        return Interval(_macro_mean(values, strata), np.nan, np.nan, *counts, reason)
    patients, code = numbered(groups.codes)
    shape = patients, int(strata.max()) + 1
    place = code * shape[1] + strata
    sums, sizes = (
        np.bincount(place, weights=weights, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
        for weights in (values, None)
    )
    value, se, df = _jackknife(sums, sizes)
    if bounds is not None and (values.min() < bounds[0] - _END or values.max() > bounds[1] + _END):
        bounds = None
    if np.isnan(se):
        return Interval(value, np.nan, np.nan, *counts, "every group comes from one patient")
    if bounds is not None and shape[1] == 1 and _on_ends(values, bounds):
        return _share(value, se, df, len(values), counts, bounds)
    reach = se * _quantile(df)
    low, high = value - reach, value + reach
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Interval(value, low, high, *counts, se=se, df=df)


def _sums(code: NDArray[np.int64], column: Floats) -> Floats:
    sums: Floats = np.bincount(code, weights=column).astype(np.float64)
    return sums[:, None]


def _too_few(groups: Clusters) -> str:
    if not len(groups):
        return "no values"
    if groups.patients + groups.unknown >= MIN_PATIENTS:
        return ""
    return f"{patients_in_words(groups.patients, groups.unknown)}: an interval needs at least {MIN_PATIENTS}"


def _macro_mean(values: Floats, strata: NDArray[np.int64]) -> float:
    if not len(values):
        return np.nan
    with np.errstate(invalid="ignore"):  # inf - inf
        return float((np.bincount(strata, weights=values) / np.bincount(strata)).mean())


def _jackknife(sums: Floats, sizes: Floats) -> tuple[float, float, float]:
    """Mean over K strata, its standard error and degrees of freedom, from `(C, K)` patients by strata."""
    strata = sums.shape[1]
    totals, patients = sizes.sum(axis=0), (sizes > 0).sum(axis=0)
    means = sums.sum(axis=0) / totals
    several = patients > 1
    if not several.any():
        return float(means.mean()), np.nan, np.nan
    rest = np.where(several, totals - sizes, np.inf)  # a stratum of one patient moves nothing
    factors = np.sqrt((patients - 1) / patients) / rest
    moves = factors * (sums - sizes * means)  # (C, K)
    variance = float((moves.sum(axis=1) ** 2).sum()) / strata**2
    # Strata of one patient: the variance between patients, averaged over the other strata.
    between = float((patients * (moves**2).sum(axis=0))[several].mean())
    variance += int((~several).sum()) * between / strata**2
    return float(means.mean()), math.sqrt(variance), _degrees_of_freedom(factors, sizes)


def _degrees_of_freedom(factors: Floats, sizes: Floats) -> float:
    """(tr M)^2 / tr(M M) of the moves' covariance M = diag(p) - U U^T, without making the matrix."""
    diagonal = (factors**2 * sizes).sum(axis=1)
    outer = factors * sizes / np.sqrt(sizes.sum(axis=0))
    trace = diagonal.sum() - (outer**2).sum()
    squared = (
        (diagonal**2).sum() - 2 * (diagonal * (outer**2).sum(axis=1)).sum() + ((outer.T @ outer) ** 2).sum()
    )
    return float(trace**2 / squared)


def _quantile(df: float) -> float:
    return float(stdtrit(df, 1 - _TAIL))


def _on_ends(values: Floats, bounds: Range) -> bool:
    low, high = bounds
    if not math.isfinite(high - low):
        return False
    return bool(((np.abs(values - low) < _END) | (np.abs(values - high) < _END)).all())


def _share(value: float, se: float, df: float, n: int, counts: tuple[int, int], bounds: Range) -> Interval:
    """Of values on the ends of their range: Wilson's, for as many independent values as say as much.

    Where all lie on one end, they count as one value for each patient, and the interval is the binomial's.
    """
    low, width = bounds[0], bounds[1] - bounds[0]
    share = (value - low) / width
    if min(share, 1 - share) < _END:
        effective = float(sum(counts))
        least = _TAIL ** (1 / effective)
        first, last = (least, 1.0) if share > 0.5 else (0.0, 1 - least)
    else:
        variance = (se / width * _quantile(df) / _NORMAL) ** 2
        effective = min(float(n), share * (1 - share) / variance) if variance else float(n)
        first, last = wilson(share * effective, effective)
    ends = low + width * first, low + width * last
    return Interval(value, *ends, *counts, se=se, df=df, range=bounds, effective=effective)


def _share_p_value(share: float, effective: float, supposed: float) -> float:
    """What the interval of `_share` is the inversion of: the score test, or the binomial's tail doubled."""
    if min(share, 1 - share) < _END:
        return min(1.0, 2 * (supposed if share > 0.5 else 1 - supposed) ** effective)
    if not 0 < supposed < 1:
        return 0.0
    z = abs(share - supposed) / math.sqrt(supposed * (1 - supposed) / effective)
    return math.erfc(z / math.sqrt(2))
