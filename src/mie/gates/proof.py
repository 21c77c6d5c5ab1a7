"""Every perception sample proves itself: de-blending its own target must give back its mask."""

from __future__ import annotations

import numpy as np

from mie.images.overlay import deblend, deblend_any, dice
from mie.records import Refusal, Sample

MIN_DICE = 0.99


def proof(sample: Sample) -> dict[str, float]:
    """DICE of each class, and of the union when there are several, read back from the target image."""
    if sample.mask is None or not sample.colour:
        return {}
    colours = sample.colour.split(",")
    numbers: dict[str, float] = {}
    for k, colour in enumerate(colours, start=1):
        region = sample.mask == round(255 * k / len(colours))
        numbers[colour] = dice(deblend(sample.input, sample.target_image, colour), region)
    if len(colours) > 1:
        region = np.asarray(sample.mask > 0)
        numbers["union"] = dice(deblend_any(sample.input, sample.target_image), region)
    return numbers


def proof_gate(sample: Sample) -> Refusal | None:
    numbers = proof(sample)
    worst = min(numbers.values(), default=1.0)
    if worst >= MIN_DICE:
        return None
    reason = f"de-blending the target gives DICE {worst:.4f}, at least {MIN_DICE}"
    return Refusal(sample.source, sample.case_id, "proof", reason, sample.target, numbers)
