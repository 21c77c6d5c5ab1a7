"""Whether a modification sample is sound: it changes the inside of its mask and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import cv2
import numpy as np

from mie.core import scratch
from mie.perspectives.modification.counterfactual import HIT
from mie.perspectives.modification.prepared import NAME
from mie.perspectives.perspective import Problem, unnamed_words
from mie.perspectives.volumes import volume_id
from mie.records import Pixels, Rejection, Sample

WHITE_HOLE: Final = ("inpainting", "simulation")
# Grey levels of mean absolute change inside the hole, below which nothing was modified.
_LEAST_CHANGE: Final = 1.0
_MARKS_TISSUE: Final = 2  # the recipe's version from which drawn tissue is marked as well
# What input and target image of each task show.
_SHOWS: Final = {
    "removal": ("image with the lesion", "healthy image"),
    "addition": ("healthy image", "image with the lesion"),
    "inpainting": ("image with a hole", "healthy image"),
    "simulation": ("image with a hole", "image with the lesion"),
}


def background_problems(sample: Sample) -> list[tuple[str, dict[str, Any]]]:
    """What is wrong with a modification sample, each with its numbers. A sound one has none.

    Outside the mask input and target image are equal. Inside, the input of the two kinds with a hole is
    white; of the other two it differs from the target image. A grey picture stays grey.
    """
    if sample.mask is None:
        return [("a modification sample needs a mask", {})]
    wrong: list[tuple[str, dict[str, Any]]] = []
    pixels = int(np.count_nonzero(sample.mask))
    if pixels in (0, sample.mask.size):
        return [("the mask is empty, or the whole image", {"pixels": pixels})]
    outside = scratch.counted(
        lambda a, b, mask: (a != b).any(axis=2) & (mask == 0), sample.input, sample.target_image, sample.mask
    )
    if outside:
        wrong.append((f"{outside} pixels differ outside the mask", {"outside": outside}))
    if sample.task in WHITE_HOLE:
        coloured = scratch.counted(
            lambda a, mask: (a != 255).any(axis=2) & (mask > 0), sample.input, sample.mask
        )
        if coloured:
            wrong.append((f"{coloured} pixels inside the mask are not white", {"not_white": coloured}))
    else:
        change = _change(sample.input, sample.target_image, sample.mask) / (3 * pixels)
        if change < _LEAST_CHANGE and volume_id(sample) is None:  # at a lesion's end little may change
            reason = (
                f"inside the mask the images differ by {change:.2f} grey levels, at least {_LEAST_CHANGE:g}"
            )
            wrong.append((reason, {"change": change}))
    original, drawn = _pair(sample)
    if drawn is not None and _is_grey(original) and not _is_grey(drawn):
        wrong.append(("a grey picture was filled with colour", {}))
    return wrong


def background_gate(sample: Sample) -> Rejection | None:
    """Reject a sample that changes something outside its mask, or nothing inside it."""
    for reason, numbers in background_problems(sample):
        return Rejection(sample.source, sample.case_id, "background", reason, sample.target, numbers)
    return None


def _pair(sample: Sample) -> tuple[Pixels, Pixels | None]:
    """(an image as it was, the one that was drawn in); None where the sample does not show the latter.

    Drawn is the healthy image, or, from health, the lesion. A white hole shows neither: its surroundings do.
    """
    drawn_in_input = sample.task == ("removal" if sample.params.get("from_health") else "addition")
    if drawn_in_input:
        return sample.target_image, sample.input
    whole = "inpainting" if sample.params.get("from_health") else "simulation"
    return sample.input, None if sample.task == whole else sample.target_image


def _change(a: Pixels, b: Pixels, mask: Pixels) -> int:
    return sum(int(cv2.absdiff(a[at], b[at])[mask[at] > 0].sum(dtype=np.int64)) for at in scratch.blocks(a))


def _is_grey(image: Pixels) -> bool:
    return scratch.counted(lambda block: np.ptp(block, axis=2), image) == 0


def prove(sample: Sample) -> list[Problem]:
    """What is wrong with a stored sample, which changes the inside of its mask alone and says so.

    Imported samples make no such promise.
    """
    if sample.recipe != NAME:
        return []
    wrong: list[Problem] = [("background", reason) for reason, _ in background_problems(sample)]
    if sample.colour is not None:
        wrong.append(("overlay", "a modification sample has no colours"))
    if sample.group is None:
        wrong.append(("pair", "a modification sample belongs to a pair"))
    return wrong + _drawn_problems(sample) + unnamed_words(sample)


def _drawn_problems(sample: Sample) -> list[Problem]:
    """What was drawn is marked as synthetic, and a painted lesion passed its gates."""
    params = sample.params
    mark = params.get("synthetic")
    if not params.get("from_health"):
        if mark == "tissue" or (mark is None and sample.recipe_version < _MARKS_TISSUE):
            return []
        return [("synthetic", f"the drawn tissue is not marked as synthetic, but {mark!r}")]
    wrong: list[Problem] = []
    if mark != "lesion":
        wrong.append(("synthetic", "a painted lesion is not marked as synthetic"))
    tried, kept = params.get("candidates") or [], params.get("kept")
    if not isinstance(kept, int) or not 0 <= kept < len(tried):
        return [*wrong, ("health", "it does not say which of its candidates was kept")]
    if tried[kept].get("failed"):
        wrong.append(("health", f"the kept lesion did not pass: {', '.join(tried[kept]['failed'])}"))
    detector, seen = params.get("detector") or {}, params.get("lesion_seen") or {}
    if detector.get("trusted") and seen.get("share", 0.0) < HIT:
        wrong.append(("health", "a trusted detector does not find the painted lesion"))
    if sample.mask is not None and int((sample.mask > 0).sum()) < params.get("lesion_pixels", 0):
        wrong.append(("health", "the lesion is larger than the area that was changed"))
    return wrong


def prove_pairs(rows: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """(pair, reason) where the samples of one pair do not show the same two images and the same mask."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["recipe"] == NAME and row["group"] is not None:
            groups[row["group"]].append(row)
    wrong: list[Problem] = []
    for group, samples in groups.items():
        shown: dict[str, set[bytes | None]] = defaultdict(set)
        for row in samples:
            shown["mask"].add(row["pixels"]["mask"])
            shown["split"].add(row["split"])
            for image, name in zip(("input", "target_image"), _SHOWS.get(row["task"], ()), strict=False):
                shown[name].add(row["pixels"][image])
        wrong += [(group, f"{name}: its samples differ") for name, values in shown.items() if len(values) > 1]
    return wrong
