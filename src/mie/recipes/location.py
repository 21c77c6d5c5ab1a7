"""Where a lesion lies and how large it is, in words, from its mask and what is known of the orientation.

Three ways of telling a place, never more than is known:

- A slice of a volume in patient coordinates hangs as on a light box, so the patient's own sides can be named:
  "in the anterior left part of the brain". Only where the picture shows the whole section of the body.
- A round view (fundus, endoscopy) is read like a clock, as it is seen on the screen: "at 2 o'clock".
- Any other picture may be turned or mirrored: "in the upper left quadrant of the image", sides of the image.

No lobe is named: one slice does not tell it. No clock position of the breast either: an ultrasound image does
not say where the transducer was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np

from mie.records import Mask, Step

# Parts of the body that a volume's slices show from side to side: the picture's middle is the midline.
_SECTIONS: Final = frozenset(
    {"brain", "head", "neck", "chest", "lung", "heart", "abdomen", "liver", "kidney", "pancreas", "pelvis"}
)
_ROUND: Final = frozenset({"fundus", "endoscopy"})
# How far from the middle, as a share of half the extent, a side begins.
_MIDDLE: Final = 0.2
_MIDLINE: Final = 0.1  # the same for the patient's left and right
_RIM: Final = 0.6  # share of a round view's radius beyond which a lesion lies near its edge
# Axis words by plane, as `slice_of` hangs it: towards the top, the bottom, the left, the right of the image.
_PLANES: Final[dict[str, tuple[str, str, str, str]]] = {
    "axial": ("anterior", "posterior", "right", "left"),
    "coronal": ("superior", "inferior", "right", "left"),
    "sagittal": ("superior", "inferior", "anterior", "posterior"),
}
# Diameter over the side of a square as large as the body: below which a lesion is called so.
_SIZES: Final = ((0.05, "tiny"), (0.13, "small"), (0.28, "medium-sized"), (math.inf, "large"))
_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_MINOR: Final = 0.1  # components smaller than this share of the largest are not counted


@dataclass(frozen=True, slots=True)
class Place:
    """What the words rest on: `location` fits behind a lesion's name, `size` before it."""

    location: str  # "in the upper left quadrant of the image"
    size: str  # "small"
    diameter: float  # pixels: of a disc as large as the largest component
    components: int


def plane_of(steps: Sequence[Step]) -> str | None:
    """The plane of a slice whose patient directions are known; None for a picture."""
    oriented = any(step["step"] == "orientation" for step in steps)
    planes = [str(step["plane"]) for step in steps if step["step"] == "slice"]
    return planes[-1] if oriented and planes and planes[-1] in _PLANES else None


def place_of(lesion: Mask, body: Mask, *, family: str, anatomy: str, plane: str | None) -> Place:
    """Words for a lesion that is not empty, `(H, W) bool`, in a picture whose `body` is not empty either."""
    parts = components(lesion)
    largest = int(parts[0].sum())
    counted = [part for part in parts if part.sum() >= _MINOR * largest]
    where = [_one(part, body, family, anatomy, plane) for part in counted]
    different = list(dict.fromkeys(where))
    if len(different) == 1:
        location = different[0]
    elif len(counted) == 2:
        location = " and ".join(different)
    else:
        count = _NUMBERS[len(counted)] if len(counted) < len(_NUMBERS) else "many"
        location = f"at {count} places (the largest {where[0]})"
    diameter = equivalent_diameter(largest)
    share = diameter / math.sqrt(float(body.sum()))
    size = next(word for limit, word in _SIZES if share < limit)
    return Place(location, size, diameter, len(parts))


def components(mask: Mask) -> list[Mask]:
    """The connected parts of a mask (diagonal neighbours touch), largest first."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    areas = stats[1:, cv2.CC_STAT_AREA]
    return [labels == 1 + int(at) for at in np.argsort(-areas, kind="stable")][: count - 1]


def equivalent_diameter(area: float) -> float:
    """Of the disc of that area."""
    return 2 * math.sqrt(area / math.pi)


def _one(part: Mask, body: Mask, family: str, anatomy: str, plane: str | None) -> str:
    rows, columns = np.nonzero(part)
    row, column = float(rows.mean()), float(columns.mean())
    if family in _ROUND:
        return _clock(*_offset(row, column, body))
    if plane is not None and anatomy in _SECTIONS:
        return _anatomical(*_offset(row, column, body), plane, anatomy)
    height, width = part.shape
    down, right = (row + 0.5) / height * 2 - 1, (column + 0.5) / width * 2 - 1
    vertical, horizontal = _word(down, "upper", "lower"), _word(right, "left", "right")
    if vertical and horizontal:
        return f"in the {vertical} {horizontal} quadrant of the image"
    if vertical or horizontal:
        return f"in the middle of the {vertical or horizontal} half of the image"
    return "in the centre of the image"


def _offset(row: float, column: float, body: Mask) -> tuple[float, float]:
    """(down, right) from the middle of the body's box, in half extents: -1 to 1."""
    rows, columns = np.flatnonzero(body.any(axis=1)), np.flatnonzero(body.any(axis=0))
    return _share(row, rows[0], rows[-1]), _share(column, columns[0], columns[-1])


def _share(at: float, first: int, last: int) -> float:
    return (at - (first + last) / 2) / max(1.0, (last - first) / 2)


def _word(offset: float, before: str, after: str, middle: float = _MIDDLE) -> str:
    return "" if abs(offset) < middle else (before if offset < 0 else after)


def _anatomical(down: float, right: float, plane: str, anatomy: str) -> str:
    top, bottom, left_edge, right_edge = _PLANES[plane]
    sides = _MIDLINE if plane != "sagittal" else _MIDDLE
    words = [w for w in (_word(down, top, bottom), _word(right, left_edge, right_edge, sides)) if w]
    if words:
        return f"in the {' '.join(words)} part of the {anatomy}"
    return f"near the midline of the {anatomy}" if plane != "sagittal" else f"in the centre of the {anatomy}"


def _clock(down: float, right: float) -> str:
    far = math.hypot(down, right)
    if far < _MIDDLE:
        return "in the centre of the view"
    hour = round(math.degrees(math.atan2(right, -down)) / 30) % 12 or 12
    return f"at {hour} o'clock " + ("near the edge of the view" if far > _RIM else "in the view")
