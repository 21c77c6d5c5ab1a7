"""A lesion painted through the slices of a healthy volume: one ellipsoid, one seed, little flicker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mie.core.hashing import generator, stable_hash
from mie.images.hashes import checksum
from mie.images.slice_consistency import fill_flicker
from mie.perspectives.modification.health import Addition, Healthy
from mie.perspectives.modification.inpainters.volume import fill_volume
from mie.perspectives.modification.lesions import equivalent_diameter
from mie.records import Mask, Pixels

_LEAST: Final = 6  # pixels of a section of the ellipsoid
_THROUGH_MM: Final = 2.0  # standard deviation of the smoothing through the slices
_OUTSIDE: Final = 0.2  # of a section may lie beyond where a lesion may be


@dataclass(frozen=True, slots=True)
class PaintedVolume:
    """The slices that show the lesion, from `start` on: images, its sections, and where they were changed."""

    start: int
    images: list[Pixels]
    regions: list[Mask]
    holes: list[Mask]
    seed: int
    flicker: list[float]
    change: float  # grey levels, mean over the largest section


def paint_volume(
    maker: Addition, slices: Sequence[Healthy], mm: tuple[float, float], build_seed: int
) -> list[PaintedVolume]:
    """Candidates that found a place; `mm` is (between slices, between pixels)."""
    content = (slices[0].lesion, *(checksum(one.image) for one in slices))
    found = []
    for number in range(maker.candidates):
        seed = stable_hash("paint volume", build_seed, *content, number) >> 33
        sections = _ellipsoid(maker, slices, mm, seed)
        if sections is not None:
            found.append(_painted(maker, slices, *sections, seed, mm[0]))
    return found


def _ellipsoid(
    maker: Addition, slices: Sequence[Healthy], mm: tuple[float, float], seed: int
) -> tuple[int, list[Mask]] | None:
    """The first slice and the sections of an ellipsoid about as thick as it is wide; None without a place."""
    draw = generator(seed)
    areas = np.array([float(one.allowed.sum()) for one in slices])
    if areas.sum() == 0:
        return None
    middle = int(draw.choice(len(slices), p=areas / areas.sum()))
    region = maker.region(slices[middle], seed)
    if region is None:
        return None
    half = equivalent_diameter(float(region.sum())) / 2 * mm[1] / mm[0]  # in slices
    sections: dict[int, Mask] = {middle: region}
    for way in (1, -1):
        for step in range(1, int(half) + 1):
            at = middle + way * step
            if not 0 <= at < len(slices):
                return None  # it would go on beyond the volume
            section = _shrunk(region, float(np.sqrt(max(0.0, 1 - (step / half) ** 2))))
            if section.sum() < _LEAST:
                break
            if (section & ~slices[at].allowed).sum() > _OUTSIDE * section.sum():
                return None
            sections[at] = section
    if len(sections) < 2:
        return None
    return min(sections), [sections[at] for at in sorted(sections)]


def _shrunk(region: Mask, scale: float) -> Mask:
    """The region scaled about its centre of mass."""
    rows, columns = np.nonzero(region)
    y, x = rows.mean(), columns.mean()
    matrix = np.array([[scale, 0, x * (1 - scale)], [0, scale, y * (1 - scale)]])
    size = region.shape[1], region.shape[0]
    return np.asarray(cv2.warpAffine(region.view(np.uint8), matrix, size, flags=cv2.INTER_NEAREST) > 0)


class _AsPainted:
    """What was painted in each slice, as an inpainter that fills the holes with it."""

    name = "painted"
    weights = None

    def __init__(self, drawn: Sequence[tuple[Pixels, Pixels]]) -> None:
        self._drawn = drawn

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        return next(painted for source, painted in self._drawn if source is image)


def _painted(
    maker: Addition, slices: Sequence[Healthy], start: int, regions: list[Mask], seed: int, step_mm: float
) -> PaintedVolume:
    healthy = [one.image for one in slices[start : start + len(regions)]]
    name = slices[0].lesion
    drawn = [maker.painter.paint(i, r, name, seed=seed) for i, r in zip(healthy, regions, strict=True)]
    holes = [hole for _, hole in drawn]
    pairs = [(source, image) for source, (image, _) in zip(healthy, drawn, strict=True)]
    # The coarse part of each section follows its neighbour's, as in a filled hole.
    images = fill_volume(_AsPainted(pairs), healthy, holes, seed=seed, blend="none")
    images = _steadied(images, healthy, holes, _THROUGH_MM / step_mm)
    largest = int(np.argmax([region.sum() for region in regions]))
    inside = regions[largest]
    change = float(np.abs(images[largest][inside].astype(np.int16) - healthy[largest][inside]).mean())
    before, after = (_grey(stack) for stack in (healthy, images))
    flicker = [round(ratio, 3) for ratio in fill_flicker(after, before, np.stack(holes))]
    return PaintedVolume(start, images, regions, holes, seed, flicker, round(change, 2))


def _steadied(
    images: Sequence[Pixels], healthy: Sequence[Pixels], holes: Sequence[Mask], sigma: float
) -> list[Pixels]:
    """What was painted, smoothed through the slices inside the holes: a painter knows one slice at a time."""
    inside = np.stack(holes).astype(np.float32)[..., None]
    change = np.stack([i.astype(np.float32) - h for i, h in zip(images, healthy, strict=True)]) * inside
    weight = ndimage.gaussian_filter1d(inside, sigma, axis=0, mode="constant")
    smooth = ndimage.gaussian_filter1d(change, sigma, axis=0, mode="constant") / np.maximum(weight, 1e-6)
    moved = np.stack(healthy) + smooth * inside
    return list(np.clip(np.rint(moved), 0, 255).astype(np.uint8))


def _grey(images: Sequence[Pixels]) -> NDArray[np.float64]:
    return np.stack([image.mean(axis=2) for image in images])
