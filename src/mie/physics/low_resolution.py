"""A coarser acquisition, for super-resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from mie.errors import ImageError
from mie.physics._severity import as_params, check_choice, check_fields


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
