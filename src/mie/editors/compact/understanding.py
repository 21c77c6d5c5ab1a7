"""What the network is asked, and what is done with its answer: a parse in its training's words.

An instruction that is one of our own templates, filled with names that it was trained on, reaches the network
letter by letter. Anything else is put into one of those templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import cv2
import numpy as np

from mie.datasets.faithful import filled
from mie.editors.compact.kinds import EDIT_KINDS, EditKind
from mie.perspectives.modification import phrasings as modification
from mie.perspectives.modification.lesions import body_of
from mie.perspectives.perception import phrasings as perception
from mie.perspectives.perception.phrasings import listed
from mie.perspectives.transformation import phrasings as transformation
from mie.perspectives.transformation.targets import TARGETS
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS
from mie.words import Parse, Requested, canonical, parse, vocabulary

# The patient's right is on the image's left in these; elsewhere a picture does not tell sides.
RADIOLOGICAL: Final = ("CT", "MRI", "X-ray")
_ONE_SIDE: Final = 0.9  # share of a connected part on one side of the midline that makes it that side's
_ALIKE: Final = 0.1  # of presence
# What "Denoise this CT" may mean. Taken for sharp, soft noise loses up to 4 dB more than taken for soft, and
# sharp noise taken for soft gains up to 0.8 dB less (examples/compact/results.md).
_SOFT: Final = TARGETS["low_dose_ct_soft"].name
_EITHER_KERNEL: Final = {_SOFT, TARGETS["low_dose_ct_sharp"].name}
# Parsed in the place of targets that the vocabulary lacks: structures that are no pair and have one word.
_STAND_INS: Final = ("liver", "spleen", "pancreas", "stomach", "aorta", "gallbladder")


def _distinct(phrasings: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(template for templates in phrasings.values() for template in templates))


# What an instruction may ask for -> the perspective that it belongs to: those of modification are its tasks.
_PERSPECTIVE: Final = {
    "perception": "perception",
    "transformation": "transformation",
    **dict.fromkeys(modification.PHRASINGS, "modification"),
}
# What it may ask for -> our own templates for that.
_TEMPLATES: Final[Mapping[str, Sequence[str]]] = {
    "perception": _distinct(perception.PHRASINGS),
    "transformation": _distinct(transformation.PHRASINGS),
    **{task: tuple(dict.fromkeys(templates)) for task, templates in modification.PHRASINGS.items()},
}


class Part(NamedTuple):
    """What is painted of one of the network's three maps."""

    channel: int
    side: str | None
    colour: str


class Question(NamedTuple):
    """What the network is asked. Without a `text` nothing is done, and `refusal` says why."""

    parse: Parse
    text: str | None = None
    parts: tuple[Part, ...] = ()  # none: painted as the network says
    refusal: str | None = None
    modality: str | None = None  # that of the image, where it is given or named

    @property
    def perspective(self) -> str | None:
        return _PERSPECTIVE.get(self.parse.operation)

    @property
    def paints(self) -> bool:
        """Whether regions are painted, and nothing else is changed."""
        return self.perspective is not None and EDIT_KINDS[self.perspective] is EditKind.OVERLAY

    @property
    def changes_all(self) -> bool:
        """Whether the whole image becomes another one."""
        return self.perspective is not None and EDIT_KINDS[self.perspective] is EditKind.IMAGE

    def asks_for(self, transformation: str) -> bool:
        """Whether the instruction names a transformation, by its key."""
        return any(target.name == TARGETS[transformation].name for target in self.parse.targets)

    @property
    def names(self) -> str:
        return " or ".join(target.name for target in self.parse.targets)

    def meta(self, instruction: str, trained: Collection[str] = ()) -> dict[str, Any]:
        """Return what was understood; `trained`: what the weights were trained to paint, if they say so."""
        asked: dict[str, Any] = {"asked": self.text} if self.text not in (None, instruction) else {}
        if trained and self.paints:
            asked["trained"] = {target.name: target.name in trained for target in self.parse.targets}
        sides = [part.side for part in self.parts if part.side]
        if sides:
            asked["sides"] = "image left is the patient's right; cut at the body's midline"
        taken = [f"{name} (for {words!r})" for words, name in self.parse.taken_for.items()]
        if taken:
            asked["taken_for"] = ", ".join(taken)
        return {"parse": self.parse.as_json(), **asked}

    def remarks(self, trained: Collection[str]) -> list[str]:
        """Return which targets the weights were not trained on."""
        new = [t.name for t in self.parse.targets if t.name not in trained] if trained else []
        if not self.paints or not new:
            return []
        return [f"not in this editor's training, so look closely: {', '.join(dict.fromkeys(new))}"]


