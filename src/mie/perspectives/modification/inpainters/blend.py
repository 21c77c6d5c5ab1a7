"""Fills without texture (Telea, Navier-Stokes, harmonic), and blending any fill into its image.

Telea 2004 and Navier-Stokes (Bertalmio 2001), both by OpenCV, carry grey levels inwards from the rim; the
harmonic fill makes each pixel the mean of its neighbours. They are the floor that every other inpainter is
measured against.

After blending, outside the hole is the original, exactly, with no visible edge where the two meet. Only the
fill inside the hole and the original outside it are looked at: what the original shows inside the hole (a
lesion, perhaps) never shines through, and what an inpainter did outside it does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import splu

from mie.core.registry import unknown_name
from mie.images.overlay import is_grey
from mie.perspectives.modification.inpainters import Inpainter, check_hole, refuse_arguments
from mie.records import Mask, Pixels


def closed(image: Pixels, mask: Mask, method: int, radius: int) -> Pixels:
    """`cv2.inpaint` of `(H, W, C) uint8`, a function of what is outside the hole alone.

    `method` is OpenCV's, as `cv2.INPAINT_TELEA`. Something must be outside: all hole comes back black.
    """
    # OpenCV starts from the hole's own content in places, and reads beyond images one pixel wide or high.
    twice = [(0, side == 1) for side in mask.shape]
    blank = np.pad(np.where(mask[..., None], np.uint8(0), image), [*twice, (0, 0)], mode="edge")
    filled = cv2.inpaint(blank, np.pad(mask, twice, mode="edge").astype(np.uint8), radius, method)
    return np.asarray(filled).reshape(blank.shape)[: mask.shape[0], : mask.shape[1]]


_RADIUS: Final = 5  # pixels that a pixel is filled from


@dataclass(frozen=True, slots=True)
class Diffusion:
    """`cv2.inpaint`; the seed changes nothing."""

    name: str
    method: int

    @property
    def weights(self) -> None:
        """Nothing is learnt."""
        return

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        check_hole(image, mask)
        return closed(image, mask, self.method, _RADIUS)


def open_telea(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    refuse_arguments("telea", argument, options)
    return Diffusion("telea", cv2.INPAINT_TELEA)


def open_navier_stokes(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    refuse_arguments("navier-stokes", argument, options)
    return Diffusion("navier-stokes", cv2.INPAINT_NS)


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


KINDS: Final = ("none", "feather", "poisson", "laplacian")

# Seam energy nearest to untouched tissue's, measured with real lesion shapes: `bench/inpainting.py`.
BLEND: Final[dict[str, str]] = {
    "dermoscopy": "poisson",
    "endoscopy": "poisson",
    "ultrasound": "poisson",
    "mri": "poisson",
    "ct": "poisson",
    "fundus": "poisson",
    "xray": "poisson",
    "microscopy": "poisson",
}

_FEATHER: Final = 4  # pixels inside the hole over which the outside fades out
_LEVELS: Final = 4  # of the pyramid
_REACH: Final = 48  # pixels around the hole that a blend looks at


def blend(kind: str, original: Pixels, filled: Pixels, mask: Mask) -> Pixels:
    """`filled` inside `mask` joined to `original` outside, both `(H, W, 3) uint8`; grey stays grey.

    none       the fill as it is
    feather    over the outermost 4 pixels of the hole, the outside's continuation fades into the fill
    poisson    the fill plus the smooth (harmonic) correction that removes the step along the outline
    laplacian  a pyramid: coarse structure joins over a wide band, detail over a narrow one
    """
    if kind not in KINDS:
        raise unknown_name("blend", kind, KINDS)
    check_hole(original, mask)
    check_hole(filled, mask)
    joined = original.copy()
    if not mask.any():
        return joined
    box = _around(mask)
    hole, outside, inside = mask[box], original[box].astype(np.float32), filled[box].astype(np.float32)
    if is_grey(original[~mask][None]):
        outside, inside = outside[..., :1], inside.mean(2, keepdims=True)
    if kind == "feather":
        inside = _feather(outside, inside, hole)
    elif kind == "poisson":
        inside = inside + stepless(outside, inside, hole)
    elif kind == "laplacian":
        inside = _laplacian(outside, inside, hole)
    joined[mask] = np.clip(inside[hole].round(), 0, 255).astype(np.uint8)
    return joined


def _around(mask: Mask) -> tuple[slice, slice]:
    places = [np.flatnonzero(mask.any(axis)) for axis in (1, 0)]
    rows, columns = (slice(max(int(p[0]) - _REACH, 0), int(p[-1]) + _REACH + 1) for p in places)
    return rows, columns


def _depth(mask: Mask) -> _Plane:
    """Pixels to the nearest one outside the mask; 1 along its rim."""
    return np.asarray(
        cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE), np.float32
    )


def _feather(outside: _Plane, inside: _Plane, hole: Mask) -> _Plane:
    depth = _depth(hole)
    width = min(_FEATHER, depth.max() / 2)  # a small hole keeps a middle of its own
    weight = np.clip(depth / (width + 1), 0, 1)[..., None]
    return np.asarray(weight * inside + (1 - weight) * _continued(outside, ~hole))


def _laplacian(outside: _Plane, inside: _Plane, hole: Mask) -> _Plane:
    """Both images continued over the outline, then joined band by band."""
    a, b, weight = _continued(outside, ~hole), _continued(inside, hole), hole[..., None].astype(np.float32)
    bands = []
    for _ in range(_LEVELS):
        if min(a.shape[:2]) < 4:
            break
        small_a, small_b = _down(a), _down(b)
        high_a, high_b = a - _up(small_a, a), b - _up(small_b, b)
        bands.append(weight * high_b + (1 - weight) * high_a)
        a, b, weight = small_a, small_b, _down(weight)
    joined = weight * b + (1 - weight) * a
    for band in reversed(bands):
        joined = _up(joined, band) + band
    return joined


def _down(image: _Plane) -> _Plane:
    return _channels(cv2.pyrDown(image), image)


def _up(image: _Plane, like: _Plane) -> _Plane:
    return _channels(cv2.pyrUp(image, dstsize=(like.shape[1], like.shape[0])), image)


def _channels(image: _Plane, like: _Plane) -> _Plane:
    """OpenCV drops a single channel's axis: put it back."""
    return np.asarray(image.reshape(*image.shape[:2], like.shape[2]), np.float32)


def _continued(values: _Plane, known: Mask) -> _Plane:
    """Unknown pixels near the known ones get their continuation (Telea)."""
    near = cv2.distanceTransform((~known).astype(np.uint8), cv2.DIST_L2, 3)
    whole = np.where(known[..., None], values, 0).round().astype(np.uint8)
    drawn = closed(whole, ~known & (near <= _REACH), cv2.INPAINT_TELEA, 3)
    return np.where(known[..., None], values, drawn)
