"""PSNR and SSIM of what should not have changed: the image without the edited region.

`background_*` is the paper's definition. `background_as_released` is what the public script computes, where
indexing with an integer array paints one or two rows white instead of removing the region.
"""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np

from mie.errors import MetricError
from mie.images import kernels as _pair
from mie.records import Mask, Pixels
from mie.scoring.metric import DECIBELS, Metric
from mie.scoring.metrics.psnr import decibel
from mie.scoring.metrics.ssim import (
    SIMILARITY,
    WINDOW,
    check_window,
    slide_columns,
    ssim,
    ssim_psnr,
    ssim_value,
    sum_seven,
)


def background_psnr(a: Pixels, b: Pixels, region: Mask) -> float:
    """PSNR in dB with the MSE over the pixels outside `region` `(H, W) bool`; inf when equal there.

    MetricError when the region covers the whole image.
    """
    a, b = _pair.pixels(a, b)
    return _psnr(a, b, _pair.mask(region, a))


def background_ssim(a: Pixels, b: Pixels, region: Mask) -> float:
    """Mean SSIM (7x7, as `ssim`) over the windows that lie wholly in the image and outside `region`.

    MetricError under 7 px and when no such window exists.
    """
    a, b = _pair.pixels(a, b)
    return _ssim(a, b, _pair.mask(region, a))


def background_ssim_psnr(a: Pixels, b: Pixels, region: Mask) -> tuple[float, float]:
    """`(background_ssim, background_psnr)`; MetricError when either has no value (ask each alone then)."""
    a, b = _pair.pixels(a, b)
    region = _pair.mask(region, a)
    return _ssim(a, b, region), _psnr(a, b, region)


def background_as_released(a: Pixels, b: Pixels, region: Mask) -> tuple[float, float]:
    """`(ssim, psnr)` as the released script gets them: whole images, with row 0 white if the region has a
    pixel and row 1 white if the background has one, in both images. MetricError under 7 px.
    """
    a, b = _pair.pixels(a, b)
    region = _pair.mask(region, a)
    check_window(a, WINDOW)
    a, b = a.copy(), b.copy()
    for row, painted in ((0, region.any()), (1, not region.all())):
        if painted:
            a[row] = b[row] = 255
    return ssim_psnr(a, b)


def _psnr(a: Pixels, b: Pixels, region: Mask) -> float:
    squares, outside = _squared_error(a.reshape(-1), b.reshape(-1), region.reshape(-1))
    if outside == 0:
        raise MetricError("the region covers the whole image: no background")
    return decibel(squares, 3 * outside)


def _ssim(a: Pixels, b: Pixels, region: Mask) -> float:
    check_window(a, WINDOW)
    total, windows = _sum_ssim(_pair.rows(a), _pair.rows(b), region)
    if windows == 0:
        raise MetricError("no 7x7 window lies outside the region")
    return float(total / (3 * windows))


@numba.njit(cache=True, nogil=True)
def _squared_error(a, b, region):  # type: ignore[no-untyped-def]
    """Sum of (a - b)^2 over the pixels outside the region, and their number; flat arrays."""
    total, outside = np.int64(0), np.int64(0)
    for i in range(region.shape[0]):
        d0 = np.int32(a[3 * i]) - np.int32(b[3 * i])
        d1 = np.int32(a[3 * i + 1]) - np.int32(b[3 * i + 1])
        d2 = np.int32(a[3 * i + 2]) - np.int32(b[3 * i + 2])
        keep = np.int32(1) - np.int32(region[i])
        total += np.int32(keep * np.int32(d0 * d0 + d1 * d1 + d2 * d2))
        outside += keep
    return total, outside


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _sum_ssim(a, b, region):  # type: ignore[no-untyped-def]
    """Sum of SSIM over free windows and channels, and the number of free windows. As `ssim._mean_ssim`."""
    height, width = a.shape
    ab, q, p = np.zeros(width, np.int32), np.zeros(width, np.int32), np.zeros(width, np.int32)
    inner = width - 18
    ab7, q7, p7 = np.empty(inner, np.int32), np.empty(inner, np.int32), np.empty(inner, np.int32)
    nothing = np.zeros(width, np.uint8)
    totals = np.zeros(inner)
    marked = np.zeros(region.shape[1], np.int32)  # region pixels among the seven rows, per column
    free = np.empty(inner)  # 1.0 where the window has no region pixel, per channel
    windows = 0
    for y in range(height):
        if y < 7:
            slide_columns(ab, q, p, a[y], b[y], nothing, nothing)
            for x in range(marked.shape[0]):
                marked[x] += np.int32(region[y, x])
        else:
            slide_columns(ab, q, p, a[y], b[y], a[y - 7], b[y - 7])
            for x in range(marked.shape[0]):
                marked[x] += np.int32(region[y, x]) - np.int32(region[y - 7, x])
        if y < 6:
            continue
        in_row = _free_windows(free, marked)
        windows += in_row
        if in_row == 0:
            continue
        sum_seven(ab7, ab)
        sum_seven(q7, q)
        sum_seven(p7, p)
        for i in range(inner):
            totals[i] += free[i] * ssim_value(ab7[i], q7[i], p7[i])
    return totals.sum(), windows


