"""Numbers of whole volumes: `(S, H, W)` masks and grey levels with the spacing of their voxels in mm.

Surfaces are the marked voxels that have an unmarked one among their six neighbours; what lies beyond the
volume counts as unmarked. Distances are between voxel centres, by the exact Euclidean transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mie.errors import MetricError
from mie.images.overlay import dice
from mie.records import Mask
from mie.scoring.metrics.psnr import decibel

TOLERANCE_MM: Final = 2.0  # of the normalised surface DICE
PERCENTILE: Final = 95.0
WINDOW: Final = 7  # voxels of the SSIM window along the axis with the finest spacing
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


@dataclass(frozen=True, slots=True)
class Surfaces:
    """How far each surface voxel of one mask lies from the other's surface, in mm, both ways."""

    to_reference: NDArray[np.float64]
    to_output: NDArray[np.float64]

    def percentile(self, percent: float = PERCENTILE) -> float:
        """The larger of the two directed percentiles, as MONAI and surface-distance define it."""
        if not (self.to_reference.size and self.to_output.size):
            empty = "reference" if not self.to_output.size else "output"
            raise MetricError(f"a surface distance needs two surfaces, and the {empty} marks nothing")
        return float(max(np.percentile(d, percent) for d in (self.to_reference, self.to_output)))

    def dice(self, tolerance: float = TOLERANCE_MM) -> float:
        """The share of both surfaces that lies within `tolerance` mm of the other: 0 where one is empty."""
        total = self.to_reference.size + self.to_output.size
        if not total:
            raise MetricError("neither volume marks anything")
        # A hair more than the tolerance, so that 2 voxels of 0.9999999 mm and 1.0000001 mm are both 2 mm.
        near = sum(
            int((d <= tolerance * (1 + 1e-6)).sum()) for d in (self.to_reference, self.to_output) if d.size
        )
        return near / total if self.to_reference.size and self.to_output.size else 0.0


def surfaces(output: Mask, reference: Mask, spacing: Sequence[float]) -> Surfaces:
    """The distances between the surfaces of two masks of one shape; `spacing` is (slice, row, column) mm."""
    _check(output, reference)
    box = _box(output | reference)
    if box is None:
        none = np.zeros(0, np.float64)
        return Surfaces(none, none)
    # The nearest surface voxel lies in the box of both masks: what is outside need not be looked at.
    mine, theirs = (_shell(mask[box]) for mask in (output, reference))
    return Surfaces(_distances(mine, theirs, spacing), _distances(theirs, mine, spacing))


def volume_dice(output: Mask, reference: Mask) -> float:
    """DICE over all voxels; 1 where both are empty."""
    _check(output, reference)
    return dice(output, reference)


def volume_psnr(output: NDArray[np.uint8], reference: NDArray[np.uint8]) -> float:
    """PSNR over all voxels of two 8-bit volumes; infinite where they are equal."""
    _check(output, reference)
    squares = 0
    for a, b in zip(output, reference, strict=True):  # a slice at a time: no volume of floats
        squares += int(np.square(a.astype(np.int32) - b).sum(dtype=np.int64))
    return decibel(squares, output.size)


def volume_ssim(
    output: NDArray[np.uint8], reference: NDArray[np.uint8], spacing: Sequence[float] | None = None
) -> float:
    """Mean SSIM of two 8-bit grey volumes `(S, H, W)` with a uniform window that is about a cube in space.

    The window has 7 voxels along the axis with the finest spacing and, along the others, the odd number that
    covers about as many mm; never more than the volume has. With equal spacings this is
    `skimage.metrics.structural_similarity`.
    """
    _check(output, reference)
    size = window_of(output.shape, spacing)
    count = math.prod(size)
    if count < 2:
        raise MetricError("the volume is smaller than the SSIM window", found=output.shape)
    a, b = output.astype(np.float32), reference.astype(np.float32)

    def mean(values: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(ndimage.uniform_filter(values.astype(np.float64), size))

    mean_a, mean_b = mean(a), mean(b)
    scale = count / (count - 1)
    var_a = scale * (mean(a * a) - mean_a**2)
    var_b = scale * (mean(b * b) - mean_b**2)
    both = scale * (mean(a * b) - mean_a * mean_b)
    top = (2 * mean_a * mean_b + _C1) * (2 * both + _C2)
    similar = top / ((mean_a**2 + mean_b**2 + _C1) * (var_a + var_b + _C2))
    inside = tuple(slice(n // 2, length - n // 2) for n, length in zip(size, output.shape, strict=True))
    return float(similar[inside].mean(dtype=np.float64))


def window_of(shape: Sequence[int], spacing: Sequence[float] | None) -> tuple[int, ...]:
    """The SSIM window in voxels.

    >>> window_of((40, 256, 256), (5.0, 1.0, 1.0)), window_of((5, 64, 64), None)
    ((1, 7, 7), (5, 7, 7))
    """
    found = []
    for at, length in enumerate(shape):
        voxels = WINDOW if spacing is None else WINDOW * min(spacing) / spacing[at]
        odd = 2 * round((voxels - 1) / 2) + 1
        found.append(max(1, min(odd, length - (length + 1) % 2)))
    return tuple(found)


def _check(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.shape != b.shape or a.ndim != 3:
        raise MetricError("the two volumes differ in size", expected=b.shape, found=a.shape)


def _box(mask: Mask) -> tuple[slice, ...] | None:
    found = ndimage.find_objects(mask.view(np.uint8))
    return tuple(found[0]) if found else None


def _shell(mask: Mask) -> Mask:
    return np.asarray(mask & ~ndimage.binary_erosion(mask, border_value=0))


def _distances(shell: Mask, other: Mask, spacing: Sequence[float]) -> NDArray[np.float64]:
    if not shell.any() or not other.any():
        # Nothing is near to nothing; how many voxels there are still counts.
        return np.full(int(shell.sum()), np.inf)
    return np.asarray(ndimage.distance_transform_edt(~other, sampling=spacing)[shell], np.float64)
