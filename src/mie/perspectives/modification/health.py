"""A lesion painted into an image that shows none: pairs whose healthy half is real.

The painter draws a lesion of a named kind into a region that is made up: a bent ellipse, as large as lesions
of that kind are, wholly inside the organ where a mask says where that is. Each candidate has a place and a
seed of its own. Kept is one that can be seen, whose outline does not show, whose texture is that of a lesion,
and that a trusted detector finds, where it found nothing before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import cv2
import numpy as np

from mie.core.hashing import generator, stable_hash
from mie.core.registry import unknown_name
from mie.errors import ConfigError, MetricError
from mie.images.hashes import checksum
from mie.images.texture import compare, seam_energy, texture
from mie.perspectives.modification.counterfactual import HIT, Bounds, Candidate, Watch
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.inpainters.holes import LesionShapes, Shape
from mie.perspectives.modification.lesions import Lesion, equivalent_diameter, ring_around
from mie.records import Mask, Pixels, Target

_OUTLINE: Final = 64  # pixels of the longer side that a shape is drawn with
_ELONGATION: Final = (1.0, 1.7)
_SMALLER: Final = (1.0, 0.7, 0.5)  # a lesion that does not fit is tried so much smaller
_CLEAR: Final = 4  # pixels between a lesion and the edge of the image, or of its organ
FAINT: Final = 3.0  # grey levels of mean change in the region, below which nobody sees a lesion
# A lesion need not look like its surroundings: of the bounds for fills only variance counts, and it may be
# this many times lower (a cyst) or higher.
_LESION_VARIANCE: Final = 5.0


@runtime_checkable
class Painter(Protocol):
    """Paints lesions by name."""

    name: str
    weights: str

    @property
    def targets(self) -> tuple[str, ...]: ...

    def extent(self, target: str) -> tuple[float, float]:
        """The usual length of such a lesion, from and to, as shares of the image's longer side."""
        ...

    def paint(
        self, image: Pixels, region: Mask, target: str, *, seed: int, contrast: float | None = None
    ) -> tuple[Pixels, Mask]:
        """The image with the lesion, and where it was changed."""
        ...


@lru_cache(maxsize=16)
def painter_of(spec: str, family: str) -> Painter:
    """`ConfigError` where the inpainter fills holes but paints nothing."""
    found = make_inpainter(spec, family=family)
    if not isinstance(found, Painter):
        raise ConfigError(
            f"inpainter {found.name!r} cannot paint lesions", where="recipe.painter", fix="use painter: flow"
        )
    return found


def check_lesion(painter: Painter, lesion: str) -> None:
    if lesion not in painter.targets:
        raise unknown_name("lesion of the painter", lesion, painter.targets)


def one_of(lesion: str) -> str:
    """What a sentence calls one lesion of a kind whose name may be in the plural.

    >>> one_of("liver tumours"), one_of("bone metastases"), one_of("caries"), one_of("polyp")
    ('liver tumour', 'bone metastasis', 'caries', 'polyp')
    """
    if lesion.endswith("metastases"):
        return f"{lesion[:-2]}is"
    plural = lesion.endswith("s") and not lesion.endswith(("ss", "is", "ies"))
    return lesion[:-1] if plural else lesion


class Healthy(NamedTuple):
    """An image without a lesion, where one may lie, and which: as the painter and as a sentence calls it."""

    image: Pixels
    body: Mask
    allowed: Mask
    lesion: str
    target: Target


