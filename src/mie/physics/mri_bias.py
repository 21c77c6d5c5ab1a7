"""The slow shading of MR images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mie.physics import kspace
from mie.physics._severity import Ranges, as_params, check_fields, check_ranges, draw_ranges
from mie.physics._smooth import cosine_surface
from mie.physics.mri_noise import signal_level
from mie.records import Mask


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
        inside = log_field[head]
        spread = max(float(np.ptp(inside)), np.finfo(np.float32).tiny)
        contrast = np.log((1 + self.percent / 200) / (1 - self.percent / 200))
        return np.exp((log_field - inside.mean(dtype=np.float64)) * (contrast / spread)).astype(np.float32)

    def apply(self, image: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(H, W)` float32 magnitude -> the shaded magnitude; same units."""
        magnitude = kspace.check_magnitude(image)
        return magnitude * self.field(head_of(magnitude), rng)

    def params(self) -> dict[str, Any]:
        return as_params(self)


def head_of(magnitude: NDArray[np.float32]) -> Mask:
    """Where there is tissue: above a tenth of the brightest tissue."""
    return magnitude > 0.1 * signal_level(magnitude)
