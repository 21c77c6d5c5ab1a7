"""Painting a region on an image, and reading the painted region back.

Overlay:   O = (1 - a) I + a C inside the region, I outside; a = 0.6 and C pure red, green or blue.
De-blend:  alpha = ((M - I) . (C - I)) / (|C - I|^2 + 1e-6); the mask is alpha > 0.5.
"""

from __future__ import annotations

import numba
import numpy as np

from mie.errors import ImageError
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS, OPACITY


def paint(image: Pixels, mask: Mask, colour: str, opacity: float = OPACITY) -> Pixels:
    """A copy of `(H, W, 3)` with the region blended towards the colour, rounded half up."""
    if mask.shape != image.shape[:2]:
        raise ImageError("mask and image differ in size", expected=image.shape[:2], found=mask.shape)
    levels = np.arange(256)[:, None]
    table = np.floor((1 - opacity) * levels + opacity * np.array(COLOURS[colour]) + 0.5).astype(np.uint8)
    painted = np.array(image, order="C")
    _paint(painted, mask, table)
    return painted


@numba.njit(cache=True)
def _paint(image, mask, table):  # type: ignore[no-untyped-def]
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            if mask[y, x]:
                for channel in range(3):
                    image[y, x, channel] = table[image[y, x, channel], channel]


def deblend(image: Pixels, output: Pixels, colour: str) -> Mask:
    """Where `output` looks like `image` painted in `colour`: `(H, W) bool`.

    In integers, without the division: alpha > 0.5 holds exactly when 2 (M - I).(C - I) > |C - I|^2, because
    both sides are whole numbers and the 1e-6 only breaks the tie towards "not painted".
    """
    if image.shape != output.shape:
        raise ImageError("input and output differ in size", expected=image.shape, found=output.shape)
    red, green, blue = COLOURS[colour]
    return _deblend(np.ascontiguousarray(image), np.ascontiguousarray(output), red, green, blue)


@numba.njit(cache=True)
def _deblend(image, output, red, green, blue):  # type: ignore[no-untyped-def]
    height, width = image.shape[:2]
    mask = np.empty((height, width), np.bool_)
    for y in range(height):
        for x in range(width):
            i0 = np.int32(image[y, x, 0])
            i1 = np.int32(image[y, x, 1])
            i2 = np.int32(image[y, x, 2])
            d0 = np.int32(output[y, x, 0]) - i0
            d1 = np.int32(output[y, x, 1]) - i1
            d2 = np.int32(output[y, x, 2]) - i2
            if (d0 | d1 | d2) == 0:  # unchanged, as most of an image is: alpha is 0
                mask[y, x] = False
                continue
            c0 = np.int32(red) - i0
            c1 = np.int32(green) - i1
            c2 = np.int32(blue) - i2
            mask[y, x] = 2 * (d0 * c0 + d1 * c1 + d2 * c2) > c0 * c0 + c1 * c1 + c2 * c2
    return mask


def deblend_any(image: Pixels, output: Pixels) -> Mask:
    """The union over the three colours, as the released script reads `Multiclasses` samples."""
    union: Mask = np.zeros(image.shape[:2], np.bool_)
    for colour in COLOURS:
        union |= deblend(image, output, colour)
    return union


def dice(x: Mask, y: Mask) -> float:
    """(2 |X and Y| + 1e-6) / (|X| + |Y| + 1e-6): 1 for two empty masks."""
    both = int(np.count_nonzero(x & y))
    total = int(np.count_nonzero(x)) + int(np.count_nonzero(y))
    return (2 * both + 1e-6) / (total + 1e-6)
