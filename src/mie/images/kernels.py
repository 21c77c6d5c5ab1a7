"""The one form in which pixels reach the kernels."""

from __future__ import annotations

import numpy as np

from mie.errors import MetricError
from mie.records import Mask, Pixels


def pixels(a: Pixels, b: Pixels) -> tuple[Pixels, Pixels]:
    """Both images as writable C-contiguous `(H, W, 3) uint8`, after checking that they can be compared.

    Writable and contiguous, because numba compiles a kernel anew for read-only or strided arrays (a second
    each); copying such an array once takes 40 microseconds.
    """
    if a.shape != b.shape:
        raise MetricError("images differ in size", expected=a.shape, found=b.shape, fix="use resize_to first")
    if a.dtype != np.uint8 or b.dtype != np.uint8 or a.ndim != 3 or a.shape[2] != 3 or a.size == 0:
        raise MetricError(
            "not an 8-bit RGB pair", expected="(H, W, 3) uint8", found=f"{a.shape} {a.dtype}, {b.dtype}"
        )
    return np.require(a, requirements=["C", "W"]), np.require(b, requirements=["C", "W"])


def mask(region: Mask, image: Pixels) -> Mask:
    """The region as a writable C-contiguous `(H, W) bool` of the image's size."""
    if region.shape != image.shape[:2] or region.dtype != np.bool_:
        raise MetricError(
            "the mask does not fit the image",
            expected=f"{image.shape[:2]} bool",
            found=f"{region.shape} {region.dtype}",
        )
    return np.require(region, requirements=["C", "W"])


def rows(image: Pixels) -> Pixels:
    """`(H, 3 W)`: a view in which neighbours of one channel lie 3 apart."""
    return image.reshape(image.shape[0], -1)
