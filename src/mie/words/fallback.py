"""Words that the vocabulary lacks, taken for a target or transformation whose words mean nearly the same.

A sentence encoder, which the caller gives, tells how near two phrases are. It settles what is edited, never
what is done: the operation is the parser's alone. What was taken for what is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mie.words.mentions import Scan
from mie.words.parse import Parse, parse
from mie.words.scan import clean, scan
from mie.words.vocabulary import phrase, vocabulary, word_set

Vectors = NDArray[np.float32]

# `python -m bench.words`: .70 and .15 would be enough for 2 % of words taken wrongly. A wrong target is worse
# than none, so these are stricter: 1 %.
NEAR: Final = 0.8  # cosine of the nearest phrase, at least
APART: Final = 0.1  # by which the next target's is lower, at least
_MOST: Final = 3  # runs of unknown words in one instruction
_LETTERS: Final = 4  # of a run, at least: an abbreviation means too many things
# An encoder calls opposites alike. Words of one group must be the same in both phrases.
_OPPOSITES: Final = tuple(
    word_set(words)
    for words in (
        "left right lv rv la ra",
        "superior inferior upper lower svc ivc",
        "large small",
        "benign malignant",
        "grey white",
        "epidural extradural subdural subarachnoid intraventricular intraparenchymal intracerebral",
        "neoplastic non",
        "arterial venous delayed",
        "soft sharp",
    )
)


class Taken(NamedTuple):
    """What words were taken for."""

    words: str
    name: str
    cosine: float


class Entry(NamedTuple):
    phrase: str
    name: str
    modalities: tuple[str, ...]  # none: a general word
    task: str | None = None  # of a transformation


class Fallback:
    """The vocabulary's English phrases as vectors. `embed` gives unit vectors `(N, C)` of texts."""

    def __init__(self, embed: Callable[[Sequence[str]], Vectors]) -> None:
        self._embed = embed
        self._known: dict[str, Vectors] = {}

    def parse(self, instruction: str, modality: str | None = None) -> Parse:
        """Parse an instruction, with unknown words taken for known ones where they are near enough."""
        result = parse(instruction, modality)
        vague = result.operation == "transformation" and not result.targets
        if result.operation == "none" or not (result.unknown or vague):
            return result
        text = clean(instruction)
        found = scan(text)
        taken: list[Taken] = []
        for first, last in list(_runs(found, vague))[:_MOST][::-1]:
            choice = self.nearest(found.written(first, last), modality, result.task if vague else None)
            if choice is not None:
                taken.insert(0, choice)
                start, end = found.tokens[first].start, found.tokens[last - 1].end
                text = text[:start] + choice.name + text[end:]
        again = parse(text, modality) if taken else result
        if not taken or not _agree(result, again, taken):
            return result
        said = [f"took {t.words!r} for {t.name!r} (similarity {t.cosine:.2f})" for t in taken]
        return replace(
            again,
            taken_for={t.words: t.name for t in taken},
            note="; ".join([*said, *([again.note] if again.note else [])]),
        )

    def nearest(self, words: str, modality: str | None = None, task: str | None = None) -> Taken | None:
        """Return the target whose phrases are near to `words`, and nearer than another's.

        With `task` a transformation of that task. With a modality, only what it has, and general words.
        """
        if len(words) < _LETTERS or not words.isascii():
            return None  # the encoder reads English alone
        order = self.ranked(words, modality, task)
        if not order or order[0].cosine < NEAR:
            return None
        second = order[1].cosine if len(order) > 1 else 0.0
        return order[0] if order[0].cosine - second >= APART else None

    def ranked(
        self,
        words: str,
        modality: str | None = None,
        task: str | None = None,
        without: frozenset[str] = frozenset(),
    ) -> list[Taken]:
        """Return names by their nearest phrase, nearest first; those related to the first one left out.

        `without`: phrases that are left out, to measure what would happen without them.
        """
        own = _opposites(words)
        entries = [
            entry
            for entry in self._entries
            if entry.task == task
            and (modality is None or not entry.modalities or modality in entry.modalities)
            and entry.phrase not in without
            and own == _opposites(entry.phrase)
        ]
        query, *vectors = self._vectors([words.lower(), *(entry.phrase for entry in entries)])
        best: dict[str, float] = {}
        for entry, vector in zip(entries, vectors, strict=True):
            best[entry.name] = max(float(vector @ query), best.get(entry.name, 0.0))
        order = sorted((Taken(words, name, cosine) for name, cosine in best.items()), key=lambda t: -t.cosine)
        return order[:1] + [t for t in order[1:] if not _related(order[0].name, t.name)]

    @cached_property
    def _entries(self) -> list[Entry]:
        return list(_phrases())

    def _vectors(self, texts: Sequence[str]) -> list[Vectors]:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known.update(zip(new, self._embed(new), strict=True))
        return [self._known[text] for text in texts]


def _phrases() -> Iterator[Entry]:
    """The English names and synonyms of targets, and what names a transformation; no abbreviations."""
    known = vocabulary()
    for target in known.targets.values():
        words = [target.name, *target.synonyms.get("en", ()), *(w for m in target.only.values() for w in m)]
        for word in dict.fromkeys(w.lower() for w in words if not w.isupper()):
            yield Entry(word, target.name, target.modalities)
    for change in known.transformations.values():
        for key, senses in known.senses.items():
            word = " ".join(key)
            named = any((s.kind, s.value) == ("sure", change.key) for s in senses)
            if named and word.isascii() and len(word) > _LETTERS:
                yield Entry(word, change.name, change.modalities, change.task)


@lru_cache(4096)
def _opposites(words: str) -> tuple[frozenset[str], ...]:
    """What a phrase says of each group of opposites."""
    return tuple(group & frozenset(phrase(words)) for group in _OPPOSITES)


def _related(one: str, other: str) -> bool:
    known = vocabulary()
    if one not in known.targets or other not in known.targets:
        return False
    return one in known.ancestors(other) or other in known.ancestors(one)


def _runs(found: Scan, vague: bool) -> Iterator[tuple[int, int]]:
    """Runs of tokens (first, last excluded) with a word of which nothing is known.

    A target right beside it belongs to it: in "renal cortex" the cortex is not the brain's. So does a hint of
    a transformation, with `vague`.
    """
    joined = [m for m in found.mentions if m.says("hint" if vague else "target")]
    hints = {at for m in joined for at in range(m.first, m.last)}
    known = {at for m in found.mentions for at in range(m.first, m.last)} - hints
    first = None
    for at in range(len(found.tokens) + 1):
        inside = at < len(found.tokens) and at not in known and found.tokens[at].text.isalpha()
        if inside and first is None:
            first = at
        elif not inside and first is not None:
            if set(range(first, at)) - hints:
                yield first, at
            first = None


def _agree(before: Parse, after: Parse, taken: list[Taken]) -> bool:
    """Whether the words that were put in changed what is edited, and nothing else."""
    names = {t.name for t in after.targets} | set(after.attributes.get("exclude", ()))
    inside = {s.value for t in taken for m in scan(t.words).mentions for s in m.of("target")}
    return (
        before.operation == after.operation
        and len(after.unknown) < max(len(before.unknown), 1)
        and all(t.name in names for t in taken)
        and {t.name for t in before.targets} - inside <= names | _places(after)
    )


def _places(result: Parse) -> set[str]:
    """Targets that a place names: "the nodule in the lung" is no longer the lung."""
    place: Any = result.attributes.get("place", "")
    return {s.value for s in vocabulary().senses.get(phrase(str(place)), ()) if s.kind == "target"}
