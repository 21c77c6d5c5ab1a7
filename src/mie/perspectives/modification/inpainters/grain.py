"""Grain for a smooth fill, copied from the tissue around the hole.

A mean has no noise, and noise that a small network draws has another spectrum than tissue's. So the fast part
of the image is cut out elsewhere, tile by tile, where the image looks much as the fill does, and put onto it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.perspectives.modification.inpainters.exemplar import pulled
from mie.records import Mask

_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Grain:
    """How grain is copied. Lengths are pixels of a window of 256."""

    slow: float  # standard deviation: what changes more slowly than this is not grain
    likeness: float  # standard deviation: the blur under which places are compared
    tile: int
    strength: float  # against that around the hole
    mirror: bool = True  # left for right too: bodies are much alike on both sides
    edges: bool = False  # much stronger than the grain, and common: they must not pass for grain


# Chosen on patients of the training split by the measures of `bench/inpainting.py`: as much texture as costs
# 1 dB of PSNR against `telea`.
GRAIN: Final[dict[str, Grain]] = {
    "dermoscopy": Grain(4, 2, 20, 0.92),
    "endoscopy": Grain(4, 3, 28, 1.0),
    "ultrasound": Grain(4, 3, 28, 0.88, mirror=False),  # speckle lies along the beam
    "mri": Grain(4, 1.5, 16, 0.9, edges=True),
    "ct": Grain(4, 2, 18, 0.88, edges=True),
    "fundus": Grain(3, 2, 18, 0.8),
    "xray": Grain(4, 3, 18, 0.87),
}

_WINDOW: Final = 256
_FADE: Final = 3  # pixels over which neighbouring tiles fade into each other, on either side
_NEAR: Final = 6.0  # standard deviation in pixels of the window that grain's energy is taken over,
_NEAR_EDGES: Final = 2.0  # and beside edges
_ENERGY: Final = 5.0  # weight of log energy beside grey levels when places are compared
_QUIET: Final = 0.25  # grey levels squared: less is no grain
_CHOICE: Final = 0.01  # share of the places that the seed chooses from,
_ABOUT: Final = 1.3  # if they are worse than the best by no more than this factor
_FACTORS: Final = (0.6, 1.6)
_LETTERING: Final = 20.0  # times the median: what stands out by more is not grain


def graft(
    values: _Floats, hole: Mask, barred: Mask, grain: Grain, rng: np.random.Generator
) -> _Floats | None:
    """Grain for the hole of `values` `(H, W, C)`, grey levels with the smooth fill in the hole.

    `barred` are places that nothing is copied from, the hole among them. None where no place is free.
    """
    if barred.all():
        return None
    scale = max(1.0, max(hole.shape) / _WINDOW)
    fast = values - _blurred(values, grain.slow * scale, ~barred)
    energy = _log_energy(fast, barred, scale, grain.edges)
    looks = np.dstack([_blurred(values, grain.likeness * scale, hole | ~barred), _ENERGY * energy])
    if values.shape[2] > 1:  # a photograph: no lettering, no glints
        loud = np.abs(fast).max(2)
        barred = barred | (loud > _LETTERING * np.median(loud[~barred]))
    places = _Places(looks, barred, scale, grain.mirror)
    total, weight = np.zeros_like(values), np.zeros(hole.shape, np.float32)
    for box, share in _tiles(hole, round(grain.tile * scale), round(_FADE * scale)):
        found = places.like(box, hole[box], rng)
        if found is None:
            return None
        rows, columns, order = found
        there = fast[rows, columns][:, order], energy[rows, columns][:, order]
        louder = np.exp((energy[box] - there[1])[hole[box]].mean() / 2)
        total[box] += share[..., None] * there[0] * np.clip(louder, *_FACTORS)
        weight[box] += share**2
    # Independent grain: variances add up, so that where two tiles meet it is neither weaker nor stronger.
    return np.asarray(grain.strength * total / np.sqrt(np.maximum(weight, 1e-6))[..., None])


def _log_energy(fast: _Floats, barred: Mask, scale: float, edges: bool) -> _Floats:
    """How loud the grain is, `(H, W, 1)`; where it is barred, as loud as around.

    Beside edges it is the logarithm that is averaged: one edge at the rim does not make the hole loud.
    """
    near = (_NEAR_EDGES if edges else _NEAR) * scale
    energy = np.maximum(_blurred(np.square(fast).mean(2, keepdims=True), near, ~barred), 0)
    if edges:
        return pulled(np.where(barred[..., None], 0, np.log(energy + _QUIET)), ~barred)
    return np.asarray(np.log(pulled(np.where(barred[..., None], 0, energy), ~barred) + _QUIET))


class _Places:
    """Where a tile may be copied from; looked for at `scale` times fewer pixels."""

    def __init__(self, looks: _Floats, barred: Mask, scale: float, mirror: bool) -> None:
        self._scale, self._shape, self._mirror = scale, barred.shape, mirror
        size = [max(1, round(side / scale)) for side in barred.shape[::-1]]
        small = cv2.resize(looks, size, interpolation=cv2.INTER_AREA)
        self._looks = [np.ascontiguousarray(plane) for plane in np.moveaxis(np.atleast_3d(small), 2, 0)]
        near = cv2.dilate(barred.astype(np.float32), np.ones((5, 5)))
        self._barred = (cv2.resize(near, size, interpolation=cv2.INTER_AREA) > 0).astype(np.float32)

    def like(
        self, box: tuple[slice, slice], part: Mask, rng: np.random.Generator
    ) -> tuple[slice, slice, slice] | None:
        """A box as large as `box` that looks much like it under `part`, and in what order its columns are."""
        height, width = part.shape
        y, x = (int(side.start / self._scale) for side in box)
        rows, columns = (max(1, int(side / self._scale)) for side in part.shape)
        rows, columns = min(rows, self._barred.shape[0]), min(columns, self._barred.shape[1])
        y, x = min(y, self._barred.shape[0] - rows), min(x, self._barred.shape[1] - columns)
        shape = cv2.resize(part.astype(np.float32), (columns, rows), interpolation=cv2.INTER_AREA)
        shape = (shape > 0).astype(np.float32)
        worse = []
        for step in (1, -1) if self._mirror else (1,):
            under = np.ascontiguousarray(shape[:, ::step])
            far = sum(
                cv2.matchTemplate(
                    plane,
                    np.ascontiguousarray(plane[y : y + rows, x : x + columns][:, ::step]),
                    cv2.TM_SQDIFF,
                    mask=under,
                )
                for plane in self._looks
            )
            taken = cv2.matchTemplate(self._barred, under, cv2.TM_CCORR) > 0.5
            worse.append(np.where(taken, np.inf, np.maximum(far, 0)))
        flat = np.stack(worse).ravel()
        count = 1 + int(_CHOICE * flat.size)
        best = np.sort(np.argpartition(flat, count - 1)[:count])
        best = best[flat[best] <= _ABOUT * flat[best].min()]
        if not np.isfinite(flat[best]).all():
            return None
        mirrored, top, left = np.unravel_index(best[rng.integers(len(best))], np.shape(worse))
        top = min(round(top * self._scale), self._shape[0] - height)
        left = min(round(left * self._scale), self._shape[1] - width)
        return slice(top, top + height), slice(left, left + width), slice(None, None, -1 if mirrored else 1)


def _tiles(hole: Mask, side: int, fade: int) -> Iterator[tuple[tuple[slice, slice], _Floats]]:
    """Boxes of about `side` pixels that cover the hole, and the share of each, which fades at its edges."""
    rows, columns = (list(_spans(np.asarray(hole.any(axis)), side, fade)) for axis in (1, 0))
    for row, down in rows:
        for column, across in columns:
            if hole[row, column].any():
                yield (row, column), np.outer(down, across)


def _spans(inside: Mask, side: int, fade: int) -> Iterator[tuple[slice, _Floats]]:
    """The same along one axis, where `inside` says which rows (or columns) hold some of the hole."""
    first, last = np.flatnonzero(inside)[[0, -1]]
    edges = np.linspace(first, last + 1, max(1, round((last + 1 - first) / side)) + 1).round().astype(int)
    for low, high in itertools.pairwise(edges):
        at = np.arange(max(0, low - fade), min(len(inside), high + fade))
        middle = at + np.float32(0.5)
        share = np.clip(np.minimum(middle - low + fade, high - middle + fade) / (2 * fade), 0, 1)
        yield slice(int(at[0]), int(at[-1]) + 1), share.astype(np.float32)


def _blurred(values: _Floats, sigma: float, known: Mask) -> _Floats:
    """A Gaussian mean of the known pixels of `(H, W, C)`."""
    both = np.dstack([values * known[..., None], known.astype(np.float32)])
    both = cv2.GaussianBlur(both, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(both[..., :-1] / np.maximum(both[..., -1:], 1e-3), np.float32)