def question(
    instruction: str,
    modality: str | None = None,
    trusted: bool = False,
    fallback: Callable[[str, str | None], Parse] = parse,
    taught: Collection[str] = (),
) -> Question:
    """Return what the network is asked for an instruction.

    `trusted`: weights of the user's own may know targets that are not in the vocabulary; one of our own
    templates is passed on all the same. `taught` are the targets that such weights name: those that the
    vocabulary lacks are painted in any wording, and no others. `fallback` parses what has unknown words.
    """
    result = parse(instruction, modality)
    if set(result.choices) == _EITHER_KERNEL:
        note = f"{result.note}; taken for a soft kernel, which changes less"
        result = replace(result, targets=(Requested(_SOFT),), note=note, choices=())
    if taught and (own := _with_own_names(instruction, modality, taught)) is not None:
        return own
    if trusted and (result.operation == "none" or result.unknown or not result.targets):
        for operation in dict.fromkeys((result.operation, *_PERSPECTIVE)):
            meant = Question(replace(result, operation=operation), instruction)
            if _fills(instruction, operation) and not (taught and meant.paints):
                return meant
    if result.unknown or (Question(result).changes_all and not result.targets):
        result = fallback(instruction, modality)
    if result.operation == "none":
        return Question(result, refusal=result.note)
    if result.unknown:
        return Question(result, refusal=_unknown(result, modality))
    if is_own_wording(instruction, result):
        return Question(result, instruction)
    if Question(result).paints:
        return painting(result, modality)
    if result.operation == "removal":
        if not result.targets:
            return Question(result, refusal=result.note or "nothing is named that could be removed")
        names = listed([f"the {target.name}" for target in result.targets])
        return Question(result, f"Take out {names} and restore healthy tissue.")
    if result.operation == "addition" and not result.targets:
        return Question(result, refusal=result.note or "nothing is named that could be added")
    if Question(result).changes_all:
        return Question(result, canonical(result) if result.targets else instruction)
    return Question(result, instruction if instruction.isascii() else canonical(result))


def _with_own_names(instruction: str, modality: str | None, taught: Collection[str]) -> Question | None:
    """Return how targets that the vocabulary lacks are painted; None where nothing of the kind is asked for.

    A known target is put in the place of each while the instruction is parsed.
    """
    known = vocabulary().targets
    text, stands_for = instruction, dict[str, str]()
    free = [name for name in _STAND_INS if name not in instruction.casefold()]
    for name in sorted(set(taught) - set(known), key=len, reverse=True):  # "wisdom teeth" before "teeth"
        pattern = rf"\b{re.escape(name)}\b"
        if free and re.search(pattern, text, re.IGNORECASE):
            stands_for[free[0]] = name
            text = re.sub(pattern, free.pop(0), text, flags=re.IGNORECASE)
    if not stands_for:
        return None
    result = parse(text, modality)
    if result.unknown or not Question(result).paints:
        return None
    targets = tuple(replace(t, name=stands_for.get(t.name, t.name)) for t in result.targets)
    own = [target for target in targets if target.name not in known]
    if len(own) < len(stands_for) or any(target.side for target in own) or result.attributes.get("exclude"):
        names = listed([f"the {name}" for name in stands_for.values()])
        return Question(
            parse(instruction, modality),
            refusal=f"of {names}, known to these weights alone, no sides or exceptions are understood; "
            "the image is unchanged",
        )
    result = replace(result, targets=targets, note=None)  # a note would name what stands in
    if is_own_wording(instruction, result):
        return Question(result, instruction)
    return painting(result, modality)


def _unknown(result: Parse, modality: str | None) -> str:
    if result.note and "not available" in result.note:
        return result.note
    words = " and ".join(f"'{word}'" for word in result.unknown[:3])
    text = f"I do not know the word{'s' if len(result.unknown) > 1 else ''} {words}"
    known = f"; known for {modality}: {', '.join(vocabulary().known(modality))}" if modality else ""
    return text + known + "; the image is unchanged"


def kinds(asked: Question, trained: Collection[str]) -> list[str] | None:
    """Return the trained targets that a general word ("tumour") stands for; None where none is asked for.

    Parts of another one of them are left out: a necrotic core is not what "tumour" asks for.
    """
    names = [target.name for target in asked.parse.targets]
    known = vocabulary()
    if asked.text is None or not trained or not asked.paints or len(names) != 1:
        return None
    if names[0] not in known.targets or known.targets[names[0]].modalities:
        return None
    below = {name for name in trained if name in known.targets and names[0] in known.ancestors(name)}
    return [name for name in sorted(below) if not known.ancestors(name) & (below - {name})]


def of_kind(asked: Question, name: str, modality: str | None) -> Question:
    """Return the same question for one kind of what a general word stands for."""
    (target,) = asked.parse.targets
    return painting(replace(asked.parse, targets=(replace(target, name=name),)), modality)


class Seen(NamedTuple):
    """How the network sees one kind in an image."""

    presence: float
    confidence: float


