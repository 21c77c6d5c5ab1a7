"""Samples of lesions that were taken out of an image, filled and checked, or painted into a healthy one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from mie.core import scratch
from mie.errors import ImageError
from mie.images.families import MARGIN, family_of, nearest_family
from mie.images.resize import fitted_size, nearest_bin, scaled_image, scaled_mask
from mie.images.slice_consistency import fill_flicker
from mie.perspectives.modification import TASKS
from mie.perspectives.modification.counterfactual import (
    HIT,
    Bounds,
    Candidate,
    Counterfactual,
    Opinion,
    Slice,
    Watch,
)
from mie.perspectives.modification.experts import (
    PHOTO_LIKE,
    Asker,
    experts,
    one_thread,
    opinion_of,
    watcher,
)
from mie.perspectives.modification.health import (
    FAINT,
    Addition,
    Healthy,
    allowed_area,
    margin_of,
    one_of,
    painter_of,
)
from mie.perspectives.modification.inpainters.blend import BLEND
from mie.perspectives.modification.lesions import (
    VIEWS,
    Lesion,
    LesionLimits,
    Place,
    body_of,
    lesions_of,
    why_not,
)
from mie.perspectives.modification.prepared import Prepared, Stored
from mie.perspectives.modification.volume_lesions import paint_volume
from mie.perspectives.volumes import consecutive, stacked, stored_affine
from mie.records import Case, Pixels, Rejection, Sample, Target
from mie.vocabulary import BINS

# Of a volume's lesion: the share whose slices must pass the gates.
_MOST_PASS: Final = 0.8
# A lesion is removed through all its slices, also the small ones at its ends.
_IN_VOLUMES: Final = LesionLimits(min_pixels=1, inside=0.0)
# A fill may change from slice to slice so many times as much as the tissue around it. On two FLAIR volumes
# with MS lesions, fills that look steady have at most 1.23; one that swells the ventricles in a slice 1.36.
# The gate is strict: at random places in 26 patients (CT and MR, `bench/flicker.py`) the untouched tissue
# itself exceeds 1.3 in 44 % of holes, wherever anatomy changes faster than its surroundings; a volume's fill
# does in 60 %, slices filled alone in 65 %. A limit that 95 % of untouched tissue keeps would be 2.7. Of four
# patients with lesions, a glioma's fill has .98, and two of stroke in DWI, rejected with 1.47 and 1.57, look
# steady too: the gate would rather lose such a volume than keep one that flickers.
_MOST_FLICKER: Final = 1.3


@dataclass(frozen=True, slots=True)
class Modification:
    """Case -> modification samples. Filled after scaling, so that the texture is that of the stored size."""

    inpainter: str | tuple[str, ...] = ("compact", "exemplar")  # several take turns
    detector: str | tuple[str, ...] | None = "compact"
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
        prepared: list[Prepared] = []
        for case in cases:
            for found in self._prepared(case, split):
                if isinstance(found, Stored):
                    yield from self._from_health(found, build_seed)
                elif isinstance(found, Rejection):
                    yield found
                else:
                    prepared.append(found)
        for run in consecutive(prepared, lambda p: (p.case, tuple(t.name for t in p.at.lesion.targets))):
            yield from self._pairs(run, build_seed)

    def whole_volume(
        self, cases: Sequence[Case], split: str, build_seed: int
    ) -> Iterator[Sample | Rejection]:
        """Samples of all marked lesions of a volume together, through every slice that shows one.

        Neighbouring slices are filled together. Small slices at a lesion's ends are filled too, whatever
        their size; the volume stays if slices with most of the lesion pass the gates.
        """
        whole = replace(self, per_case=1, limits=_IN_VOLUMES, detector_required=False)
        found = [(case, _aside(one)) for case in cases for one in whole._prepared(case, split, unseen=True)]
        marked = [(case, one) for case, one in found if not isinstance(one, Rejection) or one.gate != "empty"]
        runs = consecutive(marked, lambda item: (item[0], "lesions"))
        healthy = [one for _, one in marked if isinstance(one, Stored)]
        if healthy and len(healthy) == len(marked):
            for one in self.health:
                if one["source"] == cases[0].source:
                    yield from self._painted_volume(healthy, one, build_seed)
            return
        if not runs:
            yield Rejection(cases[0].source, cases[0].case_id, "empty", "no lesion is marked in this volume")
        for run in runs:
            refused = next((one for _, one in run if isinstance(one, Rejection)), None)
            slices = [one for _, one in run if isinstance(one, Prepared)]
            if refused is not None:
                reason = f"one of the lesion's {len(run)} slices is refused: {refused.reason}"
                yield replace(refused, reason=reason)
            elif len(slices) < 2:
                if slices:
                    yield slices[0].rejection("volume", "the lesion is in one slice only", {})
            else:
                yield from self._volume_pairs(slices, build_seed)

    def _volume_pairs(self, run: Sequence[Prepared], build_seed: int) -> Iterator[Sample | Rejection]:
        made = self._filled(run, build_seed)
        if isinstance(made, ImageError):
            yield run[0].rejection("image", made.reason, {})
            return
        maker, kept, candidates = made
        chosen = candidates[kept]
        areas = np.array([float(p.at.lesion.mask.sum()) for p in run])
        passed = float(areas[[one.passed for one in chosen]].sum() / areas.sum())
        measured = _through_plane(run, [one.image for one in chosen])
        numbers = {"passed": round(passed, 4), "flicker": measured, "slices": len(run)}
        if passed < _MOST_PASS:
            gates = Counter(one.failures[0][0] for one in chosen if not one.passed)
            reason = f"slices with {passed:.0%} of the lesion pass the gates, at least {_MOST_PASS:.0%}"
            yield run[0].rejection(gates.most_common(1)[0][0], reason, numbers)
            return
        if measured and max(measured) > _MOST_FLICKER:
            reason = (
                f"the fill changes from slice to slice {max(measured):.2f} times as much as tissue around "
                f"it, at most {_MOST_FLICKER:g}"
            )
            yield run[0].rejection("flicker", reason, numbers)
            return
        tried = [one[int(areas.argmax())].params() for one in candidates]  # where the lesion is largest
        facts = {"inpainter": chosen[0].inpainter, "blend": maker.blending, **numbers, "kept": kept}
        facts["candidates"] = tried
        yield from self._stacked(run, [one.image for one in chosen], facts, build_seed)

    def _painted_volume(
        self, slices: Sequence[Stored], one: Mapping[str, Any], build_seed: int
    ) -> Iterator[Sample | Rejection]:
        """A lesion painted through some slices of a volume that shows none."""
        first, inside, target = slices[0], one["inside"], Target(one_of(one["lesion"]), "lesion")
        watch = first.watch.of([one["lesion"]]).alone()
        maker = Addition(painter_of(self.painter, first.family), self.candidates, self.bounds, watch)
        nowhere = np.zeros_like(first.body)
        places = [None if inside is None else s.masks.get(inside, nowhere) for s in slices]
        areas = (allowed_area(s.image, s.body, organ) for s, organ in zip(slices, places, strict=True))
        healthy = [
            Healthy(s.image, s.body, scratch.put_aside(area), one["lesion"], target)
            for s, area in zip(slices, areas, strict=True)
        ]
        column, _, step = np.linalg.norm(stored_affine(first.case, first.body.shape)[:3, :3], axis=0)
        with one_thread():
            made = paint_volume(maker, healthy, (float(step), float(column)), build_seed)
        facts: dict[str, Any] = {"from_health": True, "synthetic": "lesion", "painted": one["lesion"]}

        def refused(gate: str, reason: str) -> Rejection:
            return Rejection(first.case.source, first.case.case_id, gate, reason, target.name, facts)

        if not made:
            yield refused("place", f"no place in the {inside or 'body'} is large enough for the lesion")
            return
        kept = min(made, key=lambda found: max(found.flicker, default=0.0))
        unknown: dict[str, Any] = {"detector": None, "seam": None, "texture": None, "failed": []}
        tried = [{"seed": f.seed, "flicker": f.flicker, "change": f.change, **unknown} for f in made]
        facts |= {"inside": inside, "candidates": tried, "kept": made.index(kept), "flicker": kept.flicker}
        if kept.change < FAINT:
            yield refused("faint", f"the lesion changes {kept.change:g} grey levels, at least {FAINT:g}")
        elif max(kept.flicker, default=0.0) > _MOST_FLICKER:
            yield refused(
                "flicker", f"from slice to slice it changes {max(kept.flicker):g} times as its place"
            )
        else:
            largest = int(np.argmax([region.sum() for region in kept.regions]))
            seen = watch.seen(kept.images[largest], kept.regions[largest])
            run = []
            for s, image, region, hole in zip(
                slices[kept.start :], kept.images, kept.regions, kept.holes, strict=False
            ):
                lesion = Lesion((target,), (target,), region, hole, margin_of(region, hole))
                at = Slice(image, lesion, s.body, region)
                run.append(Prepared(s.case, s.split, s.bin, s.family, at, watch, seen))
            facts |= {"inpainter": maker.painter.name, "blend": "none", "slices": len(run)}
            images = [s.image for s in slices[kept.start : kept.start + len(run)]]
            yield from self._stacked(run, images, facts, build_seed)

    def _stacked(
        self, run: Sequence[Prepared], healthy: Sequence[Pixels], facts: Mapping[str, Any], build_seed: int
    ) -> Iterator[Sample]:
        """The samples of a whole volume, task by task."""
        triplets: dict[str, list[Sample]] = defaultdict(list)
        for p, image in zip(run, healthy, strict=True):
            for sample in self._triplets(p, image, {**p.facts, **facts}, build_seed):
                triplets[sample.task].append(scratch.aside(sample))
        largest = int(np.argmax([p.at.lesion.mask.sum() for p in run]))
        for samples in triplets.values():
            # One sentence and seed: those of the slice that shows most of the lesion.
            spoken = samples[largest]
            words: dict[str, Any] = {
                "prompt": spoken.prompt,
                "prompt_template": spoken.prompt_template,
                "description": spoken.description,
                "target": spoken.target,
                "seed": spoken.seed,
            }
            same = [
                replace(s, **words, params={**s.params, "named": spoken.params["named"]}) for s in samples
            ]
            yield from stacked(same, [p.case for p in run])

    def _prepared(
        self, case: Case, split: str, *, unseen: bool = False
    ) -> Iterator[Prepared | Stored | Rejection]:
        """Each lesion that may go from an image; or the image, where it is healthy and one may be painted.

        With `unseen`, also lesions that the detector does not see.
        """
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
        detector = watcher(self.detector, family, self.min_sensitivity)
        if not lesions and any(one["source"] == case.source for one in self.health):
            yield Stored(case, split, bin_, family, image, masks, body, detector)
            return
        if not lesions:
            yield Rejection(case.source, case.case_id, "empty", "no lesion is marked in this image")
            return
        unhealthy = lesions[0].mask
        for lesion in lesions[: self.per_case]:
            watch = detector.of([target.name for target in lesion.targets])
            refused = why_not(lesion, body, self.limits, family) or self._unwatched(watch)
            seen = None
            if refused is None:
                with one_thread():
                    seen = watch.seen(image, lesion.mask)
                refused = None if unseen else _unseen(watch, seen)
            found = Prepared(case, split, bin_, family, Slice(image, lesion, body, unhealthy), watch, seen)
            yield found if refused is None else found.rejection(*refused)

    def _from_health(self, stored: Stored, build_seed: int) -> Iterator[Sample | Rejection]:
        """A lesion of each named kind, painted into an image that shows none."""
        for one in self.health:
            if one["source"] == stored.case.source:
                yield from self._painted(stored, one["lesion"], one["inside"], build_seed)

    def _painted(
        self, stored: Stored, lesion: str, inside: str | None, build_seed: int
    ) -> Iterator[Sample | Rejection]:
        target = Target(one_of(lesion), "lesion")
        facts = {"from_health": True, "synthetic": "lesion", "painted": lesion, "inside": inside}

        def refused(gate: str, reason: str, numbers: Mapping[str, Any]) -> Rejection:
            case = stored.case
            return Rejection(case.source, case.case_id, gate, reason, target.name, {**facts, **numbers})

        watch = stored.watch.of([lesion]).alone()
        if (unwatched := self._unwatched(watch)) is not None:
            yield refused(*unwatched)
            return
        organ = None if inside is None else stored.masks.get(inside)
        if inside is not None and (organ is None or not organ.any()):
            known = ", ".join(name for name, mask in stored.masks.items() if mask.any()) or "none"
            yield refused("place", f"no {inside} is marked in this image; marked are: {known}", {})
            return
        maker = Addition(painter_of(self.painter, stored.family), self.candidates, self.bounds, watch)
        allowed = allowed_area(stored.image, stored.body, organ)
        with one_thread():
            made = maker.paint(Healthy(stored.image, stored.body, allowed, lesion, target), build_seed)
        if made is None:
            yield refused("place", f"no place in the {inside or 'body'} is large enough for the lesion", {})
            return
        kept, painted = made
        chosen = painted[kept]
        at = Slice(chosen.candidate.image, chosen.lesion, stored.body, chosen.lesion.mask)
        p = Prepared(stored.case, stored.split, stored.bin, stored.family, at, watch, chosen.seen)
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

    def _pairs(self, run: Sequence[Prepared], build_seed: int) -> Iterator[Sample | Rejection]:
        found = self._filled(run, build_seed)
        if isinstance(found, ImageError):
            for p in run:
                yield p.rejection("image", found.reason, {})
            return
        maker, kept, made = found
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

    def _filled(
        self, run: Sequence[Prepared], build_seed: int
    ) -> tuple[Counterfactual, int, Sequence[Sequence[Candidate]]] | ImageError:
        """Fills of neighbouring slices: which candidate is kept, and all of them, slice by slice."""
        first = run[0]
        maker = Counterfactual(
            experts(self.inpainter, first.family),
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
            return error
        return maker, kept, made

    def _triplets(
        self, p: Prepared, healthy: Pixels, facts: dict[str, Any], build_seed: int
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

    def _params(self, p: Prepared, place: Place, facts: dict[str, Any]) -> dict[str, Any]:
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
            "synthetic": "tissue",  # of the pair; a painted lesion's facts say "lesion"
            **facts,
            "original_size": list(case.image.shape[:2]),
            "spacing": None if case.spacing is None else list(case.spacing),
            "image_steps": [dict(step) for step in case.steps],
        }


def _through_plane(run: Sequence[Prepared], filled: Sequence[Pixels]) -> list[float]:
    """`fill_flicker` of each pair of neighbouring slices."""
    ratios: list[float] = []
    for at in range(len(run) - 1):
        pair = slice(at, at + 2)
        before, after = (
            np.stack([image.mean(axis=2) for image in images])
            for images in ([p.at.image for p in run[pair]], filled[pair])
        )
        ratios += fill_flicker(after, before, np.stack([p.at.lesion.hole for p in run[pair]]))
    return [round(ratio, 3) for ratio in ratios]


def _aside(one: Prepared | Stored | Rejection) -> Prepared | Stored | Rejection:
    """With its arrays on the disk: the slices of a whole volume are filled together."""
    if isinstance(one, Prepared):
        at = replace(scratch.aside(one.at), lesion=scratch.aside(one.at.lesion))
        return replace(one, at=at)
    return scratch.aside(one)


def _unseen(watch: Watch, seen: dict[str, float] | None) -> tuple[str, str, dict[str, Any]] | None:
    """A detector that is to say that the lesion is gone must have seen it."""
    if not watch.trusted or seen is None or seen["share"] >= HIT:
        return None
    reason = f"the detector finds {seen['share']:.0%} of the lesion before it is removed, at least {HIT:.0%}"
    return "detector", reason, {}
