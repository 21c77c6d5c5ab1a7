"""Speckle of ultrasound and OCT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.severity import (
    Ranges,
    as_params,
    check_choice,
    check_fields,
    check_ranges,
    draw_ranges,
)

# What scanners of the two kinds show. Single frames of a spectral-domain OCT scanner have grains of about one
# pixel, and about 40 dB over 255 grey levels.
_DRAWN: Final[dict[str, Ranges]] = {
    "ultrasound": {
        "looks": (1, 4),
        "axial": (1.0, 2.0),
        "lateral": (2.0, 4.5),
        "dynamic_range": (50.0, 70.0),
    },
    "OCT": {"looks": (1, 3), "axial": (0.6, 1.2), "lateral": (0.5, 1.2), "dynamic_range": (36.0, 46.0)},
}


@dataclass(frozen=True, slots=True)
class Speckle:
    """Multiplicative, correlated speckle on the envelope before log compression.

    The envelope's power is multiplied by the mean of `looks` independent patterns `|z|^2`, with `z` complex
    Gaussian: exponential for one look (a Rayleigh amplitude), Gamma for more, of mean 1 and contrast
    (standard deviation over mean) `1 / sqrt(looks)`. `z` is smoothed by the point spread function, a
    Gaussian, such that the pattern's autocorrelation falls to 1/e at `axial` pixels down and `lateral` pixels
    across.

    The 8-bit image is taken as log-compressed over `dynamic_range` decibels; see `expand` and `compress`.
    `centre` says what keeps its mean: the envelope ("envelope"), or the displayed grey value ("display") when
    the clean image is an average of displayed frames, as averaged OCT scans are.
    """

    looks: int  # 1 (fully developed) .. 32
    axial: float  # pixels; 0.3 .. 8
    lateral: float  # pixels; 0.3 .. 12
    dynamic_range: float = 60.0  # decibels; 30 .. 100
    centre: str = "envelope"

    RANGES: ClassVar[Ranges] = {
        "looks": (1, 32), "axial": (0.3, 8.0), "lateral": (0.3, 12.0), "dynamic_range": (30.0, 100.0)
    }  # fmt: skip

    NOISE: ClassVar[bool] = True  # each slice of a volume has its own

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        check_choice(self, "centre", ("envelope", "display"))

    @classmethod
    def draw(cls, rng: np.random.Generator, modality: str = "ultrasound", **fixed: Any) -> Self:
        """Severity as scanners of `modality` ("ultrasound" or "OCT") have it."""
        check_fields(cls, fixed)
        if modality not in _DRAWN:
            raise ConfigError("no speckle in this modality", expected=", ".join(_DRAWN), found=modality)
        numbers: dict[str, Any] = draw_ranges(rng, _DRAWN[modality])
        return cls(**numbers | fixed)

    def pattern(self, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
        """The factor on the envelope's power, `(H, W)` float32: mean 1, contrast `1 / sqrt(looks)`."""
        down, across = _point_spread(self.axial), _point_spread(self.lateral)
        # Filter a larger field and cut its rim off: the pattern is the same everywhere, borders included.
        rim_y, rim_x = len(down) // 2, len(across) // 2
        large = (shape[0] + 2 * rim_y, shape[1] + 2 * rim_x)
        power = np.zeros(shape, np.float32)
        for _ in range(2 * self.looks):
            noise = cv2.sepFilter2D(rng.standard_normal(large, np.float32), -1, across, down)
            power += noise[rim_y : rim_y + shape[0], rim_x : rim_x + shape[1]] ** 2
        return power / np.float32(2 * self.looks)

    def apply(self, image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """`(H, W)` uint8, log-compressed -> the same with speckle; black stays black."""
        if image.ndim != 2 or min(image.shape) < 2 or image.dtype != np.uint8:
            raise ImageError(
                "not an 8-bit grey picture",
                expected="(H, W) uint8, at least 2 by 2 pixels",
                found=f"{image.shape} {image.dtype}",
            )
        factor = self.pattern(image.shape, rng)
        if self.centre == "display":
            # The mean logarithm of a Gamma variable of mean 1 and L looks is digamma(L) - log(L).
            factor *= np.float32(np.exp(np.log(self.looks) - digamma(self.looks)))
        return compress(expand(image, self.dynamic_range) * factor, self.dynamic_range)

    def params(self) -> dict[str, Any]:
        return as_params(self)


def expand(image: NDArray[np.uint8], dynamic_range: float) -> NDArray[np.float32]:
    """The envelope's power behind a log-compressed image, 1 at white and exactly 0 at black.

    Black is the floor of the display, `10 ** (-dynamic_range / 10)`, which is taken off: multiplying nothing
    leaves nothing.
    """
    above_floor = np.arange(256) / 255 * dynamic_range
    table = 10 ** (-dynamic_range / 10) * (10 ** (above_floor / 10) - 1)
    return table.astype(np.float32)[image]


def compress(power: NDArray[np.float32], dynamic_range: float) -> NDArray[np.uint8]:
    """The inverse of `expand`, clipped to white and rounded."""
    decibels = 10 * np.log10(power + np.float32(10 ** (-dynamic_range / 10)))
    return np.clip(np.rint(255 * (1 + decibels / dynamic_range)), 0, 255).astype(np.uint8)


def _point_spread(length: float) -> NDArray[np.float32]:
    """A Gaussian of unit energy whose field `z` gives `|z|^2` an autocorrelation of 1/e at `length`.

    Smoothed by `exp(-x^2 / 2 s^2)`, z has the autocorrelation `exp(-d^2 / 4 s^2)`; that of `|z|^2` is its
    square, `exp(-d^2 / 2 s^2)`, so `s = length / sqrt(2)`.
    """
    s = length / np.sqrt(2)
    x = np.arange(-int(np.ceil(4 * s)), int(np.ceil(4 * s)) + 1)
    kernel = np.exp(-(x**2) / (2 * s**2))
    return (kernel / np.sqrt((kernel**2).sum())).astype(np.float32)
