"""Samples that teach nothing: an image of one colour, an empty, tiny or near-full region."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mie.perspectives.perspective import GateConfig
from mie.records import Refusal, Sample


@dataclass(frozen=True, slots=True)
class TrivialGate:
    """Limits on the painted region, measured at the size that is stored."""

    min_pixels: int = 24
    min_fraction: float = 0.0002
    max_fraction: float = 0.9

    @classmethod
    def of(cls, limits: GateConfig) -> TrivialGate:
        return cls(limits.min_pixels, limits.min_fraction, limits.max_fraction)

    def __call__(self, sample: Sample) -> Refusal | None:
        if _one_colour(sample.input):
            return _refuse(sample, "blank", "the image has a single colour")
        if sample.mask is None:
            return None
        total = sample.mask.size
        n_classes = len(sample.params.get("classes", [0]))
        for k in range(1, n_classes + 1):
            area = int(np.count_nonzero(sample.mask == round(255 * k / n_classes)))
            numbers = {"pixels": area, "fraction": area / total, "class": k}
            if area == 0:
                return _refuse(sample, "area", "the region is empty", numbers)
            if area < self.min_pixels or area < self.min_fraction * total:
                limit = max(self.min_pixels, self.min_fraction * total)
                return _refuse(
                    sample, "area", f"the region is too small: {area} px, at least {limit:.0f}", numbers
                )
        filled = np.count_nonzero(sample.mask) / total
        if filled > self.max_fraction:
            reason = f"the region fills {filled:.1%} of the image, at most {self.max_fraction:.0%}"
            return _refuse(sample, "area", reason, {"fraction": filled})
        return None


def _one_colour(image: np.ndarray) -> bool:
    first = image[0, 0]
    # Most images differ from their corner within the first rows.
    return bool((image[:8] == first).all() and (image == first).all())


def _refuse(sample: Sample, gate: str, reason: str, numbers: dict[str, float] | None = None) -> Refusal:
    return Refusal(sample.source, sample.case_id, gate, reason, sample.target, numbers or {})
