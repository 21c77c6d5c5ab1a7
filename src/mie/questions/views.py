"""What the masks of one image prove: sizes, shapes, places and brightness of what is marked.

A `View` is made from a case when a set is built, and again from a stored question when it is verified: both
ask the same functions, so that a key can be recomputed from what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.perspectives.modification.lesions import equivalent_diameter
from mie.records import Mask, Pixels, Target

# Parts of at least this share of the largest are counted; between the two shares it is not clear.
_COUNTED: Final = 0.10
_IGNORED: Final = 0.02
_SPECK: Final = 8  # pixels: fewer are noise of scaling
_AIR, _BONE = 8, 225  # grey levels: what is darker or brighter is no tissue to compare with


class Region:
    """One target's marked pixels."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    @cached_property
    def area(self) -> int:
        return int(np.count_nonzero(self.mask))

    @property
    def share(self) -> float:
        """Of the image."""
        return self.area / self.mask.size

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) in pixels, the last two exclusive."""
        x, y, width, height = cv2.boundingRect(self.mask.view(np.uint8))
        return x, y, x + width, y + height

    @property
    def box_fractions(self) -> tuple[float, float, float, float]:
        height, width = self.mask.shape
        left, top, right, bottom = self.box
        return left / width, top / height, right / width, bottom / height

    @cached_property
    def centre(self) -> tuple[float, float]:
        """(x, y) of the centre of mass, in fractions."""
        height, width = self.mask.shape
        moments = cv2.moments(self.mask.view(np.uint8), binaryImage=True)
        return (
            (moments["m10"] / moments["m00"] + 0.5) / width,
            (moments["m01"] / moments["m00"] + 0.5) / height,
        )

    @cached_property
    def core(self) -> tuple[float, float, float]:
        """(x, y, radius) of the largest disc inside, in fractions; the radius is one of the longer side."""
        height, width = self.mask.shape
        left, top, right, bottom = self.box
        inside = np.pad(self.mask[top:bottom, left:right].view(np.uint8), 1)
        distance = cv2.distanceTransform(inside, cv2.DIST_L2, 5)
        row, column = np.unravel_index(int(distance.argmax()), distance.shape)
        radius = float(distance[row, column]) / max(height, width)
        return (left + int(column) - 0.5) / width, (top + int(row) - 0.5) / height, radius

    @cached_property
    def areas(self) -> NDArray[np.int64]:
        """Pixels of each connected part (diagonal neighbours touch), largest first; specks left out."""
        _, _, stats, _ = cv2.connectedComponentsWithStats(self.mask.view(np.uint8), connectivity=8)
        areas = np.sort(stats[1:, cv2.CC_STAT_AREA].astype(np.int64))[::-1]
        return areas[areas >= _SPECK]

    @property
    def count(self) -> int | None:
        """How many separate parts; None where a part is too small to be sure that everybody counts it."""
        if not len(self.areas):
            return None
        shares = self.areas / self.areas[0]
        unsure = (shares >= _IGNORED) & (shares < _COUNTED)
        return None if unsure.any() else int((shares >= _COUNTED).sum())

    @cached_property
    def _hull(self) -> NDArray[np.int32]:
        outlines, _ = cv2.findContours(self.mask.view(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        return np.asarray(cv2.convexHull(max(outlines, key=len))[:, 0], np.int32)

    @cached_property
    def diameter(self) -> float:
        """The largest distance between two pixels of its largest part, in pixels."""
        corners = self._hull.astype(np.float64)
        apart = corners[:, None] - corners[None]
        return float(np.sqrt((apart**2).sum(axis=2)).max()) + 1

    @cached_property
    def aspect(self) -> float:
        """Longer over shorter side of the smallest rectangle around it."""
        (_, (width, height), _) = cv2.minAreaRect(self._hull)
        return (max(width, height) + 1) / (min(width, height) + 1)

    @cached_property
    def solidity(self) -> float:
        """Its area over that of its convex hull: 1 for a disc, lower for an indented outline."""
        canvas = np.zeros(self.mask.shape, np.uint8)
        cv2.fillConvexPoly(canvas, self._hull, 1)
        inside = int(np.count_nonzero(canvas & self.mask.view(np.uint8)))
        return inside / max(1, int(np.count_nonzero(canvas)))

    def contrast(self, image: Pixels, others: Mask) -> float | None:
        """Median grey level inside minus that of a ring around it; None where the ring is too small.

        The ring is about as wide as a third of the region, at least 4 pixels. `others` is left out of it, and
        so are air and bone, black and white: a bleed along the skull is compared with the brain.
        """
        width = max(4, round(0.3 * equivalent_diameter(self.area / max(1, len(self.areas)))))
        left, top, right, bottom = self.box
        rows = slice(max(0, top - width - 1), bottom + width + 1)
        columns = slice(max(0, left - width - 1), right + width + 1)
        inside = self.mask[rows, columns]
        disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * width + 1, 2 * width + 1))
        near = cv2.dilate(inside.view(np.uint8), disc).view(np.bool_)
        grey = cv2.cvtColor(np.ascontiguousarray(image[rows, columns]), cv2.COLOR_RGB2GRAY)
        ring = near & ~inside & ~others[rows, columns] & (grey > _AIR) & (grey < _BONE)
        if np.count_nonzero(ring) < max(20, 0.25 * self.area):
            return None
        return float(np.median(grey[inside])) - float(np.median(grey[ring]))


@dataclass(frozen=True, eq=False)
class View:
    """One image with what is known about it, at the size that is stored."""

    image: Pixels = field(repr=False)
    masks: Mapping[str, Mask] = field(repr=False)  # of targets that are marked in it, none of them empty
    targets: Mapping[str, Target]  # all that its data set marks: one that has no mask is not in the image
    modality: str
    submodality: str = ""
    anatomy: str = ""
    source: str = ""
    case_id: str = ""
    patient_id: str | None = None
    split: str = "test"
    license: str = ""
    spacing: float | None = None  # millimetres of a stored pixel
    plane: str | None = None  # of a slice of a volume
    oriented: bool = False  # the patient's directions are known: a slice hangs as on a light box
    healed: tuple[str, ...] = ()  # lesions that were taken out of the image
    hole: Mask | None = field(default=None, repr=False)  # where they were

    @cached_property
    def regions(self) -> dict[str, Region]:
        return {name: Region(mask) for name, mask in self.masks.items()}

    @cached_property
    def _together(self) -> dict[tuple[str, ...], Region]:
        return {}

    def region(self, names: Sequence[str]) -> Region:
        """The masks of some targets as one region, measured once."""
        key = tuple(names)
        if key not in self._together:
            marked = [name for name in key if name in self.masks]
            one = self.regions[marked[0]] if len(marked) == 1 else Region(self.together(marked))
            self._together[key] = one
        return self._together[key]

    @cached_property
    def _contrasts(self) -> dict[tuple[str, ...], float | None]:
        return {}

    def contrast(self, names: Sequence[str]) -> float | None:
        """`Region.contrast` of some targets as one region, other lesions left out of the ring."""
        key = tuple(names)
        if key not in self._contrasts:
            self._contrasts[key] = self.region(key).contrast(self.image, self.unhealthy)
        return self._contrasts[key]

    def lesions(self) -> list[Target]:
        """Marked in this image."""
        return [self.targets[name] for name in self.masks if self.targets[name].kind == "lesion"]

    def structures(self) -> list[Target]:
        """Marked in this image."""
        return [self.targets[name] for name in self.masks if self.targets[name].kind == "anatomy"]

    @cached_property
    def unhealthy(self) -> Mask:
        """Every lesion together."""
        return self.together([target.name for target in self.lesions()])

    def together(self, names: Sequence[str]) -> Mask:
        """The masks of some targets as one; empty where none is marked."""
        out = np.zeros(self.image.shape[:2], np.bool_)
        for name in names:
            if name in self.masks:
                out |= self.masks[name]
        return out

    def facts(self) -> dict[str, Any]:
        """What evidence keeps of a view, beside image and masks."""
        found: dict[str, Any] = {
            "modality": self.modality,
            "anatomy": self.anatomy,
            "targets": [[one.name, one.kind, one.plural] for one in self.targets.values()],
        }
        optional = {
            "submodality": self.submodality,
            "spacing": self.spacing,
            "plane": self.plane,
            "oriented": self.oriented,
            "healed": list(self.healed),
            "patient": self.patient_id,
        }
        return {**found, **{key: value for key, value in optional.items() if value}}

    @classmethod
    def from_facts(
        cls, facts: Mapping[str, Any], image: Pixels, masks: Mapping[str, Mask], hole: Mask | None = None
    ) -> View:
        """The view that `facts` and the stored pictures describe."""
        return cls(
            image=image,
            masks=masks,
            targets={name: Target(name, kind, plural) for name, kind, plural in facts["targets"]},
            modality=facts["modality"],
            submodality=facts.get("submodality", ""),
            anatomy=facts["anatomy"],
            spacing=facts.get("spacing"),
            plane=facts.get("plane"),
            oriented=facts.get("oriented", False),
            healed=tuple(facts.get("healed", ())),
            hole=hole,
            patient_id=facts.get("patient"),
        )


# Places in an image, as it is shown.

QUADRANTS: Final = ("Upper left", "Upper right", "Lower left", "Lower right")
_CLEAR: Final = 0.9  # share of a region that must lie in a half
_CENTRE: Final = 0.12  # of half the extent


def quadrant_of(mask: Mask) -> str | None:
    """The quadrant with nearly all of the region; "Centre" around the middle; None where it is unclear."""
    height, width = mask.shape
    rows, columns = mask.sum(axis=1), mask.sum(axis=0)
    total = int(rows.sum())
    upper, left = int(rows[: height // 2].sum()) / total, int(columns[: width // 2].sum()) / total
    down = float((rows * (np.arange(height) + 0.5)).sum()) / total / height * 2 - 1
    right = float((columns * (np.arange(width) + 0.5)).sum()) / total / width * 2 - 1
    if abs(down) <= _CENTRE and abs(right) <= _CENTRE:
        return "Centre"
    if max(upper, 1 - upper) < _CLEAR or max(left, 1 - left) < _CLEAR:
        return None
    return QUADRANTS[2 * (upper < 0.5) + (left < 0.5)]


def direction_of(one: Region, other: Region) -> str | None:
    """Where `one` lies, seen from `other`: "To the left", "Above" and so on; None where it is unclear."""
    (x, y), (from_x, from_y) = one.centre, other.centre
    height, width = one.mask.shape
    dx, dy = (x - from_x) * width, (y - from_y) * height
    if math.hypot(dx, dy) < 0.08 * max(height, width) or max(abs(dx), abs(dy)) < 2 * min(abs(dx), abs(dy)):
        return None
    if abs(dx) > abs(dy):
        return "To the left" if dx < 0 else "To the right"
    return "Above" if dy < 0 else "Below"


def gap_between(one: Region, other: Region) -> float:
    """The least distance between two regions in pixels; 0 where they touch or overlap."""
    distance = cv2.distanceTransform((~other.mask).astype(np.uint8), cv2.DIST_L2, 5)
    return float(distance[one.mask].min())


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)
