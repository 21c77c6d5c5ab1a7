"""Misspelt words, read as the one known word that they are near to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from mie.words.vocabulary import Token, Vocabulary, vocabulary

_LETTERS: Final = 4  # of a word that is corrected, at least
_TWO: Final = 8  # letters from which two slips are corrected
_GRAMMAR: Final = 6  # letters of a word that excludes something: "snare" is not "spare"
_CORRECTED: Final = 6  # words of one instruction
_CLEAR: Final = 0.25  # by how much one slip must be likelier than another
_ROWS: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def corrected(text: str, row: Sequence[Token], known: Vocabulary, notes: list[str]) -> list[str]:
    """Return the words of a text, misspelt ones corrected; `notes` gets what was read as what."""
    words = [token.text for token in row]
    english = not known.languages(words)
    changed = 0
    left: list[int] = []  # what may be told once its neighbours are corrected: "retnal vesels"
    for at, word in enumerate(words):
        if word in known.words or not word.isalpha() or changed == _CORRECTED:
            continue
        if len(word) < _LETTERS:
            colour = _short_colour(words, at)
            if colour is not None:
                notes.append(f"read {word!r} as {colour!r}")
                words[at] = colour
            continue
        written = text[row[at].start : row[at].end].casefold()
        if written in known.ordinary and not (
            at and words[at - 1] == "in" and _is_colour(correct(word, english))
        ):
            continue
        plain = [written] if written != word and written.isascii() else []  # "stoens" is folded to "stens"
        right = _by_context(words, at, english) or next(
            (other for one in (*plain, word) if (other := correct(one, english)) is not None), None
        )
        if right is None:
            left.append(at)
            continue
        words[at] = right
        changed += 1
        if right not in _small_words():
            notes.append(f"read {written!r} as {right!r}")
    for at in left if changed else ():
        right = _by_context(words, at, english)
        if right is not None:
            notes.append(f"read {words[at]!r} as {right!r}")
            words[at] = right
    return words


def _short_colour(words: Sequence[str], at: int) -> str | None:
    """The colour that three letters behind "in" mean: "in blu", "in rde"."""
    if len(words[at]) != _LETTERS - 1 or not at or words[at - 1] != "in":
        return None
    near = [c for c in vocabulary().colours if c[0] == words[at][0] and slips(words[at], c, 1) <= 1]
    return near[0] if len(near) == 1 else None


def _is_colour(word: str | None) -> bool:
    return any(sense.kind == "colour" for sense in vocabulary().senses.get((word or "",), ()))


@lru_cache(2048)
def correct(word: str, english: bool = False) -> str | None:
    """Return the one known word that a misspelt one is near to; None where there is none, or more than one.

    Two words that mean the same (plural and singular of one target) do not compete. A verb that would remove
    or add something is only read into a word whose letters are swapped, doubled or missing, or that has one
    other vowel. Where two letters are wrong, the first one is not among them. In an English text words of
    other languages do not compete.
    """
    near = _near(word, english)
    if not near:
        return None
    meanings = _meanings()
    near = sorted(near, key=lambda row: (row[1], row[2], -len(meanings[row[0]][1]), row[0]))
    best, least, cost = near[0]
    alters, targets = meanings[best]
    for other, distance, other_cost in near[1:]:
        other_alters, other_targets = meanings[other]
        apart = targets and other_targets and not targets & other_targets
        clear = distance == least and other_cost - cost >= _CLEAR
        if distance <= least + 1 and apart and not clear:
            return None
        if (
            distance == least
            and not clear
            and (bool(targets) != bool(other_targets) or alters != other_alters)
        ):
            return None
    inflected = word.endswith(("ed", "ing")) and not best.endswith(("ed", "ing"))  # "ablated" is no request
    if alters and (len(word) <= _LETTERS or least > 1 or inflected or not _is_slip(word, best)):
        return None
    return best


@lru_cache(2048)
def _near(word: str, english: bool) -> list[tuple[str, int, float]]:
    """Known words that are near, with the number of wrong letters and how unlikely they are."""
    most = 1 if len(word) < _TWO else 2
    near: list[tuple[str, int]] = []
    letters = _letters(word)
    groups = _by_ends()
    for length in range(len(word) - most, len(word) + most + 1):
        ends = _ends(word, length)
        for other, others in {pair for key in ends for pair in groups.get(key, ())}:
            allowed = most if word[0] == other[0] else 1
            if (letters ^ others).bit_count() > 2 * allowed:
                continue
            distance = slips(word, other, allowed)
            strict = len(word) <= _LETTERS or other in _small_words()
            if distance <= allowed and (not strict or (distance == 1 and _same_letters(word, other))):
                near.append((other, distance))
    foreign = vocabulary().foreign if english else frozenset()
    spellings = vocabulary().spellings
    return [
        (spellings.get(other, other), distance, _cost(word, other))
        for other, distance in near
        if other not in foreign
    ]


def _by_context(words: Sequence[str], at: int, english: bool) -> str | None:
    """The one near word that makes a known phrase with the word before or behind: "geound glass"."""
    pairs, before, behind = (
        _pairs(),
        words[at - 1] if at else "",
        words[at + 1] if at + 1 < len(words) else "",
    )
    meanings = _meanings()
    found = {
        other
        for other, _, _ in _near(words[at], english)
        if not meanings[other][0] and ((before, other) in pairs or (other, behind) in pairs)
    }
    if not found and (before == "in" or not behind):
        found = {other for other, _, _ in _near(words[at], english) if _is_colour(other)}
    return found.pop() if len(found) == 1 else None


@lru_cache(1)
def _pairs() -> frozenset[tuple[str, str]]:
    """Neighbouring words of what a target, a hole or a transformation is called."""
    return frozenset(
        pair
        for key, senses in vocabulary().senses.items()
        if len(key) > 1 and any(s.kind in ("target", "sure") or s.value == "white" for s in senses)
        for pair in itertools.pairwise(key)
        if min(map(len, pair)) >= _LETTERS
    )


def _ends(word: str, length: int) -> tuple[tuple[int, str, str], ...]:
    """Where words of a length are that may be meant: one slip leaves the first two or the last two letters.

    Only in four letters it may touch both; two slips leave the first letter.
    """
    if len(word) == _LETTERS:
        return (length, word[0], ""), (length, word[1], ""), (length, "", word[-1])
    if len(word) < _TWO:
        return (length, word[:2], ""), (length, "", word[-2:])
    return (length, word[0], ""), (length, "", word[-2:])


def _same_letters(word: str, other: str) -> bool:
    """Whether letters of `other` were swapped, doubled or left out; none was put in its place."""
    return sorted(word) == sorted(other) or abs(len(word) - len(other)) == 1


def _cost(word: str, other: str) -> float:
    """How unlikely one slip is: swapped or doubled letters least, another first letter most."""
    first = 0.5 if word[0] != other[0] else 0.0
    if sorted(word) == sorted(other):
        return first + 0.5
    if len(word) != len(other):
        long, short = sorted((word, other), key=len, reverse=True)
        doubled = any(
            long[:i] + long[i + 1 :] == short and long[i] == long[i - 1] for i in range(1, len(long))
        )
        return first + (0.5 if doubled else 0.75)
    return first + (1.0 if _is_slip(word, other) else 1.25)


def _is_slip(word: str, other: str) -> bool:
    """Whether letters were swapped, doubled, left out, or one replaced by a neighbour or another vowel."""
    if _same_letters(word, other):
        return True
    wrong = [(a, b) for a, b in zip(word, other, strict=False) if a != b]
    if len(word) != len(other) or len(word) < _GRAMMAR or len(wrong) != 1 or word[0] != other[0]:
        return False
    a, b = wrong[0]
    return {a, b} <= set("aeiou") or any(
        abs(row.find(a) - row.find(b)) == 1 for row in _ROWS if a in row and b in row
    )


@lru_cache(1)
def _by_ends() -> dict[tuple[int, str, str], list[tuple[str, int]]]:
    """Words and their letters, by length with the first letter, and by length with the last one."""
    groups: dict[tuple[int, str, str], list[tuple[str, int]]] = {}
    known = vocabulary().senses
    telling = {
        word
        for key, senses in vocabulary().senses.items()
        if (
            len(key[0]) >= _GRAMMAR
            or not all(s.kind in ("not", "except", "keep", "only", "filler") for s in senses)
        )
        and any(
            s.kind
            not in (
                "filler",
                "unit",
                "anatomy",
                "indefinite",
                "address",
                "aside",
                "wish",
                "soft",
                "organ",
                "swap",
            )
            for s in senses
        )
        for word in key
    }
    british = (word for word, folded in vocabulary().spellings.items() if folded in telling)
    for word in sorted(telling.union(british, _small_words())):
        shortest = _LETTERS if (word,) not in known or known[(word,)][0].kind != "colour" else 3
        if word.isalpha() and word.isascii() and len(word) >= shortest:
            for key in (
                (len(word), word[0], ""),
                (len(word), "", word[-1]),
                (len(word), word[:2], ""),
                (len(word), "", word[-2:]),
            ):
                groups.setdefault(key, []).append((word, _letters(word)))
    return groups


@lru_cache(1)
def _small_words() -> frozenset[str]:
    """Long enough words that name nothing: a slip in one must not look like the name of a thing."""
    return frozenset(
        key[0]
        for key, senses in vocabulary().senses.items()
        if len(key) == 1
        and len(key[0]) > _LETTERS
        and key[0] not in vocabulary().foreign
        and all(
            s.kind in ("filler", "address", "aside", "wish", "keep", "except", "not", "instead")
            for s in senses
        )
    )


@lru_cache(1)
def _meanings() -> dict[str, tuple[bool, frozenset[str]]]:
    """By word: whether it alters an image, and the targets whose names use it."""
    found: dict[str, set[str]] = {}
    alters: set[str] = set()
    for key, senses in vocabulary().senses.items():
        for word in key:
            group = found.setdefault(word, set())
            group.update(s.value for s in senses if s.kind == "target")
            if len(key) == 1 and any(
                s.kind == "operation" and s.value in ("removal", "addition") for s in senses
            ):
                alters.add(word)
    return {word: (word in alters, frozenset(targets)) for word, targets in found.items()}


def _letters(word: str) -> int:
    bits = 0
    for letter in word:
        bits |= 1 << (ord(letter) & 31)
    return bits


def slips(one: str, other: str, most: int) -> int:
    """Return how many letters are wrong, missing, too many or swapped; `most + 1` where it is more."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
