"""Holes that OpenCV closes from the rim inwards."""

from __future__ import annotations

import cv2
import numpy as np

from mie.records import Mask, Pixels


def closed(image: Pixels, mask: Mask, method: int, radius: int) -> Pixels:
    """`cv2.inpaint` of `(H, W, C) uint8`, a function of what is outside the hole alone.

    `method` is OpenCV's, as `cv2.INPAINT_TELEA`. Something must be outside: all hole comes back black.
    """
    # OpenCV starts from the hole's own content in places, and reads beyond images one pixel wide or high.
    twice = [(0, side == 1) for side in mask.shape]
    blank = np.pad(np.where(mask[..., None], np.uint8(0), image), [*twice, (0, 0)], mode="edge")
    filled = cv2.inpaint(blank, np.pad(mask, twice, mode="edge").astype(np.uint8), radius, method)
    return np.asarray(filled).reshape(blank.shape)[: mask.shape[0], : mask.shape[1]]
