"""Percentile bootstrap intervals of means, resampling whole patients.

A replicate draws C clusters with replacement from the C there are. Its mean needs only the sum and the size
of each cluster, so all replicates are one matrix product: (how often each cluster was drawn) x (sums, sizes).
The draws depend on the seed and on C alone: metrics over equally many clusters share them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

REPLICATES: Final = 2000
LEVEL: Final = 0.95
_CELLS: Final = 2_000_000  # of the matrix of draws that are in memory at once

Floats: TypeAlias = NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]


def bootstrap_mean(
    values: ArrayLike, clusters: ArrayLike | None = None, *, n: int = REPLICATES, seed: int = 0
) -> Interval:
    """The 95% interval of the mean of `values`, `(N,)`.

    `clusters`, `(N,)` of anything that can be compared, says which values belong together (one patient);
    without it every value stands alone. Fewer than two clusters say nothing about their spread: (nan, nan).
    Infinite values make the replicates that draw them infinite.

    >>> low, high = bootstrap_mean([0, 0, 1, 1])
    >>> low <= 0.5 <= high
    True
    """
    return bootstrap_means([(values, clusters)], n=n, seed=seed)[0]


def bootstrap_means(
    columns: Sequence[tuple[ArrayLike, ArrayLike | None]], *, n: int = REPLICATES, seed: int = 0
) -> list[Interval]:
    """`bootstrap_mean` of many (values, clusters) at once, drawing only once for each number of clusters."""
    tallies = [_tally(np.asarray(values, np.float64), clusters) for values, clusters in columns]
    out: list[Interval] = [(np.nan, np.nan)] * len(tallies)
    by_count: dict[int, list[int]] = {}
    for at, tally in enumerate(tallies):
        by_count.setdefault(tally.shape[0], []).append(at)
    for count, places in by_count.items():
        if count >= 2:
            low, high = _intervals(np.stack([tallies[at] for at in places], axis=1), n, seed)
            for at, bounds in zip(places, zip(low.tolist(), high.tolist(), strict=True), strict=True):
                out[at] = bounds
    return out


def bootstrap_macro(
    values: ArrayLike, strata: ArrayLike, clusters: ArrayLike, *, n: int = REPLICATES, seed: int = 0
) -> Interval:
    """The 95% interval of the mean over strata of the means of `values`, `(N,)`; whole clusters are drawn.

    Each among those that lie in the same strata. Drawn from all, strata of few clusters would often be
    missed, and the interval would be that of another mean. A stratum of one cluster adds no spread; where
    all are such, (nan, nan).
    """
    found = np.asarray(values, np.float64)
    _, stratum = np.unique(np.asarray(strata), return_inverse=True)
    names, cluster = np.unique(np.asarray(clusters), return_inverse=True)
    count, kinds = len(names), int(stratum.max(initial=-1)) + 1
    place = cluster * kinds + stratum
    sums = np.bincount(place, weights=found, minlength=count * kinds).reshape(count, kinds)
    sizes = np.bincount(place, minlength=count * kinds).reshape(count, kinds).astype(np.float64)
    alike: dict[bytes, list[int]] = {}
    for at, size in enumerate(sizes):
        alike.setdefault((size > 0).tobytes(), []).append(at)
    if all(len(some) < 2 for some in alike.values()):
        return (np.nan, np.nan)
    draw = np.random.default_rng(seed)
    total, drawn = np.zeros((n, kinds)), np.zeros((n, kinds))
    for some in alike.values():
        chosen = draw.integers(0, len(some), (n, len(some)))
        times = np.stack([np.bincount(row, minlength=len(some)) for row in chosen]).astype(np.float64)
        total += times @ sums[some]
        drawn += times @ sizes[some]
    low, high = np.quantile((total / drawn).mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def bootstrap_ratio(
    above: ArrayLike, below: ArrayLike, clusters: ArrayLike, *, n: int = REPLICATES, seed: int = 0
) -> Interval:
    """The 95% interval of sum(above) / sum(below), two columns `(N,)` whose rows belong together."""
    names, code = np.unique(np.asarray(clusters), return_inverse=True)
    count = len(names)
    if count < 2:
        return (np.nan, np.nan)
    sums = np.stack([np.bincount(code, weights=np.asarray(c, np.float64)) for c in (above, below)], axis=1)
    draw = np.random.default_rng(seed)
    totals = np.stack([sums[draw.integers(0, count, count)].sum(axis=0) for _ in range(n)])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.sort(totals[:, 0] / totals[:, 1])
    tail = (1 - LEVEL) / 2
    low, high = _quantile(ratios[:, None], tail), _quantile(ratios[:, None], 1 - tail)
    return float(low[0]), float(high[0])


def _tally(values: Floats, clusters: ArrayLike | None) -> Floats:
    """(C, 4): sum of the finite values, how many values, how many are +inf, how many -inf."""
    if clusters is None:
        code, count = np.arange(len(values)), len(values)
    else:
        names, code = np.unique(np.asarray(clusters), return_inverse=True)
        count = len(names)
    finite = np.isfinite(values)
    weights: tuple[NDArray[Any], ...] = (
        np.where(finite, values, 0.0),
        np.ones(len(values)),
        values == np.inf,
        values == -np.inf,
    )
    return np.stack([np.bincount(code, weights=w, minlength=count) for w in weights], axis=1)


def _intervals(tallies: Floats, n: int, seed: int) -> tuple[Floats, Floats]:
    """Bounds `(J,)` for J columns of tallies `(C, J, 4)`."""
    count, columns = tallies.shape[:2]
    flat = tallies.reshape(count, -1)
    draw = np.random.default_rng(seed)
    means = np.empty((n, columns))
    step = max(1, _CELLS // count)
    for start in range(0, n, step):
        rows = min(step, n - start)
        drawn = draw.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        sums = (times.astype(np.float64) @ flat).reshape(rows, columns, 4)
        means[start : start + rows] = _mean(sums)
    means.sort(axis=0)
    tail = (1 - LEVEL) / 2
    return _quantile(means, tail), _quantile(means, 1 - tail)


def _mean(sums: Floats) -> Floats:
    mean: Floats = sums[..., 0] / sums[..., 1]
    up, down = sums[..., 2] > 0, sums[..., 3] > 0
    mean[up] = np.inf
    mean[down] = -np.inf
    mean[up & down] = np.nan
    return mean


def _quantile(ordered: Floats, share: float) -> Floats:
    """Linear between the two nearest, as `numpy.quantile`, which would answer nan between inf and inf."""
    at = share * (len(ordered) - 1)
    low, high = ordered[int(np.floor(at))], ordered[int(np.ceil(at))]
    out: Floats = low.copy()
    differ = low != high
    out[differ] += (high[differ] - low[differ]) * (at - np.floor(at))
    return out


# Shares: how often yes was said, and how sure that is.


def wilson(successes: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """The Wilson score interval of a share, 95% by default; sound at 0, at n, and for small n.

    Neither needs to be whole: a weighted share of an effective number of answers has an interval too.

    >>> [round(x, 4) for x in wilson(9, 10)]
    [0.5958, 0.9821]
    """
    share, square = successes / n, z * z
    centre = share + square / (2 * n)
    spread = z * math.sqrt(max(0.0, share * (1 - share)) / n + square / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + square / n)), min(1.0, (centre + spread) / (1 + square / n))
