"""Whether a head volume still has its face: a surface can be rendered from it, and people recognised.

The profile of the head in its middle plane is compared with the forehead. In a whole head the nose is about
as far forward as the forehead; where the face was cut off, or the skull with everything outside it, the
profile falls back below the eyes. In a volume that begins below the vertex, nose and chin are looked for as
what stands out between the cheeks. Lengths are those of an adult, scaled by the width of the head.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mie.images.volumes import Volume
from mie.records import Mask

_GRID: Final = 2.0  # mm: finer is not needed
_WIDTH: Final = 150.0  # mm of an adult's head from side to side
_WIDTHS: Final = (90.0, 210.0)
_DEPTHS: Final = (0.9, 2.2)  # from front to back, as a multiple of the width
_SKULL: Final = 110.0  # mm from the vertex to its base
_BELOW_A_CUT: Final = (0.0, 180.0)
_BUMP: Final = 16.0  # mm of a nose or chin; a round neck or forehead has less
_LABELS: Final = 64  # fewer values than any scan has
_FOREHEAD: Final = (25.0, 85.0)  # mm below the vertex
_FACE: Final = (
    118.0,
    170.0,
)  # from the bridge of the nose to the mouth; a brain alone ends above at the front
_LEAST_FACE: Final = 10.0  # mm of it in the volume, else there is nothing to see
_MIDDLE: Final = 15.0  # mm to either side of the middle plane
_BACK: Final = 12.0  # mm behind the forehead: further back there is no face; a nodding head needs some
_DOME: Final = 0.5  # of the largest cross-section: the top of a head has less
_AIR_HU: Final = -300.0
_TISSUE: Final = 0.12  # of the bright tissue, in MRI


class Head(NamedTuple):
    """What was measured, in millimetres, of which one is known."""

    profile: float | None = None  # how far the face is in front of the forehead; negative behind it
    bump: float | None = None  # how far the middle of the face is in front of the cheeks

    @property
    def has_face(self) -> bool:
        """Whether somebody may be recognised."""
        return (self.profile is not None and self.profile > -_BACK) or (
            self.bump is not None and self.bump > _BUMP
        )


def find_head(volume: Volume) -> Head | None:
    """The head in a volume; None where it shows no head, or ends above the nose."""
    steps = [max(1, round(_GRID / mm)) for mm in volume.spacing]
    data = volume.data[:: steps[0], :: steps[1], :: steps[2]]
    x_mm, y_mm, z_mm = (step * mm for step, mm in zip(steps, volume.spacing, strict=True))
    if min(data.shape) < 8 or x_mm * data.shape[0] < _WIDTHS[0] or _is_label_map(data):
        return None
    body = _body(data)
    levels = np.flatnonzero(body.any(axis=(0, 1)))
    if not len(levels):
        return None
    top = int(levels[-1])
    start = max(0, top - round(_SKULL / z_mm))
    upper = body[:, :, start : top + 1]  # without shoulders
    across = np.asarray(upper.any(axis=(1, 2)))
    width, depth = _extent(across) * x_mm, _extent(np.asarray(upper.any(axis=(0, 2)))) * y_mm
    if not _WIDTHS[0] <= width <= _WIDTHS[1] or not _DEPTHS[0] <= depth / width <= _DEPTHS[1]:
        return None
    scale = width / _WIDTH
    centre = float(np.mean(np.flatnonzero(across)))
    offsets = (np.arange(body.shape[0]) - centre) * x_mm / scale
    # (X, Z): millimetres to the front-most tissue; below all of it where there is none.
    front = np.where(body.any(axis=1), (body.shape[1] - 1 - np.argmax(body[:, ::-1], axis=1)) * y_mm, -1e3)

    def foremost(sides: tuple[float, float], band: tuple[float, float]) -> NDArray[np.float64]:
        """By level, from the top down: the front of what lies between two distances from the middle plane."""
        first, last = (top - round(mm * scale / z_mm) for mm in band)
        chosen = (offsets >= sides[0]) & (offsets <= sides[1])
        return np.asarray(front[chosen, max(0, last) : max(0, first + 1)].max(axis=0)[::-1], np.float64)

    areas = upper.sum(axis=(0, 1))
    if areas[-max(1, round(6 / z_mm)) :].mean() < _DOME * areas.max():
        face = foremost((-_MIDDLE, _MIDDLE), _FACE)
        if len(face) * z_mm < _LEAST_FACE * scale:
            return None
        return Head(profile=float(face.max() - foremost((-_MIDDLE, _MIDDLE), _FOREHEAD).max()))
    nose, right, left = (foremost(sides, _BELOW_A_CUT) for sides in ((-10, 10), (28, 36), (-36, -28)))
    bumps = np.sort(nose - np.maximum(left, right))
    bumps = bumps[bumps < _WIDTH]  # without levels that have no tissue at the sides
    count = max(1, round(_LEAST_FACE / z_mm))
    return None if len(bumps) < count else Head(bump=float(bumps[-count]))


def _is_label_map(data: NDArray[Any]) -> bool:
    return bool(np.unique(data[::2, ::2, ::2]).size < _LABELS)


def _body(data: NDArray[Any]) -> Mask:
    """The largest piece of what is no air, without specks and threads."""
    if data.min() < -500:  # Hounsfield units
        tissue = data > _AIR_HU
    else:
        positive = data[data > 0]
        if not positive.size:
            return np.zeros(data.shape, np.bool_)
        tissue = data > _TISSUE * np.percentile(positive, 98)
    tissue = ndimage.binary_opening(tissue, iterations=2)
    labels, count = ndimage.label(tissue)
    if not count:
        return np.zeros(data.shape, np.bool_)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return np.asarray(labels == sizes.argmax())


def _extent(line: Mask) -> int:
    places = np.flatnonzero(line)
    return int(places[-1] - places[0] + 1) if len(places) else 0
