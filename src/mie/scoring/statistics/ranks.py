"""How far orders and scores agree: rank correlations, concordance, kappa, Krippendorff's alpha.

SciPy has Spearman's and Kendall's coefficients too. They are taken over a handful of models for thousands of
samples, where these are three to five times as fast; the tests hold both to SciPy's numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.core.registry import unknown_name
from mie.scoring.statistics.arrays import Floats, numbers

LEVELS: Final = ("nominal", "ordinal", "interval")


def average_ranks(values: ArrayLike) -> Floats:
    """Rank `(m,)` from 1 for the smallest; equal values share the mean of their places.

    Infinite values have ranks. A nan has none and is refused (`MieError`).

    >>> average_ranks([30, 10, 20, 10]).tolist()
    [4.0, 1.5, 3.0, 1.5]
    """
    _, place, times = np.unique(numbers(values), return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    ranks: Floats = (last - (times - 1) / 2)[place]
    return ranks


def spearman_formula(a: ArrayLike, b: ArrayLike) -> float:
    """1 - 6 sum d^2 / (m (m^2 - 1)) on ranks with ties averaged, as MedEBench states it.

    Exact without ties. With ties it is drawn upwards: against values that are all equal it is 0.5, not
    undefined. `spearman` is the correlation proper. nan for fewer than two values; a nan is refused.
    """
    x, y = average_ranks(a), average_ranks(b)
    m = len(x)
    if m < 2:
        return np.nan
    return float(1 - 6 * ((x - y) ** 2).sum() / (m * (m**2 - 1)))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Pearson's correlation of the ranks, which is right with ties too; nan where one side is constant.

    A nan is refused.
    """
    x, y = (ranks - ranks.mean() for ranks in (average_ranks(a), average_ranks(b)))
    spread = float((x @ x) * (y @ y))
    return float(x @ y) / np.sqrt(spread) if spread else np.nan


def kendall_tau_b(a: ArrayLike, b: ArrayLike) -> float:
    """(concordant - discordant) / sqrt(pairs untied in a * pairs untied in b); nan for a constant side.

    A nan is refused.
    """
    # By ranks: a difference of two infinities would be no number.
    x, y = (np.sign(np.subtract.outer(r, r)) for r in (average_ranks(a), average_ranks(b)))
    untied = float(np.abs(x).sum() * np.abs(y).sum())
    return float((x * y).sum() / np.sqrt(untied)) if untied else np.nan


def kendall_w(ratings: ArrayLike) -> float:
    """Kendall's coefficient of concordance of `(raters, items)`, corrected for ties; 1 is full agreement.

    W = (12 sum R^2 - 3 n^2 k (k + 1)^2) / (n^2 k (k^2 - 1) - n sum T), where R are the items' sums of ranks
    and T adds t^3 - t over a rater's ties. nan for fewer than two raters or items, or when nobody tells any
    two items apart. A nan among the ratings is refused.
    """
    table = numbers(ratings)
    n, k = table.shape
    if n < 2 or k < 2:
        return np.nan
    ranks = np.stack([average_ranks(row) for row in table])
    ties = 0.0
    for row in ranks:
        times = np.unique(row, return_counts=True)[1].astype(np.float64)
        ties += float((times**3 - times).sum())
    below = n**2 * k * (k**2 - 1) - n * ties
    if below == 0:
        return np.nan
    return float((12 * (ranks.sum(axis=0) ** 2).sum() - 3 * n**2 * k * (k + 1) ** 2) / below)


def within(a: ArrayLike, b: ArrayLike, *, step: float = 1.0) -> NDArray[np.bool_]:
    """Where |a - b| <= step, `(N,)`. With step 1 its mean is ImgEdit's alignment of a judge with people.

    A nan and an infinite score are refused.
    """
    # A mean of thirds may miss the step by a rounding.
    close: NDArray[np.bool_] = np.abs(numbers(a, finite=True) - numbers(b, finite=True)) <= step + 1e-9
    return close


def quadratic_kappa(a: ArrayLike, b: ArrayLike) -> float:
    """Cohen's kappa with quadratic weights; 1 is full agreement, 0 what chance gives.

    1 - mean (a_i - b_i)^2 / mean over all i, j of (a_i - b_j)^2. On whole steps this is the usual sum over a
    confusion matrix, and it asks for no categories, as libraries do, so scores that are means of several need
    no rounding. nan when both give the same constant. A nan and an infinite score are refused.
    """
    x, y = numbers(a, finite=True), numbers(b, finite=True)
    if not len(x):
        return np.nan
    by_chance = float(x.var() + y.var() + (x.mean() - y.mean()) ** 2)
    return float(1 - ((x - y) ** 2).mean() / by_chance) if by_chance else np.nan


def krippendorff_alpha(ratings: ArrayLike, level: str = "interval") -> float:
    """Krippendorff's alpha of `(raters, units)`: 1 - observed / expected disagreement.

    A nan is a missing rating, an infinite one is refused. `level` says what a difference is: "nominal" (equal
    or not), "ordinal" (how many ratings lie between), "interval" (the squared difference). Units with fewer
    than two ratings say nothing and are left out. nan when nothing is left, or when all ratings are the same:
    without variation there is no reliability.

    The package `krippendorff` gives the same numbers, but its memory grows with units x values^2: 1 TB for
    2,000 units of four scores that all differ.
    """
    if level not in LEVELS:
        raise unknown_name("level of measurement", level, LEVELS)
    table = np.asarray(ratings, np.float64)
    given = ~np.isnan(table)
    numbers(table[given], finite=True)
    pairable = given.sum(axis=0) >= 2
    table, given = table[:, pairable], given[:, pairable]
    if not table.size:
        return np.nan
    values, codes = np.unique(table[given], return_inverse=True)
    if len(values) < 2:
        return np.nan
    units = np.broadcast_to(np.arange(table.shape[1]), table.shape)[given]
    counts = np.zeros((table.shape[1], len(values)))  # (units, values): how often a value was given
    np.add.at(counts, (units, codes), 1)
    sizes = counts.sum(axis=1)
    # Coincidences: every ordered pair of ratings within a unit, weighted by 1 / (ratings of the unit - 1).
    weighted = counts / (sizes - 1)[:, None]
    coincidences = counts.T @ weighted - np.diag(weighted.sum(axis=0))
    totals = coincidences.sum(axis=0)
    distance = _distance(values, totals, level)
    observed = (coincidences * distance).sum()
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    return float(1 - observed / expected)


def _distance(values: Floats, totals: Floats, level: str) -> Floats:
    """Squared difference of each two values, `(V, V)`."""
    if level == "nominal":
        return 1.0 - np.eye(len(values))
    if level == "interval":
        return np.subtract.outer(values, values) ** 2
    # Ordinal: the ratings from one value to the other, each end counted half.
    middle = np.cumsum(totals) - totals / 2
    return np.subtract.outer(middle, middle) ** 2