def chosen_kind(asked: Question, choices: Sequence[Question], seen: Sequence[Seen], least: float) -> Question:
    """Return the choice that is seen best; none where no presence reaches `least`.

    The network finds a tumour more surely than it tells tumours apart: those that it sees as well are named.
    """
    word = asked.names
    if not choices:
        return Question(
            asked.parse, refusal=f"no kind of {word} was in this editor's training for such images"
        )
    there = [(s, q) for s, q in zip(seen, choices, strict=True) if s.presence >= least]
    if not there:
        looked = ", ".join(f"{q.names} {s.presence:.2f}" for s, q in zip(seen, choices, strict=True))
        return Question(asked.parse, refusal=f"no {word} was found in this image; presence: {looked}")
    best, choice = max(there, key=lambda pair: pair[0].confidence)
    others = [q.names for s, q in there if q is not choice and s.presence > best.presence - _ALIKE]
    note = f"{word!r} was looked for as {choice.names} (presence {best.presence:.2f})"
    if others:
        note += f"; seen about as well: {', '.join(others)}. Which it is, this editor cannot tell"
    notes = [note, *([choice.parse.note] if choice.parse.note else [])]
    return choice._replace(parse=replace(choice.parse, note="; ".join(notes)))


def painting(result: Parse, modality: str | None) -> Question:
    """Return how the targets of a parse are painted."""
    result = replace(result, targets=tuple(_pair(target) for target in result.targets))
    names = list(dict.fromkeys(target.name for target in result.targets))
    related = [name for name in result.attributes.get("exclude", ()) if _lies_inside(name, names)]
    if not names:
        return Question(result, refusal=result.note or "no structure or lesion is named")
    if len(names) > len(COLOURS):
        return Question(result, refusal=f"at most {len(COLOURS)} targets at a time, not {len(names)}")
    sided = [target for target in result.targets if _cut(target)]
    if sided and (modality or "CT") not in RADIOLOGICAL:
        return Question(result, refusal=f"an image of {modality} does not tell left from right")
    for target in sided:
        if vocabulary().targets[target.name].sides is None:
            return Question(
                result, refusal=f"the {target.name} is not one of a pair: there is no {target.side} one"
            )
    asked = (names + related)[: len(COLOURS)]
    colours = _asked_colours(asked, result.targets)
    pairs = [f"the {name} in {colour}" for name, colour in zip(asked, colours, strict=True)]
    text = f"Highlight {pairs[0]}." if len(pairs) == 1 else f"Paint {listed(pairs)}."
    order = list(COLOURS)
    own = dict(zip(asked, colours, strict=True))
    parts = tuple(
        Part(order.index(own[t.name]), t.side if _cut(t) else None, t.colour or own[t.name])
        for t in result.targets
    )
    return Question(result, text, parts)


def _pair(target: Requested) -> Requested:
    """One of a pair as a side of it: the network learned pairs from more images than sides."""
    words = vocabulary().targets.get(target.name)  # None: a name of the user's own weights
    if words is None or words.side is None:
        return target
    return replace(target, name=words.parents[0], side=words.side)


def _cut(target: Requested) -> bool:
    return target.side in ("left", "right") and not target.name.startswith(target.side)


def _lies_inside(name: str, names: list[str]) -> bool:
    """Whether what is excluded may lie inside what is asked for: a lesion, or a part of it."""
    known = vocabulary()
    if name not in known.targets:
        return False
    inside = known.ancestors(name) & set(names)
    return bool(inside) or known.targets[name].kind == "lesion"


def _asked_colours(names: list[str], targets: tuple[Requested, ...]) -> list[str]:
    """A colour of its own for each name: the one that is asked for where that is free."""
    wanted = {t.name: t.colour for t in reversed(targets) if t.colour}
    free = list(COLOURS)
    chosen: dict[str, str] = {}
    for name in names:
        if wanted.get(name) in free:
            chosen[name] = str(wanted[name])
            free.remove(chosen[name])
    for name in names:
        if name not in chosen:
            chosen[name] = free.pop(0)
    return [chosen[name] for name in names]


def is_own_wording(instruction: str, result: Parse) -> bool:
    """Whether the instruction is one of our templates, filled as a recipe fills it.

    The template belongs to the operation that was parsed, every target is called by its own name, and nothing
    is asked beyond it (a side, an exclusion).
    """
    names = all(target.name.casefold() in instruction.casefold() for target in result.targets)
    if Question(result).paints and (
        not result.targets
        or not names
        or "exclude" in result.attributes
        or any(_cut(_pair(target)) or target.colour is None for target in result.targets)
    ):
        return False
    return _fills(instruction, result.operation)


def _fills(instruction: str, operation: str) -> bool:
    return any(filled(template, instruction) is not None for template in _TEMPLATES.get(operation, ()))


def on_side(mask: Mask, image: Pixels, side: str) -> Mask:
    """Return the part of `mask` on one side of the patient, "left" or "right", as radiology hangs an image.

    A connected part on one side of the body's midline is taken as a whole; one that crosses it is cut.
    """
    body = body_of(image, "ct")
    columns = np.flatnonzero(body.any(axis=0))
    middle = (int(columns[0]) + int(columns[-1]) + 1) // 2
    half: Mask = np.zeros_like(mask)
    if side == "left":
        half[:, middle:] = True
    else:
        half[:, :middle] = True
    count, labels = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
    kept: Mask = np.zeros_like(mask)
    for at in range(1, count):
        part = labels == at
        share = float(half[part].mean())
        if share >= _ONE_SIDE:
            kept |= part
        elif share > 1 - _ONE_SIDE:
            kept |= part & half
    return kept
