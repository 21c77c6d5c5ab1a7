"""CT with less radiation: a low dose, whose noise the kernel shapes, or sparse views, which leave streaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from mie.perspectives.transformation.physics.ct import (
    KERNELS,
    Sinogram,
    Slice,
    backproject,
    check_slice,
    embed,
    enough_views,
    even_angles,
    fbp,
    filter_sinogram,
    hu_to_attenuation,
    linear_attenuation,
    project,
)
from mie.perspectives.transformation.physics.severity import as_params, check_choice, check_ranges

PHOTONS: Final = (3e4, 3e5)
ELECTRONIC: Final = (0.0, 30.0)
SOFT: Final = ("hann",)
SHARP: Final = ("shepp-logan", "ramp")

# Attenuation (1/mm) of -900 HU: fainter pixels are air and need not fit into the field of view.
AIR: Final = 0.1 * linear_attenuation("water")
# A ray that lost every photon still reads this much: the logarithm of nothing would be infinite.
LEAST_COUNT: Final = 1.0


@dataclass(frozen=True, slots=True)
class LowDose:
    """A scan with `photons` per ray, 3e4 (very noisy) to 3e5 (a little grainy), in Hounsfield units.

    A ray is what one detector bin, as wide as a pixel, gets in one of `enough_views` views when no patient
    is there. `electronic` is the standard deviation of the read-out, in photons, 0 to 30. `kernel` is one of
    SOFT ("hann": coarse, mild grain) or SHARP ("shepp-logan", "ramp": fine, strong grain).

    The result is `clean + FBP(noisy sinogram) - FBP(clean sinogram)`. Filtered back-projection is linear, so
    this is the clean slice plus the reconstruction of the noise alone. It is the honest model: the slice is
    itself a reconstruction, and projecting it and back would blur it a second time, which no scanner does.
    Noise that the slice already has stays: it is part of the target.
    """

    photons: float
    kernel: str = "hann"
    electronic: float = 10.0

    NOISE: ClassVar[bool] = True  # each slice of a volume has its own

    def __post_init__(self) -> None:
        check_ranges(self, {"photons": PHOTONS, "electronic": ELECTRONIC})
        check_choice(self, "kernel", KERNELS)

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        """Photons log-uniform over their range, one of the three kernels; `fixed` fields are kept."""
        drawn = {
            "photons": log_uniform(rng, PHOTONS),
            "kernel": KERNELS[rng.integers(len(KERNELS))],
            "electronic": float(rng.uniform(5, 15)),
        }
        return cls(**drawn | fixed)

    def apply(self, image: Slice, rng: np.random.Generator, *, spacing: tuple[float, float]) -> Slice:
        """The slice `(H, W) float32` in HU with noise; `spacing` is (row, column) in mm, square pixels."""
        side = check_slice(image, spacing)
        body, place = embed(hu_to_attenuation(image), AIR)
        angles = even_angles(enough_views(len(body)))
        lines = project(body, angles) * np.float32(side)
        noise = measure(np.exp(-lines), self.photons, self.electronic, rng) - lines
        return image + to_hu(fbp(noise, angles, self.kernel), side)[place]

    def params(self) -> dict[str, Any]:
        return as_params(self)


def measure(
    transmitted: NDArray[Any], photons: float, electronic: float, rng: np.random.Generator
) -> Sinogram:
    """Line integrals from counted photons: Poisson, plus the read-out's Gaussian noise, at least LEAST_COUNT.

    `transmitted` is the share 0..1 of the photons that each ray should let through.
    """
    counts = rng.poisson(transmitted * photons).astype(np.float32)
    if electronic:
        counts += np.float32(electronic) * rng.standard_normal(counts.shape, np.float32)
    return np.log(np.float32(photons) / np.maximum(counts, np.float32(LEAST_COUNT)))


def to_hu(difference: Slice, side: float) -> Slice:
    """A difference of attenuation per pixel of `side` mm as a difference in HU."""
    return difference * np.float32(1000 / (side * linear_attenuation("water")))


def log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


VIEWS: Final = (24, 120)


@dataclass(frozen=True, slots=True)
class SparseView:
    """A scan of `views` projections over 180 degrees, 24 (covered in streaks) to 120 (faint ones).

    The result is `clean + FBP(few views) - FBP(all views)`: the streaks alone are added, so the pair differs
    by what the missing views did and not by the blur of projecting a reconstruction once more.
    """

    views: int
    kernel: str = "ramp"

    def __post_init__(self) -> None:
        check_ranges(self, {"views": VIEWS})
        check_choice(self, "kernel", KERNELS)

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        """Views log-uniform over their range; `fixed` fields are kept."""
        return cls(**{"views": round(log_uniform(rng, VIEWS))} | fixed)

    def apply(self, image: Slice, rng: np.random.Generator, *, spacing: tuple[float, float]) -> Slice:
        """The slice `(H, W) float32` in HU with streaks; `rng` turns the gantry to its first view."""
        side = check_slice(image, spacing)
        body, place = embed(hu_to_attenuation(image), AIR)
        # All views are a multiple of the few, which are then among them.
        stride = max(2, math.ceil(enough_views(len(body)) / self.views))
        angles = even_angles(stride * self.views) + rng.uniform(0, 180 / self.views)
        filtered = filter_sinogram(project(body, angles) * np.float32(side), self.kernel)
        # Both reconstructions are weighted sums over views: their difference is one back-projection.
        weights = np.full(len(angles), -1, np.float32)
        weights[::stride] += stride
        return image + to_hu(backproject(filtered * weights, angles, len(body)), side)[place]

    def params(self) -> dict[str, Any]:
        return as_params(self)
