"""Structural similarity with a 7x7 uniform window, equal to scikit-image's default.

With N = 49 and the window sums A = sum a, B = sum b, Q = sum (a^2 + b^2), P = sum a b, the sample covariances
(N / (N - 1)) and means of

    SSIM = (2 ma mb + C1) (2 vab + C2) / ((ma^2 + mb^2 + C1) (va + vb + C2))

have a common denominator that cancels:

    SSIM = (2 A B + N^2 C1) (2 (N P - A B) + N (N - 1) C2)
           / ((A^2 + B^2 + N^2 C1) (N Q - A^2 - B^2 + N (N - 1) C2))

A^2 + B^2 and N Q stay below 49^2 * 2 * 255^2 = 312,240,050 < 2^31, so everything up to the constants is
exact in 32-bit integers. The sums slide: a new row enters the column sums, the row seven above leaves.
The loops are short, branchless and over contiguous memory, so that they become SIMD code; the three channels
stay interleaved (neighbours of one channel lie 3 apart), which spares taking them apart.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from mie.errors import MetricError
from mie.images import kernels as _pair
from mie.records import Pixels
from mie.scoring.metric import Metric
from mie.scoring.metrics.psnr import decibel, squared_error

WINDOW = 7
SIMILARITY = (-1.0, 1.0)  # the scale of SSIM
# K1 = .01, K2 = .03, range 255; times N^2 and N (N - 1), see above.
_C1 = 49 * 49 * (0.01 * 255) ** 2
_C2 = 49 * 48 * (0.03 * 255) ** 2


def ssim(a: Pixels, b: Pixels) -> float:
    """Mean SSIM of two `(H, W, 3) uint8` images over channels and all windows that lie inside the image.

    As `skimage.metrics.structural_similarity(a, b, channel_axis=2)`. MetricError under 7 px.
    """
    a, b = _pair.pixels(a, b)
    check_window(a, WINDOW)
    return float(_mean_ssim(_pair.rows(a), _pair.rows(b)))


def ssim_psnr(a: Pixels, b: Pixels) -> tuple[float, float]:
    """`(ssim(a, b), psnr(a, b))` with one look at the arguments. MetricError under 7 px."""
    a, b = _pair.pixels(a, b)
    check_window(a, WINDOW)
    squares = squared_error(a.reshape(-1), b.reshape(-1))
    return float(_mean_ssim(_pair.rows(a), _pair.rows(b))), decibel(squares, a.size)


def check_window(image: Pixels, window: int) -> None:
    if min(image.shape[:2]) < window:
        raise MetricError(
            "the image is smaller than the SSIM window",
            expected=f"at least {window}x{window}",
            found=f"{image.shape[0]}x{image.shape[1]}",
        )


# numba's cache looks only at the file of the outer kernel: after a change below, touch background.py too.
@numba.njit(cache=True, nogil=True)
def slide_columns(ab, q, p, new_a, new_b, old_a, old_b):  # type: ignore[no-untyped-def]
    """Column sums over seven rows: one row enters, one leaves. All `(3 W)`, pixels uint8, sums int32.

    `ab` holds sum a in its low and sum b in its high 16 bits (49 * 255 = 12,495 fits): one sum less to slide.
    Three loops, as each vectorises alone; numba widens int32 + int32 to 64 bits, hence the casts.
    """
    for i in range(ab.shape[0]):
        step_a = np.int32(new_a[i]) - np.int32(old_a[i])
        step_b = np.int32(new_b[i]) - np.int32(old_b[i])
        ab[i] = np.int32(ab[i] + step_a + (step_b << 16))
    for i in range(q.shape[0]):
        enters = np.int32(new_a[i]) * np.int32(new_a[i]) + np.int32(new_b[i]) * np.int32(new_b[i])
        leaves = np.int32(old_a[i]) * np.int32(old_a[i]) + np.int32(old_b[i]) * np.int32(old_b[i])
        q[i] = np.int32(q[i] + enters - leaves)
    for i in range(p.shape[0]):
        enters = np.int32(new_a[i]) * np.int32(new_b[i])
        leaves = np.int32(old_a[i]) * np.int32(old_b[i])
        p[i] = np.int32(p[i] + enters - leaves)


@numba.njit(cache=True, nogil=True)
def sum_seven(sums, columns):  # type: ignore[no-untyped-def]
    """Window sums `(3 (W - 6))` from column sums `(3 W)`. Adding seven beats sliding: no waiting."""
    c = columns
    for i in range(sums.shape[0]):
        sums[i] = np.int32(c[i] + c[i + 3] + c[i + 6] + c[i + 9] + c[i + 12] + c[i + 15] + c[i + 18])


@numba.njit(cache=True, nogil=True, error_model="numpy")  # no test for division by zero in the loop
def ssim_value(ab, q, p):  # type: ignore[no-untyped-def]
    """SSIM of one window from its sums."""
    a = np.int32(ab & 0xFFFF)
    b = np.int32(ab >> 16)
    product = np.int32(a * b)
    squares = np.int32(np.int32(a * a) + np.int32(b * b))
    covariance = np.int32(2 * np.int32(np.int32(49 * p) - product))
    variances = np.int32(np.int32(49 * q) - squares)
    above = (np.float64(np.int32(2 * product)) + _C1) * (np.float64(covariance) + _C2)
    return above / ((np.float64(squares) + _C1) * (np.float64(variances) + _C2))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _mean_ssim(a, b):  # type: ignore[no-untyped-def]
    height, width = a.shape
    ab, q, p = np.zeros(width, np.int32), np.zeros(width, np.int32), np.zeros(width, np.int32)
    inner = width - 18
    ab7, q7, p7 = np.empty(inner, np.int32), np.empty(inner, np.int32), np.empty(inner, np.int32)
    nothing = np.zeros(width, np.uint8)
    # One running total per column: adding into a single float would forbid SIMD, and lose digits.
    totals = np.zeros(inner)
    for y in range(height):
        if y < 7:
            slide_columns(ab, q, p, a[y], b[y], nothing, nothing)
        else:
            slide_columns(ab, q, p, a[y], b[y], a[y - 7], b[y - 7])
        if y < 6:
            continue
        sum_seven(ab7, ab)
        sum_seven(q7, q)
        sum_seven(p7, p)
        for i in range(inner):
            totals[i] += ssim_value(ab7[i], q7[i], p7[i])
    return totals.sum() / (inner * (height - 6))


SSIM = Metric(
    "ssim",
    "SSIM",
    "structural similarity to the reference image",
    needs={"reference"},
    function=lambda output, reference: ssim(reference, output),
    scale=SIMILARITY,
)


# Structural similarity with the Gaussian window of Wang et al. (2004): sigma 1.5, eleven taps.

_SIGMA = 1.5
_RADIUS = 5  # scikit-image truncates at 3.5 sigma: int(3.5 * 1.5 + .5)
_HALF = [math.exp(-0.5 * (k / _SIGMA) ** 2) for k in range(_RADIUS + 1)]
# Weight of the middle tap, then of the pairs 1..5 away.
_TAPS = np.array(_HALF) / (2 * sum(_HALF) - _HALF[0])
_GAUSSIAN_C1 = (0.01 * 255) ** 2
_GAUSSIAN_C2 = (0.03 * 255) ** 2


def ssim_gaussian(a: Pixels, b: Pixels) -> float:
    """Mean over channels and over the windows inside the image, for two `(H, W, 3) uint8` images.

    As `skimage.metrics.structural_similarity(a, b, channel_axis=2, gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False)`. MetricError under 11 px.
    """
    a, b = _pair.pixels(a, b)
    check_window(a, 2 * _RADIUS + 1)
    return float(_mean_ssim_gaussian(_pair.rows(a), _pair.rows(b), _TAPS))


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
def _mean_ssim_gaussian(a, b, taps):  # type: ignore[no-untyped-def]
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
            above = (2 * product + _GAUSSIAN_C1) * (2 * (mean_p[i] - product) + _GAUSSIAN_C2)
            totals[i] += above / ((both + _GAUSSIAN_C1) * (mean_q[i] - both + _GAUSSIAN_C2))
    return totals.sum() / (inner * (height - 10))
