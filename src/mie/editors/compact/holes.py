"""The white hole of an image, from its pixels alone: the same rule in training and in use."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from mie.records import Mask, Pixels

_WHITE: Final = 255
_SMALLEST: Final = 16  # pixels of a white area that may be a hole
_CANDIDATES: Final = 16  # of the largest white areas
_PART: Final = 0.25  # of the best one's rank: a hole may have several parts


def find_hole(image: Pixels) -> Mask:
    """Return `(H, W)`, true in the white hole of `(H, W, 3)`; all false where no white area looks like one.

    An instruction to fill or to draw inside "the white area" comes with an image whose hole is exactly white.
    Bone, highlights and letters are exactly white too. A painted hole is solid and dark tissue starts right
    at its rim, while saturated bone fades, so white areas are ranked by size, solidity and the drop at the
    rim.
    """
    white = cv2.inRange(np.ascontiguousarray(image), (_WHITE,) * 3, (_WHITE,) * 3)
    hole: Mask = np.zeros(white.shape, bool)
    if not white.any():
        return hole
    count, labels, stats, _ = cv2.connectedComponentsWithStats(white, connectivity=4)
    largest = sorted(range(1, count), key=lambda at: -int(stats[at, cv2.CC_STAT_AREA]))[:_CANDIDATES]
    ranks = {}
    for at in largest:
        if stats[at, cv2.CC_STAT_AREA] < _SMALLEST:
            break
        box = _around(stats[at])
        ranks[at] = _rank(image[box], labels[box] == at, stats[at])
    best = max(ranks.values(), default=0.0)
    for at, rank in ranks.items():
        if rank > 0 and rank >= _PART * best:
            box = _around(stats[at])
            hole[box] |= labels[box] == at
    return hole


def _around(stats: np.ndarray) -> tuple[slice, slice]:
    """The bounding box, with a pixel on every side where there is one."""
    left, top, width, height, _ = (int(value) for value in stats)
    return slice(max(0, top - 1), top + height + 1), slice(max(0, left - 1), left + width + 1)


def _rank(image: Pixels, part: Mask, stats: np.ndarray) -> float:
    """Area, times the share of its bounding box, times the squared drop of grey levels at its rim."""
    _, _, width, height, area = (int(value) for value in stats)
    inner = part.astype(np.uint8)
    rim = cv2.dilate(inner, np.ones((3, 3), np.uint8)) > inner
    if not rim.any():  # all of the image is white
        return 0.0
    drop = (_WHITE - float(image[rim].mean())) / _WHITE
    return area * area / (width * height) * drop**2
