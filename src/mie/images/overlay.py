"""Painting a region on an image, and reading the painted region back.

Overlay:   O = (1 - a) I + a C inside the region, I outside; a = 0.6 and C pure red, green or blue.
De-blend:  alpha = ((M - I) . (C - I)) / (|C - I|^2 + 1e-6); the mask is alpha > 0.5.
"""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ImageError
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS, OPACITY

_BAND: Final = 32  # rows at a time, so that the floats of a large region stay in the cache
_SUM: Final = np.ones((1, 3), np.float32)


def paint(image: Pixels, mask: Mask, colour: str, opacity: float = OPACITY) -> Pixels:
    """A copy of `(H, W, 3)` with the region blended towards the colour, rounded half up."""
    if mask.shape != image.shape[:2]:
        raise ImageError("mask and image differ in size", expected=image.shape[:2], found=mask.shape)
    levels = np.arange(256)[:, None]
    table = np.floor((1 - opacity) * levels + opacity * np.array(COLOURS[colour]) + 0.5).astype(np.uint8)
    painted = np.array(image, order="C")
    marks = mask.view(np.uint8)
    x, y, width, height = cv2.boundingRect(marks)
    if width:
        box = slice(y, y + height), slice(x, x + width)
        cv2.copyTo(cv2.LUT(painted[box], table[None]), marks[box], painted[box])
    return painted


def deblend(image: Pixels, output: Pixels, colour: str) -> Mask:
    """Where `output` looks like `image` painted in `colour`: `(H, W) bool`.

    Without the division: alpha > 0.5 holds exactly when M lies nearer to C than to I, |M - I|^2 > |M - C|^2.
    Both are whole numbers below 2^24, exact in float32; the 1e-6 only breaks the tie towards "not painted".
    """
    if image.shape != output.shape:
        raise ImageError("input and output differ in size", expected=image.shape, found=output.shape)
    mask: Mask = scratch.zeros(image.shape[:2], np.bool_)
    for at in scratch.blocks(image):
        _deblend(image[at], output[at], colour, mask[at])
    return mask


def _deblend(image: Pixels, output: Pixels, colour: str, mask: Mask) -> None:
    # A pixel that did not change is not painted, and most of an image did not.
    x, y, width, height = cv2.boundingRect(np.bitwise_xor(image, output).reshape(len(image), -1))
    columns = slice(x // 3, -(-(x + width) // 3))
    for top in range(y, y + height, _BAND):
        band = slice(top, min(top + _BAND, y + height)), columns
        to_input = _squares(cv2.absdiff(output[band], image[band]))
        to_colour = _squares(cv2.absdiff(output[band], np.array([*COLOURS[colour], 0.0])))
        mask[band] = to_input > to_colour


def _squares(differences: Pixels) -> NDArray[np.float32]:
    """(H, W, 3) -> (H, W), the sum of squares over the channels."""
    wide = differences.astype(np.float32)
    wide *= wide
    return np.asarray(cv2.transform(wide, _SUM), np.float32)


def deblend_any(image: Pixels, output: Pixels) -> Mask:
    """The union over the three colours, as the released script reads `Multiclasses` samples."""
    union: Mask = scratch.zeros(image.shape[:2], np.bool_)
    for colour in COLOURS:
        union |= deblend(image, output, colour)
    return union


def dice(x: Mask, y: Mask) -> float:
    """(2 |X and Y| + 1e-6) / (|X| + |Y| + 1e-6): 1 for two empty masks."""
    both = scratch.counted(np.logical_and, x, y)
    total = int(np.count_nonzero(x)) + int(np.count_nonzero(y))
    return (2 * both + 1e-6) / (total + 1e-6)


def is_grey(image: Pixels) -> bool:
    """`(H, W, 3)` with three equal channels, exactly."""
    return bool((image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all())
