"""Agreement of two who score on one scale: within a step of each other, and beyond chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
