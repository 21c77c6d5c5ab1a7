"""Healthy tissue as FLUX is to see it: what the inpainter is shown around a hole, at one size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from mie.errors import ConfigError, MieError
from mie.inpainters.holes import LesionShapes
from mie.inpainters.neighbourhood import neighbourhood
from mie.records import Mask, Pixels
from mie.training.inpainter_data import Healthy, healthy_images, lesion_shapes
from mie.training.mixture import Groups
from mie.training.pack import TRAIN, VALIDATION, Pack

_TURNED: Final = ("dermoscopy", "endoscopy")  # pictures without an upright
_AREA: Final = (0.003, 0.25)  # of the image: a smaller hole has nothing to learn from
_TRIES: Final = 50


class Lesson(NamedTuple):
    """`image` `(S, S, 3)` uint8, whole, and the `hole` `(S, S)` bool to be filled."""

    image: Pixels
    hole: Mask


class HealthyTissue:
    """The packs' images of one family with holes of lesion shape beside their lesions."""

    def __init__(self, packs: Sequence[Pack], family: str, size: int) -> None:
        self._family, self._size = family, size
        # Outlines of lesions that are trained on, also for validation: others stay unseen.
        self.shapes: LesionShapes = lesion_shapes(packs, family, TRAIN)
        self.images = {fold: healthy_images(packs, family, fold) for fold in (TRAIN, VALIDATION)}
        if not self.images[TRAIN]:
            raise ConfigError(f"no {family} images to train on", where="data.packs")
        self._groups = {fold: Groups.of(_sources(some), 0.5) for fold, some in self.images.items() if some}

    def draw(self, rng: np.random.Generator, fold: str = TRAIN) -> Lesson:
        """An image, a hole in its healthy part, and what is seen around it; all random from `rng`."""
        for _ in range(_TRIES):
            healthy = self.images[fold][int(self._groups[fold].draw(rng, 1)[0])]
            mask = self.shapes.sample(rng, *healthy.allowed.shape, allowed=healthy.allowed, area=_AREA)
            if mask is not None:
                return self._turned(self._seen(healthy.image, mask), rng)
        raise MieError(
            "no place for a hole was found",
            where="data.packs",
            found=f"{_TRIES} images in a row without enough healthy tissue",
            fix="give images whose lesions leave more of them free",
        )

    def _seen(self, image: Pixels, mask: Mask) -> Lesson:
        near = neighbourhood(mask, size=self._size, multiple=self._size)  # padded to one size for all
        return Lesson(near.picture(image), near.hole(mask))

    def _turned(self, lesson: Lesson, rng: np.random.Generator) -> Lesson:
        if self._family not in _TURNED:
            return lesson
        turns, step = int(rng.integers(4)), int(rng.choice((1, -1)))
        image, hole = lesson.image[:, ::step], lesson.hole[:, ::step]
        return Lesson(np.rot90(image, turns).copy(), np.rot90(hole, turns).copy())


def _sources(images: Sequence[Healthy]) -> list[str]:
    return [healthy.name.rpartition("/")[0] for healthy in images]
