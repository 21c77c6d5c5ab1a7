"""A text as a row of mentions: known phrases, longest first, each with what is said about it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mie.words.mentions import COMMAS, ENDS, Mention, Scan, first_token
from mie.words.scopes import mark_scopes, retract
from mie.words.spelling import corrected
from mie.words.vocabulary import (
    Sense,
    Senses,
    TargetWords,
    Token,
    Vocabulary,
    phrase,
    tokens,
    vocabulary,
    word_set,
)

_QUOTED: Final = re.compile(r"[\"“„«»”][^\"“„«»”]*[\"“„«»”]")
# Signs that stand for words or part them as a comma does: the characters one needs, the sign, the word.
_SIGNS: Final = (
    (">→⇒", re.compile(r"\s*(?:-+>|=+>|>>|→|⇒)\s*"), " to "),
    (
        "2",
        re.compile(r"\b(mri?|ct|pet|t1|t2|flair)2(?=(?:mri?|ct|pet|t1|t2|flair)\b)", re.IGNORECASE),
        r"\1 to ",
    ),
    ("-–—", re.compile(r"\s+[-–—]+\s+|\s*—\s*"), " , "),
    (".", re.compile(r"\bre\.(?=\s+[A-ZÄÖÜ][A-Zäöüa-z])"), "rechts"),
    (".", re.compile(r"\bli\.(?=\s+[A-ZÄÖÜ][A-Zäöüa-z])"), "links"),
    (
        ".",
        re.compile(
            r"\b(rt|lt|excl|incl|approx|resp|seg|dr|mr|mrs|prof|ca|bzw|ggf|evtl)\.(?=\s)", re.IGNORECASE
        ),
        r"\1",
    ),
    ("/", re.compile(r"\bw/o\b", re.IGNORECASE), "without"),
    ("/", re.compile(r"\bw/(?=\s|[a-z]{3})"), "with "),
    ("/", re.compile(r"\b([shf])/([pou])\b", re.IGNORECASE), r"\1\2"),
    ("+&", re.compile(r"(?<=\w)\s*(?:\+|&)\s*(?=[^\W\d])(?!E\b)"), " and "),
)
# "Take the polyp out", "leave the tumour out", "Polyp weg": verb and particle have the target between them.
_PARTED: Final = {
    "removal": word_set(
        "take takes get cut edit airbrush wipe rub scrub strip crop photoshop make mach mache nimm nehme "
        "schneide schneid lass lasse lassen fais faites faire haz haga hacer"
    ),
    "except": word_set("leave leaving keep lass lasse"),
}
_PARTICLES: Final = {
    "removal": word_set("away out off weg raus heraus verschwinden disappear vanish disparaitre desaparecer"),
    "except": word_set("out weg aus"),
}
_ALONE: Final = word_set("weg raus")
_LETTER_SIDES: Final = {"l": "left", "r": "right"}
_BETWEEN: Final = 7  # tokens from the verb to the particle
# What a word of another language must not say in an English text: "PAS" is a stain there, "pas" is French.
_ARTICLES: Final = word_set("the le la el der die das den dieser diese einer eine")
_TELLING: Final = frozenset(("target", "not", "except", "other colour"))
_ALTERS: Final = ("removal", "addition", "gone")


def clean(text: str) -> str:
    """Return the text in one way of writing, without control and formatting characters."""
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFKC", text)
    if not text.isprintable():
        text = "".join(
            " " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else c for c in text
        )
    for characters, sign, word in _SIGNS:
        if any(character in text for character in characters):
            text = sign.sub(word, text)
    return text


def scan(text: str) -> Scan:
    """Find every known phrase of a text that is `clean`."""
    known = vocabulary()
    notes: list[str] = []
    text = _QUOTED.sub(lambda match: _quoted(match[0], known, notes), text)
    row = tokens(text)
    words = corrected(text, row, known, notes)
    languages = known.languages(words)
    mentions = _with_ones(list(_mentions(row, words, known, languages)), words, known)
    mentions = _with_parted(mentions if languages else _with_letters(mentions, row, words), words)
    for mention in mentions:
        if "injection" in mention.kinds:
            start = row[mention.first].start
            notes.append("an instruction about instructions is text and is not followed")
            result = scan(text[:start])
            return replace(result, notes=result.notes + notes)
    covering: list[Mention | None] = [None] * len(words)
    for mention in mentions:
        covering[mention.first : mention.last] = [mention] * (mention.last - mention.first)
    result = Scan(text, row, words, mentions, _sentences(words), notes, covering, languages)
    mark_scopes(result)
    retract(result)
    return result


def _quoted(quoted: str, known: Vocabulary, notes: list[str]) -> str:
    """Keep a quoted name; blank out a quoted instruction."""
    row = tokens(quoted)
    words = corrected(quoted, row, known, [])
    mentions = _mentions(row, words, known, known.languages(words))
    if any(mention.operations or mention.says("injection") for mention in mentions):
        notes.append(f"quoted text is not followed: {quoted}")
        return " " * len(quoted)
    return " " + quoted[1:-1] + " "


def _mentions(
    row: Sequence[Token], words: list[str], known: Vocabulary, languages: frozenset[str]
) -> Iterator[Mention]:
    at = 0
    while at < len(words):
        word = words[at]
        foreign = word in known.homographs and known.homographs[word] not in languages
        noun = word == "stelle" and at > 0 and words[at - 1] in _ARTICLES
        for length, senses in known.longest(words, at):
            small = length == 1 and not row[at].capitals and senses.capitals
            slip = length > 1 and any(_is_other(words[i], row[i].text) for i in range(at, at + length))
            if foreign or slip or noun or small:
                senses = Senses(
                    sense
                    for sense in senses
                    if not (small and sense.capitals)
                    and not (foreign and length == 1 and sense.kind in _TELLING)
                    and not (slip and sense.kind == "operation" and sense.value in _ALTERS)  # "ppint out"
                    and not (noun and sense.kind == "operation")
                )
            if senses:
                if length > 1 and _is_side(known, word) and _reaches(known, words, at + 1) > length - 1:
                    continue  # "left kidney stones" are kidney stones
                yield Mention(at, at + length, senses)
                at += length
                break
        else:
            at += 1


def _is_other(word: str, written: str) -> bool:
    """Whether a word was read for another one, and not for one whose letters are swapped: "take awya"."""
    return word != written and sorted(word) != sorted(written)


def _with_ones(mentions: list[Mention], words: list[str], known: Vocabulary) -> list[Mention]:
    """With "one" as the target before it: "the right kidney red and the left one green"."""
    result: list[Mention] = []
    pair: tuple[Sense, ...] = ()
    for mention in mentions:
        after_side = bool(result) and result[-1].says("side") and result[-1].last == mention.first
        if pair and after_side and words[mention.first : mention.last] == ["one"]:
            mention = Mention(mention.first, mention.last, pair)
        for sense in mention.of("target") if "target" in mention.kinds else ():
            target = known.targets[sense.value]
            name = target.parents[0] if target.side else target.name
            if target.side or target.sides:
                pair = tuple(s for s in known.senses[phrase(name)] if s.kind == "target")
        result.append(mention)
    return _with_sides(result, words, pair)


def _with_sides(mentions: list[Mention], words: list[str], pair: tuple[Sense, ...]) -> list[Mention]:
    """With a side that stands for its target: "both kidneys, the left in green and the right in blue"."""
    if not pair or not any(mention.says("side") for mention in mentions):
        return mentions
    seen = False
    behind: list[Mention | None] = [None] * len(mentions)
    for at in range(len(mentions) - 2, -1, -1):
        behind[at] = behind[at + 1] if mentions[at + 1].is_small() else mentions[at + 1]
    for at, mention in enumerate(mentions):
        following = behind[at]
        coloured = following is not None and (following.says("colour") or following.says("other colour"))
        near = following is not None and following.first - mention.last <= 2
        sided = mention.says("side", "left") or mention.says("side", "right")
        ends = mention.last == len(words) or words[mention.last] in ENDS or words[mention.last] in COMMAS
        named = ends and mention.first > 0 and words[mention.first - 1] in _ARTICLES
        if seen and sided and ((coloured and near) or named) and not mention.says("target"):
            alone = (
                mention.first == 0
                or not mentions[at - 1].says("target")
                or mentions[at - 1].last < mention.first
            )
            if alone and not {"on", "auf"} & set(words[max(0, mention.first - 2) : mention.first]):
                mentions[at] = Mention(mention.first, mention.last, (*mention.senses, *pair))
        seen |= mention.says("target")
    return mentions


def _with_letters(mentions: list[Mention], row: Sequence[Token], words: list[str]) -> list[Mention]:
    """With "l" and "r" as sides beside a target: "outline l kidney", "kidneys (l=red)"."""
    sided = []
    for at, word in enumerate(words):
        if word not in _LETTER_SIDES or row[at].end - row[at].start > 1:
            continue
        named = any(
            m.says("target") and (m.first == at + 1 or m.last == at or words[at + 1 : at + 2] == ["="])
            for m in mentions
        )
        if named and not any(m.first <= at < m.last and not m.is_small() for m in mentions):
            sided.append(Mention(at, at + 1, (Sense("side", _LETTER_SIDES[word]),)))
    places = {m.first for m in sided}
    return (
        sorted([*(m for m in mentions if m.first not in places), *sided], key=first_token)
        if sided
        else mentions
    )


def _with_parted(mentions: list[Mention], words: list[str]) -> list[Mention]:
    """With verbs that are parted from their particle: "take the polyp out" takes it out."""
    result = list(mentions)
    known_targets = vocabulary().targets
    for target in mentions:
        if not target.says("target") or target.last >= len(words):
            continue
        particle, behind = words[target.last], words[target.last + 1 : target.last + 2]
        if (
            behind == ["of"]
            and particle == "out"
            and not {"image", "picture", "view"} & set(words[target.last :])
            and not (words[target.first - 2] == "take" and _is_lesion(known_targets, target))
        ):
            continue
        for kind, verbs in _PARTED.items():
            if particle not in _PARTICLES[kind]:
                continue
            first = next(
                (
                    at
                    for at in range(target.first - 1, max(-1, target.first - 1 - _BETWEEN), -1)
                    if words[at] in verbs or words[at] in ENDS
                ),
                None,
            )
            sense = Sense(kind, kind) if kind == "except" else Sense("operation", kind)
            if first is not None and words[first] in verbs:
                covered = [m for m in result if m.first <= first < m.last]
                if all(m.is_small() or m.says("keep") or m.last - m.first == 1 for m in covered):
                    result = [m for m in result if m not in covered] + [Mention(first, first + 1, (sense,))]
                break
        else:
            closed = not behind or behind[0] in COMMAS or behind[0] in ENDS or behind == ["please"]
            if particle in _ALONE or (particle == "out" and closed):  # "Polyp weg", "stone out, please"
                result = [m for m in result if m.first != target.last]
                result.append(Mention(target.last, target.last + 1, (Sense("operation", "removal"),)))
    return sorted(result, key=lambda mention: mention.first)


def _is_lesion(targets: Mapping[str, TargetWords], mention: Mention) -> bool:
    return any(targets[sense.value].kind == "lesion" for sense in mention.of("target"))


def _is_side(known: Vocabulary, word: str) -> bool:
    return any(sense.kind == "side" for sense in known.senses.get((word,), ()))


def _reaches(known: Vocabulary, words: list[str], at: int) -> int:
    """Return how many tokens the longest target that begins here has."""
    for length, senses in known.longest(words, at) if at < len(words) else ():
        if any(sense.kind == "target" for sense in senses):
            return length
    return 0


def _sentences(words: Sequence[str]) -> list[int]:
    starts, start = [], 0
    for at, word in enumerate(words):
        starts.append(start)
        if word in ENDS:
            start = at + 1
    return starts
