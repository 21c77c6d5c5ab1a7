"""Pairs that teach nothing or teach wrongly: identical, blank, or not of the same place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np

from mie.records import Pixels, Refusal, Sample

# Grey levels (of 255), root mean square, that the two images must differ by in the place where they differ
# most: 40 dB. Less is seen nowhere, and what there is to learn is rounding.
_LEAST_DIFFERENCE: Final = 2.55
_PLACES: Final = 8  # a place is so many times smaller than the image: one hair on the skin is a task
# Standard deviation, in grey levels, below which an image shows nothing.
_LEAST_CONTRAST: Final = 2.0
# The share of what two images tell of each other that must hang on the shift before the shift is believed.
# Measured on registered CT/MRI, PET/MRI, OCT and MRI sequences: below 0.04 shifts are chance.
_EVIDENCE: Final = 0.04


@dataclass(frozen=True, slots=True)
class PairGate:
    """Looks at transformation samples only. `max_shift` is in pixels of the original image."""

    max_shift: float = 3.0

    def __call__(self, sample: Sample) -> Refusal | None:
        if sample.perspective != "transformation":
            return None
        for name, image in (("input", sample.input), ("target image", sample.target_image)):
            contrast = _contrast(image)
            if contrast < _LEAST_CONTRAST:
                reason = (
                    f"the {name} shows nothing: standard deviation {contrast:.2f} grey levels, "
                    f"at least {_LEAST_CONTRAST:g}"
                )
                return _refuse(sample, "blank", reason, {"contrast": contrast})
        found = _difference(sample.input, sample.target_image)
        if found < _LEAST_DIFFERENCE:
            reason = (
                "input and target image are the same to the eye: "
                f"they differ by at most {found:.3f} grey levels, at least {_LEAST_DIFFERENCE:g}"
            )
            return _refuse(sample, "identical", reason, {"difference": found})
        return self._aligned(sample)

    def _aligned(self, sample: Sample) -> Refusal | None:
        found = sample.params.get("alignment")
        if found is None or found["error"] <= self.max_shift or found["evidence"] < _EVIDENCE:
            return None
        rows, columns = found["shift"]
        reason = (
            f"the pair is misaligned by {found['error']:.1f} px ({rows:+.1f} rows, {columns:+.1f} columns), "
            f"at most {self.max_shift:g}"
        )
        return _refuse(sample, "misaligned", reason, dict(found))


def _difference(a: Pixels, b: Pixels) -> float:
    """Of two images of one shape, in grey levels, root mean square in the place where it is largest."""
    squared = np.square(a.astype(np.float32) - b).mean(axis=2)
    side = max(1, max(squared.shape) // _PLACES)
    return math.sqrt(float(cv2.blur(squared, (side, side)).max()))


def _contrast(image: Pixels) -> float:
    return float(np.std(image.astype(np.float32).mean(axis=2)))


def _refuse(sample: Sample, gate: str, reason: str, numbers: dict[str, Any]) -> Refusal:
    return Refusal(sample.source, sample.case_id, gate, reason, sample.target, numbers)
