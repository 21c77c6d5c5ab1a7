"""An instruction to what it asks for: operation, targets with colour and side, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from mie.vocabulary import MODALITIES
from mie.words import requested
from mie.words.clauses import Clause, clauses
from mie.words.mentions import Mention, Scan
from mie.words.operation import decide
from mie.words.requested import Requested, meaning
from mie.words.scan import clean, scan
from mie.words.scopes import TAKEN_BACK
from mie.words.strangers import unknown_words
from mie.words.transformations import wished
from mie.words.vocabulary import phrase, vocabulary, word_set
from mie.words.wanted import MODIFICATIONS, wanted

LONGEST: Final = 1000  # characters of an instruction
_CODE: Final = re.compile(
    r"^\s*[\[{<]|\{\s*[\"']|```|<\|?\w+\|?>|\b(?:system|assistant|user)\s*:", re.IGNORECASE
)
_COLOUR_BEFORE: Final = word_set("in as with to a it them en color gelb auf 成 为 用")
_UNITS: Final = word_set("mm cm um ml cc mg % percent px pixel pixels hu mm2 cm2 cm3 degrees kg")
_NO_PLACE: Final = word_set("part side middle border margin edge segment")  # say little alone
_IN_NUMBER: Final = ("kidney", "kidneys")  # data sets name one or both: no other thing
_OTHER_SIDE: Final = {"left": "right", "right": "left"}
_REMEMBERED: Final = 512


@dataclass(frozen=True, slots=True)
class Parse:
    """What an instruction asks for."""

    operation: str  # "none": nothing that an editor does, and `note` says why
    task: str | None = None
    targets: tuple[Requested, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    note: str | None = None
    taken_for: dict[str, str] = field(default_factory=dict)  # unknown words, and what stands for them
    choices: tuple[str, ...] = ()  # the transformations that it may mean, where it fits several

    def as_json(self) -> dict[str, Any]:
        """As printed and stored; `taken_for` only where the fallback took words for others."""
        taken_for = {"taken_for": dict(self.taken_for)} if self.taken_for else {}
        return {
            "operation": self.operation,
            "task": self.task,
            "targets": [{"name": t.name, "colour": t.colour, "side": t.side} for t in self.targets],
            "attributes": dict(self.attributes),
            "unknown": list(self.unknown),
            "note": self.note,
            **taken_for,
        }


@lru_cache(_REMEMBERED)
def parse(instruction: str, modality: str | None = None) -> Parse:
    """Parse an instruction; `modality`, one of `MODALITIES`, settles words that mean several things.

    Never raises on a text: what is not understood is `none` or an unknown word.
    """
    assert modality is None or modality in MODALITIES, modality  # noqa: S101 (callers check)
    if len(instruction) > LONGEST:
        return _nothing(f"the instruction is too long: {len(instruction):,} characters, at most {LONGEST:,}")
    text = clean(instruction)
    if not text.strip():
        return _nothing("the instruction is empty")
    if _CODE.search(text):
        return _nothing("code, mark-up or a transcript is text, not an instruction")
    found = scan(text)
    if any(note == TAKEN_BACK for note in found.notes):
        return _nothing("", found)
    modality = modality or _named_modality(found)
    rows = clauses(found)
    wish = None if _only_told(found, rows) else wished(found, modality)
    decision = decide(found, rows, wish is not None)
    if decision.operation == "none":
        return _nothing(decision.note or "", found)
    if decision.operation == "transformation" and wish is not None:
        known = vocabulary().transformations
        targets = (Requested(known[wish.key].name),) if wish.key else ()
        note = _note([*found.notes, *([wish.note] if wish.note else [])])
        attributes = dict(wish.attributes)
        return Parse("transformation", wish.task, targets, attributes, note=note, choices=wish.choices)
    return _Reader(found, rows, decision.operation, modality).parse()


def named_modality(instruction: str) -> str | None:
    """Return the one modality that an instruction names; None where it names none, or several."""
    return _named_modality(scan(clean(instruction[:LONGEST])))


def _nothing(reason: str, found: Scan | None = None) -> Parse:
    return Parse("none", note=_note([reason, *(found.notes if found else [])]))


def _note(notes: list[str]) -> str | None:
    return "; ".join(dict.fromkeys(note for note in notes if note)) or None


def _only_told(found: Scan, rows: list[Clause]) -> bool:
    """Whether words of a transformation stand in a report: "we removed the hairs, now mark the lesion"."""
    words = [*found.all_of("sure"), *found.all_of("hint")]
    if not words:
        return False
    shown = any(
        "perception" in head.operations and not head.negated
        for row in rows
        for head in row.heads
        if any(m.says("target") for m in found.within(row.first, row.last))
    )
    told = [row for row in rows if row.mood in ("report", "aside")]
    return shown and all(any(r.first <= m.first < r.last for r in told) for m in words)


def _named_modality(found: Scan) -> str | None:
    named = {s.value for m in found.mentions if not m.negated for s in m.of("modality")}
    return named.pop() if len(named) == 1 else None


def _of_side(name: str, side: str) -> set[str]:
    """How the other one of a pair may be called: "left lungs", "left kidney"."""
    known = vocabulary().targets
    pairs = {name, *known[name].parents} if known[name].side else {name}
    return {f"{side} {pair}" for pair in pairs} | {
        t.name for t in known.values() if t.side == side and pairs & set(t.parents)
    }


class _Reader:
    """Reads targets and attributes once the operation is known."""

    def __init__(self, found: Scan, rows: list[Clause], operation: str, modality: str | None) -> None:
        self.found, self.rows, self.operation, self.modality = found, rows, operation, modality
        self.alters = operation in MODIFICATIONS
        self.notes = list(found.notes)
        self.asked = wanted(found, rows, operation, modality)

    def parse(self) -> Parse:
        attributes: dict[str, Any] = {}
        asked = self.asked
        if asked.places:
            first = asked.places[0]
            attributes["place"] = self.found.written(first.first, first.last).lower()
        targets, contradiction = self._requested(asked.mentions, asked.places)
        targets, names = self._other_sides(targets, self._names(asked.excluded))
        contradiction = contradiction or self._contradiction(targets, names) or self._ruled_out(targets)
        if contradiction is not None:
            return _nothing(contradiction, self.found)
        unknown = unknown_words(self.found, self.rows, bool(asked.mentions), self.alters)
        if names:
            attributes["exclude"] = names
        self._add_words(attributes)
        if self.operation == "inpainting":
            targets = []
        elif not targets:
            if not self._asks_surely() and not asked.excluded:
                return _nothing("nothing that can be done to an image is asked for", self.found)
            if not unknown and all(note.startswith("read ") for note in self.notes):
                return _nothing("no structure or lesion is named", self.found)
            self.notes += [f"I do not know the word {word!r}" for word in unknown[:3]]
            if unknown and self.modality:
                self.notes.append(
                    f"known for {self.modality}: {', '.join(vocabulary().known(self.modality))}"
                )
        elif unknown:
            self.notes += [f"I do not know the word {word!r}" for word in unknown[:3]]
        unavailable = self._unavailable_colours()
        if unavailable:
            unknown = (*unavailable, *unknown)
            have = ", ".join(vocabulary().colours)
            self.notes.append(f"{' and '.join(unavailable)} is not available; the colours are {have}")
        return Parse(
            self.operation, self._task(targets), tuple(targets), attributes, unknown, _note(self.notes)
        )

    def _asks_surely(self) -> bool:
        """Whether a word that asks is written as we know it: "lorem ipsum dolor" asks for no colour."""
        verbs = [m for m in self.found.mentions if m.operations and m.is_free()]
        tokens, words = self.found.tokens, self.found.words
        return not verbs or any(tokens[m.first].text == words[m.first] for m in verbs)

    def _task(self, targets: list[Requested]) -> str | None:
        if self.alters:
            return self.operation
        if len(targets) > 1:
            return "holistic"
        if not targets:
            return None
        return "lesion" if vocabulary().targets[targets[0].name].kind == "lesion" else "structure"

    def _requested(
        self, mentions: list[Mention], places: list[Mention]
    ) -> tuple[list[Requested], str | None]:
        given = requested.colours(self.found, mentions)
        if given.contradiction:
            return [], given.contradiction
        side = requested.sides(self.found, mentions) if not self.alters or self.operation == "removal" else {}
        organ_side = self._organ_side(places)
        known = vocabulary()
        parts: list[tuple[Requested, bool]] = []
        for mention in mentions:
            written = self.found.written(mention.first, mention.last)
            choice = self._meaning(mention, written)
            if choice.name is None:
                self.notes.append(choice.question or "")
                continue
            colour = None if self.alters else given.given.get(mention.first)
            name = self._specific(choice.name, mention, places)
            self._say_taken(written, name, choice)
            own_side = choice.side or side.get(mention.first)
            if own_side is None and known.targets[name].sides == "either":
                own_side = organ_side
            if choice.side and self._both_sides(mention, choice.side):
                name, own_side = known.targets[name].parents[0] if known.targets[name].side else name, "both"
            if vocabulary().targets[name].sides is None and not choice.side:
                own_side = None if own_side == "both" else own_side
            if self.operation in ("addition", "simulation") or (
                own_side and name.startswith(own_side)
            ):  # a side is a place there
                own_side = known.targets[name].side
            name = self._one_of_pair(name, own_side)
            parts.append((Requested(name, colour, own_side), mention.first in given.direct))
        targets, contradiction = requested.merge(self._without_whole(parts))
        return targets, contradiction

    def _meaning(self, mention: Mention, written: str) -> requested.Choice:
        """What a mention means here; of a phrase of another modality its last words: a suspicious lesion."""
        choice = meaning(mention, self.modality, written)
        known = vocabulary()
        if choice.name is None or self.modality in (None, *known.targets[choice.name].modalities):
            return choice
        own = tuple(self.found.words[mention.first : mention.last])
        if not known.targets[choice.name].modalities or own == phrase(choice.name):
            return choice
        for first in range(mention.first + 1, mention.last):
            dropped = known.senses.get((self.found.words[first - 1],), ())
            if not dropped or any(sense.kind != "filler" for sense in dropped):
                break
            senses = known.senses.get(tuple(self.found.words[first : mention.last]), ())
            shorter = meaning(Mention(first, mention.last, tuple(senses)), self.modality, written)
            if shorter.name is not None and not known.targets[shorter.name].modalities:
                return shorter
        return choice

    def _say_taken(self, written: str, name: str, choice: requested.Choice) -> None:
        """Say what a general word was taken for, by the modality or by the organ that is named with it."""
        said = {word.rstrip("s") for word in phrase(written)}
        more = any(word.rstrip("s") not in said for word in phrase(name))
        if name != choice.name or (choice.by_modality and more and name not in _IN_NUMBER):
            self.notes.append(f"{written!r} was taken for {name!r}")

    def _specific(self, name: str, mention: Mention, places: list[Mention]) -> str:
        """A general word and its organ: a tumour of the liver is a liver tumour."""
        known = vocabulary()
        if known.targets[name].modalities:
            return name
        organs = [m for m in self.found.all_of("organ") if not m.says("target")] + places
        sentence = self.found.starts[mention.first]
        own = tuple(self.found.words[mention.first : mention.last])
        choices: list[str] = []
        topic = self._topic(sentence)
        for organ in sorted(organs, key=lambda m: abs(m.first - mention.first)):
            if self.found.starts[organ.first] not in (sentence, topic):
                continue
            for form in self._organ_forms(organ):
                for last in (own, phrase(name)):
                    choice = meaning(
                        Mention(0, 0, tuple(known.senses.get((*form, *last), ()))), self.modality, ""
                    )
                    if choice.name and name in known.ancestors(choice.name):
                        choices.append(choice.name)
        if not choices:
            choices = self._of_the_one_organ(name, own)
        there = [c for c in choices if self.modality in (None, *known.targets[c].modalities)]
        return [*there, *choices, name][0]

    def _of_the_one_organ(self, name: str, own: tuple[str, ...]) -> list[str]:
        """A general word where one organ alone is named: "trace the pancreas in blue and any mass in red"."""
        known = vocabulary()
        organs: dict[str, Mention] = {}
        for mention in self.found.all_of("target"):
            choice = meaning(mention, self.modality, "").name
            if choice is not None and known.targets[choice].kind != "lesion":
                organs[known.targets[choice].parents[0] if known.targets[choice].side else choice] = mention
        if len(organs) != 1:
            return []
        choices = []
        for form in self._organ_forms(next(iter(organs.values()))):
            for last in (own, phrase(name)):
                senses = tuple(known.senses.get((*form, *last), ()))
                choice = meaning(Mention(0, 0, senses), self.modality, "").name
                if choice and name in known.ancestors(choice):
                    choices.append(choice)
        return choices

    def _topic(self, sentence: int) -> int:
        """The first token of what stands before a colon: "Thyroid: nodule in red"."""
        colon = sentence - 1
        return self.found.starts[colon] if colon >= 0 and self.found.words[colon] in (":", "：") else sentence

    def _organ_forms(self, organ: Mention) -> Iterator[tuple[str, ...]]:
        known = vocabulary()
        name = meaning(organ, self.modality, "").name if organ.says("target") else None
        for sense in organ.of("organ"):
            yield phrase(sense.value)
        if name is None:
            return
        for whole in (name, *known.targets[name].parents):
            yield from (phrase(whole), phrase(whole.removesuffix("s")))

    def _organ_side(self, places: list[Mention]) -> str | None:
        """The side of the organ that a lesion lies in."""
        given = requested.sides(self.found, places)
        for place in places:
            side = meaning(place, self.modality, "").side or given.get(place.first)
            if side:
                return side
        return None

    def _one_of_pair(self, name: str, side: str | None) -> str:
        """A side of a pair by its own name, where it has one: the left one of the kidneys."""
        if side not in _OTHER_SIDE:
            return name
        target = vocabulary().sided.get((name, side))
        if target is None or self.modality not in (None, *target.modalities):
            return name
        return target.name

    def _both_sides(self, mention: Mention, side: str) -> bool:
        """Whether it reads "left and right kidney"."""
        before = [m for m in self.found.all_of("side") if 0 < mention.first - m.last <= 1]
        return any(m.of("side")[0].value != side for m in before)

    @staticmethod
    def _without_whole(parts: list[tuple[Requested, bool]]) -> list[tuple[Requested, bool]]:
        """Without a pair that has no colour of its own: "show the lungs: left lung in red"."""
        sided = {t.name for t, _ in parts if t.side in _OTHER_SIDE}
        sided |= {p for name in sided for p in vocabulary().targets[name].parents}
        kept = [(t, near) for t, near in parts if t.side in _OTHER_SIDE or near or t.name not in sided]
        return kept or parts

    def _names(self, excluded: list[Mention]) -> list[str]:
        side = requested.sides(self.found, excluded)
        names = []
        for mention in excluded:
            choice = meaning(mention, self.modality, "")
            if choice.name is not None and not vocabulary().targets[choice.name].modalities:
                choice = choice._replace(name=self._specific(choice.name, mention, self.asked.mentions))
            if choice.name is not None:
                where = choice.side or side.get(mention.first)
                own = vocabulary().targets[choice.name].side
                names.append(choice.name if where in (None, "both", own) else f"{where} {choice.name}")
        return list(dict.fromkeys(names))

    @staticmethod
    def _other_sides(targets: list[Requested], excluded: list[str]) -> tuple[list[Requested], list[str]]:
        """A pair without one of its sides is the other side: "the lungs apart from the left one"."""
        result = []
        for target in targets:
            own = {f"{side} {target.name}": other for side, other in _OTHER_SIDE.items()}
            sides = [name for name in excluded if name in own]
            if target.side in (None, "both") and len(sides) == 1:
                target = replace(target, side=own[sides[0]])
                excluded = [name for name in excluded if name != sides[0]]
            elif target.side in _OTHER_SIDE:
                implied = _of_side(target.name, _OTHER_SIDE[target.side])
                excluded = [name for name in excluded if name not in implied]
            result.append(target)
        return result, excluded

    def _contradiction(self, targets: list[Requested], excluded: list[str]) -> str | None:
        known = vocabulary()
        for target in targets:
            side = target.side if target.side in ("left", "right") else None
            own = f"{side} {target.name}" if side and not target.name.startswith(side) else target.name
            whole = known.targets[target.name].kind == "anatomy" and not known.targets[target.name].side
            above = {target.name} if whole else known.ancestors(target.name)  # a cup, but not the disc
            for name in excluded:
                if name in above or name == own:
                    return f"contradiction: it asks for the {own} and excludes the {name}"
        return None

    def _ruled_out(self, targets: list[Requested]) -> str | None:
        """What is to be altered and also to be left alone: "remove the polyp and do not remove the polyp"."""
        if not self.alters:
            return None
        names = {target.name for target in targets}
        for mention in self.found.all_of("target"):
            name = meaning(mention, self.modality, "").name
            before = self.found.within(self.found.starts[mention.first], mention.first)
            same = any(m.negated and self.operation in m.operations for m in before)
            if name in names and (mention.kept or (mention.negated and same)):
                return f"contradiction: it asks for a change of the {name} and rules it out"
        for without in self.found.all_of("without"):  # "remove the polyp without removing it"
            behind = self.found.within(without.last, without.last + 1)
            if any(self.operation in m.operations for m in behind):
                return f"contradiction: it asks for {self.operation} without {self.operation}"
        return None

    def _add_words(self, attributes: dict[str, Any]) -> None:
        found = self.found
        numbers = [
            f"{found.words[at]} {found.words[at + 1]}"
            for at in range(len(found.words) - 1)
            if found.words[at + 1] in _UNITS and re.fullmatch(r"-?\d+(?:[.,]\d+)?", found.words[at])
        ]
        if numbers:
            attributes["numbers"] = numbers
        sizes = [m for m in found.all_of("size") if not m.kept and not m.negated]
        if sizes and self.operation in ("addition", "simulation"):
            attributes["size"] = found.written(sizes[0].first, sizes[0].last).lower()
        places = [m for m in found.all_of("place") if not m.kept and not m.negated and not m.says("target")]
        places = [m for m in places if found.words[m.first] not in _NO_PLACE]
        if self.operation in ("addition", "simulation"):
            places += [m for m in found.all_of("side") if m.is_free() and not m.says("target")]
        if places and self.operation != "inpainting":
            attributes["place"] = " ".join(self._place(m) for m in places[:3])

    def _place(self, mention: Mention) -> str:
        word = self.found.words[mention.first]
        hour = [before for before in self.found.before(mention.first) if before.isdigit()]
        return " ".join([*hour, "o'clock"]) if word == "o" else word

    def _unavailable_colours(self) -> tuple[str, ...]:
        names = []
        for mention in self.found.all_of("other colour"):
            before = self.found.before(mention.first)
            after = self.found.after(mention.last)
            behind_target = any(m.last == mention.first and m.says("target") for m in self.found.mentions)
            asked = (before and before[0] in _COLOUR_BEFORE) or behind_target
            if asked or (after and after[0] in ("overlay", "mask", "tint", "color")):
                names.append(mention.of("other colour")[0].value)
        return tuple(dict.fromkeys(names)) if not self.alters else ()
