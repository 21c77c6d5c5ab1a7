"""What is trained on: images and masks stored once, rows that point to them, and all that can be asked for.

A row says which image goes in, what should come out (a goal image, or a mask to paint; for a modification the
goal, and the mask of what changes), and which `Ask` puts it into words. Nothing is letterboxed, augmented or
painted yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mie.records import Pixels

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True, slots=True)
class Wording:
    """One sentence, the template it was made from, and the colour of class 1..n that it names."""

    prompt: str
    template: str
    colours: tuple[str, ...] = ()  # empty where nothing is painted


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that can be asked for, said in several ways. `held_out` ways are never trained on."""

    key: str  # "perception/lesion/skin lesion/dermoscopy", "transformation/mri_motion/MRI/brain"
    wordings: tuple[Wording, ...]
    held_out: tuple[Wording, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One training sample. Numbers are places in the pack's lists."""

    id: str
    perspective: str
    task: str
    target: str
    key: str | None  # a transformation's target key
    modality: str
    anatomy: str
    source: str
    patient_id: str | None
    license: str
    fold: str  # TRAIN or VALIDATION; no patient is in both
    input: int
    goal: int | None  # transformation and modification: the wanted image
    mask: int | None  # perception: the classes to paint; modification: 1 where the image changes
    classes: int  # how many classes the mask holds
    ask: int
    # What a fresh simulation of this pair needs (`mie.training.simulate`); None where there can be none.
    simulate: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Pack:
    images: list[Pixels]  # uint8, (H, W) where the image is grey, else (H, W, 3) RGB
    masks: list[Pixels]  # uint8 (H, W), 0 is background, 1..n the classes
    rows: list[Row]
    asks: list[Ask]
    facts: dict[str, Any]  # which datasets, with their digests, and how they were packed


def part_of(pack: Pack, keep: Callable[[Row], bool]) -> Pack:
    """The rows that `keep` likes, with only the images, masks and asks that they need; arrays are shared."""
    rows = [row for row in pack.rows if keep(row)]
    shown = _renumbered(place for row in rows for place in (row.input, row.goal))
    masks = _renumbered(row.mask for row in rows)
    asks = _renumbered(row.ask for row in rows)
    return Pack(
        [pack.images[place] for place in shown],
        [pack.masks[place] for place in masks],
        [
            replace(
                row,
                input=shown[row.input],
                goal=None if row.goal is None else shown[row.goal],
                mask=None if row.mask is None else masks[row.mask],
                ask=asks[row.ask],
            )
            for row in rows
        ],
        [pack.asks[place] for place in asks],
        pack.facts,
    )


def _renumbered(places: Iterable[int | None]) -> dict[int, int]:
    """Old place -> new place, in order of first use."""
    used = dict.fromkeys(place for place in places if place is not None)
    return {place: at for at, place in enumerate(used)}


def join_packs(packs: Sequence[Pack]) -> Pack:
    """Several packs as one, in order; what two of them hold in common is there twice."""
    joined = Pack([], [], [], [], {"packs": [pack.facts for pack in packs]})
    for pack in packs:
        images, masks, asks = len(joined.images), len(joined.masks), len(joined.asks)
        joined.images += pack.images
        joined.masks += pack.masks
        joined.asks += pack.asks
        joined.rows += [
            replace(
                row,
                input=row.input + images,
                goal=None if row.goal is None else row.goal + images,
                mask=None if row.mask is None else row.mask + masks,
                ask=row.ask + asks,
            )
            for row in pack.rows
        ]
    return joined


def one_channel_if_grey(image: Pixels) -> Pixels:
    """`(H, W)` where the three channels are equal."""
    if image.ndim == 3 and (image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all():
        return np.ascontiguousarray(image[..., 0])
    return image


def as_rgb(image: Pixels) -> Pixels:
    """`(H, W, 3)` of an image of the pack."""
    return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image
