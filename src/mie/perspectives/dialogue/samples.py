"""Conversations about one image: a sample for each turn, whose input is the truth of the turn before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mie.core.hashing import generator, sample_seed, stable_hash
from mie.images.hashes import checksum
from mie.images.resize import fitted_size, nearest_bin, resize_image, resize_mask
from mie.perspectives.dialogue.bases import Bases, Sources
from mie.perspectives.dialogue.families import FAMILIES, SCALE, Plan, Step, World, make_plan, scale_pair
from mie.perspectives.dialogue.phrasings import PHRASINGS, describe, fill_in
from mie.perspectives.dialogue.state import (
    ORIGINAL,
    State,
    as_labels,
    kind_of,
    outline,
    render,
)
from mie.perspectives.perception.samples import cut_off
from mie.perspectives.perspective import GateConfig
from mie.records import Case, Mask, Pixels, Rejection, Sample
from mie.vocabulary import BINS

NAME: Final = "dialogue"
VERSION: Final = 2
_MOST_TARGETS: Final = 3  # there are three colours
# Of the smaller of two targets. One that lies in another cannot be told from it in the same colour.
_MOST_SHARED: Final = 0.05
_CUT_OFF: Final = 0.6  # as for perception: a region that a window cuts to black teaches guessing
# An outline of more than this share of the region is as good as a fill.
_HOLLOW: Final = 0.5


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Case -> conversations. All splits are scaled: at its own size a long one would hold 30 large images."""

    families: tuple[str, ...] = FAMILIES
    per_case: int = 2  # families drawn for an image; the two conversations of a scale pair count as one
    bins: tuple[int, ...] = BINS
    limits: GateConfig = field(default_factory=GateConfig)
    sources: Sources = field(default_factory=Sources)

    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """The turns of each conversation, one after the other."""
        if not case.masks:
            yield Rejection(case.source, case.case_id, "empty", "no target is marked in this image")
            return
        draw = generator(stable_hash("families", build_seed, case.source, case.case_id))
        count = min(self.per_case, len(self.families))
        chosen = draw.choice(len(self.families), count, replace=False).tolist()
        height, width = case.image.shape[:2]
        bin_ = nearest_bin(height, width, self.bins)
        plain = resize_image(case.image, fitted_size(height, width, bin_))
        origin = checksum(case.image)
        usable: dict[int, _Usable] = {}  # most conversations are about the same image
        for at in sorted(chosen):
            family = self.families[at]
            seed = sample_seed(build_seed, f"{case.source}/{case.case_id}/{family}")
            bases = self.sources.draw(case, plain, bin_, generator(seed))
            image = bases.images[ORIGINAL]
            if id(image) not in usable:
                usable[id(image)] = _Usable.of(self._masks(case, image), image)
            found = usable[id(image)]
            if found.labels is None:
                reason = "no target is large enough, visible and apart from the others"
                yield Rejection(case.source, case.case_id, "targets", reason)
                continue
            world = found.world(case, bases)
            labels = as_labels({**found.masks, **bases.holes}) if bases.holes else found.labels
            maker = _Maker(case, origin, found.masks, found.shapes, labels, bases, split, bin_)
            if family == SCALE:
                context = f"{stable_hash(NAME, VERSION, case.source, case.case_id, SCALE, origin):016x}"
                for level, plan in zip(("low", "high"), scale_pair(world, seed), strict=True):
                    yield from maker.turns(family, plan, seed, level=level, context=context)
            else:
                yield from maker.turns(family, make_plan(family, world, seed), seed)

    def _masks(self, case: Case, image: Pixels) -> dict[str, Mask]:
        """At most three targets that lie apart, large ones first."""
        size = (image.shape[0], image.shape[1])
        total = size[0] * size[1]
        least = max(self.limits.min_pixels, self.limits.min_fraction * total)
        masks = {name: resize_mask(mask, size) for name, mask in case.masks.items()}
        areas = {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}
        found: dict[str, Mask] = {}
        for name in sorted(masks, key=lambda name: (-areas[name], name)):
            if not least <= areas[name] <= self.limits.max_fraction * total:
                continue
            if cut_off(image, masks[name]) > _CUT_OFF:
                continue
            shared = (np.count_nonzero(masks[name] & mask) for mask in found.values())
            if all(pixels <= _MOST_SHARED * areas[name] for pixels in shared):
                found[name] = masks[name]
            if len(found) == _MOST_TARGETS:
                break
        return found


@dataclass(frozen=True, slots=True)
class _Usable:
    """The targets of an image, and what of them a plan needs to know."""

    image: Pixels  # kept, so that no other image gets its id
    masks: Mapping[str, Mask]
    areas: Mapping[str, int]
    hollow: frozenset[str]
    shapes: Mapping[str, int]  # checksums
    labels: tuple[Pixels, dict[str, list[int]], int] | None  # of `as_labels`; None without a target

    @classmethod
    def of(cls, masks: Mapping[str, Mask], image: Pixels) -> _Usable:
        areas = {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}
        lines = {name: int(np.count_nonzero(outline(mask))) for name, mask in masks.items()}
        hollow = frozenset(name for name in masks if lines[name] <= _HOLLOW * areas[name])
        shapes = {name: checksum(mask) for name, mask in masks.items()}
        return cls(image, masks, areas, hollow, shapes, as_labels(masks) if masks else None)

    def world(self, case: Case, bases: Bases) -> World:
        return World(
            areas=self.areas,
            hollow=self.hollow,
            absent=tuple(sorted(set(case.targets) - set(case.masks))),
            start=bases.start,
            windows=bases.windows,
            removable=tuple(name for name in bases.removable if name in self.masks),
        )


