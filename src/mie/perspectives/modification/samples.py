"""Samples of lesions that were taken out of an image, filled and checked, or painted into a healthy one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mie.core.hashing import generator, sample_seed, stable_hash
from mie.errors import ImageError
from mie.images.families import MARGIN, family_of, nearest_family
from mie.images.hashes import checksum
from mie.images.resize import fitted_size, nearest_bin
from mie.perspectives.modification import TASKS
from mie.perspectives.modification.counterfactual import (
    HIT,
    Bounds,
    Counterfactual,
    Opinion,
    Slice,
    Watch,
)
from mie.perspectives.modification.experts import (
    PHOTO_LIKE,
    Asker,
    expert,
    inpainter_specs,
    one_thread,
    opinion_of,
    watcher,
)
from mie.perspectives.modification.health import Addition, Healthy, allowed_area, one_of, painter_of
from mie.perspectives.modification.inpainters.blend import BLEND
from mie.perspectives.modification.lesions import (
    VIEWS,
    LesionLimits,
    Place,
    body_of,
    lesions_of,
    place_of,
    plane_of,
    why_not,
)
from mie.perspectives.modification.phrasings import DESCRIPTIONS, PHRASINGS, ask, words
from mie.perspectives.perspective import Problem, unnamed_words
from mie.perspectives.scaled import scaled_image, scaled_mask
from mie.perspectives.volumes import consecutive
from mie.records import Case, Mask, Pixels, Rejection, Sample, Target
from mie.vocabulary import BINS

NAME: Final = "modification"
VERSION: Final = 1

WHITE_HOLE: Final = ("inpainting", "simulation")
# Grey levels of mean absolute change inside the hole, below which nothing was modified.
_LEAST_CHANGE: Final = 1.0
# What a prompt of each kind must hold, for `mie verify` and for whoever rewords it.
_NAMED: Final = {
    "removal": ("lesion",),
    "addition": ("a_lesion", "location"),
    "inpainting": (),
    "simulation": ("a_lesion",),
}
# What input and target image of each task show.
_SHOWS: Final = {
    "removal": ("image with the lesion", "healthy image"),
    "addition": ("healthy image", "image with the lesion"),
    "inpainting": ("image with a hole", "healthy image"),
    "simulation": ("image with a hole", "image with the lesion"),
}


@dataclass(frozen=True, slots=True)
class Modification:
    """Case -> modification samples. Filled after scaling, so that the texture is that of the stored size."""

    inpainter: str | tuple[str, ...] = ("compact", "exemplar")  # several take turns
    detector: str | None = "compact"
    detector_required: bool = False  # refuse what no trusted detector has seen
    min_sensitivity: float = 0.5  # on held-out patients, below which a detector is not trusted
    candidates: int = 4
    kinds: tuple[str, ...] = TASKS
    per_case: int | None = 1  # pairs of one image: all lesions together, then groups that lie apart
    blend: str | None = None  # None: what suits the family
    margin: float | None = None  # share of a lesion's diameter; None: the family's
    allow_nearest: bool = False  # a modality without an expert takes the one that looks most like it
    health: tuple[Mapping[str, Any], ...] = ()  # lesions to paint: source, lesion, inside
    painter: str = "flow"
    judge: Asker | None = None
    case_name: Callable[[Case], str] = lambda case: case.case_id  # in the judge's journal
    limits: LesionLimits = field(default_factory=LesionLimits)
    bounds: Bounds = field(default_factory=Bounds)
    bins: tuple[int, ...] = BINS

    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """Samples of one case. Test samples keep the original size."""
        yield from self.volume([case], split, build_seed)

    def volume(self, cases: Sequence[Case], split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """Samples of the slices of one volume: neighbouring ones are filled together."""
        prepared: list[_Prepared] = []
        for case in cases:
            for found in self._prepared(case, split):
                if isinstance(found, _Stored):
                    yield from self._from_health(found, build_seed)
                elif isinstance(found, Rejection):
                    yield found
                else:
                    prepared.append(found)
        for run in consecutive(prepared, lambda p: (p.case, tuple(t.name for t in p.at.lesion.targets))):
            yield from self._pairs(run, build_seed)

    def _prepared(self, case: Case, split: str) -> Iterator[_Prepared | _Stored | Rejection]:
        """Each lesion that may go from an image; or the image, where it is healthy and one may be painted."""
        family = family_of(case.modality) or (nearest_family(case.modality) if self.allow_nearest else None)
        if family is None:
            reason = f"there is no inpainting expert for {case.modality}"
            if nearest_family(case.modality) is not None:
                reason += f"; `allow_nearest: true` would take the one for {nearest_family(case.modality)}"
            yield Rejection(case.source, case.case_id, "expert", reason)
            return
        height, width = case.image.shape[:2]
        bin_ = None if split == "test" else nearest_bin(height, width, self.bins)
        size = (height, width) if bin_ is None else fitted_size(height, width, bin_)
        image = scaled_image(case.image, size)
        masks = {name: scaled_mask(mask, size) for name, mask in case.masks.items()}
        share, least = MARGIN[family]
        body = body_of(image, family)
        margin = (share if self.margin is None else self.margin, least)
        lesions = lesions_of(masks, case.targets, margin, body if family in VIEWS else None)
        watch = watcher(self.detector, family, self.min_sensitivity)
        if not lesions and any(one["source"] == case.source for one in self.health):
            yield _Stored(case, split, bin_, family, image, masks, body, watch)
            return
        if not lesions:
            yield Rejection(case.source, case.case_id, "empty", "no lesion is marked in this image")
            return
        unhealthy = lesions[0].mask
        for lesion in lesions[: self.per_case]:
            refused = why_not(lesion, body, self.limits, family) or self._unwatched(watch)
            seen = None
            if refused is None:
                with one_thread():
                    seen = watch.seen(image, lesion.mask)
                refused = _unseen(watch, seen)
            found = _Prepared(case, split, bin_, family, Slice(image, lesion, body, unhealthy), watch, seen)
            yield found if refused is None else found.rejection(*refused)

    def _from_health(self, stored: _Stored, build_seed: int) -> Iterator[Sample | Rejection]:
        """A lesion of each named kind, painted into an image that shows none."""
        for one in self.health:
            if one["source"] == stored.case.source:
                yield from self._painted(stored, one["lesion"], one["inside"], build_seed)

    def _painted(
        self, stored: _Stored, lesion: str, inside: str | None, build_seed: int
    ) -> Iterator[Sample | Rejection]:
        target = Target(one_of(lesion), "lesion")
        facts = {"from_health": True, "synthetic": "lesion", "painted": lesion, "inside": inside}

        def refused(gate: str, reason: str, numbers: Mapping[str, Any]) -> Rejection:
            case = stored.case
            return Rejection(case.source, case.case_id, gate, reason, target.name, {**facts, **numbers})

        if (unwatched := self._unwatched(stored.watch)) is not None:
            yield refused(*unwatched)
            return
        organ = None if inside is None else stored.masks.get(inside)
        if inside is not None and (organ is None or not organ.any()):
            known = ", ".join(name for name, mask in stored.masks.items() if mask.any()) or "none"
            yield refused("place", f"no {inside} is marked in this image; marked are: {known}", {})
            return
        maker = Addition(painter_of(self.painter, stored.family), self.candidates, self.bounds, stored.watch)
        allowed = allowed_area(stored.image, stored.body, organ)
        with one_thread():
            made = maker.paint(Healthy(stored.image, stored.body, allowed, lesion, target), build_seed)
        if made is None:
            yield refused("place", f"no place in the {inside or 'body'} is large enough for the lesion", {})
            return
        kept, painted = made
        chosen = painted[kept]
        at = Slice(chosen.candidate.image, chosen.lesion, stored.body, chosen.lesion.mask)
        p = _Prepared(stored.case, stored.split, stored.bin, stored.family, at, stored.watch, chosen.seen)
        numbers = {"kept": kept, "candidates": [one.candidate.params() for one in painted]}
        limit = why_not(chosen.lesion, stored.body, self.limits, stored.family)
        if not chosen.candidate.passed or limit is not None:
            gate, reason = (limit or chosen.candidate.failures[0])[:2]
            yield refused(gate, reason, {**p.facts, **numbers})
            return
        made_by = {"inpainter": chosen.candidate.inpainter, "blend": "none", "slices": 1}
        yield from self._triplets(p, stored.image, {**made_by, **facts, **p.facts, **numbers}, build_seed)

    def _unwatched(self, watch: Watch) -> tuple[str, str, dict[str, Any]] | None:
        if not self.detector_required or watch.trusted:
            return None
        return "detector", f"no detector that can be trusted: {watch.reason}", {}

    def _pairs(self, run: Sequence[_Prepared], build_seed: int) -> Iterator[Sample | Rejection]:
        first = run[0]
        maker = Counterfactual(
            [expert(spec, first.family) for spec in inpainter_specs(self.inpainter)],
            self.blend or BLEND[first.family],
            self.candidates,
            self.bounds,
            first.watch,
        )
        opinion: Opinion | None = None
        if self.judge is not None and first.family in PHOTO_LIKE:
            opinion = opinion_of(self.judge, first.case, self.case_name(first.case), first.at.lesion)
        try:
            with one_thread():
                kept, made = maker.fill([p.at for p in run], build_seed, opinion)
        except ImageError as error:
            for p in run:
                yield p.rejection("image", error.reason, {})
            return
        for at, p in enumerate(run):
            chosen, tried = made[kept][at], [candidate[at].params() for candidate in made]
            numbers = {"kept": kept, "candidates": tried}
            if chosen.passed:
                made_by = {"inpainter": chosen.inpainter, "blend": maker.blending, "slices": len(run)}
                facts = {**made_by, **p.facts, **numbers}
                yield from self._triplets(p, chosen.image, facts, build_seed)
            else:
                gate, reason = chosen.failures[0]
                yield p.rejection(gate, reason, numbers)

    def _triplets(
        self, p: _Prepared, healthy: Pixels, facts: dict[str, Any], build_seed: int
    ) -> Iterator[Sample]:
        lesion, white = p.at.image, p.at.white
        images = {
            "removal": (lesion, healthy),
            "addition": (healthy, lesion),
            "inpainting": (white, healthy),
            "simulation": (white, lesion),
        }
        mask = p.at.lesion.hole.view(np.uint8) * np.uint8(255)
        place = p.place()
        for task in self.kinds:
            yield p.sample(task, images[task], mask, place, self._params(p, place, facts), build_seed)

    def _params(self, p: _Prepared, place: Place, facts: dict[str, Any]) -> dict[str, Any]:
        lesion, case = p.at.lesion, p.case
        scale = max(case.image.shape[:2]) / max(p.at.image.shape[:2])
        across = None if case.spacing is None else round(place.diameter * scale * min(case.spacing), 1)
        return {
            "family": p.family,
            "location": place.location,
            "size": place.size,
            "diameter_mm": across,
            "components": place.components,
            "lesion_pixels": int(lesion.mask.sum()),
            "filled_pixels": int(lesion.hole.sum()),
            "margin": list(lesion.margin),
            **facts,
            "original_size": list(case.image.shape[:2]),
            "spacing": None if case.spacing is None else list(case.spacing),
            "image_steps": [dict(step) for step in case.steps],
        }


def _unseen(watch: Watch, seen: dict[str, float] | None) -> tuple[str, str, dict[str, Any]] | None:
    """A detector that is to say that the lesion is gone must have seen it."""
    if not watch.trusted or seen is None or seen["share"] >= HIT:
        return None
    reason = f"the detector finds {seen['share']:.0%} of the lesion before it is removed, at least {HIT:.0%}"
    return "detector", reason, {}


@dataclass(frozen=True, slots=True)
class _Stored:
    """One image without a lesion, at the size that is stored."""

    case: Case
    split: str
    bin: int | None
    family: str
    image: Pixels
    masks: Mapping[str, Mask]
    body: Mask
    watch: Watch


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One image with the lesion that is to go from it, and what the detector saw of it."""

    case: Case
    split: str
    bin: int | None
    family: str
    at: Slice
    watch: Watch
    seen: dict[str, float] | None

    @property
    def facts(self) -> dict[str, Any]:
        """What the detector saw, and whether the patient is in the test split."""
        return {"detector": self.watch.params(), "lesion_seen": self.seen, "held_out": self.split == "test"}

    def rejection(self, gate: str, reason: str, numbers: dict[str, Any]) -> Rejection:
        case, target = self.case, ", ".join(target.name for target in self.at.lesion.targets)
        return Rejection(case.source, case.case_id, gate, reason, target, {**self.facts, **numbers})

    def place(self) -> Place:
        plane = plane_of(self.case.steps)
        return place_of(
            self.at.lesion.mask, self.at.body, family=self.family, anatomy=self.case.anatomy, plane=plane
        )

    def sample(
        self,
        task: str,
        images: tuple[Pixels, Pixels],
        mask: Pixels,
        place: Place,
        params: dict[str, Any],
        build_seed: int,
    ) -> Sample:
        case, lesion = self.case, self.at.lesion
        names = [target.name for target in lesion.targets]
        content = (case.source, case.case_id, names, checksum(case.image), checksum(lesion.mask))
        sample_id = f"{stable_hash(NAME, VERSION, task, *content):016x}"
        seed = sample_seed(build_seed, sample_id)
        spoken = words(
            lesion.spoken,
            anatomy=case.anatomy,
            modality=case.modality,
            location=place.location,
            size=place.size,
        )
        template = str(generator(seed).choice(PHRASINGS[task]))
        return Sample(
            id=sample_id,
            perspective=NAME,
            task=task,
            target=", ".join(names),
            modality=case.modality,
            anatomy=case.anatomy,
            prompt=ask(template, spoken),
            prompt_template=template,
            description=ask(DESCRIPTIONS[task], spoken),
            input=images[0],
            target_image=images[1],
            mask=mask,
            colour=None,
            split=self.split,
            bin=self.bin,
            source=case.source,
            case_id=case.case_id,
            patient_id=case.patient_id,
            recipe=NAME,
            recipe_version=VERSION,
            params={**params, "named": [spoken[key] for key in _NAMED[task]]},
            seed=seed,
            license=case.license,
            group=f"{stable_hash(NAME, VERSION, 'pair', *content):016x}",
        )


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


def _is_grey(image: Pixels) -> bool:
    return not np.ptp(image, axis=2).any()


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
    return wrong + _health_problems(sample) + unnamed_words(sample)


def _health_problems(sample: Sample) -> list[Problem]:
    """A painted lesion is marked as synthetic and passed its gates."""
    params = sample.params
    if not params.get("from_health"):
        return [("health", "marked as synthetic, but not from health")] if "synthetic" in params else []
    wrong: list[Problem] = []
    if params.get("synthetic") != "lesion":
        wrong.append(("health", "a painted lesion is not marked as synthetic"))
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
