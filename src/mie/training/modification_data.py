"""Modifications on the device: pairs that differ in an area, and holes made on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from mie.editors.compact.hole import find_hole
from mie.records import Pixels
from mie.training.augment import Draw, cropped
from mie.training.fresh_holes import FreshHoles
from mie.training.mixture import Groups
from mie.training.pack import Pack, Row, as_rgb
from mie.training.pools import Pool, letterbox, sent

# A place in words: mirrored, the words would be wrong.
_PLACED: Final = frozenset(
    (
        *("left", "right", "upper", "lower", "top", "bottom", "clock"),
        *("anterior", "posterior", "superior", "inferior", "nasal", "temporal", "medial"),
    )
)
_GAMMA: Final = 0.25  # log: both halves of a pair, so that white stays white


class Changed(NamedTuple):
    """A modification as it was drawn."""

    large: int
    fresh: bool  # a hole made now: `place` is a picture of `FreshHoles`
    place: int
    prompt: int
    grey: bool
    flips: bool
    turns: bool
    removal: bool
    vain: bool  # asked to remove what is not there: shown its own goal


class Changes(NamedTuple):
    """`(M, ...)` as the network sees them."""

    image: Tensor  # (M, 3, S, S)
    goal: Tensor
    area: Tensor  # (M, 1, S, S) 1 where the goal differs
    hole: Tensor  # (M, 1, S, S) 1 in the white hole


class Stored(NamedTuple):
    row: Row
    large: int
    place: int
    ask: int
    grey: bool


class Modifications:
    """The pack's own pairs."""

    def __init__(self, device: torch.device | str, sides: tuple[int, int]) -> None:
        self.device, self._sides = device, sides
        self.stored: list[Stored] = []
        self._arrays: tuple[list[Any], list[Any]] = ([], [])
        self._centres: tuple[list[Any], list[Any]] = ([], [])

    def add(self, pack: Pack, row: Row, ask: int) -> None:
        assert row.goal is not None and row.mask is not None  # noqa: S101 PT018 (a modification has both)
        image, goal = pack.images[row.input], pack.images[row.goal]
        large = int(max(image.shape[:2]) > self._sides[0])
        side = self._sides[large]
        both = [letterbox(as_rgb(half), side, enlarge=False)[0] for half in (image, goal)]
        maps = [pack.masks[row.mask] > 0, find_hole(as_rgb(image))]
        area, hole = (letterbox(255 * m.astype(np.uint8), side, enlarge=False)[0] for m in maps)
        self.stored.append(Stored(row, large, len(self._arrays[large]), ask, image.ndim == goal.ndim == 2))
        self._arrays[large].append(np.asarray(cv2.merge([*both, area, hole]), np.uint8))
        self._centres[large].append(_centre(area > 0))

    def finish(self) -> None:
        """Move to the device; nothing can be added any more."""
        self._pools = [Pool(some, self.device) if some else None for some in self._arrays]
        self._around = [torch.tensor(np.array(c), dtype=torch.float32).to(self.device) for c in self._centres]
        self._arrays = ([], [])
        keys = [(stored.row.source, stored.row.task) for stored in self.stored]
        self.groups = Groups.of(keys, 0.5) if keys else None

    def views(self, items: Sequence[Changed], draw: Draw) -> Changes:
        """Pairs of one size."""
        large = items[0].large
        pool = self._pools[large]
        assert pool is not None  # noqa: S101 (it holds what was chosen)
        place = sent([item.place for item in items], torch.long, self.device)
        both = pool.gather(place).float() / 255
        around = self._around[large].index_select(0, place)
        flips, turns = flags(items, self.device)
        side = self._sides[0]
        if large:
            # Half of the views show the whole at half its size: lesions larger than a view, and their place.
            whole = draw.chance(0.5)[:, None, None, None]
            halved = F.pad(_halved(both), (0, both.shape[-1] - side, 0, both.shape[-1] - side))
            both = torch.where(whole, halved, both)
            around = torch.where(whole[:, 0, 0], 0.0, around)
        both = cropped(draw, both, side, turns, flips, around if large else None)
        vain = sent([item.vain for item in items], torch.bool, self.device)[:, None, None, None]
        image, goal = torch.where(vain, both[:, 3:6], both[:, :3]), both[:, 3:6]
        area = (both[:, 6:7] > 0.5) & ~vain
        return Changes(image, goal, area.float(), (both[:, 7:8] >= 1).float())


def change_views(
    items: Sequence[Changed],
    stored: Modifications,
    fresh: FreshHoles | None,
    pictures: Sequence[Pool | None],
    generator: torch.Generator,
    side: int,
) -> Changes:
    """All modifications of a batch, which is sorted by size, and there by whether their hole is made now."""
    parts = []
    for large in (0, 1):
        for new in (False, True):
            some = [item for item in items if item.large == large and item.fresh == new]
            if not some:
                continue
            draw = Draw(len(some), generator)
            if new and fresh is not None:
                goal, area, hole = fresh.views(
                    [item.place for item in some], pictures, draw, side, flags(some, stored.device)
                )
                image = torch.where(area, 1.0, goal)
                parts.append(Changes(image, goal, area.float(), hole))
            else:
                parts.append(stored.views(some, draw))
    if not parts:
        empty = torch.zeros(0, 3, side, side, device=stored.device)
        return Changes(empty, empty, empty[:, :1], empty[:, :1])
    made = Changes(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    gamma = torch.exp(Draw(len(items), generator).uniform(-_GAMMA, _GAMMA))[:, None, None, None]
    return made._replace(image=made.image.clamp(0, 1) ** gamma, goal=made.goal.clamp(0, 1) ** gamma)


def flags(items: Sequence[Changed], device: torch.device | str) -> tuple[Tensor, Tensor]:
    flips = sent([item.flips for item in items], torch.bool, device)
    return flips, sent([item.turns for item in items], torch.bool, device)


def names_a_place(text: str) -> bool:
    words = "".join(c if c.isalpha() else " " for c in text.lower()).split()
    return bool(_PLACED & set(words))


def _halved(both: Tensor) -> Tensor:
    """Images by area; the area of change where any pixel was in it, the hole where all were."""
    images = F.avg_pool2d(both[:, :6], 2)
    area = F.max_pool2d(both[:, 6:7], 2)
    hole = -F.max_pool2d(-both[:, 7:8], 2)
    return torch.cat([images, area, hole], 1)


def _centre(area: NDArray[np.bool_]) -> tuple[float, float]:
    """(row, column) of the middle of an area; the square's where there is none."""
    rows, columns = np.nonzero(area)
    if not len(rows):
        return area.shape[0] / 2, area.shape[1] / 2
    return float(rows.mean()), float(columns.mean())


def mean_filled(image: Pixels, hole: NDArray[np.bool_]) -> Pixels:
    """The hole in the mean colour of the rest: the least that a fill must beat."""
    filled = image.copy()
    if hole.any() and not hole.all():
        filled[hole] = np.rint(image[~hole].mean(0))
    return filled
