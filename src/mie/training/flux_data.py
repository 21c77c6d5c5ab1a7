"""Healthy tissue to learn from: images of one family, and holes of lesion shape where no lesion is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import cv2
import numpy as np

from mie.errors import ConfigError, MieError
from mie.images.families import MARGIN, family_of, is_held_out
from mie.inpainters.holes import LesionShapes
from mie.inpainters.neighbourhood import neighbourhood
from mie.records import Mask, Pixels
from mie.training.mixture import Groups
from mie.training.pack import VALIDATION, Pack, Row, as_rgb

_TURNED: Final = ("dermoscopy", "endoscopy")  # pictures without an upright
_DARK: Final = 12  # grey levels of the black around a body, a fundus or an endoscope's field
_CLOSED: Final = 15  # pixels: dark specks of this size inside the body belong to it
_TRIES: Final = 50


class Lesson(NamedTuple):
    """`image` `(S, S, 3)` uint8, whole, and the `hole` `(S, S)` bool to be filled."""

    image: Pixels
    hole: Mask


@dataclass(frozen=True, slots=True)
class _Picture:
    image: Pixels  # (H, W) or (H, W, 3), as packed
    lesion: Mask | None
    source: str
    held_out: bool


class HealthyTissue:
    """The images of `family` that have a lesion row, and all of the sources that are called `healthy`."""

    def __init__(self, packs: Sequence[Pack], family: str, healthy: Collection[str], size: int) -> None:
        self._family, self._size = family, size
        pictures = [picture for pack in packs for picture in _pictures(pack, family, healthy)]
        learnt = [picture for picture in pictures if not picture.held_out]
        if not learnt:
            raise ConfigError(
                f"no {family} images with lesions to train on",
                where="data.packs",
                expected="perception rows of the task lesion, or sources named in data.healthy",
            )
        # Outlines of lesions that are trained on: those of held-out patients stay unseen.
        self.shapes = LesionShapes.from_masks(p.lesion for p in learnt if p.lesion is not None)
        if not len(self.shapes):
            raise ConfigError(f"no lesion of {family} has an outline to take", where="data.packs")
        self.folds = {False: learnt, True: [picture for picture in pictures if picture.held_out]}
        self._groups = {
            fold: Groups.of([picture.source for picture in some], 0.5)
            for fold, some in self.folds.items()
            if some
        }

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> Lesson:
        """An image and a hole in its healthy part, everything random from `rng`."""
        for _ in range(_TRIES):
            at = int(self._groups[held_out].draw(rng, 1)[0])
            lesson = self._lesson(self.folds[held_out][at], rng)
            if lesson is not None:
                return lesson
        raise MieError(
            "no place for a hole was found",
            where="data.packs",
            found=f"{_TRIES} images in a row without enough healthy tissue",
            fix="give images whose lesions leave more of them free",
        )

    def _lesson(self, picture: _Picture, rng: np.random.Generator) -> Lesson | None:
        image = as_rgb(picture.image)
        allowed = _body(image)
        if picture.lesion is not None:
            allowed &= ~_widened(picture.lesion, self._family)
        mask = self.shapes.sample(rng, *image.shape[:2], allowed=allowed)
        if mask is None:
            return None
        # What the inpainter will see around such a hole, padded to one size for all.
        near = neighbourhood(mask, size=self._size, multiple=self._size)
        lesson = Lesson(near.picture(image), near.hole(mask))
        if self._family in _TURNED:
            turns, step = int(rng.integers(4)), int(rng.choice((1, -1)))
            lesson = Lesson(np.rot90(lesson.image[:, ::step], turns), np.rot90(lesson.hole[:, ::step], turns))
        return lesson


def _pictures(pack: Pack, family: str, healthy: Collection[str]) -> list[_Picture]:
    rows: dict[int, list[Row]] = {}
    for row in pack.rows:
        if row.perspective == "perception" and family_of(row.modality) == family:
            rows.setdefault(row.input, []).append(row)
    found = []
    for place, some in rows.items():
        masks = [pack.masks[row.mask] > 0 for row in some if row.task == "lesion" and row.mask is not None]
        if not masks and some[0].source not in healthy:
            continue  # nobody has said where its lesions are
        lesion = np.logical_or.reduce(masks) if masks else None
        held_out = any(_is_held_out(row) for row in some)
        found.append(_Picture(pack.images[place], lesion, some[0].source, held_out))
    return found


def _is_held_out(row: Row) -> bool:
    return row.fold == VALIDATION or (row.patient_id is not None and is_held_out(row.source, row.patient_id))


def _body(image: Pixels) -> Mask:
    bright = (image.max(2) > _DARK).astype(np.uint8)
    return cv2.morphologyEx(bright, cv2.MORPH_CLOSE, np.ones((_CLOSED, _CLOSED), np.uint8)).astype(np.bool_)


def _widened(lesion: Mask, family: str) -> Mask:
    """With the margin in which tissue may be changed by it."""
    share, least = MARGIN[family]
    reach = max(least, round(share * 2 * np.sqrt(lesion.sum() / np.pi)))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    return cv2.dilate(lesion.astype(np.uint8), disc).astype(np.bool_)
