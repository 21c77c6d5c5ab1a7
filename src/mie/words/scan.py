"""A text as a row of mentions: known phrases, longest first, each with what is said about it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from mie.words.vocabulary import Sense, Token, Vocabulary, phrase, tokens, vocabulary, word_set

_QUOTED: Final = re.compile(r"[\"“„«»”][^\"“„«»”]*[\"“„«»”]")
_ENDS: Final = frozenset(".;:!?。；：！？¿¡()[]")
_COMMAS: Final = frozenset(",，、")
_VERBS: Final = word_set("perception removal addition fill")
_TURNS: Final = word_set("but just instead rather then aber sondern mais pero sino")
_LETTERS: Final = 4  # of a word that is corrected, at least
_TWO: Final = 8  # letters from which two slips are corrected
_CORRECTED: Final = 6  # words of one instruction


@dataclass(slots=True)
class Mention:
    """A phrase in the text. `first` and `last` are tokens, the last one excluded."""

    first: int
    last: int
    senses: tuple[Sense, ...]
    negated: bool = False
    kept: bool = False  # what must stay as it is
    excepted: bool = False

    def of(self, kind: str) -> list[Sense]:
        return [sense for sense in self.senses if sense.kind == kind]

    def says(self, kind: str, value: str | None = None) -> bool:
        for sense in self.senses:  # noqa: SIM110 (called thousands of times; twice as fast as any())
            if sense.kind == kind and value in (None, sense.value):
                return True
        return False

    def operations(self) -> set[str]:
        return {sense.value for sense in self.senses if sense.kind == "operation"}


@dataclass(slots=True)
class Scan:
    text: str
    tokens: list[Token]
    words: list[str]  # folded, misspelt ones corrected
    mentions: list[Mention]
    starts: list[int]  # by token: the first token of its clause
    notes: list[str] = field(default_factory=list)

    def before(self, at: int, count: int = 1) -> list[str]:
        return self.words[max(0, at - count) : at]

    def after(self, at: int, count: int = 1) -> list[str]:
        return self.words[at : at + count]

    def all_of(self, kind: str) -> list[Mention]:
        return [mention for mention in self.mentions if mention.says(kind)]

    def written(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last - 1].end]


def clean(text: str) -> str:
    """Return the text in one way of writing, without control and formatting characters."""
    text = unicodedata.normalize("NFKC", text)
    return "".join(
        " " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else c for c in text
    )


def scan(text: str) -> Scan:
    """Find every known phrase of a text that is `clean`."""
    known = vocabulary()
    notes: list[str] = []
    text = _QUOTED.sub(lambda match: _quoted(match[0], known, notes), text)
    row = tokens(text)
    words = _corrected(text, row, known, notes)
    mentions = _with_ones(list(_mentions(row, words, known)), words, known)
    for mention in mentions:
        if mention.says("injection"):
            start = row[mention.first].start
            notes.append("an instruction about instructions is text and is not followed")
            result = scan(text[:start])
            return Scan(
                result.text, result.tokens, result.words, result.mentions, result.starts, result.notes + notes
            )
    result = Scan(text, row, words, mentions, _clauses(words), notes)
    _mark_scopes(result)
    return result


def _quoted(quoted: str, known: Vocabulary, notes: list[str]) -> str:
    """Keep a quoted name; blank out a quoted instruction."""
    row = tokens(quoted)
    words = [token.text for token in row]
    if any(mention.operations() or mention.says("injection") for mention in _mentions(row, words, known)):
        notes.append(f"quoted text is not followed: {quoted}")
        return " " * len(quoted)
    return " " + quoted[1:-1] + " "


def _mentions(row: Sequence[Token], words: list[str], known: Vocabulary) -> Iterator[Mention]:
    at = 0
    while at < len(words):
        for length, senses in known.longest(words, at):
            capitals = length > 1 or row[at].capitals
            valid = tuple(sense for sense in senses if capitals or not sense.capitals)
            if valid:
                if length > 1 and _is_side(known, words[at]) and _reaches(known, words, at + 1) > length - 1:
                    continue  # "left kidney stones" are kidney stones
                yield Mention(at, at + length, valid)
                at += length
                break
        else:
            at += 1


def _with_ones(mentions: list[Mention], words: list[str], known: Vocabulary) -> list[Mention]:
    """With "one" as the target before it: "the right kidney red and the left one green"."""
    result: list[Mention] = []
    pair: tuple[Sense, ...] = ()
    for mention in mentions:
        after_side = bool(result) and result[-1].says("side") and result[-1].last == mention.first
        if pair and after_side and words[mention.first : mention.last] == ["one"]:
            mention = Mention(mention.first, mention.last, pair)
        for sense in mention.of("target"):
            target = known.targets[sense.value]
            name = target.parents[0] if target.side else target.name
            if target.side or target.sides:
                pair = tuple(s for s in known.senses[phrase(name)] if s.kind == "target")
        result.append(mention)
    return result


def _is_side(known: Vocabulary, word: str) -> bool:
    return any(sense.kind == "side" for sense in known.senses.get((word,), ()))


def _reaches(known: Vocabulary, words: list[str], at: int) -> int:
    """Return how many tokens the longest target that begins here has."""
    for length, senses in known.longest(words, at) if at < len(words) else ():
        if any(sense.kind == "target" for sense in senses):
            return length
    return 0


def _clauses(words: Sequence[str]) -> list[int]:
    starts, start = [], 0
    for at, word in enumerate(words):
        starts.append(start)
        if word in _ENDS:
            start = at + 1
    return starts


def _mark_scopes(found: Scan) -> None:
    """Say of each mention whether it is negated, excepted or to be kept."""
    for index, mention in enumerate(found.mentions):
        kept = mention.says("keep")
        excepted = mention.says("except")
        negates = mention.says("not") or mention.says("instead")
        if not (kept or excepted or negates) or mention.kept:
            continue
        if negates and _stands_behind(found, mention):  # "liver yes, spleen no"
            found.mentions[index - 1].negated = True
            continue
        if not kept and not excepted and found.words[mention.first] in ("no", "kein", "keine", "keinen"):
            for other in found.mentions[index + 1 :]:  # "no lesion": the next thing alone
                if other.says("target"):
                    other.negated |= other.first - mention.last <= 2
                    break
            if not _verb_follows(found, index):
                continue
        end = _scope_end(found, index)
        if negates and found.words[mention.first] in ("nicht", "not") and end == index + 1:
            for other in found.mentions[:index]:  # "entferne den Tumor nicht"
                other.negated |= found.starts[other.first] == found.starts[mention.first]
        for other in found.mentions[index + 1 : end]:
            other.kept |= kept
            other.excepted |= excepted
            other.negated |= negates and not kept


def _stands_behind(found: Scan, mention: Mention) -> bool:
    """Whether "no" ends what a target begins."""
    target = next((m for m in found.mentions if m.last == mention.first and m.says("target")), None)
    after = found.after(mention.last, 1)
    ends = not after or after[0] in _COMMAS or after[0] in _ENDS
    return target is not None and ends and found.words[mention.first] in ("no", "not", "nicht", "non")


def _verb_follows(found: Scan, index: int) -> bool:
    following = found.mentions[index + 1 : index + 2]
    return bool(following) and bool(following[0].operations() & _VERBS) and not following[0].says("target")


def _scope_end(found: Scan, index: int) -> int:
    """The mention at which what begins at mention `index` ends: the clause does, or a new verb follows."""
    start = found.mentions[index]
    seen_verb = broken = False
    for at in range(index + 1, len(found.mentions)):
        mention = found.mentions[at]
        between = found.words[found.mentions[at - 1].last : mention.first]
        if found.starts[mention.first] != found.starts[start.first]:
            return at
        first = found.words[mention.first]
        verb = mention.operations() & _VERBS and not mention.says("target")
        broken |= bool(_COMMAS & set(between))
        if first in _TURNS and at > index + 1:
            return at
        if verb and broken and not (mention.says("not") or mention.says("except")):
            return at
        joined = found.before(mention.first) and found.before(mention.first)[-1] in (
            "and",
            "und",
            "et",
            "y",
            "then",
        )
        if verb and joined and seen_verb and not mention.operations() & {"removal", "addition"}:
            return at
        seen_verb |= bool(verb)
    return len(found.mentions)


def _corrected(text: str, row: Sequence[Token], known: Vocabulary, notes: list[str]) -> list[str]:
    words = [token.text for token in row]
    changed = 0
    for at, word in enumerate(words):
        if word in known.words or len(word) < _LETTERS or not word.isalpha() or changed == _CORRECTED:
            continue
        written = text[row[at].start : row[at].end].casefold()
        right = correct(word) or (correct(written) if written != word and written.isascii() else None)
        if right is not None:
            words[at] = right
            changed += 1
            notes.append(f"read {written!r} as {right!r}")
    return words


@lru_cache(2048)
def correct(word: str) -> str | None:
    """Return the one known word that a misspelt one is near to; None where there is none, or more than one.

    Two words that mean the same (plural and singular of one target) do not compete. A verb that would remove
    or add something is only read into a word whose letters are swapped, doubled or missing. Where two letters
    are wrong, the first one is not among them.
    """
    most = 1 if len(word) < _TWO else 2
    near: list[tuple[int, str]] = []
    letters = _letters(word)
    groups = _by_ends()
    for length in range(len(word) - most, len(word) + most + 1):
        ends = ((length, word[0], ""), (length, word[1], ""), (length, "", word[-1]))
        for other, others in {pair for key in ends for pair in groups.get(key, ())}:
            allowed = most if word[0] == other[0] else 1
            if (letters ^ others).bit_count() > 2 * allowed:
                continue
            distance = slips(word, other, allowed)
            if distance <= allowed and (len(word) > _LETTERS or _same_letters(word, other)):
                near.append((distance, other))
    if not near:
        return None
    meanings, spellings = _meanings(), vocabulary().spellings
    near = [(distance, spellings.get(other, other)) for distance, other in near]
    near.sort(key=lambda pair: (pair[0], -len(meanings[pair[1]][1]), pair[1]))
    least, best = near[0]
    alters, targets = meanings[best]
    for distance, other in near[1:]:
        other_alters, other_targets = meanings[other]
        apart = targets and other_targets and not targets & other_targets
        if distance <= least + 1 and apart:
            return None
        if distance == least and (bool(targets) != bool(other_targets) or alters != other_alters):
            return None
    if alters and (len(word) <= _LETTERS or not _same_letters(word, best)):
        return None
    return best


def _same_letters(word: str, other: str) -> bool:
    """Whether letters of `other` were swapped, doubled or left out; none was put in its place."""
    return sorted(word) == sorted(other) or abs(len(word) - len(other)) == 1


@lru_cache(1)
def _by_ends() -> dict[tuple[int, str, str], list[tuple[str, int]]]:
    """Words and their letters, by length with the first letter, and by length with the last one."""
    groups: dict[tuple[int, str, str], list[tuple[str, int]]] = {}
    known = vocabulary().senses
    telling = {
        word
        for key, senses in vocabulary().senses.items()
        if any(s.kind not in ("filler", "unit", "anatomy", "indefinite") for s in senses)
        for word in key
    }
    british = (word for word, folded in vocabulary().spellings.items() if folded in telling)
    for word in sorted(telling.union(british)):
        shortest = _LETTERS if (word,) not in known or known[(word,)][0].kind != "colour" else 3
        if word.isalpha() and word.isascii() and len(word) >= shortest:
            for key in ((len(word), word[0], ""), (len(word), "", word[-1])):
                groups.setdefault(key, []).append((word, _letters(word)))
    return groups


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
