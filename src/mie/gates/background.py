"""A modification changes the filled area and nothing else: every pair proves it, pixel by pixel."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mie.records import Pixels, Refusal, Sample

WHITE_HOLE: Final = ("inpainting", "simulation")
# Grey levels of mean absolute change inside the hole, below which nothing was modified.
_LEAST_CHANGE: Final = 1.0


def background_problems(sample: Sample) -> list[tuple[str, dict[str, Any]]]:
    """What is wrong with a modification sample, each with its numbers. A sound one has none.

    Outside the mask input and target image are equal. Inside, the input of the two kinds with a hole is
    white; of the other two it differs from the target image. A grey picture stays grey.
    """
    if sample.mask is None:
        return [("a modification sample needs a mask", {})]
    hole = sample.mask > 0
    wrong: list[tuple[str, dict[str, Any]]] = []
    if not hole.any() or hole.all():
        return [("the mask is empty, or the whole image", {"pixels": int(hole.sum())})]
    outside = int(np.count_nonzero((sample.input != sample.target_image).any(axis=2) & ~hole))
    if outside:
        wrong.append((f"{outside} pixels differ outside the mask", {"outside": outside}))
    if sample.task in WHITE_HOLE:
        coloured = int(np.count_nonzero((sample.input[hole] != 255).any(axis=1)))
        if coloured:
            wrong.append((f"{coloured} pixels inside the mask are not white", {"not_white": coloured}))
    else:
        change = float(np.abs(sample.input[hole].astype(np.int16) - sample.target_image[hole]).mean())
        if change < _LEAST_CHANGE:
            reason = (
                f"inside the mask the images differ by {change:.2f} grey levels, at least {_LEAST_CHANGE:g}"
            )
            wrong.append((reason, {"change": change}))
    lesion, healthy = _pair(sample)
    if healthy is not None and _is_grey(lesion) and not _is_grey(healthy):
        wrong.append(("a grey picture was filled with colour", {}))
    return wrong


def background_gate(sample: Sample) -> Refusal | None:
    """Looks at modification samples only."""
    if sample.perspective != "modification":
        return None
    for reason, numbers in background_problems(sample):
        return Refusal(sample.source, sample.case_id, "background", reason, sample.target, numbers)
    return None


def _pair(sample: Sample) -> tuple[Pixels, Pixels | None]:
    """(what was there before, the healthy image); None where the sample does not show the healthy image."""
    if sample.task == "addition":
        return sample.target_image, sample.input
    return sample.input, None if sample.task == "simulation" else sample.target_image


def _is_grey(image: Pixels) -> bool:
    return not np.ptp(image, axis=2).any()
