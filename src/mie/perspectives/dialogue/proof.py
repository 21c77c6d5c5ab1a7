"""Proof of stored conversations: the turns replayed from `params` must give the stored pixels.

A base is first seen without overlays, so it can be taken from the stored images themselves. Everything after
is rendered again from it and compared to the pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mie.perspectives.dialogue.state import (
    ORIGINAL,
    Operation,
    State,
    from_labels,
    kind_of,
    render,
    replay,
    without_name,
)
from mie.perspectives.perspective import Problem, unnamed_words
from mie.records import Mask, Pixels, Sample


def prove(sample: Sample) -> list[Problem]:
    """What is wrong with one turn by itself."""
    wrong: list[Problem] = []
    if sample.mask is None or sample.group is None or sample.turn is None:
        return [("turn", "a turn of a conversation needs a mask, a group and a number")]
    before, after = (State.from_json(sample.params[name]) for name in ("before", "after"))
    same = np.array_equal(sample.input, sample.target_image)
    if same != (before.shown == after.shown):
        wrong.append(("turn", f"the states {'differ' if same else 'are equal'}, the images do not say so"))
    masks = from_labels(sample.mask, sample.params)
    areas = {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}
    for target in sample.params["targets"]:
        if areas[target["name"]] != target["area"]:
            found = f"{areas[target['name']]} pixels in the mask, {target['area']} in `params`"
            wrong.append(("mask", f"{target['name']}: {found}"))
    return wrong + unnamed_words(sample)


def prove_group(samples: Sequence[Sample]) -> list[Problem]:
    """What is wrong with a whole conversation. The turns may come in any order."""
    turns = sorted(samples, key=lambda sample: sample.turn or 0)
    wrong = _chain(turns)
    if wrong:
        return wrong  # what follows rests on it
    params = turns[0].params
    masks = from_labels(_mask(turns[0]), params)
    operations = [Operation.from_json(turn.params["operation"]) for turn in turns]
    talk = replay(operations, str(params["start"]), lambda target: target in masks)
    bases: dict[str, Pixels] = {talk.states[0].base: turns[0].input}
    for at, turn in enumerate(turns):
        before, after = talk.states[at : at + 2]
        where = f"turn {at + 1}"
        if turn.params["before"] != before.as_json() or turn.params["after"] != after.as_json():
            return [*wrong, ("state", f"{where}: replaying the operations gives another state")]
        if turn.params["kind"] != kind_of(operations[at], before, after):
            wrong.append(("state", f"{where}: is not of kind {turn.params['kind']}"))
        if after.base not in bases:
            if after.overlays:
                return [*wrong, ("base", f"{where}: a new image appears under overlays")]
            bases[after.base] = turn.target_image
            wrong += _base(where, after.base, bases, masks)
        expected = render(after, bases, masks)
        off = int(np.count_nonzero((expected != turn.target_image).any(axis=2)))
        if off:
            wrong.append(("pixels", f"{where}: {off} pixels differ from what its state shows"))
    return wrong


def _chain(turns: Sequence[Sample]) -> list[Problem]:
    count = int(turns[0].params["turns"])
    numbers = [turn.turn for turn in turns]
    if numbers != list(range(1, count + 1)):
        found = ", ".join(map(str, numbers))
        return [("chain", f"turns 1 to {count} are needed, found {found}")]
    wrong: list[Problem] = []
    for name in ("patient_id", "split", "source", "case_id", "task", "modality"):
        values = {getattr(turn, name) for turn in turns}
        if len(values) > 1:
            wrong.append(("chain", f"the turns have more than one {name}: {', '.join(map(str, values))}"))
    shared = ("targets", "pieces", "start", "turns", "family", "holes", "level", "context")
    for turn, previous in zip(turns[1:], turns, strict=False):
        if not np.array_equal(turn.input, previous.target_image):
            wrong.append(("chain", f"turn {turn.turn} does not start from the truth of turn {previous.turn}"))
        if not np.array_equal(_mask(turn), _mask(previous)):
            wrong.append(("chain", f"turn {turn.turn} has another mask than turn {previous.turn}"))
        if any(turn.params.get(name) != previous.params.get(name) for name in shared):
            wrong.append(("chain", f"turn {turn.turn} is about something else than turn {previous.turn}"))
    return wrong


def _base(where: str, name: str, bases: Mapping[str, Pixels], masks: Mapping[str, Mask]) -> list[Problem]:
    """A removal is local; any other base only has to be another image."""
    first = bases.get(ORIGINAL)
    if name.startswith(without_name("")) and first is not None:
        outside = int(np.count_nonzero((bases[name] != first).any(axis=2) & ~masks[name]))
        return [("base", f"{where}: {outside} pixels changed outside the filled area")] if outside else []
    others = [other for other in bases if other != name]
    if any(np.array_equal(bases[name], bases[other]) for other in others):
        return [("base", f"{where}: the new image is no other than one before")]
    return []


def _mask(sample: Sample) -> Pixels:
    assert sample.mask is not None  # noqa: S101 (`prove` has looked)
    return sample.mask
