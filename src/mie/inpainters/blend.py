"""After the fill: outside the hole the original, exactly, and no visible edge where the two meet.

Only the fill inside the hole and the original outside it are looked at. What `original` shows inside the hole
(a lesion, perhaps) never shines through, and what an inpainter did outside it does not matter.
"""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError
from mie.images.closed import closed
from mie.images.grey import is_grey
from mie.inpainters.base import check_hole
from mie.inpainters.harmonic import stepless
from mie.records import Mask, Pixels
from mie.vocabulary import nearest_name

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
}

_FEATHER: Final = 4  # pixels inside the hole over which the outside fades out
_LEVELS: Final = 4  # of the pyramid
_REACH: Final = 48  # pixels around the hole that a blend looks at

_Plane = NDArray[np.float32]


def blend(kind: str, original: Pixels, filled: Pixels, mask: Mask) -> Pixels:
    """`filled` inside `mask` joined to `original` outside, both `(H, W, 3) uint8`; grey stays grey.

    none       the fill as it is
    feather    over the outermost 4 pixels of the hole, the outside's continuation fades into the fill
    poisson    the fill plus the smooth (harmonic) correction that removes the step along the outline
    laplacian  a pyramid: coarse structure joins over a wide band, detail over a narrow one
    """
    if kind not in KINDS:
        near = nearest_name(kind, KINDS)
        raise ConfigError(
            f"no blend named {kind!r}",
            expected=", ".join(KINDS),
            fix=f"did you mean {near!r}?" if near else None,
        )
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
