"""Lesion-shaped holes from a bank of real outlines, and the part of an image that a large model sees."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core.files import atomic_path
from mie.errors import ImageError
from mie.images.resize import fitted_size, resize_image
from mie.records import Mask, Pixels

_SMALLEST: Final = 12  # pixels of an outline that still has a shape
_LARGEST: Final = 96  # pixels: longer outlines are kept reduced to this
_TRIES: Final = 8  # shapes drawn before a hole is given up
_GRID: Final = 96  # places are looked for on a grid of at most this many cells a side
_NEAR: Final = 0.25  # of the image: how far from the lesion's own place a hole tends to lie
_ANYWHERE: Final = 0.05  # weight of places far from it
_BEND: Final = 0.06  # of the outline's size: amplitude of the elastic change


@dataclass(frozen=True, slots=True)
class Shape:
    """One lesion's outline, and its bounding box as shares of the image: top, left, height, width."""

    crop: Mask
    box: tuple[float, float, float, float]

    @property
    def area(self) -> float:
        """Share of the image."""
        return float(self.crop.mean()) * self.box[2] * self.box[3]

    @property
    def elongation(self) -> float:
        """Long over short axis of the ellipse with the same second moments."""
        y, x = np.nonzero(self.crop)
        scale_y, scale_x = self.box[2] / self.crop.shape[0], self.box[3] / self.crop.shape[1]
        # A pixel is a square, not a point: 1/12 is its own second moment.
        moments = np.cov(np.stack([y, x]), bias=True) + np.eye(2) / 12
        moments *= np.outer([scale_y, scale_x], [scale_y, scale_x])
        short, long = np.linalg.eigvalsh(moments)
        return float(np.sqrt(long / short))


@dataclass(frozen=True)
class LesionShapes:
    """A bank of lesion outlines."""

    shapes: tuple[Shape, ...]

    @classmethod
    def from_masks(cls, masks: Iterable[Mask]) -> LesionShapes:
        """Every connected lesion of 12 pixels or more; those that touch the border are cut, and left out."""
        return cls(tuple(shape for mask in masks for shape in _outlines(mask)))

    def __len__(self) -> int:
        return len(self.shapes)

    def statistics(self) -> dict[str, list[float]]:
        """10th, 50th and 90th percentile of area (share of the image), elongation, centre row and column."""
        columns = {
            "area": [s.area for s in self.shapes],
            "elongation": [s.elongation for s in self.shapes],
            "row": [s.box[0] + s.box[2] / 2 for s in self.shapes],
            "column": [s.box[1] + s.box[3] / 2 for s in self.shapes],
        }
        return {name: [float(v) for v in np.percentile(c, (10, 50, 90))] for name, c in columns.items()}

    def sample(
        self,
        rng: np.random.Generator,
        height: int,
        width: int,
        *,
        allowed: Mask | None = None,
        area: tuple[float, float] | None = None,
    ) -> Mask | None:
        """A hole `(height, width)` of a lesion's shape, wholly inside `allowed`; None where none fits.

        The outline is mirrored, turned, scaled by 0.8 to 1.25 and bent a little; it tends to lie where its
        lesion lay. `area` bounds the hole's share of the image: other sizes are scaled to the nearest bound
        (bending then changes it by some percent).
        """
        if not self.shapes:
            return None
        free = np.ones((height, width), np.bool_) if allowed is None else allowed
        for _ in range(_TRIES):
            shape = self.shapes[int(rng.integers(len(self.shapes)))]
            outline = _changed(shape, rng, height, width, area)
            if not outline.any() or outline.shape[0] > height or outline.shape[1] > width:
                continue
            corner = _place(shape, outline, free, rng)
            if corner is not None:
                hole = np.zeros((height, width), np.bool_)
                hole[corner[0] : corner[0] + outline.shape[0], corner[1] : corner[1] + outline.shape[1]] = (
                    outline
                )
                return hole
        return None

    def write(self, path: Path) -> None:
        """A small `.npz`: packed bits, sizes and boxes."""
        bits = [np.packbits(shape.crop) for shape in self.shapes]
        sizes = np.array([shape.crop.shape for shape in self.shapes], np.int32).reshape(-1, 2)
        boxes = np.array([shape.box for shape in self.shapes], np.float64).reshape(-1, 4)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file, bits=np.concatenate([*bits, np.zeros(0, np.uint8)]), sizes=sizes, boxes=boxes
            )

    @classmethod
    def read(cls, path: Path) -> LesionShapes:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                bits, sizes, boxes = arrays["bits"], arrays["sizes"], arrays["boxes"]
            lengths = (np.prod(sizes, 1, dtype=np.int64) + 7) // 8
            if boxes.shape != (len(sizes), 4) or lengths.sum() != bits.size or (sizes < 1).any():
                raise ValueError("its parts do not fit together")
        except (
            ValueError,
            KeyError,
            OSError,
            EOFError,
            zipfile.BadZipFile,
            np.exceptions.AxisError,
        ) as error:
            raise ImageError("not a bank of lesion shapes", where=path, found=error) from None
        ends = np.cumsum(lengths)
        shapes = []
        for (rows, columns), end, length, box in zip(sizes, ends, lengths, boxes, strict=True):
            flat = np.unpackbits(bits[end - length : end], count=rows * columns)
            top, left, tall, wide = (float(value) for value in box)
            shapes.append(Shape(flat.astype(np.bool_).reshape(rows, columns), (top, left, tall, wide)))
        return cls(tuple(shapes))


