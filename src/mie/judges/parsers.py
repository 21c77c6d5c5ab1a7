"""Strict parsers of replies: the form that was asked for, or a `ParseError` in words that help the model.

Prose around a JSON object, code fences, `4/5` and bold type are accepted, because they are unambiguous. A
missing, repeated, contradictory or out-of-range number is not: nothing is guessed, clipped or filled in.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mie.judges.contracts import ParseError, Parser

# At the start of a reply alone: elsewhere the marks may be quoted. Some servers leave the first mark out.
_THINKING: Final = re.compile(
    r"\A(?:(?:\s*<think(?:ing)?>.*?</think(?:ing)?>)+|(?:(?!<think).)*?</think(?:ing)?>)", re.DOTALL
)
_THINKING_MARK: Final = re.compile(r"</?think(?:ing)?>")
_FRACTION: Final = re.compile(r"\s*(\d{1,3})\s*/\s*(\d{1,3})\s*")
_LINE: Final = re.compile(
    r"[\s>*#_-]*(?:\d+[.)]\s*)?[\s*_]*([^:\n]{1,80}?)[\s*_]*:[\s*_]*(\d+)(?:\s*/\s*(\d+))?[\s*_.]*"
)
_YES_NO: Final = re.compile(
    r"[\s>*#_-]*(?:[A-Za-z]{0,12}\s?\d+\s*[.):]\s*)?[\s*_\"'(]*(yes|no)\b", re.IGNORECASE
)


def json_scores(field: str, count: int, low: int, high: int, *, texts: Sequence[str] = ()) -> Parser:
    """`{field: [count whole numbers]}` with the fields `texts` as text beside -> a tuple of numbers."""

    def parse(reply: str) -> tuple[int, ...]:
        body = json_object(reply)
        for name in texts:
            if not isinstance(body.get(name), str):
                raise ParseError(f'the key "{name}" must hold text')
        found = body.get(field)
        if not isinstance(found, list):
            raise ParseError(f'the key "{field}" must hold a list of {count} whole numbers')
        if len(found) != count:
            raise ParseError(f'"{field}" must hold exactly {count} numbers, not {len(found)}')
        return tuple(whole_number(value, low, high, field) for value in found)

    return parse


def json_scores_schema(
    field: str, count: int, low: int, high: int, *, texts: Sequence[str] = ()
) -> dict[str, Any]:
    """The same as a JSON schema, in the subset that endpoints guarantee."""
    numbers = {"type": "array", "items": {"type": "integer", "enum": list(range(low, high + 1))}}
    return {
        "type": "object",
        "properties": {**{name: {"type": "string"} for name in texts}, field: numbers},
        "required": [*texts, field],
        "additionalProperties": False,
    }


def json_list_of(fields: Sequence[str], least: int, most: int) -> Parser:
    """A JSON list (or an object whose only key holds it) of objects with these text fields -> the list."""

    def parse(reply: str) -> list[dict[str, str]]:
        body = _only_json(reply, (list, dict))
        if isinstance(body, dict) and len(body) == 1:
            body = next(iter(body.values()))
        if not isinstance(body, list):
            raise ParseError("the reply must be a JSON list")
        if not least <= len(body) <= most:
            raise ParseError(f"the list must have {least} to {most} entries, not {len(body)}")
        for entry in body:
            if not isinstance(entry, dict) or sorted(entry) != sorted(fields):
                raise ParseError(f"each entry must be an object with the keys {', '.join(fields)}")
            if not all(isinstance(value, str) and value.strip() for value in entry.values()):
                raise ParseError("each value must be text and not empty")
        return body

    return parse


def json_texts(field: str, least: int, most: int) -> Parser:
    """`{field: [texts]}`, from `least` to `most` of them -> a tuple of texts, unchanged."""

    def parse(reply: str) -> tuple[str, ...]:
        found = json_object(reply).get(field)
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise ParseError(f'the key "{field}" must hold a list of texts')
        if not least <= len(found) <= most:
            raise ParseError(f'"{field}" must hold {least} to {most} texts, not {len(found)}')
        return tuple(found)

    return parse


def json_texts_schema(field: str) -> dict[str, Any]:
    """The same as a JSON schema; the prompt states how many."""
    texts = {"type": "array", "items": {"type": "string"}}
    return {
        "type": "object",
        "properties": {field: texts},
        "required": [field],
        "additionalProperties": False,
    }


def labelled_scores(labels: Mapping[str, str], *, out_of: int, low: int = 0) -> Parser:
    """`Editing Accuracy: 7/10`, a line for each label -> `{name: number}`. Decimals and bold are allowed."""

    def parse(reply: str) -> dict[str, float]:
        text = visible(reply)
        return {name: _labelled(text, label, low, out_of) for name, label in labels.items()}

    return parse


def line_scores(count: int, low: int, high: int) -> Parser:
    """Lines `name: digit`, exactly `count` of them -> a tuple of numbers in the order of the lines."""

    def parse(reply: str) -> tuple[int, ...]:
        found = [m for line in visible(reply).splitlines() if (m := _LINE.fullmatch(line))]
        if len(found) != count:
            raise ParseError(f"exactly {count} lines of the form `name: number` are needed, not {len(found)}")
        names = [m[1].casefold() for m in found]
        if len(set(names)) < count:
            raise ParseError(f"each criterion must appear once, not {', '.join(m[1] for m in found)}")
        return tuple(whole_number(m[2] if m[3] is None else f"{m[2]}/{m[3]}", low, high, m[1]) for m in found)

    return parse


def yes_no(count: int = 1) -> Parser:
    """`count` lines that begin with yes or no (a number before them is allowed) -> a tuple of booleans."""

    def parse(reply: str) -> tuple[bool, ...]:
        found = [m[1].lower() == "yes" for line in visible(reply).splitlines() if (m := _YES_NO.match(line))]
        if len(found) != count:
            raise ParseError(f"exactly {count} lines that begin with yes or no are needed, not {len(found)}")
        return tuple(found)

    return parse


def json_object(reply: str) -> dict[str, Any]:
    """The one JSON object of the reply."""
    found = _only_json(reply, (dict,))
    if not isinstance(found, dict):  # pragma: no cover (the kinds say so)
        raise ParseError("the reply must be a JSON object")
    return found


def whole_number(value: Any, low: int, high: int, name: str) -> int:
    """4, 4.0, "4" or "4/5" where 5 is the scale's end; anything else is a `ParseError`."""
    number = value
    if isinstance(value, str):
        fraction = _FRACTION.fullmatch(value)
        if fraction is not None and int(fraction[2]) == high:
            number = int(fraction[1])
        elif re.fullmatch(r"\s*\d{1,3}\s*", value):
            number = int(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ParseError(f"{name}: {_shown(value)} is not a whole number from {low} to {high}")
    if not low <= number <= high:
        raise ParseError(f"{name}: {_shown(value)} lies outside {low} to {high}")
    return number


def visible(reply: str) -> str:
    """The reply without a model's thinking; full-width digits and colons become plain ones."""
    return unicodedata.normalize("NFKC", _spoken(reply))


def _spoken(reply: str) -> str:
    text = _THINKING.sub("", reply, count=1)
    if mark := _THINKING_MARK.search(text):
        raise ParseError(f"{mark[0]} stands in the middle of the reply: it is unclear what is thinking")
    return text


def _labelled(text: str, label: str, low: int, out_of: int) -> float:
    words = r"\s+".join(map(re.escape, label.split()))
    pattern = (
        rf"(?<!\w){words}[\s*_]*(?:score[\s*_]*)?[:=][\s*_]*(-?\d+(?:\.\d+)?)(?:\s*/\s*(\d+))?(?![\d.]*\d)"
    )
    found = {(float(m[1]), int(m[2] or out_of)) for m in re.finditer(pattern, text, re.IGNORECASE)}
    if not found:
        raise ParseError(f"no line `{label}: x/{out_of}`")
    if len(found) > 1:
        raise ParseError(f"`{label}` has more than one score")
    ((score, scale),) = found
    if scale != out_of:
        raise ParseError(f"`{label}` must be out of {out_of}, not {scale}")
    if not low <= score <= out_of:
        raise ParseError(f"`{label}`: {score:g} lies outside {low} to {out_of}")
    return score


def _only_json(reply: str, kinds: tuple[type, ...]) -> Any:
    """The outermost JSON value of one of the kinds.

    Two that differ are ambiguous and therefore an error. So is an object that is broken, because it may be
    the verdict, and the one that is whole a quotation.
    """
    found = [value for value in _json_values(_spoken(reply)) if isinstance(value, kinds)]
    if not found:
        wanted = " or ".join("object" if kind is dict else "list" for kind in kinds)
        raise ParseError(f"there is no valid JSON {wanted} in the reply")
    if any(value != found[0] for value in found[1:]):
        raise ParseError("there is more than one JSON value in the reply")
    return found[0]


def _json_values(text: str) -> Iterator[Any]:
    """Every JSON value that begins with a bracket, from left to right, not those inside another."""
    # Not strict: a line break inside a text is unambiguous.
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, strict=False)
    at = 0
    while (start := _bracket(text, at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            if text[start] == "{":
                raise ParseError("there is a { that begins no valid JSON object") from None
            at = start + 1
        else:
            yield value


def _bracket(text: str, at: int) -> int:
    places = [place for place in (text.find("{", at), text.find("[", at)) if place >= 0]
    return min(places, default=-1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ParseError(f'the key "{twice}" appears twice')
    return body


def _no_constant(name: str) -> Any:
    raise ParseError(f"{name} is not a number")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:40]
