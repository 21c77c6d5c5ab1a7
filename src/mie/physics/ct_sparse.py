"""Sparse-view CT: too few projections, so that every edge throws streaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from mie.physics._severity import as_params, check_choice, check_ranges
from mie.physics.ct_attenuation import check_slice, hu_to_attenuation
from mie.physics.ct_dose import AIR, log_uniform, to_hu
from mie.physics.ct_geometry import (
    KERNELS,
    Slice,
    backproject,
    embed,
    enough_views,
    even_angles,
    filter_sinogram,
    project,
)

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
