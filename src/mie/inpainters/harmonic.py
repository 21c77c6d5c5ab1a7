"""Smooth functions inside a hole, given along its outline: each pixel is the mean of its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import cv2
import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import splu

from mie.inpainters.base import Inpainter, check_hole, refuse_arguments
from mie.records import Mask, Pixels

_RIM: Final = 2.0  # standard deviation in pixels of the mean along the outline

_Plane = NDArray[np.float32]

_EVERY, _FIRST, _LAST = slice(None), slice(None, -1), slice(1, None)
# Each pixel that has one, and its neighbour: below, above, right, left.
_NEIGHBOURS: Final = (
    ((_FIRST, _EVERY), (_LAST, _EVERY)),
    ((_LAST, _EVERY), (_FIRST, _EVERY)),
    ((_EVERY, _FIRST), (_EVERY, _LAST)),
    ((_EVERY, _LAST), (_EVERY, _FIRST)),
)


class Harmonic:
    """The outline's grey levels, averaged along it, run smoothly through the hole; no seed, no texture."""

    name = "harmonic"
    weights = None

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        check_hole(image, mask)
        filled = image.copy()
        if mask.any():
            drawn = harmonic(image.astype(np.float32), mask)[mask]
            filled[mask] = drawn.round().clip(0, 255).astype(np.uint8)
        return filled


def open_harmonic(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    refuse_arguments("harmonic", argument, options)
    return Harmonic()


def harmonic(values: _Plane, hole: Mask) -> _Plane:
    """What continues `values` `(H, W, C)` into the hole; zero outside it. Something must be outside."""
    return stepless(values, np.zeros_like(values), hole)


def stepless(outside: _Plane, inside: _Plane, hole: Mask) -> _Plane:
    """What to add to `inside` in the hole so that no step is left along its outline; zero outside it.

    The step is averaged along the outline, so that the noise of single pixels does not run inwards.
    """
    count, step = np.zeros(hole.shape, np.float32), np.zeros_like(outside)
    for here, there in _NEIGHBOURS:
        across = hole[here] & ~hole[there]
        step[there][across] += outside[there][across] - inside[here][across]
        count[there] += across
    rim = count > 0
    weighted = cv2.GaussianBlur(np.dstack([step, count]), (0, 0), _RIM, borderType=cv2.BORDER_CONSTANT)
    return _solved(weighted[..., :-1] / np.maximum(weighted[..., -1:], 1e-6), hole, rim)


def _solved(values: _Plane, hole: Mask, rim: Mask) -> _Plane:
    """Zero outside the hole; inside, each pixel is the mean of its neighbours, those on the rim given.

    At the image's border a pixel has fewer neighbours (no flow across it).
    """
    number = np.full(hole.shape, -1)
    number[hole] = np.arange(hole.sum())
    rows, columns, degree = [], [], np.zeros(hole.sum())
    given = np.zeros((int(hole.sum()), values.shape[2]))
    for here, there in _NEIGHBOURS:
        from_hole = hole[here]
        both = from_hole & hole[there]
        rows.append(number[here][both])
        columns.append(number[there][both])
        degree += np.bincount(number[here][from_hole], minlength=degree.size)
        edge = from_hole & rim[there]
        for channel in range(values.shape[2]):
            given[:, channel] += np.bincount(
                number[here][edge], values[there][edge][:, channel], minlength=degree.size
            )
    row, column = np.concatenate(rows), np.concatenate(columns)
    system = scipy.sparse.coo_array((-np.ones(row.size), (row, column)), (degree.size, degree.size)).tocsc()
    system += scipy.sparse.diags_array(degree)
    solved = np.zeros(values.shape, np.float32)
    solved[hole] = splu(scipy.sparse.csc_matrix(system), permc_spec="MMD_AT_PLUS_A").solve(given)
    return solved
