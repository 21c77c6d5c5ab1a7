"""What is asked for must be there to see. A tumour in a lung that a window cut to black teaches guessing."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from mie.records import Mask, Pixels, Refusal, Sample

_AROUND: Final = 0.015  # of the longer side: how far beyond the region is looked
_LEVELS: Final = 2  # grey levels next to black and white that count as cut off
_MOST: Final = 0.6  # of the region, and of its surroundings, cut off


def visible_gate(sample: Sample) -> Refusal | None:
    """Refuse a perception sample of which a class and what surrounds it are mostly cut off to black or white.

    A black region alone is sound: lungs in a soft-tissue window have an outline.
    """
    if sample.perspective != "perception" or sample.mask is None:
        return None
    count = len(sample.params.get("classes", [0]))
    for k in range(1, count + 1):
        share = cut_off(sample.input, sample.mask == round(255 * k / count))
        if share > _MOST:
            reason = (
                f"{share:.0%} of the region and of its surroundings are black or white, at most {_MOST:.0%}"
            )
            numbers = {"cut_off": share, "class": k}
            return Refusal(sample.source, sample.case_id, "invisible", reason, sample.target, numbers)
    return None


def cut_off(image: Pixels, region: Mask) -> float:
    """How much of the region `(H, W)` is black (or white), or of its surroundings, whichever is less."""
    around = max(1, round(_AROUND * max(region.shape)))
    left, top, width, height = cv2.boundingRect(region.view(np.uint8))
    near = (
        slice(max(0, top - around), top + height + around),
        slice(max(0, left - around), left + width + around),
    )
    size = 2 * around + 1
    inside = region[near]
    outside = (cv2.dilate(inside.view(np.uint8), np.ones((size, size), np.uint8)) > 0) & ~inside
    if not (inside.any() and outside.any()):
        return 0.0
    grey = image[near] if image.ndim == 2 else image[near].mean(2)
    black, white = grey <= _LEVELS, grey >= 255 - _LEVELS
    return max(float(min(cut[inside].mean(), cut[outside].mean())) for cut in (black, white))
