"""Samples in which a degraded or other image becomes the clean or wanted one, by real pairs or by physics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.core.hashing import generator, sample_seed, stable_hash
from mie.errors import ImageError
from mie.images.hashes import checksum
from mie.images.resize import fitted_size, nearest_bin, resize_image
from mie.perspectives.perspective import Problem, unnamed_words
from mie.perspectives.transformation.alignment import measure_alignment, register
from mie.perspectives.transformation.phrasings import DESCRIPTIONS, NAMED, PHRASINGS, all_words, ask, places
from mie.perspectives.transformation.simulation import (
    Made,
    as_acquired,
    hounsfield_missing,
    simulate,
    simulate_volume,
    window_variants,
)
from mie.perspectives.transformation.targets import TARGETS, TransformTarget, find_target
from mie.perspectives.volumes import plane_of, stacked, volume_id
from mie.records import Case, Pairing, Pixels, Rejection, Sample
from mie.vocabulary import BINS

NAME: Final = "transformation"
VERSION: Final = 1

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
class Transformation:
    """Case -> transformation samples. A case with a pair gives the pair; any other is degraded by physics.

    Simulated after scaling, so that grain, streaks and cut-offs are those of the size that is stored.
    """

    targets: tuple[str, ...] = tuple(TARGETS)
    # At most this many simulated samples of one image, drawn among those that fit.
    per_case: int | None = None
    windows: tuple[str, ...] = ()  # CT windows; none: those that suit the anatomy
    # By target: fields that are not drawn.
    severity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    registering: bool = False  # bring pairs onto each other before anything else
    bins: tuple[int, ...] = BINS

    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """Samples of one case. Test samples keep the original size; of an MR image, the acquired one."""
        stored = case.image.shape[:2]
        if case.pair is None and case.modality == "MRI":
            case = as_acquired(case)
        height, width = case.image.shape[:2]
        bin_ = None if split == "test" else nearest_bin(height, width, self.bins)
        size = (height, width) if bin_ is None else fitted_size(height, width, bin_)
        maker = _Maker(case, stored, size, split, bin_, build_seed)
        if case.pair is not None:
            yield from self._paired(case, case.pair, maker)
            return
        jobs, refused = self._jobs(case)
        yield from refused
        if not jobs:
            yield _nothing(case, f"no target of the recipe can be made from {case.modality} without a pair")
        for target, variant in self._drawn(jobs, case, build_seed):
            fixed = {**target.fixed, **self.severity.get(target.key, {}), **variant}
            try:
                yield maker.simulated(target, variant, fixed)
            except ImageError as error:
                yield Rejection(case.source, case.case_id, "image", error.reason, target.name)

    def whole_volume(
        self, cases: Sequence[Case], split: str, build_seed: int
    ) -> Iterator[Sample | Rejection]:
        """A sample for each slice, target by target: one sentence, effect, window and seed for a volume."""
        for _, found in groupby(cases, plane_of):
            slices = list(found)
            first = slices[0]
            volume = first.case_id.rpartition("-")[0]
            if first.pair is not None:
                yield from self._paired_volume(slices, split, build_seed, volume)
                continue
            jobs, refused = self._jobs(first)
            yield from refused
            if not jobs:
                yield _nothing(first, f"no target of the recipe can be made from {first.modality} volumes")
            for target, variant in self._drawn(jobs, replace(first, case_id=volume), build_seed):
                fixed = {**target.fixed, **self.severity.get(target.key, {}), **variant}
                content = (first.source, volume, target.key, dict(variant))
                seed = sample_seed(build_seed, f"{stable_hash('volume', *content):016x}")
                makers = [self._maker(case, split, build_seed) for case in slices]
                made = simulate_volume(target, fixed, slices, makers[0].size, seed)
                try:
                    samples = [
                        scratch.aside(maker.of_volume(target, variant, one, seed))
                        for maker, one in zip(makers, made, strict=True)
                    ]
                except ImageError as error:
                    yield Rejection(first.source, first.case_id, "image", error.reason, target.name)
                    continue
                yield from stacked(samples, slices)

    def _paired_volume(
        self, slices: Sequence[Case], split: str, build_seed: int, volume: str
    ) -> Iterator[Sample | Rejection]:
        first, pairing = slices[0], slices[0].pairing
        if pairing is None or find_target(pairing.target).key not in self.targets:
            yield _nothing(first, "the recipe does not ask for what the pairs of this data set are")
            return
        target = find_target(pairing.target)
        seed = sample_seed(build_seed, f"{stable_hash('volume', first.source, volume, target.key):016x}")
        samples = []
        for case in slices:
            assert case.pair is not None  # noqa: S101 (the slices of two volumes)
            maker = self._maker(case, split, build_seed)
            samples.append(
                scratch.aside(maker.paired(target, case.image, case.pair, pairing, {}, shared=seed))
            )
        yield from stacked(samples, slices)

    def _maker(self, case: Case, split: str, build_seed: int) -> _Maker:
        height, width = case.image.shape[:2]
        bin_ = None if split == "test" else nearest_bin(height, width, self.bins)
        size = (height, width) if bin_ is None else fitted_size(height, width, bin_)
        return _Maker(case, (height, width), size, split, bin_, build_seed)

    def _jobs(self, case: Case) -> tuple[list[tuple[TransformTarget, Mapping[str, Any]]], list[Rejection]]:
        """(target, variant) for all that can be simulated from a case, and why some cannot."""
        jobs: list[tuple[TransformTarget, Mapping[str, Any]]] = []
        refused = []
        for key in self.targets:
            target = TARGETS[key]
            if case.modality not in target.modalities or (target.effect is None and key != "ct_window"):
                continue
            reason = hounsfield_missing(target, case)
            if reason is not None:
                refused.append(Rejection(case.source, case.case_id, "units", reason, target.name))
            elif key == "ct_window":
                jobs += [(target, variant) for variant in window_variants(case.anatomy, self.windows)]
            else:
                jobs += [(target, variant) for variant in target.variants]
        return jobs, refused

    def _drawn(
        self, jobs: list[tuple[TransformTarget, Mapping[str, Any]]], case: Case, build_seed: int
    ) -> list[tuple[TransformTarget, Mapping[str, Any]]]:
        if self.per_case is None or len(jobs) <= self.per_case:
            return jobs
        draw = generator(stable_hash("targets", build_seed, case.source, case.case_id))
        return [jobs[i] for i in sorted(draw.choice(len(jobs), self.per_case, replace=False).tolist())]

    def _paired(self, case: Case, pair: Pixels, maker: _Maker) -> Iterator[Sample | Rejection]:
        pairing = case.pairing
        if pairing is None:
            yield _nothing(case, "the data set has pairs, but no `pairing` says what they are to each other")
            return
        target = find_target(pairing.target)
        if target.key not in self.targets:
            yield _nothing(case, f"the recipe does not ask for {target.key}")
            return
        found = measure_alignment(case.image, pair)
        facts: dict[str, Any] = {"alignment": found.params()}
        if self.registering:
            try:
                moved, done = register(case.image, pair)
            except ImageError as error:
                yield Rejection(case.source, case.case_id, "image", error.reason, target.name)
                return
            after = measure_alignment(case.image, moved)
            if after.as_it_lies > found.as_it_lies:
                pair = moved
                facts = {"alignment": after.params(), "before": found.params(), "registered": done}
        yield maker.paired(target, case.image, pair, pairing, facts)
        if pairing.both:
            back = Pairing(target.key, pairing.pair, pairing.image, case.modality)
            yield maker.paired(target, pair, case.image, back, facts, pairing.modality or case.modality)


def _nothing(case: Case, reason: str) -> Rejection:
    return Rejection(case.source, case.case_id, "empty", reason)


@dataclass(frozen=True, slots=True)
class _Maker:
    case: Case
    stored: tuple[int, int]  # the size in the file
    size: tuple[int, int]
    split: str
    bin: int | None
    build_seed: int

    def simulated(
        self, target: TransformTarget, variant: Mapping[str, Any], fixed: Mapping[str, Any]
    ) -> Sample:
        values = None if self.case.values is None else checksum(self.case.values)
        sample_id = self._id(target, dict(variant), checksum(self.case.image), values)
        seed = sample_seed(self.build_seed, sample_id)
        made = simulate(target, fixed, self.case, self.size, generator(stable_hash("pixels", seed)))
        return self._sample(target, sample_id, seed, made, self.case.modality)

    def of_volume(self, target: TransformTarget, variant: Mapping[str, Any], made: Made, seed: int) -> Sample:
        """A slice of a volume that was simulated as a whole."""
        values = None if self.case.values is None else checksum(self.case.values)
        sample_id = self._id(target, dict(variant), checksum(self.case.image), values)
        return self._sample(target, sample_id, seed, made, self.case.modality)

    def paired(
        self,
        target: TransformTarget,
        source: Pixels,
        goal: Pixels,
        pairing: Pairing,
        facts: dict[str, Any],
        modality: str | None = None,
        shared: int | None = None,
    ) -> Sample:
        """A sample of two images; `shared` is the seed of a whole volume."""
        sample_id = self._id(target, [pairing.image, pairing.pair], checksum(source), checksum(goal))
        words = {"source": pairing.image, "goal": pairing.pair}
        if target.key == "dermoscopy_artifacts":
            words = {"artifacts": pairing.image or "overlay artifacts"}
        params = {
            "made": "pair",
            **facts,
            "image_steps": [dict(s) for s in self.case.steps],
            "pair_steps": [dict(s) for s in self.case.pair_steps],
        }
        shown = [resize_image(image, self.size) for image in (source, goal)]
        made = Made(shown[0], shown[1], params, {k: v for k, v in words.items() if v})
        seed = sample_seed(self.build_seed, sample_id) if shared is None else shared
        return self._sample(target, sample_id, seed, made, modality or self.case.modality)

    def _id(self, target: TransformTarget, which: Any, *checksums: int | None) -> str:
        content = (self.case.source, self.case.case_id, target.key, which, checksums)
        return f"{stable_hash(NAME, VERSION, *content):016x}"

    def _sample(
        self, target: TransformTarget, sample_id: str, seed: int, made: Made, modality: str
    ) -> Sample:
        case = self.case
        words = all_words(modality, case.anatomy, made.words)
        # Real pairs do not say how many views or which acceleration: only phrasings that can be filled.
        fitting = [t for t in PHRASINGS[target.key] if places(t) <= words.keys()]
        template = str(generator(seed).choice(fitting))
        return Sample(
            id=sample_id,
            perspective=NAME,
            task=target.task,
            target=target.name,
            modality=modality,
            anatomy=case.anatomy,
            prompt=ask(template, words),
            prompt_template=template,
            description=ask(DESCRIPTIONS[target.key], words),
            input=made.input,
            target_image=made.target_image,
            mask=None,
            colour=None,
            split=self.split,
            bin=self.bin,
            source=case.source,
            case_id=case.case_id,
            patient_id=case.patient_id,
            recipe=NAME,
            recipe_version=VERSION,
            params={
                "key": target.key,
                "named": [words[name] for name in NAMED.get(target.key, ())],
                "original_size": list(self.stored),
                "spacing": None if case.spacing is None else list(case.spacing),
                **made.params,
            },
            seed=seed,
            license=case.license,
        )


@dataclass(frozen=True, slots=True)
class PairGate:
    """Rejects pairs that teach nothing or teach wrongly: blank, identical, or not of the same place.

    `max_shift` is in pixels of the original image.
    """

    max_shift: float = 3.0

    def __call__(self, sample: Sample) -> Rejection | None:
        for name, image in (("input", sample.input), ("target image", sample.target_image)):
            contrast = _contrast(image)
            if contrast < _LEAST_CONTRAST:
                reason = (
                    f"the {name} shows nothing: standard deviation {contrast:.2f} grey levels, "
                    f"at least {_LEAST_CONTRAST:g}"
                )
                return _reject(sample, "blank", reason, {"contrast": contrast})
        found = _difference(sample.input, sample.target_image)
        if found < _LEAST_DIFFERENCE:
            reason = (
                "input and target image are the same to the eye: "
                f"they differ by at most {found:.3f} grey levels, at least {_LEAST_DIFFERENCE:g}"
            )
            return _reject(sample, "identical", reason, {"difference": found})
        return self._aligned(sample)

    def _aligned(self, sample: Sample) -> Rejection | None:
        found = sample.params.get("alignment")
        if found is None or found["error"] <= self.max_shift or found["evidence"] < _EVIDENCE:
            return None
        rows, columns = found["shift"]
        reason = (
            f"the pair is misaligned by {found['error']:.1f} px ({rows:+.1f} rows, {columns:+.1f} columns), "
            f"at most {self.max_shift:g}"
        )
        return _reject(sample, "misaligned", reason, dict(found))


def _difference(a: Pixels, b: Pixels) -> float:
    """Of two images of one shape, in grey levels, root mean square in the place where it is largest.

    In whole numbers, so that it is exact for a volume of any size, a few rows at a time.
    """
    height, width, channels = a.shape
    side = max(1, max(height, width) // _PLACES)
    # sums[i] holds, for a place around each column, the sum over the first i rows.
    sums = scratch.zeros((height + 1, width), np.int64)
    for at in scratch.blocks(sums[1:]):
        apart = cv2.absdiff(a[at], b[at]).astype(np.float32)
        squared = cv2.transform(np.square(apart, out=apart), np.ones((1, channels), np.float32))
        along = np.zeros((width + 1, len(squared)), np.int64)
        np.cumsum(squared.T, axis=0, dtype=np.int64, out=along[1:])
        rows = _around(along, np.arange(width), side).T
        start = at[0].start
        rows[0] += sums[start]
        sums[start + 1 : start + 1 + len(rows)] = np.cumsum(rows, axis=0)
    most = max(int(_around(sums, np.arange(height)[at[0]], side).max()) for at in scratch.blocks(sums[1:]))
    return math.sqrt(most / (channels * side * side))


def _around(sums: NDArray[np.int64], at: NDArray[np.intp], side: int) -> NDArray[np.int64]:
    """Of `n` numbers, by their `n + 1` sums from the first on: the sum of the `side` numbers around each.

    Beyond the first and the last number they go on in the mirror (101), as often as it takes.
    """
    count = len(sums) - 1

    def until(end: NDArray[np.intp]) -> NDArray[np.int64]:
        if count == 1:
            return end[:, None] * sums[1]
        period = 2 * (count - 1)
        whole, rest = np.divmod(end, period)
        found = sums[np.minimum(rest, count)]
        back = np.flatnonzero(rest > count)
        found[back] += sums[count - 1] - sums[2 * count - 1 - rest[back]]
        if whole.any():
            found += whole[:, None] * (sums[count] + sums[count - 1] - sums[1])
        return found

    first = at - side // 2
    return until(first + side) - until(first)


def _contrast(image: Pixels) -> float:
    """The standard deviation of the mean over the channels, exactly."""
    total = squares = 0
    for at in scratch.blocks(image):
        levels = image[at].sum(axis=2, dtype=np.int64)
        total += int(levels.sum())
        squares += int(np.square(levels).sum())
    pixels = image.shape[0] * image.shape[1]
    return math.sqrt(pixels * squares - total * total) / pixels / image.shape[2]


def _reject(sample: Sample, gate: str, reason: str, numbers: dict[str, Any]) -> Rejection:
    return Rejection(sample.source, sample.case_id, gate, reason, sample.target, numbers)


def prove(sample: Sample) -> list[Problem]:
    """What is wrong with a stored sample, which changes the whole image and says how."""
    wrong: list[Problem] = []
    if sample.mask is not None or sample.colour is not None:
        wrong.append(("overlay", "a transformation sample has neither mask nor colours"))
    # A slice of a whole volume may be empty, or hardly changed.
    rejection = None if volume_id(sample) is not None else PairGate(math.inf)(sample)
    if rejection is not None:
        wrong.append(("pair", rejection.reason))
    return wrong + unnamed_words(sample)
