"""Arrays of numbers, and what is refused in them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.errors import MieError

Floats: TypeAlias = NDArray[np.float64]


def numbers(values: ArrayLike, *, finite: bool = False) -> Floats:
    """The values as floats. `MieError` for a nan, which is no number, and with `finite` for an infinity."""
    array = np.asarray(values, np.float64)
    wrong = ~np.isfinite(array) if finite else np.isnan(array)
    if wrong.any():
        raise MieError(
            "a value that is not a number" if np.isnan(array).any() else "an infinite value",
            expected="finite numbers" if finite else "numbers",
            found=f"{int(wrong.sum())} of {array.size} are not",
            fix="leave out what has no score, and count it as unscored",
        )
    return array
