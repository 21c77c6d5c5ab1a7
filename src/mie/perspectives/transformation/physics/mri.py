"""Effects in MR images: thermal noise, the slow shading of coils, and aliasing of undersampled k-space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics import kspace
from mie.perspectives.transformation.physics.kspace import cosine_surface
from mie.perspectives.transformation.physics.severity import (
    Ranges,
    as_params,
    check_choice,
    check_fields,
    check_ranges,
    draw_ranges,
)
from mie.records import Mask


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

    def apply_volume(self, stack: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(S, H, W)`: one sigma for the volume, noise of its own in every slice."""
        return rician(stack, self.percent / 100 * signal_level(stack), rng)

    def params(self) -> dict[str, Any]:
        return as_params(self)


def signal_level(magnitude: NDArray[np.float32]) -> float:
    """The brightest tissue: the 99th percentile of the pixels above zero (background may be exactly zero)."""
    tissue = scratch.chosen(magnitude, lambda block: block > 0)
    if tissue.size == 0:
        raise ImageError("MR slice has no signal", expected="pixels above 0", found="all 0")
    return float(np.percentile(tissue, 99, overwrite_input=True))


def rician(magnitude: NDArray[np.float32], sigma: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """`|magnitude + n1 + i n2|`, n1 and n2 normal with standard deviation `sigma`.

    Independent of the image's phase, because complex Gaussian noise has none of its own.
    """
    out = scratch.zeros(magnitude.shape, np.float32)
    for at in scratch.blocks(out):
        out[at] = magnitude[at] + np.float32(sigma) * rng.standard_normal(out[at].shape, np.float32)
    for at in scratch.blocks(out):
        np.hypot(out[at], np.float32(sigma) * rng.standard_normal(out[at].shape, np.float32), out=out[at])
    return out


@dataclass(frozen=True, slots=True)
class BiasField:
    """A smooth multiplicative field, as uneven receive coils and dielectric effects give.

    The field is the exponential of a few low-order cosines. Over the head its geometric mean is 1 and its
    largest value is `(1 + percent / 200) / (1 - percent / 200)` times its smallest, as in BrainWeb's
    "20 % non-uniformity" (0.9 to 1.1). Show clean and shaded image in one window: the shaded one can be
    brighter than the clean one's maximum.
    """

    percent: float  # non-uniformity over the head; 0 .. 160
    order: int = 2  # half waves across the image; 1 .. 4

    RANGES: ClassVar[Ranges] = {"percent": (0.0, 160.0), "order": (1, 4)}
    DRAWN: ClassVar[Ranges] = {"percent": (40.0, 110.0), "order": (1, 3)}

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        check_fields(cls, fixed)
        numbers: dict[str, Any] = draw_ranges(rng, cls.DRAWN)
        return cls(**numbers | fixed)

    def field(self, head: Mask, rng: np.random.Generator) -> NDArray[np.float32]:
        """The field over the whole image, `(H, W)` float32, for a head that lies at `head`."""
        log_field = cosine_surface(head.shape, self.order, rng)
        return _exponential(log_field, *self._scale(log_field[head]))

    def _scale(self, inside: NDArray[np.float32]) -> tuple[np.float64, np.float64]:
        """What the field's logarithm over the head, `inside`, is shifted and multiplied by."""
        spread = max(float(np.ptp(inside)), np.finfo(np.float32).tiny)
        contrast = np.log((1 + self.percent / 200) / (1 - self.percent / 200))
        return inside.mean(dtype=np.float64), contrast / spread

    def apply(self, image: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(H, W)` float32 magnitude -> the shaded magnitude; same units."""
        magnitude = kspace.check_magnitude(image)
        return magnitude * self.field(head_of(magnitude), rng)

    def apply_volume(self, stack: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(S, H, W)`: one field, as smooth from slice to slice as inside one."""
        level = signal_level(stack)
        field = kspace.cosine_volume(stack.shape, self.order, rng)
        scale = self._scale(scratch.chosen(field, lambda block: _is_tissue(block, level), by=stack))
        for at in scratch.blocks(field):
            field[at] = stack[at] * _exponential(field[at], *scale)
        return field

    def params(self) -> dict[str, Any]:
        return as_params(self)


def head_of(magnitude: NDArray[np.float32]) -> Mask:
    """Where there is tissue: above a tenth of the brightest tissue."""
    return _is_tissue(magnitude, signal_level(magnitude))


def _is_tissue(magnitude: NDArray[np.float32], level: float) -> Mask:
    return magnitude > 0.1 * level


def _exponential(log_field: NDArray[np.float32], mean: np.float64, factor: np.float64) -> NDArray[np.float32]:
    return np.exp((log_field - mean) * factor).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Undersampling:
    """Cartesian undersampling with variable density, reconstructed by filling the missing lines with zeros.

    Exactly `round(fraction * lines)` lines are kept: a block of `round(centre * lines)` around the middle of
    k-space (at least one), the others at random without repetition, with a density that falls as
    `(1 - |k| / k_max) ** decay`.
    """

    fraction: float  # of the lines that are kept; 0.1 .. 1
    centre: float = 0.06  # of the lines, kept around zero frequency; 0 .. fraction
    decay: float = 2.0  # 0 (uniform) .. 6
    phase_axis: int = 0  # image axis of the phase direction, along which aliases lie

    RANGES: ClassVar[Ranges] = {"fraction": (0.1, 1.0), "centre": (0.0, 1.0), "decay": (0.0, 6.0)}
    DRAWN: ClassVar[Ranges] = {"fraction": (0.2, 0.45), "centre": (0.04, 0.08), "decay": (1.0, 2.5)}

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        check_choice(self, "phase_axis", (0, 1))
        if self.centre > self.fraction:
            raise ConfigError(
                "Undersampling: the centre holds more lines than are kept",
                expected=f"centre up to {self.fraction}",
                found=self.centre,
            )

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        check_fields(cls, fixed)
        numbers: dict[str, Any] = draw_ranges(rng, cls.DRAWN)
        numbers["phase_axis"] = int(rng.integers(2))
        return cls(**numbers | fixed)

    def mask(self, lines: int, rng: np.random.Generator) -> Mask:
        """Which of the lines are kept, `(lines,)` bool in centred order."""
        kept = max(1, round(self.fraction * lines))
        block = min(kept, max(1, round(self.centre * lines)))
        out = np.zeros(lines, np.bool_)
        out[lines // 2 - block // 2 :][:block] = True
        others = np.flatnonzero(~out)
        if kept > block:
            k = np.abs(others - lines // 2) / (lines // 2 + 1)
            density = (1 - k) ** self.decay
            out[rng.choice(others, kept - block, replace=False, p=density / density.sum())] = True
        return out

    def apply(self, image: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(H, W)` float32 magnitude -> the zero-filled magnitude; same units."""
        magnitude = kspace.check_magnitude(image)
        acquired = kspace.to_kspace(magnitude * kspace.smooth_phase(magnitude.shape, rng))
        missing = ~self.mask(magnitude.shape[self.phase_axis], rng)
        acquired[missing if self.phase_axis == 0 else (slice(None), missing)] = 0
        return np.abs(kspace.from_kspace(acquired))

    def params(self) -> dict[str, Any]:
        return as_params(self)
