"""Peak signal-to-noise ratio of 8-bit images."""

from __future__ import annotations

import math

import numba
import numpy as np

from mie.images import kernels as _pair
from mie.records import Pixels
from mie.scoring.metric import DECIBELS, Metric


def psnr(a: Pixels, b: Pixels) -> float:
    """10 log10(255^2 / MSE) in dB, MSE over all pixels and channels of `(H, W, 3) uint8`; inf when equal."""
    a, b = _pair.pixels(a, b)
    return decibel(squared_error(a.reshape(-1), b.reshape(-1)), a.size)


def decibel(squares: int, count: int) -> float:
    """The PSNR of `count` values whose squared differences add up to `squares`."""
    return math.inf if squares == 0 else 10 * math.log10(255**2 / (squares / count))


@numba.njit(cache=True, nogil=True)
def squared_error(a, b):  # type: ignore[no-untyped-def]
    """Sum of (a - b)^2 over two flat uint8 arrays, exact."""
    total = np.int64(0)
    for i in range(a.shape[0]):
        difference = np.int32(a[i]) - np.int32(b[i])
        total += np.int32(difference * difference)
    return total


PSNR = Metric(
    "psnr",
    "PSNR",
    "closeness to the reference image",
    "dB",
    1,
    needs={"reference"},
    function=lambda output, reference: psnr(reference, output),
    scale=DECIBELS,
)