def _outlines(mask: Mask) -> list[Shape]:
    height, width = mask.shape
    count, labels, found, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
    shapes = []
    for label in range(1, count):
        left, top, wide, tall, pixels = (int(value) for value in found[label])
        cut = top == 0 or left == 0 or top + tall == height or left + wide == width
        if pixels < _SMALLEST or cut:
            continue
        crop = labels[top : top + tall, left : left + wide] == label
        shrink = _LARGEST / max(tall, wide)
        if shrink < 1:
            size = (max(round(wide * shrink), 1), max(round(tall * shrink), 1))
            crop = cv2.resize(crop.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.5
        if crop.any():
            shapes.append(Shape(crop, (top / height, left / width, tall / height, wide / width)))
    return shapes


def _changed(
    shape: Shape, rng: np.random.Generator, height: int, width: int, area: tuple[float, float] | None
) -> Mask:
    """The outline mirrored, turned, scaled and bent, in a box that just holds it."""
    scale = np.exp(rng.uniform(np.log(0.8), np.log(1.25)))
    if area is not None:
        share = shape.area * scale**2
        scale *= np.sqrt(np.clip(share, *area) / share)
    turn = rng.uniform(0, 2 * np.pi)
    mirror = 1.0 if rng.random() < 0.5 else -1.0
    tall, wide = shape.box[2] * height * scale, shape.box[3] * width * scale
    size = int(np.ceil(np.hypot(tall, wide) * (1 + 2 * _BEND))) + 2
    down, across = np.indices((size, size), np.float32) - np.float32((size - 1) / 2)
    bend = rng.normal(size=(2, 4, 4)).astype(np.float32) * np.float32(_BEND * np.hypot(tall, wide) / 2)
    down += cv2.resize(bend[0], (size, size), interpolation=cv2.INTER_CUBIC)
    across += cv2.resize(bend[1], (size, size), interpolation=cv2.INTER_CUBIC)
    # From the hole's pixels back into the crop's.
    y = (np.cos(turn) * down + np.sin(turn) * across) / tall
    x = (np.cos(turn) * across - np.sin(turn) * down) * mirror / wide
    rows, columns = shape.crop.shape
    outline = cv2.remap(
        shape.crop.astype(np.float32),
        ((x + 0.5) * columns - 0.5).astype(np.float32),
        ((y + 0.5) * rows - 0.5).astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
    )
    hole = outline > 0.5
    if not hole.any():
        return hole
    found_y, found_x = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
    return hole[found_y[0] : found_y[-1] + 1, found_x[0] : found_x[-1] + 1]


def _place(shape: Shape, outline: Mask, free: Mask, rng: np.random.Generator) -> tuple[int, int] | None:
    """Where the outline's corner may lie, drawn with more weight near the lesion's own place.

    On a grid of cells: the outline covers a cell when it covers a part of it, a cell is free when all of it
    is. What fits on the grid fits on the pixels.
    """
    height, width = free.shape
    cell = max(1, -(-max(height, width) // _GRID))
    cells = _cells(free, cell, np.min)
    cover = _cells(outline, cell, np.max)
    if cover.shape[0] > cells.shape[0] or cover.shape[1] > cells.shape[1]:
        return None
    blocked = cv2.matchTemplate(1 - cells, cover, cv2.TM_CCORR)  # cells that are covered and not free
    corners = np.argwhere(blocked < 0.5) * cell
    if not len(corners):
        return None
    centres = (corners + np.array(outline.shape) / 2) / (height, width)
    own = (shape.box[0] + shape.box[2] / 2, shape.box[1] + shape.box[3] / 2)
    away = ((centres - own) ** 2).sum(1)
    weight = np.exp(-away / (2 * _NEAR**2)) + _ANYWHERE
    top, left = corners[int(rng.choice(len(corners), p=weight / weight.sum()))]
    return int(top), int(left)


def _cells(mask: Mask, cell: int, reduce: object) -> NDArray[np.float32]:
    """`(H, W) bool` as cells; a cell that sticks out of the mask counts as neither free nor covered there."""
    tall, wide = -(-mask.shape[0] // cell), -(-mask.shape[1] // cell)
    padded = np.zeros((tall * cell, wide * cell), np.float32)
    padded[: mask.shape[0], : mask.shape[1]] = mask
    return np.asarray(reduce(padded.reshape(tall, cell, wide, cell), axis=(1, 3)), np.float32)  # type: ignore[operator]


_AROUND: Final = 0.5  # of the hole's length is shown on each side of it, at the least


class Neighbourhood(NamedTuple):
    """A rectangle of the image, `size` pixels at most once it is scaled down, and padded to a multiple."""

    top: int
    left: int
    bottom: int
    right: int
    scaled: tuple[int, int]  # height and width after scaling; those of the rectangle where it fits
    padding: tuple[int, int]  # rows below, columns on the right

    def picture(self, image: Pixels) -> Pixels:
        """What is seen of `(H, W, 3)`, its far edges mirrored into the padding."""
        return self._padded(resize_image(image[self.top : self.bottom, self.left : self.right], self.scaled))

    def hole(self, mask: Mask) -> Mask:
        """The hole in `picture`: every pixel that any of it went into, its mirror image too."""
        part = mask[self.top : self.bottom, self.left : self.right].astype(np.float32)
        if part.shape != self.scaled:
            part = np.asarray(cv2.resize(part, self.scaled[::-1], interpolation=cv2.INTER_AREA), np.float32)
        return self._padded((part > 0).astype(np.uint8)).astype(np.bool_)

    def put_back(self, image: Pixels, seen: Pixels) -> Pixels:
        """A copy of `image` with `seen`, of the size of `picture`, in its place."""
        part = np.ascontiguousarray(seen[: self.scaled[0], : self.scaled[1]])
        out = image.copy()
        size = (self.bottom - self.top, self.right - self.left)
        out[self.top : self.bottom, self.left : self.right] = resize_image(part, size)
        return out

    def _padded(self, part: Pixels) -> NDArray[np.uint8]:
        below, beside = self.padding
        return np.asarray(cv2.copyMakeBorder(part, 0, below, 0, beside, cv2.BORDER_REFLECT), np.uint8)


def neighbourhood(mask: Mask, *, size: int, multiple: int) -> Neighbourhood:
    """Around the hole `mask`, which is not empty: native pixels where the hole and half its length on each
    side fit into `size`, else scaled down. `size` is a multiple of `multiple`.
    """
    top, bottom = _span(np.flatnonzero(mask.any(1)), mask.shape[0], size)
    left, right = _span(np.flatnonzero(mask.any(0)), mask.shape[1], size)
    height, width = bottom - top, right - left
    if max(height, width) > size:
        height, width = fitted_size(height, width, size)
    padding = (-height % multiple, -width % multiple)
    return Neighbourhood(top, left, bottom, right, (height, width), padding)


def _span(inside: NDArray[np.int64], length: int, size: int) -> tuple[int, int]:
    """Where to cut along one axis: `size` pixels about the hole, more where it needs them, at most all."""
    first, last = int(inside[0]), int(inside[-1]) + 1
    wanted = min(length, max(size, round((last - first) * (1 + 2 * _AROUND))))
    start = min(max(0, (first + last - wanted) // 2), length - wanted)
    return start, start + wanted
