"""Samples with the named region painted on the image: one per target, and one for all targets together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.core.hashing import generator, sample_seed, stable_hash
from mie.images.hashes import checksum
from mie.images.overlay import deblend, deblend_any, dice, paint
from mie.images.resize import fitted_size, nearest_bin, scaled_image, scaled_mask
from mie.perspectives.perception.phrasings import PHRASINGS, SEVERAL, ask_for_all, ask_for_one, describe
from mie.perspectives.perspective import Problem
from mie.perspectives.volumes import plane_of, stacked
from mie.records import Case, Mask, Pixels, Rejection, Sample, Target
from mie.vocabulary import BINS, COLOURS, OPACITY

NAME: Final = "perception"
VERSION: Final = 1
_KIND_TO_TASK: Final = {"anatomy": "structure", "lesion": "lesion"}

MIN_DICE: Final = 0.99  # of the mask that is read back from the target image with the stored one
_AROUND: Final = 0.015  # of the longer side: how far beyond the region is looked
_LEVELS: Final = 2  # grey levels next to black and white that count as cut off
_MOST: Final = 0.6  # of the region, and of its surroundings, cut off


@dataclass(frozen=True, slots=True)
class Perception:
    """Case -> perception samples. Painted after scaling, so the blend is exact at the size that is stored."""

    tasks: tuple[str, ...] = ("structure", "lesion", "holistic")
    opacity: float = OPACITY
    bins: tuple[int, ...] = BINS

    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """Samples of one case. Test samples keep the original size."""
        if not case.masks:
            yield Rejection(case.source, case.case_id, "empty", "no target is marked in this image")
            return
        size, bin_ = self._size(case, split)
        image = scaled_image(case.image, size)
        masks = {name: scaled_mask(mask, size) for name, mask in case.masks.items()}
        make = _Maker(case, checksum(case.image), image, split, bin_, build_seed, self.opacity)
        for name, mask in masks.items():
            task = _KIND_TO_TASK[case.targets[name].kind]
            if task in self.tasks:
                yield make.sample(task, [(case.targets[name], mask)])
        if "holistic" in self.tasks and len(masks) > 1:
            yield make.sample("holistic", self._classes(case, masks, build_seed))

    def whole_volume(
        self, cases: Sequence[Case], split: str, build_seed: int
    ) -> Iterator[Sample | Rejection]:
        """A sample for each slice, target by target: one sentence, colour and seed for a whole volume.

        Slices that do not show the target are samples too. Nothing is painted there.
        """
        for _, found in groupby(cases, plane_of):
            slices = list(found)
            first = slices[0]
            areas: dict[str, int] = {}
            for case in slices:
                for name, mask in case.masks.items():
                    areas[name] = areas.get(name, 0) + int(mask.sum())
            if not areas:
                yield Rejection(first.source, first.case_id, "empty", "no target is marked in this volume")
                continue
            volume = first.case_id.rpartition("-")[0]
            for task, names in self._asked(first, areas, volume, build_seed):
                shared = stable_hash("volume", build_seed, first.source, volume, task, names)
                left_out = task == "holistic" and len(names) < len(areas)
                made = [
                    scratch.aside(self._slice(case, split, build_seed, task, names, shared, left_out))
                    for case in slices
                ]
                yield from stacked(made, slices)

    def _asked(
        self, case: Case, areas: Mapping[str, int], volume: str, build_seed: int
    ) -> Iterator[tuple[str, list[str]]]:
        for name in (name for name in case.targets if name in areas):
            task = _KIND_TO_TASK[case.targets[name].kind]
            if task in self.tasks:
                yield task, [name]
        if "holistic" in self.tasks and len(areas) > 1:
            yield "holistic", _drawn_classes(areas, (build_seed, case.source, volume))

    def _slice(
        self,
        case: Case,
        split: str,
        build_seed: int,
        task: str,
        names: list[str],
        shared: int,
        left_out: bool,
    ) -> Sample:
        size, bin_ = self._size(case, split)
        image = scaled_image(case.image, size)
        nothing = np.zeros(size, np.bool_)
        masks = {
            name: scaled_mask(case.masks[name], size) if name in case.masks else nothing for name in names
        }
        make = _Maker(
            case, checksum(case.image), image, split, bin_, build_seed, self.opacity, shared, left_out
        )
        return make.sample(task, _without_overlap(names, masks, case.targets))

    def _size(self, case: Case, split: str) -> tuple[tuple[int, int], int | None]:
        height, width = case.image.shape[:2]
        bin_ = None if split == "test" else nearest_bin(height, width, self.bins)
        return ((height, width) if bin_ is None else fitted_size(height, width, bin_)), bin_

    def _classes(self, case: Case, masks: dict[str, Mask], build_seed: int) -> list[tuple[Target, Mask]]:
        areas = {name: int(mask.sum()) for name, mask in masks.items()}
        names = _drawn_classes(areas, (build_seed, case.source, case.case_id))
        return _without_overlap(names, masks, case.targets)


def _drawn_classes(areas: Mapping[str, int], content: tuple[Any, ...]) -> list[str]:
    """At most three classes (there are three colours), large to small."""
    names = sorted(areas)
    if len(names) > len(COLOURS):
        draw = generator(stable_hash("classes", *content))
        names = sorted(draw.choice(names, len(COLOURS), replace=False).tolist())
    return sorted(names, key=lambda name: (-areas[name], name))


def _without_overlap(
    names: Sequence[str], masks: Mapping[str, Mask], targets: Mapping[str, Target]
) -> list[tuple[Target, Mask]]:
    """The classes with what is seen of each: the later on top."""
    classes: list[tuple[Target, Mask]] = []
    for at, name in enumerate(names):
        visible = masks[name]
        for smaller in names[at + 1 :]:
            visible = visible & ~masks[smaller]
        classes.append((targets[name], visible))
    return classes


@dataclass(frozen=True, slots=True)
class _Maker:
    case: Case
    origin: int
    image: Pixels
    split: str
    bin: int | None
    build_seed: int
    opacity: float
    shared: int | None = None  # of a whole volume: what is drawn is drawn once for all its slices
    left_out: bool = False  # of a whole volume: the sentence does not name all that is marked

    def sample(self, task: str, classes: Sequence[tuple[Target, Mask]]) -> Sample:
        case = self.case
        some_left_out = task == "holistic" and len(classes) < len(case.masks)
        if self.shared is not None:
            some_left_out = self.left_out
        names = [target.name for target, _ in classes]
        regions = [checksum(case.masks[name]) if name in case.masks else 0 for name in names]
        content = (case.source, case.case_id, task, names, self.origin, regions)
        sample_id = f"{stable_hash(NAME, VERSION, *content):016x}"
        seed = sample_seed(self.build_seed, sample_id if self.shared is None else f"{self.shared:016x}")
        draw = generator(seed)
        colours = [str(c) for c in draw.permutation(list(COLOURS))[: len(classes)]]
        template = str(draw.choice(SEVERAL if some_left_out else PHRASINGS[task]))
        painted = [(target, colour) for (target, _), colour in zip(classes, colours, strict=True)]
        target_image = self.image
        marks = []
        for k, ((_, region_mask), colour) in enumerate(zip(classes, colours, strict=True), start=1):
            target_image = paint(target_image, region_mask, colour, self.opacity)
            # A product is several times faster than assigning by index.
            marks.append(region_mask.view(np.uint8) * np.uint8(round(255 * k / len(classes))))
        mask = reduce(np.add, marks)  # classes do not overlap
        prompt = (
            ask_for_all(template, painted, case.modality)
            if task == "holistic"
            else ask_for_one(template, *painted[0], case.modality)
        )
        return Sample(
            id=sample_id,
            perspective=NAME,
            task=task,
            target=", ".join(names),
            modality=case.modality,
            anatomy=case.anatomy,
            prompt=prompt,
            prompt_template=template,
            description=describe(painted, self.opacity),
            input=self.image,
            target_image=target_image,
            mask=mask,
            colour=",".join(colours),
            split=self.split,
            bin=self.bin,
            source=case.source,
            case_id=case.case_id,
            patient_id=case.patient_id,
            recipe=NAME,
            recipe_version=VERSION,
            params=self._params(names, colours),
            seed=seed,
            license=case.license,
        )

    def _params(self, names: list[str], colours: list[str]) -> dict[str, Any]:
        return {
            "opacity": self.opacity,
            "classes": [{"target": n, "colour": c} for n, c in zip(names, colours, strict=True)],
            "original_size": list(self.case.image.shape[:2]),
            "spacing": None if self.case.spacing is None else list(self.case.spacing),
            "image_steps": [dict(step) for step in self.case.steps],
        }


def visible_gate(sample: Sample) -> Rejection | None:
    """Reject a sample in which a class and its surroundings are mostly cut off to black or white.

    A tumour in a lung that a window cuts to black teaches guessing. A black region alone is sound: lungs in a
    soft-tissue window have an outline.
    """
    if sample.mask is None:
        return None
    count = len(sample.params.get("classes", [0]))
    for k in range(1, count + 1):
        share = cut_off(sample.input, _is_class(sample.mask, k, count))
        if share > _MOST:
            reason = (
                f"{share:.0%} of the region and of its surroundings are black or white, at most {_MOST:.0%}"
            )
            numbers = {"cut_off": share, "class": k}
            return Rejection(sample.source, sample.case_id, "invisible", reason, sample.target, numbers)
    return None


def cut_off(image: Pixels, region: Mask) -> float:
    """How much of the region `(H, W)` is black (or white), or of its surroundings, whichever is less."""
    around = max(1, round(_AROUND * max(region.shape)))
    left, top, width, height = cv2.boundingRect(region.view(np.uint8))
    near = (
        slice(max(0, top - around), top + height + around),
        slice(max(0, left - around), left + width + around),
    )
    inside, shown = region[near], image[near]
    counts = np.zeros((2, 3), np.int64)  # inside and outside: pixels, black ones, white ones
    for at, outside in _surroundings(inside, around):
        # Sums over the channels are whole numbers, and faster than their mean.
        channels, total = (1, shown[at]) if image.ndim == 2 else (3, _total(shown[at]))
        black, white = total <= channels * _LEVELS, total >= channels * (255 - _LEVELS)
        for row, part in zip(counts, (inside[at], outside), strict=True):
            row += [np.count_nonzero(part), np.count_nonzero(black & part), np.count_nonzero(white & part)]
    if not counts[:, 0].all():
        return 0.0
    return float((counts[:, 1:] / counts[:, :1]).min(axis=0).max())


def _total(image: Pixels) -> NDArray[np.uint16]:
    total = image[..., 0].astype(np.uint16)
    for channel in range(1, image.shape[2]):
        total += image[..., channel]
    return total


def _surroundings(region: Mask, around: int) -> Iterator[tuple[tuple[slice, ...], Mask]]:
    """A few rows at a time: what lies at most `around` rows and columns from the region, and outside it.

    By counts, because a box for a whole volume's slices, below each other, is thousands of pixels wide.
    """
    height, width = region.shape
    below = scratch.zeros((height + 1, width), np.int32)  # marks near each column in the rows above
    for at in scratch.blocks(below[1:]):
        across = np.zeros((width + 1, len(region[at])), np.int32)
        np.cumsum(region[at].T, axis=0, out=across[1:])
        start = at[0].start
        near = _more_within(across, np.arange(width), around).T
        below[start + 1 : start + 1 + len(near)] = below[start] + np.cumsum(near, axis=0, dtype=np.int32)
    for at in scratch.blocks(below[1:]):
        yield at, _more_within(below, np.arange(height)[at[0]], around) & ~region[at]


def _more_within(counts: NDArray[np.int32], at: NDArray[np.intp], around: int) -> Mask:
    """Whether there is a mark at most `around` from each place, by the counts of the marks before it."""
    last = len(counts) - 1
    return np.asarray(counts[np.minimum(at + around + 1, last)] > counts[np.maximum(at - around, 0)])


def _is_class(mask: Pixels, number: int, count: int) -> Mask:
    return _where(mask, lambda block: block == round(255 * number / count))


def _where(mask: Pixels, which: Callable[[Pixels], Mask]) -> Mask:
    region: Mask = scratch.zeros(mask.shape, np.bool_)
    for at in scratch.blocks(mask):
        region[at] = which(mask[at])
    return region


def proof(sample: Sample) -> dict[str, float]:
    """DICE of each class, and of the union when there are several, read back from the target image."""
    if sample.mask is None or not sample.colour:
        return {}
    colours = sample.colour.split(",")
    numbers: dict[str, float] = {}
    for k, colour in enumerate(colours, start=1):
        region = _is_class(sample.mask, k, len(colours))
        numbers[colour] = dice(deblend(sample.input, sample.target_image, colour), region)
    if len(colours) > 1:
        region = _where(sample.mask, lambda mask: mask > 0)
        numbers["union"] = dice(deblend_any(sample.input, sample.target_image), region)
    return numbers


def proof_gate(sample: Sample) -> Rejection | None:
    """Reject a sample whose mask cannot be read back from its target image."""
    numbers = proof(sample)
    worst = min(numbers.values(), default=1.0)
    if worst >= MIN_DICE:
        return None
    reason = f"de-blending the target gives DICE {worst:.4f}, at least {MIN_DICE}"
    return Rejection(sample.source, sample.case_id, "proof", reason, sample.target, numbers)


def prove(sample: Sample) -> list[Problem]:
    """What is wrong with a stored sample, which paints its mask and nothing else, and says so."""
    wrong: list[Problem] = []
    colours = (sample.colour or "").split(",")
    if sample.mask is None or any(c not in COLOURS for c in colours):
        return [("overlay", "a perception sample needs a mask and colours from red, green, blue")]
    spoken = sample.params.get("wide", {}).get("spoken", {})  # synonyms
    names = [c["target"] for c in sample.params.get("classes", [])]
    for word in [*colours, *(spoken.get(name, name) for name in names)]:
        if word.casefold() not in sample.prompt.casefold():
            wrong.append(("prompt", f"does not name {word!r}: {sample.prompt!r}"))
    worst = min(proof(sample).values())
    if worst < MIN_DICE:
        wrong.append(("overlay", f"de-blending the target gives DICE {worst:.4f}, at least {MIN_DICE}"))
    changed = (sample.input != sample.target_image).any(axis=2)
    outside = int(np.count_nonzero(changed & (sample.mask == 0)))
    if outside:
        wrong.append(("overlay", f"{outside} pixels changed outside the region"))
    return wrong