@numba.njit(cache=True, nogil=True)
def _free_windows(free, marked):  # type: ignore[no-untyped-def]
    m = marked
    count = 0
    for x in range(marked.shape[0] - 6):
        inside = m[x] + m[x + 1] + m[x + 2] + m[x + 3] + m[x + 4] + m[x + 5] + m[x + 6]
        value = np.float64(inside == 0)
        free[3 * x] = value
        free[3 * x + 1] = value
        free[3 * x + 2] = value
        count += inside == 0
    return count


# Context preservation (MedEBench): how well an edit kept what lies outside its region.
#
# The paper's definition is `background_ssim` of input and output: windows that touch the region do not count.
# The released script zeroes the region in both images and measures the whole, so that an edit which changes
# only a small part of a large region's image gains from every zeroed window.


def context_preservation(image: Pixels, output: Pixels, region: Mask) -> float:
    """Mean SSIM over the windows wholly outside `region` `(H, W) bool`; MetricError where there is none."""
    return background_ssim(image, output, region)


def context_as_released(image: Pixels, output: Pixels, mask: Pixels) -> float:
    """SSIM of both images times (1 - mask / 255), `(H, W) uint8`, cut to whole numbers."""
    if mask.shape != image.shape[:2] or mask.dtype != np.uint8:
        raise MetricError(
            "the mask does not fit the image",
            expected=f"{image.shape[:2]} uint8",
            found=f"{mask.shape} {mask.dtype}",
        )
    return ssim(_outside(image, mask), _outside(output, mask))


def _outside(image: Pixels, mask: Pixels) -> Pixels:
    # In float32 and in this order, as there: a pixel may lose a grey level to rounding before it is cut.
    scale = np.float32(255)
    kept = np.float32(1) - mask.astype(np.float32) / scale
    return (image.astype(np.float32) / scale * kept[:, :, None] * scale).astype(np.uint8)


# An edit that changes what is there, inside an area: the definition of the background with what surrounds the
# area left out.


def changed_psnr(a: Pixels, b: Pixels, area: Mask) -> float:
    """PSNR in dB with the MSE over the pixels inside `area` `(H, W) bool`; inf when equal there.

    MetricError when the area is empty.
    """
    if not area.any():
        raise MetricError("the area that changes is empty")
    return background_psnr(a, b, ~area)


def changed_ssim(a: Pixels, b: Pixels, area: Mask) -> float:
    """Mean SSIM (7x7, as `ssim`) over the windows that lie wholly inside `area`.

    MetricError under 7 px and when no such window exists.
    """
    a, b = _pair.pixels(a, b)
    check_window(a, WINDOW)
    total, windows = _sum_ssim(_pair.rows(a), _pair.rows(b), _pair.mask(~area, a))
    if windows == 0:
        raise MetricError("no 7x7 window lies inside the area that changes")
    return float(total / (3 * windows))


B_PSNR = Metric(
    "b_psnr",
    "B-PSNR",
    "how well the background outside the region was kept",
    "dB",
    1,
    needs={"reference", "region"},
    function=lambda output, reference, region: background_psnr(reference, output, region),
    scale=DECIBELS,
)
B_SSIM = Metric(
    "b_ssim",
    "B-SSIM",
    "structural similarity of the background outside the region",
    needs={"reference", "region"},
    function=lambda output, reference, region: background_ssim(reference, output, region),
    scale=SIMILARITY,
)
CHANGED_PSNR = Metric(
    "changed_psnr",
    "PSNR, changed area",
    "closeness to the reference inside the area that changes",
    "dB",
    1,
    needs={"reference", "region"},
    function=lambda output, reference, region: changed_psnr(reference, output, region),
    scale=DECIBELS,
)
CHANGED_SSIM = Metric(
    "changed_ssim",
    "SSIM, changed area",
    "structural similarity to the reference inside the area that changes",
    needs={"reference", "region"},
    function=lambda output, reference, region: changed_ssim(reference, output, region),
    scale=SIMILARITY,
)
UNCHANGED_PSNR = replace(
    B_PSNR,
    name="unchanged_psnr",
    label="PSNR, unchanged area",
    meaning="how well what lies outside the area that changes was kept",
)
UNCHANGED_SSIM = replace(
    B_SSIM,
    name="unchanged_ssim",
    label="SSIM, unchanged area",
    meaning="structural similarity of what lies outside the area that changes",
)
CP = Metric(
    "cp",
    "CP",
    "context preservation: SSIM outside the region",
    decimals=2,
    needs={"input", "region"},
    function=lambda output, input, region: context_preservation(input, output, region),
    scale=SIMILARITY,
)
