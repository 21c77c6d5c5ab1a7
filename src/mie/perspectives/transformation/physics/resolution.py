"""The resolution of MR images: a coarser acquisition, and the size at which an image was acquired.

Scanners and archives fill k-space up with zeros, or enlarge the picture, so that slices of 200 lines lie on
disk with 512. What is simulated in such an image is not what a scanner would do: halving its resolution takes
nothing away, its noise is finer than its detail, and half of the lines that are left out were empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from mie.errors import ImageError
from mie.perspectives.transformation.physics.severity import as_params, check_choice, check_fields

_ROUNDING: Final = 1.0  # grey levels, root mean square: what 8 bits and compression leave in empty k-space
_STEPS: Final = 64  # the share of k-space is found to this part
_MOST: Final = 0.75  # an image that fills more is as it was acquired
_AIR: Final = 10  # grey levels up to which a pixel may be air, where nothing is to be lost
_LEAST: Final = 32  # pixels that a side keeps


def acquired_share(image: NDArray[Any]) -> float:
    """The least share of both sides of k-space without which `(H, W)` 8-bit values are hardly the same.

    What lies beyond makes at most a grey level of difference, root mean square over the body. In (0, 1].
    """
    height, width = image.shape
    half = fft.rfft2(image.astype(np.float32), norm="ortho")
    energy = half.real**2 + half.imag**2
    energy[:, 1 : (width + 1) // 2] *= 2  # the other half mirrors it
    rows = np.abs(fft.fftfreq(height, 1 / height)) / (height / 2)
    columns = fft.rfftfreq(width, 1 / width) / (width / 2)
    ring = np.ceil(np.maximum(rows[:, None], columns) * _STEPS).astype(np.intp)
    within = np.bincount(ring.ravel(), energy.ravel(), _STEPS + 1)
    beyond = np.cumsum(within[::-1])[::-1]  # from each ring on
    full = np.flatnonzero(beyond > _ROUNDING**2 * np.count_nonzero(image > _AIR))
    return max(1, int(full[-1])) / _STEPS if len(full) else 1 / _STEPS


def at_acquired_size(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A grey image `(H, W)` on the matrix that holds it; the image itself where it fills its own."""
    share = acquired_share(image)
    if share > _MOST:
        return image
    size = [max(min(side, _LEAST), round(side * share)) for side in image.shape]
    # Frequencies in the transform's order; negative ones count from its end.
    kept = np.ix_(*(fft.ifftshift(np.arange(side) - side // 2) for side in size))
    small = fft.ifft2(fft.fft2(image.astype(np.float32))[kept]).real * (size[0] * size[1] / image.size)
    return np.clip(np.rint(small), 0, 255).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class LowResolution:
    """Truncation of k-space: what a scan with pixels `factor` times as large would have measured.

    Frequencies `k` (cycles across the image) with `|k| < side / (2 factor)` are kept as they are, all others
    become zero, and the image keeps its size (zero filling). It is not an image resize: nothing folds back,
    and edges ring as in a real scan (Gibbs). Linear, hence float results may dip a little below zero.
    """

    factor: int  # 2 or 4

    FACTORS: ClassVar[tuple[int, ...]] = (2, 4)

    def __post_init__(self) -> None:
        check_choice(self, "factor", self.FACTORS)

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        check_fields(cls, fixed)
        return cls(**{"factor": int(rng.choice(cls.FACTORS))} | fixed)

    def apply(self, image: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """`(H, W)` or `(H, W, 3)`, float32 or uint8 -> the same shape and dtype; nothing here is random.

        uint8 is rounded and clipped to 0..255 at the end.
        """
        if image.ndim not in (2, 3) or min(image.shape[:2]) < 2 or (image.ndim == 3 and image.shape[2] != 3):
            raise ImageError(
                "not a grey or RGB picture",
                expected="(H, W) or (H, W, 3), at least 2 by 2 pixels",
                found=f"shape {image.shape}",
            )
        if image.dtype not in (np.uint8, np.float32):
            raise ImageError("pixels of another kind", expected="uint8 or float32", found=image.dtype)
        if not np.isfinite(image.sum(dtype=np.float64)):
            raise ImageError("picture has pixels that are not numbers", expected="finite values")
        height, width = image.shape[:2]
        # Real pixels: half of k-space says all. `axes` ends with the halved one.
        half = fft.rfft2(image.astype(np.float32, copy=False), axes=(0, 1))
        half[np.abs(fft.fftfreq(height, 1 / height)) >= height / (2 * self.factor)] = 0
        half[:, fft.rfftfreq(width, 1 / width) >= width / (2 * self.factor)] = 0
        out = fft.irfft2(half, s=(height, width), axes=(0, 1), overwrite_x=True)
        if image.dtype == np.uint8:
            return np.clip(np.rint(out), 0, 255).astype(np.uint8)
        return out

    def params(self) -> dict[str, Any]:
        return as_params(self)
