"""Structural similarity with the Gaussian window of Wang et al. (2004): sigma 1.5, eleven taps."""

from __future__ import annotations

import math

import numba
import numpy as np

from mie.metrics import _pair
from mie.metrics.ssim import check_window
from mie.records import Pixels

_SIGMA = 1.5
_RADIUS = 5  # scikit-image truncates at 3.5 sigma: int(3.5 * 1.5 + .5)
_HALF = [math.exp(-0.5 * (k / _SIGMA) ** 2) for k in range(_RADIUS + 1)]
# Weight of the middle tap, then of the pairs 1..5 away.
_TAPS = np.array(_HALF) / (2 * sum(_HALF) - _HALF[0])
_C1 = (0.01 * 255) ** 2
_C2 = (0.03 * 255) ** 2


def ssim_gaussian(a: Pixels, b: Pixels) -> float:
    """Mean over channels and over the windows inside the image, for two `(H, W, 3) uint8` images.

    As `skimage.metrics.structural_similarity(a, b, channel_axis=2, gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False)`. MetricError under 11 px.
    """
    a, b = _pair.pixels(a, b)
    check_window(a, 2 * _RADIUS + 1)
    return float(_mean_ssim(_pair.rows(a), _pair.rows(b), _TAPS))


@numba.njit(cache=True, nogil=True)
def _blur_columns(blurred, rows, y, taps):  # type: ignore[no-untyped-def]
    """The weighted mean of rows y-5..y+5. Rows the same distance away are added as integers first: exact."""
    for i in range(blurred.shape[0]):
        blurred[i] = taps[0] * np.float64(rows[y, i])
    for k in range(1, taps.shape[0]):
        weight, above, below = taps[k], rows[y - k], rows[y + k]
        for i in range(blurred.shape[0]):
            blurred[i] += weight * np.float64(np.int32(np.int32(above[i]) + np.int32(below[i])))


@numba.njit(cache=True, nogil=True)
def _blur_row(blurred, row, taps):  # type: ignore[no-untyped-def]
    """The same along the row, neighbours 3 apart: `(3 (W - 10))` from `(3 W)`."""
    w0, w1, w2, w3, w4, w5 = taps[0], taps[1], taps[2], taps[3], taps[4], taps[5]
    for i in range(blurred.shape[0]):
        blurred[i] = (
            w5 * (row[i] + row[i + 30])
            + w4 * (row[i + 3] + row[i + 27])
            + w3 * (row[i + 6] + row[i + 24])
            + w2 * (row[i + 9] + row[i + 21])
            + w1 * (row[i + 12] + row[i + 18])
            + w0 * row[i + 15]
        )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _mean_ssim(a, b, taps):  # type: ignore[no-untyped-def]
    height, width = a.shape
    squares, products = np.empty((height, width), np.int32), np.empty((height, width), np.int32)
    for y in range(height):
        for i in range(width):
            va, vb = np.int32(a[y, i]), np.int32(b[y, i])
            squares[y, i] = np.int32(va * va) + np.int32(vb * vb)
        for i in range(width):
            products[y, i] = np.int32(a[y, i]) * np.int32(b[y, i])
    inner = width - 30
    column = np.empty(width)
    mean_a, mean_b, mean_q, mean_p = np.empty(inner), np.empty(inner), np.empty(inner), np.empty(inner)
    totals = np.zeros(inner)
    for y in range(5, height - 5):
        _blur_columns(column, a, y, taps)
        _blur_row(mean_a, column, taps)
        _blur_columns(column, b, y, taps)
        _blur_row(mean_b, column, taps)
        _blur_columns(column, squares, y, taps)
        _blur_row(mean_q, column, taps)
        _blur_columns(column, products, y, taps)
        _blur_row(mean_p, column, taps)
        for i in range(inner):
            product = mean_a[i] * mean_b[i]
            both = mean_a[i] * mean_a[i] + mean_b[i] * mean_b[i]
            above = (2 * product + _C1) * (2 * (mean_p[i] - product) + _C2)
            totals[i] += above / ((both + _C1) * (mean_q[i] - both + _C2))
    return totals.sum() / (inner * (height - 10))