class Painted(NamedTuple):
    """One lesion in one image: `candidate.image` shows it."""

    candidate: Candidate
    lesion: Lesion
    seen: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class Addition:
    """Paints lesions into healthy images and measures what came out."""

    painter: Painter
    candidates: int
    bounds: Bounds
    watch: Watch

    def paint(self, healthy: Healthy, build_seed: int) -> tuple[int, list[Painted]] | None:
        """(which one is kept, every one that found a place); None where no place is large enough."""
        content = (checksum(healthy.image), healthy.lesion)
        painted = []
        for number in range(self.candidates):
            seed = stable_hash("paint", build_seed, *content, number) >> 33
            region = self.region(healthy, seed)
            if region is not None:
                painted.append(self._painted(healthy, region, number, seed))
        if not painted:
            return None
        return min(range(len(painted)), key=lambda k: self._rank(painted[k])), painted

    def region(self, healthy: Healthy, seed: int) -> Mask | None:
        """A place and an outline for a lesion; None where no place is large enough."""
        random = generator(seed)
        height, width = healthy.image.shape[:2]
        low, high = self.painter.extent(healthy.lesion)
        extent = max(height, width) * low * (high / low) ** random.random()
        elongation = random.uniform(*_ELONGATION)
        rows, columns = np.nonzero(healthy.allowed)
        if not len(rows):
            return None
        at = random.integers(len(rows))
        centre = int(rows[at]), int(columns[at])
        return outlined(random, extent, centre, healthy.allowed, elongation)

    def _painted(self, healthy: Healthy, region: Mask, number: int, seed: int) -> Painted:
        image, hole = self.painter.paint(healthy.image, region, healthy.lesion, seed=seed)
        lesion = Lesion((healthy.target,), (healthy.target,), region, hole, margin_of(region, hole))
        before = self.watch.seen(healthy.image, region)
        seen = self.watch.seen(image, region)
        change = float(np.abs(image[region].astype(np.int16) - healthy.image[region]).mean())
        numbers: dict[str, Any] = {
            "texture": None, "seam": None, "detector": None,
            "change": round(change, 2), "before": before, "after": seen,
        }  # fmt: skip
        inside = texture(image, hole)
        around = texture(image, ring_around(hole, healthy.body, region))
        if inside is not None and around is not None:
            numbers["texture"] = {name: round(value, 4) for name, value in compare(inside, around).items()}
        try:
            numbers["seam"] = round(seam_energy(image, hole), 4)
        except MetricError:  # a region without an inside: its number stays unknown
            numbers["seam"] = None
        candidate = Candidate(number, self.painter.name, seed, image, numbers)
        candidate.failures += self._failures(numbers)
        return Painted(candidate, lesion, seen)

    def _failures(self, numbers: dict[str, Any]) -> list[tuple[str, str]]:
        found = []
        if numbers["change"] < FAINT:
            found.append(
                ("faint", f"the lesion changes {numbers['change']:g} grey levels, at least {FAINT:g}")
            )
        measured, (low, high) = numbers["texture"], self.bounds.variance_ratio
        low, high = low / _LESION_VARIANCE, high * _LESION_VARIANCE
        if measured is not None and not low <= measured["variance_ratio"] <= high:
            ratio = measured["variance_ratio"]
            found.append(
                ("texture", f"the lesion's variance over its surroundings' is {ratio:g}, {low:g} to {high:g}")
            )
        if numbers["seam"] is not None and numbers["seam"] > self.bounds.seam:
            found.append(
                ("seam", f"the outline shows: seam energy {numbers['seam']:g}, at most {self.bounds.seam:g}")
            )
        if self.watch.trusted:
            if numbers["before"]["share"] >= HIT:
                found.append(("detector", "the detector finds a lesion there before one is painted"))
            elif numbers["after"]["share"] < HIT:
                share = numbers["after"]["share"]
                found.append(
                    ("detector", f"the detector finds {share:.0%} of the painted lesion, at least {HIT:.0%}")
                )
        return found

    def _rank(self, painted: Painted) -> tuple[bool, float, int]:
        numbers = painted.candidate.numbers
        distance = max(0.0, numbers["seam"] or 0.0) / self.bounds.seam
        if numbers["after"] is not None:
            distance += 1 - min(1.0, numbers["after"]["share"])
        return not painted.candidate.passed, distance, painted.candidate.number


def outlined(
    random: np.random.Generator,
    extent: float,
    centre: tuple[int, int],
    allowed: Mask,
    elongation: float | None = None,
) -> Mask | None:
    """A bent ellipse about `extent` pixels long that tends to lie near `centre`, wholly inside `allowed`.

    One that does not fit is tried smaller; None where no place is large enough. Without an `elongation` it is
    drawn.
    """
    height, width = allowed.shape
    crop = _ellipse(random.uniform(*_ELONGATION) if elongation is None else elongation)
    for share in _SMALLER:
        tall, wide = (side / _OUTLINE * extent * share for side in crop.shape)
        box = (centre[0] / height - tall / height / 2, centre[1] / width - wide / width / 2,
               tall / height, wide / width)  # fmt: skip
        bank = LesionShapes((Shape(crop, box),))
        found = bank.sample(random, height, width, allowed=allowed)
        if found is not None:
            return found
    return None


def allowed_area(image: Pixels, body: Mask, organ: Mask | None) -> Mask:
    """Where a lesion may lie: inside the organ, or else the body, a few pixels from its edge."""
    area = body if organ is None else organ & body
    inside = np.pad(area, 1)  # the edge of the image counts as an edge
    distance = cv2.distanceTransform(inside.astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
    return np.asarray(distance > _CLEAR)


def _ellipse(elongation: float) -> Mask:
    height, width = _OUTLINE, max(8, round(_OUTLINE / elongation))
    rows, columns = np.indices((height, width))
    y, x = (rows + 0.5) / height * 2 - 1, (columns + 0.5) / width * 2 - 1
    return np.asarray(x**2 + y**2 <= 1)


def margin_of(region: Mask, hole: Mask) -> tuple[int, int]:
    """How far the hole reaches beyond the region, in pixels; about, as both are round."""
    wider = round((equivalent_diameter(float(hole.sum())) - equivalent_diameter(float(region.sum()))) / 2)
    return wider, wider
