"""Fewer lines of k-space than the image needs: aliasing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError
from mie.physics import kspace
from mie.physics._severity import Ranges, as_params, check_choice, check_fields, check_ranges, draw_ranges
from mie.records import Mask


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
