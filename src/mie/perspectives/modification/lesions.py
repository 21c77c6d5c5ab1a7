"""Lesions in a picture: which regions go together, where the body is, and words for where a lesion lies.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np

from mie.records import Mask, Pixels, Step, Target

# Families whose pictures show a view inside a dark frame: what touches the frame goes on beyond it.
VIEWS: Final = frozenset({"endoscopy", "fundus"})
# Those that show a body in air. Elsewhere all of the picture counts: in ultrasound black may be fluid.
_IN_AIR: Final = frozenset({"ct", "mri", "xray"})
_DARK: Final = 12  # grey levels, of 255, above black or above the air in the corners
_FRAME: Final = 24  # grey level: frames around a view are not quite black
_AIR: Final = 100  # grey level: in a wide window air is grey, never as bright as this
_CORNER: Final = 8  # pixels
_PART: Final = 0.1  # regions of this share of the largest count too: two breasts, two legs
_LEAST: Final = 0.02  # share of the picture, below which what is bright is no body


def body_of(image: Pixels, family: str) -> Mask:
    """`(H, W) bool`: the large bright regions; the whole picture where none is.

    A body is convex here: fat and lungs are black in some windows, and two breasts have a chest between them.
    A view has its own outline, with dark holes filled.
    """
    everywhere = np.ones(image.shape[:2], np.bool_)
    if family not in VIEWS | _IN_AIR:
        return everywhere
    dark = _FRAME if family in VIEWS else _DARK + _air(image)
    bright = (image.max(axis=2) > dark).astype(np.uint8)
    # A dark rim or a thin gap must not cut the body in two.
    bright = cv2.morphologyEx(bright, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(bright, connectivity=4)
    if count < 2:
        return everywhere
    areas = stats[:, cv2.CC_STAT_AREA]
    large = np.flatnonzero(areas >= _PART * areas[1:].max())
    body = np.isin(labels, large[large > 0]).astype(np.uint8)
    if family in _IN_AIR:
        cv2.fillConvexPoly(body, cv2.convexHull(cv2.findNonZero(body)), 1)
    else:
        outlines, _ = cv2.findContours(body, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(body, outlines, -1, 1, cv2.FILLED)
    return body.view(np.bool_) if body.mean() >= _LEAST else everywhere


def _air(image: Pixels) -> float:
    """The grey level around the body, where all four corners show the same dark one; else black."""
    n = _CORNER
    corners = [
        image[rows, columns]
        for rows in (slice(n), slice(-n, None))
        for columns in (slice(n), slice(-n, None))
    ]
    levels = [float(np.median(corner)) for corner in corners]
    alike = max(levels) - min(levels) <= _DARK
    return max(levels) if alike and max(levels) < _AIR else 0.0


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


# Parts of one lesion: where two or more of them are marked, they are spoken of as the whole.
_WHOLES: Final = (
    (
        frozenset({"necrotic tumour core", "peritumoural oedema", "enhancing tumour"}),
        Target("brain tumour", "lesion"),
    ),
    (frozenset({"ischaemic penumbra", "ischaemic core"}), Target("ischaemic stroke lesion", "lesion")),
)
# What a lesion's outline encloses (the core inside a marked rim) goes with it, unless it is larger than this
# share of the lesion: a ring of exudates does not take the macula along.
_ENCLOSED: Final = 1.0
# Share of the body that may be filled. In a section through the body half an organ cannot be made up.
_MOST: Final = {"ct": 0.15, "mri": 0.15}
_MOST_ELSEWHERE: Final = 0.4


@dataclass(frozen=True, slots=True)
class Lesion:
    """One or several marked lesions that are removed together."""

    targets: tuple[Target, ...]  # as the data set names them
    spoken: tuple[Target, ...]  # as a sentence names them
    mask: Mask  # what is marked
    hole: Mask  # what is filled: dilated by the margin
    margin: tuple[int, int]  # smallest and largest dilation of a component, in pixels


@dataclass(frozen=True, slots=True)
class LesionLimits:
    """When a lesion cannot be removed believably. Measured at the size that is stored."""

    min_pixels: int = 24  # of the lesion
    max_fraction: float | None = None  # of the body, filled; None: the family's
    inside: float = 0.5  # share of the lesion that must lie inside the body


def lesions_of(
    masks: Mapping[str, Mask],
    targets: Mapping[str, Target],
    margin: tuple[float, int],
    view: Mask | None = None,
) -> list[Lesion]:
    """All lesions together; after that, where there are several, each group whose holes do not touch.

    `margin` is (share of a component's diameter, least pixels). Lesions of one target stay together, and so
    do targets whose holes touch: half a tumour is never left behind. Holes stay inside the `view`.
    """
    marked = {n: m for n, m in masks.items() if targets[n].kind == "lesion" and m.any()}
    if not marked:
        return []
    holes = {name: dilated(mask, margin)[0] for name, mask in marked.items()}
    groups: list[list[str]] = []
    for name in marked:
        touching = [g for g in groups if any((holes[name] & holes[other]).any() for other in g)]
        joined = [other for group in touching for other in group]
        groups = [g for g in groups if g not in touching] + [[*joined, name]]
    together = [list(marked)] + (groups if len(groups) > 1 else [])
    found = [_lesion([n for n in marked if n in group], marked, targets, margin) for group in together]
    return found if view is None else [replace(one, hole=one.hole & (view | one.mask)) for one in found]


def _lesion(
    names: Sequence[str],
    marked: Mapping[str, Mask],
    targets: Mapping[str, Target],
    margin: tuple[float, int],
) -> Lesion:
    mask = np.logical_or.reduce([marked[name] for name in names])
    hole, reach = dilated(mask, margin)
    found = tuple(targets[name] for name in names)
    return Lesion(found, spoken_targets(found), mask, hole, reach)


def spoken_targets(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """As a sentence names them: parts of one lesion as the whole."""
    spoken = targets
    for parts, whole in _WHOLES:
        if sum(target.name in parts for target in spoken) > 1:
            spoken = (whole, *(target for target in spoken if target.name not in parts))
    return spoken


def dilated(mask: Mask, margin: tuple[float, int]) -> tuple[Mask, tuple[int, int]]:
    """The mask with each connected part grown by its own margin, and the smallest and largest margin."""
    share, least = margin
    count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    radii = [
        max(least, round(share * equivalent_diameter(stats[k, cv2.CC_STAT_AREA]))) for k in range(1, count)
    ]
    hole = np.zeros_like(mask)
    for radius in sorted(set(radii)):
        part = np.isin(labels, [k for k, r in enumerate(radii, start=1) if r == radius]).astype(np.uint8)
        disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
        hole |= cv2.dilate(part, disc).view(np.bool_)
    return _with_enclosed(hole, _ENCLOSED * int(mask.sum())), (min(radii), max(radii))


def _with_enclosed(hole: Mask, most: float) -> Mask:
    outside = (~np.pad(hole, 1)).astype(np.uint8)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(outside, connectivity=4)
    small = [k for k in range(1, count) if k != labels[0, 0] and stats[k, cv2.CC_STAT_AREA] <= most]
    enclosed: Mask = np.isin(labels, small)[1:-1, 1:-1]
    return hole | enclosed


def most_filled(family: str) -> float:
    """The share of the body that may be filled."""
    return _MOST.get(family, _MOST_ELSEWHERE)


def why_not(
    lesion: Lesion, body: Mask, limits: LesionLimits, family: str
) -> tuple[str, str, dict[str, Any]] | None:
    """(gate, reason, numbers) where the lesion cannot be removed; None where it can be tried."""
    pixels = int(lesion.mask.sum())
    beyond = ~np.pad(body, 1) if family in VIEWS else np.pad(np.zeros_like(body), 1, constant_values=True)
    reach = cv2.dilate(beyond.astype(np.uint8), np.ones((3, 3), np.uint8))[1:-1, 1:-1].view(np.bool_)
    if (lesion.mask & reach).any():
        what = "view" if family in VIEWS else "image"
        return "border", f"the lesion touches the edge of the {what}: what lies beyond it is not known", {}
    if pixels < limits.min_pixels:
        reason = f"the lesion is too small: {pixels} px, at least {limits.min_pixels}"
        return "area", reason, {"pixels": pixels}
    inside = float((lesion.mask & body).sum()) / pixels
    if inside < limits.inside:
        reason = f"only {inside:.0%} of the lesion lies inside the body, at least {limits.inside:.0%}"
        return "outside", reason, {"inside": inside}
    fraction = float(lesion.hole.sum()) / float(body.sum())
    most = limits.max_fraction or most_filled(family)
    if fraction > most:
        reason = (
            f"the lesion and its margin fill {fraction:.0%} of the body in the picture, "
            f"at most {most:.0%}: too little healthy tissue is left to go by"
        )
        return "area", reason, {"fraction": fraction}
    return None


def ring_around(hole: Mask, body: Mask, unhealthy: Mask) -> Mask:
    """Surroundings about as large as the hole: healthy body within a distance that grows with the hole.

    At least 12 pixels wide, so that patches of 8 x 8 fit in for a spectrum.
    """
    width = max(12.0, 0.3 * equivalent_diameter(float(hole.sum()) / max(1, _count(hole))))
    distance = cv2.distanceTransform((~hole).astype(np.uint8), cv2.DIST_L2, 3)
    ring: Mask = (distance > 0) & (distance <= math.ceil(width)) & body & ~unhealthy
    return ring


def _count(mask: Mask) -> int:
    return int(cv2.connectedComponents(mask.view(np.uint8), connectivity=8)[0]) - 1
