"""What a reply says: an option, a number, a point; or why it says none of them.

`read_letter` takes the forms that leave no doubt and nothing else. A reply in prose, with several letters, in
another language, a refusal or an empty one has a reason instead of an answer: it is counted as unscored, and
never becomes right, wrong or random. `closest_option` is what the released script does in its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from string import ascii_uppercase
from typing import Any, Final

from mie.judges.contracts import ParseError
from mie.judges.parsers import visible

# Why a reply has no answer.
EMPTY: Final = "the reply is empty"
REFUSED: Final = "the model declined"
SEVERAL: Final = "several answers"
PROSE: Final = "no answer in the form asked for"
LANGUAGE: Final = "another language"
UNKNOWN_LETTER: Final = "a letter that is no option"
CONTRADICTION: Final = "the letter and the text of different options"
UNIT: Final = "another unit"
UNCLEAR: Final = "unclear what is thinking"

_BOXED: Final = re.compile(r"\\boxed\s*\{")
_TEX_WORD: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf|rm|bf)\s*")
_WRAP: Final = r"[\s*_`\"'“”‘’(\[{<>$\\]*"
# `Final answer: B`, `The answer is (B)`, `Answer: **B**`.
_MARKER: Final = re.compile(
    rf"\b(?:answer|(?:correct|right|best) (?:option|choice))\b{_WRAP}(?:\bis\b|:|=)?{_WRAP}"
    rf"(?:option\b|choice\b)?{_WRAP}([A-Za-z])(?![A-Za-z])",
    re.IGNORECASE,
)
_ANSWER: Final = re.compile(r"\banswer\b[\s*_]*(?:\bis\b|:|=)[\s*_]*:?[\s*_]*(.+)", re.IGNORECASE | re.DOTALL)
_ALONE: Final = re.compile(
    rf"{_WRAP}(?:(?:option|choice)\s+)?{_WRAP}([A-Za-z])[\s*_`\"'“”’)\]}}>$.:,;!]*", re.IGNORECASE
)
_LETTERED: Final = re.compile(r"[\s*_`\"'(\[]*([A-Za-z])[*_]*\s*[.):\]-]+[\s*_]*(.+)", re.DOTALL)
_MORE: Final = re.compile(
    r"[\s*_)\]\"'.]*(?:\bor\b|\band\b|/|,|&|\+)[\s*_(\[\"']*(?:option\s+)?([A-Z])(?![A-Za-z])"
)
_BEHIND_A: Final = re.compile(r"\s+([a-z]+)")
_AFTER_ANSWER: Final = frozenset(("because", "since", "as", "with", "for", "due", "given", "which"))
_ARTICLE: Final = re.compile(r"(?:^|(?<=[.!?\n])\s*)A(?= (?!and\b|or\b)[a-z])")
_CAPITAL: Final = re.compile(r"(?<![A-Za-z'’])([A-Z])(?![A-Za-z'’])")
_DECLINES: Final = re.compile(
    r"\b(?:i(?:['’]m| am) (?:sorry|unable|not able|not qualified)|sorry\b|i (?:can(?:no|['’])t|"
    r"cannot|won['’]t|do not|don['’]t) (?:provide|answer|determine|give|help|assist|see|view|"
    r"analy[sz]e|interpret|diagnose|make|offer)|as an ai\b|consult (?:a|your) (?:doctor|"
    r"physician|radiologist))",
    re.IGNORECASE,
)
# Words that a sentence in that language can hardly do without and English does not have.
_FOREIGN: Final = frozenset(
    (
        "der", "die", "das", "ist", "und", "nicht", "ein", "eine", "antwort", "bild", "zeigt", "richtige",
        "le", "les", "est", "une", "des", "réponse", "dans", "avec", "sur", "correcte", "bonne",
        "el", "los", "una", "es", "respuesta", "imagen", "correcta", "muestra", "en",
        "il", "la", "di", "che", "risposta", "immagine", "corretta",
        "os", "uma", "é", "resposta", "imagem", "correta",
    )
)  # fmt: skip
_WORD: Final = re.compile(r"[^\W\d_]+")
_NUMBER: Final = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+)(?:[eE][-+]?\d+)?")
_UNIT: Final = re.compile(
    r"\s*(%|percent|per cent|millimet(?:er|re)s?|centimet(?:er|re)s?|mm2|mm²|cm2|cm²|mm|cm|µm|um|inch(?:es)?|"
    r"ml|kg|m)(?![A-Za-z])",
    re.IGNORECASE,
)
_UNITS: Final = {"%": "%", "percent": "%", "per cent": "%", "mm2": "mm²", "cm2": "cm²"}
_FACTORS: Final = {("cm", "mm"): 10.0, ("mm", "cm"): 0.1, ("cm²", "mm²"): 100.0, ("mm²", "cm²"): 0.01}


@dataclass(frozen=True, slots=True)
class Said:
    """What a reply says, or in `reason` why that is nothing."""

    value: Any = None
    reason: str = ""


def read_letter(reply: str, options: Sequence[str]) -> Said:
    r"""The number of the option that a reply chooses, from 0, by these forms and no other.

    `\boxed{B}`; a phrase `answer: B` or `the answer is B`; a letter alone, `(b)` or `**B.**`; a letter with
    the text of its option, `B. MRI`; the text of one option alone. Several of them must agree.

    >>> options = ["CT", "MRI", "PET"]
    >>> read_letter("**B**", options).value, read_letter("The answer is (B).", options).value
    (1, 1)
    >>> read_letter("B or C", options).reason
    'several answers'
    """
    try:
        text = visible(reply).strip()
    except ParseError:
        return Said(reason=UNCLEAR)
    if not text:
        return Said(reason=EMPTY)
    if boxed := _boxed(text):
        found = [_whole(content, options) for content in boxed]
        return _agreed(found)
    whole = _whole(text, options)
    if whole.reason != PROSE:
        return whole
    found = [said for match in _MARKER.finditer(text) if (said := _phrase(match, text, options)) is not None]
    found += _lines(text, options)
    if found:
        return _agreed(found)
    behind = _ANSWER.search(text)
    if behind is not None and (said := _whole(behind[1], options)).value is not None:
        return said
    return Said(reason=_why_not(text, len(options)))


def closest_option(reply: str, options: Sequence[str]) -> int:
    """The option that the released script takes: a letter that stands alone, else the most similar text.

    It always takes one, also for an error or an empty reply: then the first.
    """
    text = reply.strip()
    if boxed := _boxed(text):
        text = boxed[-1]
    known = ascii_uppercase[: len(options)]
    letters = [letter for letter in _CAPITAL.findall(text) if letter in known]
    if letters:
        return known.index(letters[-1] if boxed else letters[0])
    low = text.casefold()
    likeness = [SequenceMatcher(None, low, option.casefold(), autojunk=False).ratio() for option in options]
    return max(range(len(options)), key=lambda at: (likeness[at], -at))


def read_number(reply: str, unit: str = "") -> Said:
    """The one number of a reply, in `unit` where it names a unit that can be turned into it.

    `answer: 12 mm` wins over numbers in the reasoning before it. Two different numbers are several answers.

    >>> read_number("The answer is 1.2 cm.", "mm").value
    12.0
    >>> read_number("between 10 and 12 mm", "mm").reason
    'several answers'
    """
    text, reason = _answer_part(reply)
    if reason:
        return Said(reason=reason)
    found: dict[float, None] = {}
    for match in _NUMBER.finditer(text):
        value = float(match[0].replace(",", "").replace("−", "-"))
        named = _UNIT.match(text, match.end())
        own = _plain_unit(named[1]) if named else ""
        if own and unit and own != unit:
            factor = _FACTORS.get((own, unit))
            if factor is None:
                return Said(reason=UNIT)
            value *= factor
        found[value] = None
    if not found:
        return Said(reason=_why_not(text, 0))
    if len(found) > 1:
        return Said(reason=SEVERAL)
    return Said(next(iter(found)))


def read_numbers(reply: str, count: int) -> Said:
    """Exactly `count` numbers, as `(x, y)` or `[x0, y0, x1, y1]`: a point or a box.

    >>> read_numbers("Answer: (120, 64)", 2).value
    (120.0, 64.0)
    """
    text, reason = _answer_part(reply)
    if reason:
        return Said(reason=reason)
    values = tuple(float(m[0].replace(",", "").replace("−", "-")) for m in _COORDINATE.finditer(text))
    if len(values) == count:
        return Said(values)
    return Said(reason=SEVERAL if len(values) > count else _why_not(text, 0))


# Coordinates are never written with a comma between thousands: the comma parts two of them.
_COORDINATE: Final = re.compile(r"(?<![\w.])[-+−]?\d*\.?\d+")


def read_text(reply: str) -> Said:
    """The answer in words: what follows `Final answer:` where there is one, else the whole reply."""
    text, reason = _answer_part(reply)
    if reason:
        return Said(reason=reason)
    if _DECLINES.match(text):
        return Said(reason=REFUSED)
    return Said(text)


def _answer_part(reply: str) -> tuple[str, str]:
    try:
        text = visible(reply).strip()
    except ParseError:
        return "", UNCLEAR
    if boxed := _boxed(text):
        return boxed[-1].strip(), "" if boxed[-1].strip() else EMPTY
    cut = re.split(r"\bfinal answer\b[\s*_]*(?:is\b)?[\s*_]*:?", text, flags=re.IGNORECASE)
    text = (cut[-1] if len(cut) > 1 else text).strip().strip('*_"“” ')
    return text, "" if text else EMPTY


def _boxed(text: str) -> list[str]:
    r"""The contents of every `\boxed{...}`, braces inside them balanced."""
    found = []
    for match in _BOXED.finditer(text):
        depth, at = 1, match.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            content = _TEX_WORD.sub("", text[match.end() : at - 1])
            found.append(content.replace("{", "").replace("}", "").strip("\\$<> "))
    return found


def _whole(text: str, options: Sequence[str]) -> Said:
    """A text that is an option and nothing else: its letter, its words, or both."""
    if alone := _ALONE.fullmatch(text):
        return _index(alone[1], options)
    words = _plain(text)
    same = [at for at, option in enumerate(options) if _plain(option) == words]
    if lettered := _LETTERED.fullmatch(text):
        said, rest = _index(lettered[1], options), _plain(lettered[2])
        texts = [at for at, option in enumerate(options) if _plain(option) == rest]
        if said.value is not None and texts:
            return said if said.value in texts else Said(reason=CONTRADICTION)
    return Said(same[0]) if len(same) == 1 else Said(reason=PROSE)


def _phrase(match: re.Match[str], text: str, options: Sequence[str]) -> Said | None:
    """The letter of `the answer is B`; None where it is a word of the sentence: `the answer is a tumour`."""
    letter, end = match[1], match.end(1)
    behind = _BEHIND_A.match(text, end)
    if letter.islower() and (behind is not None or not text[end:].strip(" .*_)")):
        # `answer: b` alone is a letter; `answer: a tumour` is not.
        if behind is not None:
            return None
    elif behind is not None and letter in "AI" and behind[1] not in _AFTER_ANSWER:
        return None
    if _MORE.match(text, end):
        return Said(reason=SEVERAL)
    return _index(letter, options)


def _lines(text: str, options: Sequence[str]) -> list[Said]:
    """The options that stand on lines of their own, where the first or the last line is one of them."""
    lines = [line for line in text.splitlines() if line.strip()]
    said = [_whole(line, options) for line in lines]
    if all(one.value is None for one in (said[0], said[-1])):
        return []
    return [one for one in said if one.value is not None]


def _index(letter: str, options: Sequence[str]) -> Said:
    at = ascii_uppercase.find(letter.upper())
    return Said(at) if 0 <= at < len(options) else Said(reason=UNKNOWN_LETTER)


def _agreed(found: Sequence[Said]) -> Said:
    """All the same, or the first reason."""
    if all(said == found[0] for said in found):
        return found[0]
    return Said(reason=SEVERAL)


def _why_not(text: str, options: int) -> str:
    if _DECLINES.search(text):
        return REFUSED
    known = ascii_uppercase[:options]
    if len({letter for letter in _CAPITAL.findall(_ARTICLE.sub("", text)) if letter in known}) > 1:
        return SEVERAL
    if _is_foreign(text):
        return LANGUAGE
    return PROSE


def _is_foreign(text: str) -> bool:
    words = _WORD.findall(text.casefold())
    letters = "".join(words)
    if sum(ord(letter) > 0x24F for letter in letters) * 2 > len(letters):  # beyond Latin
        return True
    return sum(word in _FOREIGN for word in words) >= 2


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w%²³+/<>=-]+", " ", text.casefold().replace("_", " ")).split()).strip(" .")


def _plain_unit(text: str) -> str:
    low = text.casefold()
    if low.startswith("millimet"):
        return "mm"
    if low.startswith("centimet"):
        return "cm"
    return _UNITS.get(low, low)
