"""Find faces in photographs by scikit-image's cascade (local binary patterns, frontal faces).

Only colour images are searched: scans are grey. A finding counts if its mirror image is one too: faces are
about symmetric, and the patterns of tissue that a cascade takes for one mostly are not. It must be in colour
itself: a scan with a coloured legend is no photograph. The cascade knows upright faces; so the image is also
searched turned to either side.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import cv2
import numpy as np

from mie.privacy.text import Box
from mie.records import Pixels

_COLOUR: Final = 16  # grey levels between channels
_COLOURED: Final = 0.02  # of the pixels
_SIDE: Final = 400  # pixels of the longer side when it is searched
_SMALLEST: Final = 45  # pixels of a face there
_COLOURED_FACE: Final = 0.5  # of its pixels
_ANGLES: Final = (0.0, -20.0, 20.0)
_SCALE_STEP: Final = 1.15
_NEIGHBOURS: Final = 7  # `python -m bench.faces`: with 5, five of 215 images without a face raised the alarm
_OVERLAP: Final = 0.4  # of the smaller box
_MARGIN: Final = 0.25  # a box of the cascade ends at the brows and the mouth


def can_look() -> bool:
    """Whether the cascade is here: scikit-image is an optional extra."""
    try:
        import skimage.feature  # noqa: F401
    except ImportError:
        return False
    return True


def is_colour(image: Pixels) -> bool:
    """Whether the image may be a photograph."""
    return image.ndim == 3 and _coloured(image) > _COLOURED


def _coloured(image: Pixels) -> float:
    """The share of the pixels that are not grey."""
    spread = image.max(axis=2).astype(np.int16) - image.min(axis=2)
    return float((spread > _COLOUR).mean())


def face_boxes(image: Pixels) -> list[Box]:
    """Return a box around each face in a colour image `(H, W, 3) uint8`, with a margin."""
    height, width = image.shape[:2]
    scale = min(1.0, _SIDE / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    if min(size) < _SMALLEST:
        return []
    boxes = []
    for angle in _ANGLES:
        turn = cv2.getRotationMatrix2D((size[0] / 2, size[1] / 2), angle, 1)
        turned = small
        if angle:
            turned = np.asarray(cv2.warpAffine(small, turn, size, borderMode=cv2.BORDER_REPLICATE), np.uint8)
        back = cv2.invertAffineTransform(turn)
        boxes += [
            _placed(box, back, scale, (height, width))
            for box in _symmetric(turned)
            if _coloured(turned[box[1] : box[3], box[0] : box[2]]) >= _COLOURED_FACE
        ]
    return sorted(set(boxes), key=lambda box: (box[1], box[0]))


def _symmetric(image: Pixels) -> list[Box]:
    """What is found in the image and in its mirror image."""
    found = _detect(image)
    if not found:
        return []
    width = image.shape[1]
    mirrored = [
        (width - right, top, width - left, bottom)
        for left, top, right, bottom in _detect(np.ascontiguousarray(image[:, ::-1]))
    ]
    return [box for box in found if any(_overlap(box, other) >= _OVERLAP for other in mirrored)]


def _detect(image: Pixels) -> list[Box]:
    most = min(image.shape[:2])
    found = _cascade().detect_multi_scale(
        image,
        scale_factor=_SCALE_STEP,
        step_ratio=1,
        min_size=(_SMALLEST, _SMALLEST),
        max_size=(most, most),
        min_neighbor_number=_NEIGHBOURS,
    )
    return [(b["c"], b["r"], b["c"] + b["width"], b["r"] + b["height"]) for b in found]


def _overlap(one: Box, other: Box) -> float:
    """What they share, of the smaller."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return max(0, wide) * max(0, high) / max(1, min(areas))


def _placed(box: Box, back: Any, scale: float, shape: tuple[int, int]) -> Box:
    """The box around the turned box, with its margin, in the pixels of the image."""
    left, top, right, bottom = box
    x, y = (right - left) * _MARGIN, (bottom - top) * _MARGIN
    corners = [(a, b, 1) for a in (left - x, right + x) for b in (top - y, bottom + y)]
    places = np.asarray(back) @ np.array(corners, np.float64).T / scale
    (x0, y0), (x1, y1) = np.floor(places.min(axis=1)), np.ceil(places.max(axis=1))
    height, width = shape
    return max(0, int(x0)), max(0, int(y0)), min(width, int(x1)), min(height, int(y1))


@lru_cache(maxsize=1)
def _cascade() -> Any:
    from skimage.data import lbp_frontal_face_cascade_filename
    from skimage.feature import Cascade

    return Cascade(lbp_frontal_face_cascade_filename())