@dataclass(frozen=True, slots=True)
class _Maker:
    case: Case
    origin: int
    masks: Mapping[str, Mask]
    shapes: Mapping[str, int]
    labels: tuple[Pixels, dict[str, list[int]], int]
    bases: Bases
    split: str
    bin: int

    def turns(
        self, family: str, plan: Plan, seed: int, *, level: str = "", context: str = ""
    ) -> Iterator[Sample]:
        case = self.case
        content = (case.source, case.case_id, family, level, self.origin, dict(self.shapes))
        group = f"{stable_hash(NAME, VERSION, *content):016x}"
        draw = generator(stable_hash("wording", seed))  # both conversations of a pair begin with one sentence
        labels, pieces, count = self.labels
        holes = {name: pieces[name] for name in self.bases.holes}
        images = _Images(self.bases.images, self.masks)
        states = plan.talk.states
        kinds = [kind_of(step.operation, *states[at : at + 2]) for at, step in enumerate(plan.steps)]
        about = {
            "family": family,
            "turns": len(plan.steps),
            "start": self.bases.start,
            "targets": [
                {"name": name, "pieces": pieces[name], "area": plan.world.areas[name]} for name in self.masks
            ],
            "pieces": count,
            **({"holes": holes} if holes else {}),
            **({"level": level, "context": context} if level else {}),
            "original_size": list(case.image.shape[:2]),
            "spacing": None if case.spacing is None else list(case.spacing),
            "image_steps": [dict(step) for step in case.steps],
        }
        for at, step in enumerate(plan.steps):
            before, after = states[at : at + 2]
            template, prompt = self._sentence(step, draw)
            facts = self.bases.facts.get(after.base, {}) if before.base != after.base else {}
            turn = at + 1
            sample_id = f"{stable_hash(NAME, VERSION, group, turn):016x}"
            yield Sample(
                id=sample_id,
                perspective=NAME,
                task=family,
                target=step.operation.other or step.operation.target or "everything",
                modality=case.modality,
                anatomy=case.anatomy,
                prompt=prompt,
                prompt_template=template,
                description=describe(before.as_json(), after.as_json(), before.shown != after.shown),
                input=images.of(before),
                target_image=images.of(after),
                mask=labels,
                colour=",".join(dict.fromkeys(one.colour for one in after.overlays)) or None,
                split=self.split,
                bin=self.bin,
                source=case.source,
                case_id=case.case_id,
                patient_id=case.patient_id,
                recipe=NAME,
                recipe_version=VERSION,
                params={
                    **about,
                    "operation": step.operation.as_json(),
                    "phrasing": step.key,
                    "kind": kinds[at],
                    "switch": f"{kinds[at - 1]}→{kinds[at]}" if at else "",
                    "before": before.as_json(),
                    "after": after.as_json(),
                    "returns_to": _returns_to(states, at),
                    **({"base": facts} if facts else {}),
                    "named": _named(step, template, facts),
                },
                seed=seed,
                license=case.license,
                group=group,
                turn=turn,
            )

    def _sentence(self, step: Step, draw: np.random.Generator) -> tuple[str, str]:
        """The phrasing and the sentence; those of a new base come with it."""
        operation = step.operation
        if step.key not in PHRASINGS:
            return self.bases.wording(operation)
        templates = PHRASINGS[step.key]
        template = templates[int(draw.integers(len(templates)))]
        targets = self.case.targets
        other = operation.other or step.mention
        return template, fill_in(
            template,
            self.case.modality,
            target=None if operation.target is None else targets[operation.target],
            other=None if other is None else targets[other],
            colour=operation.colour,
            old=step.old,
            turn=operation.turn,
        )


def _named(step: Step, template: str, facts: Mapping[str, Any]) -> list[str]:
    """The words without which the sentence asks for something else; `facts` are those of a new base."""
    operation = step.operation
    if step.key not in PHRASINGS and "named" in facts:
        return list(facts["named"])
    words = {
        "target": operation.target,
        "other": operation.other or step.mention,
        "colour": operation.colour,
        "old": step.old,
    }
    return [word for name, word in words.items() if word and f"{{{name}}}" in template]


def _returns_to(states: Sequence[State], at: int) -> int | None:
    """The last turn before the one before with the same image; None where the turn leads somewhere new."""
    if states[at].shown == states[at + 1].shown:
        return None
    return next((turn for turn in range(at - 1, -1, -1) if states[turn].shown == states[at + 1].shown), None)


class _Images:
    """The image of each state, rendered once: what is the same is the same array."""

    def __init__(self, bases: Mapping[str, Pixels], masks: Mapping[str, Mask]) -> None:
        self._bases, self._masks = bases, masks
        self._rendered: dict[Any, Pixels] = {}

    def of(self, state: State) -> Pixels:
        if state.shown not in self._rendered:
            self._rendered[state.shown] = render(state, self._bases, self._masks)
        return self._rendered[state.shown]


@dataclass(frozen=True, slots=True)
class TargetGate:
    """Reject the turns of a conversation with a target below a recipe's limits: all of them, or none."""

    limits: GateConfig

    def __call__(self, sample: Sample) -> Rejection | None:
        total = sample.input.shape[0] * sample.input.shape[1]
        least = max(self.limits.min_pixels, self.limits.min_fraction * total)
        for target in sample.params["targets"]:
            if not least <= target["area"] <= self.limits.max_fraction * total:
                reason = f"the region of {target['name']} is too small or too large: {target['area']} px"
                numbers = {"pixels": target["area"], "fraction": target["area"] / total}
                return Rejection(sample.source, sample.case_id, "area", reason, sample.target, numbers)
        return None
