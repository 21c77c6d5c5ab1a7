"""What is asked for must be there to see: a tumour in a lung that the window cut to black teaches guessing."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import find_objects

from mie.records import Mask, Pixels, Refusal, Sample

_AROUND: Final = 0.015  # of the longer side: how far beyond the region is looked
_SAME: Final = 5  # grey levels next to each other that look like one
_MOST: Final = 0.6  # of the region, and of its surroundings, in one such grey


def visible_gate(sample: Sample) -> Refusal | None:
    """Refuse a perception sample of which a class and what surrounds it are nearly all the same grey.

    A region of one grey alone is sound: black lungs in a soft-tissue window have an outline.
    """
    if sample.perspective != "perception" or sample.mask is None:
        return None
    names = sample.params.get("classes", [0])
    for k in range(1, len(names) + 1):
        flat = flatness(sample.input, sample.mask == round(255 * k / len(names)))
        if flat > _MOST:
            reason = (
                f"{flat:.0%} of the region and of its surroundings are the same grey, at most {_MOST:.0%}"
            )
            numbers = {"flat": flat, "class": k}
            return Refusal(sample.source, sample.case_id, "invisible", reason, sample.target, numbers)
    return None


def flatness(image: Pixels, region: Mask) -> float:
    """The largest share, of the region `(H, W)` and of its surroundings alike, within five grey levels."""
    around = max(1, round(_AROUND * max(region.shape)))
    box = find_objects(region.astype(np.uint8))
    if not box:
        return 0.0
    near = tuple(slice(max(0, part.start - around), part.stop + around) for part in box[0])
    size = 2 * around + 1
    inside = region[near]
    outside = (cv2.dilate(inside.astype(np.uint8), np.ones((size, size), np.uint8)) > 0) & ~inside
    grey = image[near] if image.ndim == 2 else image[near].mean(2).astype(np.uint8)
    shares = [_shares(grey[part]) for part in (inside, outside)]
    return float(np.minimum(*shares).max())


def _shares(values: NDArray[np.uint8]) -> NDArray[np.float64]:
    """`(256,)`: what share of the values lies within two levels of each grey."""
    often = np.bincount(values, minlength=256)
    return np.asarray(np.convolve(often, np.ones(_SAME), "same") / max(1, often.sum()))
