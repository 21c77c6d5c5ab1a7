"""A classical overlay: Otsu's threshold, its smaller side painted in the colour the instruction names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from mie.editors.base import Edited, EditError, Editor, Turn
from mie.images.overlay import paint
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS

_SMALLEST: Final = 0.001  # of the image; specks below are noise


class Otsu(Editor):
    """The baseline that any learned editor should beat: it reads the colour, and knows nothing of anatomy."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        colour = named_colour(instruction)
        mask = smaller_side(image)
        return Edited(paint(image, mask, colour), {"region": float(mask.mean())})


def named_colour(instruction: str) -> str:
    """The first overlay colour that the instruction names."""
    named = re.search(r"\b(" + "|".join(COLOURS) + r")\b", instruction.casefold())
    if named is None:
        raise EditError("the instruction names no overlay colour", expected=" or ".join(COLOURS))
    return named[0]


def smaller_side(image: Pixels) -> Mask:
    """The smaller of Otsu's two classes of smoothed grey, without specks."""
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (0, 0), 1.5)
    threshold, _ = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    bright = grey > threshold
    side = bright if bright.mean() <= 0.5 else ~bright
    count, labels, found, _ = cv2.connectedComponentsWithStats(side.astype(np.uint8))
    large = np.flatnonzero(found[:, cv2.CC_STAT_AREA] >= _SMALLEST * side.size)
    return np.isin(labels, large[(large > 0) & (large < count)])
