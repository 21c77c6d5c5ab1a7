"""Images with one mask each: all rows of an image that are asked for, united."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mie.images.families import family_of
from mie.records import Mask, Pixels
from mie.training.augment import Draw, may_flip, may_turn, moved, recoloured
from mie.training.mixture import Groups
from mie.training.pack import VALIDATION, Pack, Row, as_rgb
from mie.training.pools import Pool, letterbox, letterbox_mask

VIEW: Final = 256  # the most pixels a side that a view has


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which perception rows to learn; an empty filter lets everything through."""

    task: str
    family: str | None = None
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def here(self, row: Row) -> bool:
        """The image of this row is of the right kind."""
        return (
            row.perspective == "perception"
            and (self.family is None or family_of(row.modality) == self.family)
            and (not self.sources or row.source in self.sources)
        )

    def marked(self, row: Row) -> bool:
        """What this row marks is asked for."""
        return self.here(row) and row.task == self.task and (not self.targets or row.target in self.targets)


@dataclass(slots=True)
class Marked:
    """One image `(H, W)` or `(H, W, 3)` and the pixels that are asked for in it, perhaps none."""

    image: Pixels
    mask: Mask
    source: str
    patient: str  # the image's own name where the patient is unknown
    held_out: bool
    flips: bool
    turns: bool


def marked_images(packs: Sequence[Pack], wanted: Wanted) -> list[Marked]:
    """Every image with a row that is wanted, once; for a family of lesions also images without any.

    A data set that marks lesions says of an image without a lesion's row that it has none. One that marks
    only organs says nothing, so its images are never taken for healthy.
    """
    found: list[Marked] = []
    for number, pack in enumerate(packs):
        here: dict[int, Marked] = {}
        rows = [row for row in pack.rows if wanted.marked(row) and row.mask is not None]
        for row in rows:
            mask = pack.masks[row.mask or 0] > 0
            one = here.setdefault(row.input, _marked(pack, row, np.zeros_like(mask), number))
            one.mask = one.mask | mask
            one.flips &= may_flip(row.target)
        if wanted.family is not None:
            marking = {row.source for row in rows}
            for row in pack.rows:
                if wanted.here(row) and row.source in marking and row.input not in here:
                    empty = np.zeros(pack.images[row.input].shape[:2], np.bool_)
                    here[row.input] = _marked(pack, row, empty, number)
        found += here.values()
    # Each pack has drawn its own fold: whoever is held out in one is held out in all.
    away = {one.patient for one in found if one.held_out}
    for one in found:
        one.held_out = one.patient in away
    return found


def _marked(pack: Pack, row: Row, mask: Mask, number: int) -> Marked:
    return Marked(
        image=pack.images[row.input],
        mask=mask,
        source=row.source,
        patient=row.patient_id or f"{row.source}//{number}/{row.input}",
        held_out=row.fold == VALIDATION,
        flips=True,
        turns=may_turn(row.modality),
    )


class SegmenterData:
    """The training images on the device, letterboxed into squares of `side` pixels."""

    def __init__(self, images: Sequence[Marked], side: int, device: torch.device) -> None:
        self.side, self.view, self.device = side, min(side, VIEW), device
        shown = [letterbox(as_rgb(one.image), side) for one in images]
        self.images = Pool([pixels for pixels, _ in shown], device)
        self.masks = Pool([letterbox_mask(one.mask.view(np.uint8), side) for one in images], device)
        self.filled = torch.tensor([size for _, size in shown], dtype=torch.float32, device=device) / side
        self.grey = self._flags(one.image.ndim == 2 for one in images)
        self.flips = self._flags(one.flips for one in images)
        self.turns = self._flags(one.turns for one in images)
        self.groups = Groups.of([one.source for one in images], 0.5)

    def choose(self, rng: np.random.Generator, batch: int) -> NDArray[np.int64]:
        """Places of one batch: a source with n images is drawn by the root of n."""
        return self.groups.draw(rng, batch)

    def views(self, place: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images `(B, 3, S, S)` in [0, 1], masks and what counts `(B, 1, S, S)`; all random from `seed`."""
        generator = torch.Generator(self.device)
        generator.manual_seed(seed)
        draw = Draw(len(place), generator)
        whole = self.view / self.side
        window = torch.full((len(place),), whole, device=self.device)
        if whole == 1:
            # Half of the views show a part: often one without a lesion, which is healthy tissue to learn.
            window = torch.where(draw.chance(0.5), draw.uniform(0.4, 0.9), window)
        image, mask, counted = moved(
            draw,
            self.images.gather(place).float() / 255,
            self.masks.gather(place).float(),
            self.filled.index_select(0, place),
            side=self.view,
            window=window,
            flips=self.flips.index_select(0, place),
            turns=self.turns.index_select(0, place),
        )
        return recoloured(draw, image, self.grey.index_select(0, place)), mask, counted

    def _flags(self, values: Iterable[Any]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.bool, device=self.device)
