"""Krippendorff's alpha: agreement of any number of raters, some of whom left some units out."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.errors import ConfigError

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
