"""Marks that a question speaks of, drawn on a copy of the image: an outline, numbered boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from mie.errors import MieError
from mie.records import Mask, Pixels

_COLOURS: Final = {"yellow": (255, 255, 0), "cyan": (0, 255, 255)}
# Photographs are reddish or violet, and some have yellow in them.
_CYAN_FOR: Final = frozenset({"microscopy", "endoscopy", "fundus", "dermoscopy", "surgical photo"})
_NEAR: Final = np.ones((3, 3), np.uint8)


def mark_colour(modality: str) -> str:
    """A colour that the modality's images do not have."""
    return "cyan" if modality in _CYAN_FOR else "yellow"


def outline_of(mask: Mask) -> Mask:
    """Two pixels wide, outside the region: what is asked about stays visible."""
    inner = cv2.dilate(mask.view(np.uint8), _NEAR)
    return (cv2.dilate(inner, _NEAR, iterations=2) & ~inner & 1).astype(np.bool_)


def outlined(image: Pixels, mask: Mask, colour: str) -> Pixels:
    """A copy with the region's outline."""
    marked = image.copy()
    marked[outline_of(mask)] = _COLOURS[colour]
    return marked


def with_boxes(image: Pixels, boxes: Sequence[Sequence[int]], colour: str) -> Pixels:
    """A copy with boxes (left, top, right, bottom) and their numbers, from 1."""
    marked = image.copy()
    value = _COLOURS[colour]
    scale = max(0.45, min(image.shape[:2]) / 480)
    for number, (left, top, right, bottom) in enumerate(boxes, start=1):
        cv2.rectangle(marked, (left, top), (right - 1, bottom - 1), value, 1)
        (width, height), _ = cv2.getTextSize(str(number), cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
        # Beside the box where there is room, inside it at the edge of the image.
        x = left if left + width <= image.shape[1] else image.shape[1] - width
        y = top - 3 if top - 3 >= height else bottom + height + 3
        y = min(y, image.shape[0] - 2)
        cv2.putText(marked, str(number), (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, (0, 0, 0), 4, cv2.LINE_AA)
        cv2.putText(marked, str(number), (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, value, 1, cv2.LINE_AA)
    return marked


def check_outline(image: Pixels, mask: Mask, colour: str) -> None:
    """Raise unless the image shows this region's outline."""
    line = outline_of(mask)
    if line.any() and not (image[line] == _COLOURS[colour]).all():
        raise MieError("the outline is not where the mask is", expected=f"a {colour} outline")


def check_boxes(image: Pixels, boxes: Sequence[Sequence[int]], colour: str) -> None:
    """Raise unless the corners of every box are drawn."""
    for number, (left, top, right, bottom) in enumerate(boxes, start=1):
        corners = [image[y, x] for y in (top, bottom - 1) for x in (left, right - 1)]
        seen = sum(bool((corner == _COLOURS[colour]).all()) for corner in corners)
        if seen < 2:  # a number may cover some
            raise MieError("a box is not where the evidence says", expected=f"box {number} in {colour}")
