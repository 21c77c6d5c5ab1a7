"""Thermal noise of MR images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.physics import kspace
from mie.physics._severity import Ranges, as_params, check_fields, check_ranges, draw_ranges


@dataclass(frozen=True, slots=True)
class RicianNoise:
    """Gaussian noise of standard deviation sigma in both channels of the complex image, then the magnitude.

    Sigma is a percentage of the brightest tissue (`signal_level`). Where there is no signal the result has
    mean `sigma sqrt(pi / 2)`: the dark background of an MR image turns grey, which Gaussian noise on the
    magnitude would miss.
    """

    percent: float  # sigma, per cent of the brightest tissue; 0 .. 30

    RANGES: ClassVar[Ranges] = {"percent": (0.0, 30.0)}
    DRAWN: ClassVar[Ranges] = {"percent": (3.0, 15.0)}

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        check_fields(cls, fixed)
        return cls(**draw_ranges(rng, cls.DRAWN) | fixed)

    def apply(self, image: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(H, W)` float32 magnitude -> the noisy magnitude; same units."""
        magnitude = kspace.check_magnitude(image)
        return rician(magnitude, self.percent / 100 * signal_level(magnitude), rng)

    def params(self) -> dict[str, Any]:
        return as_params(self)


def signal_level(magnitude: NDArray[np.float32]) -> float:
    """The brightest tissue: the 99th percentile of the pixels above zero (background may be exactly zero)."""
    tissue = magnitude[magnitude > 0]
    if tissue.size == 0:
        raise ImageError("MR slice has no signal", expected="pixels above 0", found="all 0")
    return float(np.percentile(tissue, 99))


def rician(magnitude: NDArray[np.float32], sigma: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """`|magnitude + n1 + i n2|`, n1 and n2 normal with standard deviation `sigma`.

    Independent of the image's phase, because complex Gaussian noise has none of its own.
    """
    real = magnitude + np.float32(sigma) * rng.standard_normal(magnitude.shape, np.float32)
    return np.hypot(real, np.float32(sigma) * rng.standard_normal(magnitude.shape, np.float32))
