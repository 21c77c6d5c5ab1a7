"""Orders compared: ranks with ties averaged, Spearman, Kendall's tau-b and W."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
