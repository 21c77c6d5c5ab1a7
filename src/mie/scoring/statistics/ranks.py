"""Orders compared: ranks with ties averaged, Spearman, Kendall's tau-b and W."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]


def average_ranks(values: ArrayLike) -> Floats:
    """Ranks of `(m,)` from 1 for the smallest; equal values share the mean of their places.

    >>> average_ranks([30, 10, 20, 10]).tolist()
    [4.0, 1.5, 3.0, 1.5]
    """
    x = np.asarray(values, np.float64)
    _, place, times = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    ranks: Floats = (last - (times - 1) / 2)[place]
    return ranks


def spearman_formula(a: ArrayLike, b: ArrayLike) -> float:
    """1 - 6 sum d^2 / (m (m^2 - 1)) on ranks with ties averaged, as MedEBench states it.

    Exact without ties. With ties it is drawn upwards: against values that are all equal it is 0.5, not
    undefined. `spearman` is the correlation proper. nan for fewer than two values.
    """
    x, y = average_ranks(a), average_ranks(b)
    m = len(x)
    if m < 2:
        return np.nan
    return float(1 - 6 * ((x - y) ** 2).sum() / (m * (m**2 - 1)))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Pearson's correlation of the ranks, which is right with ties too; nan where one side is constant."""
    x, y = (ranks - ranks.mean() for ranks in (average_ranks(a), average_ranks(b)))
    spread = float((x @ x) * (y @ y))
    return float(x @ y) / np.sqrt(spread) if spread else np.nan


def kendall_tau_b(a: ArrayLike, b: ArrayLike) -> float:
    """(concordant - discordant) / sqrt(pairs untied in a * pairs untied in b); nan for a constant side."""
    # By ranks: a difference of two infinities would be no number.
    x, y = (np.sign(np.subtract.outer(r, r)) for r in (average_ranks(a), average_ranks(b)))
    untied = float(np.abs(x).sum() * np.abs(y).sum())
    return float((x * y).sum() / np.sqrt(untied)) if untied else np.nan


def kendall_w(ratings: ArrayLike) -> float:
    """Kendall's coefficient of concordance of `(raters, items)`, corrected for ties; 1 is full agreement.

    W = (12 sum R^2 - 3 n^2 k (k + 1)^2) / (n^2 k (k^2 - 1) - n sum T), where R are the items' sums of ranks
    and T adds t^3 - t over a rater's ties. nan for fewer than two raters or items, or when nobody tells any
    two items apart.
    """
    table = np.asarray(ratings, np.float64)
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


# Agreement of two who score on one scale: within a step of each other, and beyond chance.


def within(a: ArrayLike, b: ArrayLike, *, step: float = 1.0) -> NDArray[np.bool_]:
    """Where |a - b| <= step, `(N,)`. With step 1 its mean is ImgEdit's alignment of a judge with people."""
    # A mean of thirds may miss the step by a rounding.
    close: NDArray[np.bool_] = np.abs(np.subtract(a, b, dtype=np.float64)) <= step + 1e-9
    return close


def quadratic_kappa(a: ArrayLike, b: ArrayLike) -> float:
    """Cohen's kappa with quadratic weights; 1 is full agreement, 0 what chance gives.

    1 - mean (a_i - b_i)^2 / mean over all i, j of (a_i - b_j)^2. On whole steps this is the usual sum over a
    confusion matrix, and it asks for no categories, so scores that are means of several need no rounding. nan
    when both give the same constant.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not len(x):
        return np.nan
    by_chance = float(x.var() + y.var() + (x.mean() - y.mean()) ** 2)
    return float(1 - ((x - y) ** 2).mean() / by_chance) if by_chance else np.nan


# Krippendorff's alpha: agreement of any number of raters, some of whom left some units out.

LEVELS: Final = ("nominal", "ordinal", "interval")


def krippendorff_alpha(ratings: ArrayLike, level: str = "interval") -> float:
    """1 - observed / expected disagreement of `(raters, units)`, nan where a rating is missing.

    `level` says what a difference is: "nominal" (equal or not), "ordinal" (how many ratings lie between),
    "interval" (the squared difference). Units with fewer than two ratings say nothing and are left out. nan
    when nothing is left, or when all ratings are the same: without variation there is no reliability.
    """
    if level not in LEVELS:
        raise ConfigError(f"no level of measurement named {level!r}", expected=", ".join(LEVELS))
    table = np.asarray(ratings, np.float64)
    given = ~np.isnan(table)
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


def _distance(values: NDArray[np.float64], totals: NDArray[np.float64], level: str) -> NDArray[np.float64]:
    """Squared difference of each two values, `(V, V)`."""
    if level == "nominal":
        return 1.0 - np.eye(len(values))
    if level == "interval":
        return np.subtract.outer(values, values) ** 2
    # Ordinal: the ratings from one value to the other, each end counted half.
    middle = np.cumsum(totals) - totals / 2
    return np.subtract.outer(middle, middle) ** 2
