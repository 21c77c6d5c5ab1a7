"""Healthy tissue with lesion-shaped holes: windows of a pack's images, cut before training begins.

A hole lies inside the body and clear of every marked lesion, so what was under it is healthy and known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import torch
from torch import Tensor

from mie.errors import ConfigError
from mie.images.families import family_of
from mie.inpainters.holes import LesionShapes
from mie.recipes.seeds import generator, stable_hash
from mie.records import Mask, Pixels
from mie.training.pack import Pack, as_rgb

SIDE: Final = 256
_DARK: Final = 12  # grey levels: the air around a scanned body is darker
_CLEAR: Final = 9  # pixels around a lesion that are not healthy either
_AROUND: Final = 1.5  # a window's side, in extents of its hole
_AREA: Final = (0.003, 0.25)  # of the image: smaller holes have no texture to learn


@dataclass(frozen=True, slots=True)
class Healthy:
    """An image of a family, and where it is healthy."""

    name: str  # source and place, for seeds
    image: Pixels  # (H, W, 3)
    allowed: Mask


def healthy_images(packs: Sequence[Pack], family: str, fold: str) -> list[Healthy]:
    """The family's images of a fold, each once, with the union of their lesion masks taken out."""
    found: list[Healthy] = []
    for pack in packs:
        lesions, sources = _lesions(pack, family, fold)
        for place, masks in lesions.items():
            image = as_rgb(pack.images[place])
            found.append(Healthy(f"{sources[place]}/{place}", image, _allowed(image, masks, family)))
    return found


def lesion_shapes(packs: Sequence[Pack], family: str, fold: str) -> LesionShapes:
    """The outlines of the family's lesions; those of all families where it has none."""
    for only in (family, None):
        masks = [mask for pack in packs for shown in _lesions(pack, only, fold)[0].values() for mask in shown]
        if masks:
            return LesionShapes.from_masks(masks)
    raise ConfigError("no lesion masks in the packs", expected="rows of the task lesion", found="none")


def _lesions(pack: Pack, family: str | None, fold: str) -> tuple[Mapping[int, list[Mask]], Mapping[int, str]]:
    lesions: dict[int, list[Mask]] = {}
    sources: dict[int, str] = {}
    for row in pack.rows:
        if row.perspective != "perception" or row.fold != fold:
            continue
        if family is not None and family_of(row.modality) != family:
            continue
        masks = lesions.setdefault(row.input, [])
        sources[row.input] = row.source
        if row.task == "lesion" and row.mask is not None:
            masks.append(pack.masks[row.mask] > 0)
    return lesions, sources


def _allowed(image: Pixels, lesions: Sequence[Mask], family: str) -> Mask:
    level = cv2.GaussianBlur(image.mean(axis=2).astype(np.float32), (0, 0), 4)
    body = level > _DARK
    if lesions:
        lesion = np.any(lesions, axis=0).astype(np.uint8)
        body &= cv2.dilate(lesion, np.ones((2 * _CLEAR + 1,) * 2, np.uint8)) == 0
    edge = np.zeros_like(body)
    edge[2:-2, 2:-2] = True  # a hole at the border has no surroundings on one side
    return np.asarray(body & edge)


def windows(
    images: Sequence[Healthy], shapes: LesionShapes, each: int, seed: int
) -> Iterator[tuple[int, Pixels, Mask]]:
    """`each` holes per image where they fit: (image, window `(SIDE, SIDE, 3)`, hole `(SIDE, SIDE)`)."""
    for number, healthy in enumerate(images):
        for at in range(each):
            rng = generator(stable_hash("hole", seed, healthy.name, at))
            hole = shapes.sample(rng, *healthy.allowed.shape, allowed=healthy.allowed, area=_AREA)
            if hole is not None:
                yield number, *window(healthy.image, hole, rng)


def window(image: Pixels, hole: Mask, rng: np.random.Generator) -> tuple[Pixels, Mask]:
    """A square around the hole, not always centred, at the image's own scale where the hole leaves room."""
    rows, columns = np.nonzero(hole)
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    extent = max(bottom - top, right - left)
    side = int(max(SIDE, _AROUND * extent))
    slack = rng.uniform(-0.5, 0.5, 2) * (side - extent) * 0.5
    y = int((top + bottom - side) / 2 + slack[0])
    x = int((left + right - side) / 2 + slack[1])
    height, width = hole.shape
    y = int(np.clip(y, min(0, height - side), max(0, height - side)))
    x = int(np.clip(x, min(0, width - side), max(0, width - side)))
    edges = (max(0, -y), max(0, y + side - height), max(0, -x), max(0, x + side - width))
    padded = cv2.copyMakeBorder(image, *edges, cv2.BORDER_REFLECT_101)
    # The hole is mirrored like the image: otherwise what is under it would be seen beside it.
    marked = cv2.copyMakeBorder(hole.astype(np.uint8), *edges, cv2.BORDER_REFLECT_101)
    at = (slice(y + edges[0], y + edges[0] + side), slice(x + edges[2], x + edges[2] + side))
    cut, mark = padded[at], marked[at]
    if side != SIDE:
        cut = cv2.resize(cut, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        mark = cv2.resize(mark, (SIDE, SIDE), interpolation=cv2.INTER_NEAREST_EXACT)
    return np.ascontiguousarray(cut, np.uint8), np.asarray(mark > 0)


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a fold on the device, as bytes."""

    images: Tensor  # (N, 3, SIDE, SIDE) uint8
    holes: Tensor  # (N, 1, SIDE, SIDE) bool
    of: list[int]  # which image each was cut from

    @classmethod
    def cut(
        cls, images: Sequence[Healthy], shapes: LesionShapes, each: int, seed: int, device: torch.device
    ) -> Windows:
        made = list(windows(images, shapes, each, seed))
        if not made:
            raise ConfigError("no hole fits into any image", found=f"{len(images)} images")
        pixels = np.stack([image.transpose(2, 0, 1) for _, image, _ in made])
        holes = np.stack([hole[None] for _, _, hole in made])
        return cls(
            torch.from_numpy(pixels).to(device), torch.from_numpy(holes).to(device), [of for of, _, _ in made]
        )
