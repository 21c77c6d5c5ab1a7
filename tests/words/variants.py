"""Instructions said in another way that changes nothing: a greeting, a reason, an adjective, a slip.

What an instruction asks for must not depend on words that say nothing about it. `bench.words` prints the
share of each kind that is read as before; `test_variants` holds a sample to it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from mie.words import Parse, parse, vocabulary
from mie.words.scan import clean, scan
from mie.words.vocabulary import tokens
from tests.words import blind

_BEFORE: Final = (
    "Hi there, ",
    "OK so ",
    "Um, ",
    "Good morning. ",
    "New case. ",
    "62-year-old woman with weight loss. ",
    "Quick one: ",
    "As discussed on the phone, ",
    "Same patient as yesterday. ",
    "For my thesis: ",
    "Right then, ",
    "We are preparing a lecture. ",
)
_BEHIND: Final = (
    " thanks a lot",
    ", cheers",
    " asap",
    " for tomorrow's conference",
    " if that's not too much trouble",
    " because the referring doctor wants to know",
    " (it's urgent)",
    " in this patient",
    " on this image",
    " when you have a minute",
)
_ADJECTIVES: Final = (
    "conspicuous",
    "tricky",
    "rather inconspicuous",
    "unremarkable",
    "well-perfused",
    "textbook",
)
_NEIGHBOURS: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

Variant = Callable[[str, random.Random], str | None]


class Pair(NamedTuple):
    text: str
    other: str
    modality: str | None


def _before(text: str, draw: random.Random) -> str:
    return draw.choice(_BEFORE) + text


def _behind(text: str, draw: random.Random) -> str | None:
    body = text.rstrip()
    return None if body[-1] == "?" else body.rstrip(".!") + draw.choice(_BEHIND)


def _adjective(text: str, draw: random.Random) -> str | None:
    found = scan(clean(text))
    named = [
        m for m in found.all_of("target") if m.first and found.words[m.first - 1] in ("the", "this", "that")
    ]
    if not named or found.text != text:
        return None
    at = found.tokens[draw.choice(named).first].start
    return f"{text[:at]}{draw.choice(_ADJECTIVES)} {text[at:]}"


def _slip(text: str, draw: random.Random) -> str | None:
    long = list(re.finditer(r"[A-Za-z]{5,}", text))
    if not long:
        return None
    match = draw.choice(long)
    word = match[0]
    at = draw.randrange(1, len(word) - 1)
    row = next(row for row in _NEIGHBOURS if word[at].lower() in row)
    near = row[(row.index(word[at].lower()) + 1) % len(row)]
    other = draw.choice(
        (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + near + word[at + 1 :],
        )
    )
    known = vocabulary()
    if other == word or other.lower() in known.words or other.lower() in known.ordinary:
        return None
    return text[: match.start()] + other + text[match.end() :]


def _without_articles(text: str, _: random.Random) -> str | None:
    other = re.sub(r"\b(?:the|this) ", "", text)
    return other if other != text else None


VARIANTS: Final[Mapping[str, Variant]] = {
    "words before it": _before,
    "words behind it": _behind,
    "an adjective": _adjective,
    "without articles": _without_articles,
    "capitals": lambda text, _: text.upper(),
    "a slip": _slip,
}


def pairs(kind: str, seed: int) -> Iterator[Pair]:
    """Yield English instructions of the blind sets that are read right, each with a variant."""
    draw = random.Random(seed)
    for name in blind.SETS:
        for row in blind.rows(name):
            text = row["instruction"]
            words = [token.text for token in tokens(text)]
            if not words or not text.isascii() or vocabulary().languages(words):
                continue
            if blind.faults(row, blind.read(row)):
                continue
            other = VARIANTS[kind](text, draw)
            if other is not None:
                yield Pair(text, other, blind.modality(row))


def same(pair: Pair) -> bool:
    one, other = (parse(text, pair.modality) for text in (pair.text, pair.other))
    return _told(one) == _told(other)


def _told(result: Parse) -> tuple[object, ...]:
    return result.operation, result.targets, result.attributes.get("exclude")
