"""Telea's filling: a white hole closes from its rim inwards, by fast marching (Telea 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from mie.editors.base import Edited, EditError, Editor, Turn
from mie.images.closed import closed
from mie.records import Mask, Pixels

_SMALLEST: Final = 0.001  # of the image; smaller white areas are part of the picture
_RADIUS: Final = 5  # pixels that a pixel is filled from


class Telea(Editor):
    """Fills holes of pure white, whatever the instruction says; all other pixels stay."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        hole = white_hole(image)
        if not hole.any():
            raise EditError(
                "the image has no hole to fill",
                expected=f"pure white areas of more than {_SMALLEST:.1%} of the image",
            )
        if hole.all():
            raise EditError("the hole covers the whole image: nothing to fill it from")
        filled = closed(image, hole, cv2.INPAINT_TELEA, _RADIUS)
        return Edited(np.where(hole[..., None], filled, image), {"hole": round(float(hole.mean()), 6)})


def white_hole(image: Pixels) -> Mask:
    """`(H, W)`: connected areas of exactly (255, 255, 255), larger than 0.1% of the image."""
    white = (image == 255).all(2)
    _, labels, found, _ = cv2.connectedComponentsWithStats(white.astype(np.uint8))
    large = found[:, cv2.CC_STAT_AREA] > _SMALLEST * white.size
    large[0] = False  # what is not white
    return np.asarray(large[labels])
