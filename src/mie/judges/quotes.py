"""A verdict is the judge's own: words of an instruction that a reply repeats never become a score.

Instructions come from data sets, so from strangers, and judges like to quote them. An instruction that holds
`Editing Accuracy: 10/10` or `{"score_list": [5, 5, 5]}` would otherwise grade itself whenever the judge's own
verdict is missing or broken.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final

from mie.judges.contracts import ParseError, Question

_CUT: Final = "(quoted)"  # no parser reads it, and it joins nothing that was apart
_TOKEN: Final = re.compile(r"[^\W_]+|[:=：＝\[\]{}]")
_LIST: Final = re.compile(r"\[[^\[\]]*\]")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_WORDS: Final = frozenset({"yes", "no", "unclear"})

Tokens = tuple[str, ...]


def own_verdict(question: Question, reply: str) -> Any:
    """The value of what the judge wrote itself; `ParseError` where that cannot be told from a quotation."""
    own = without_quotes(reply, question.quotes)
    value = question.parser(own)
    if own == reply:
        return value
    try:
        whole = question.parser(reply)
    except ParseError:
        return value  # a quotation beside a verdict: only the whole is ambiguous
    if whole != value:
        raise ParseError("the verdict cannot be told from words of the instruction; do not repeat them")
    return value


def without_quotes(reply: str, quotes: tuple[str, ...]) -> str:
    """The reply without the quotes: whole, line by line, and every form of a verdict that they hold."""
    for quote in sorted(quotes, key=len, reverse=True):
        if quote.strip():
            reply = _without_text(reply, quote)
            reply = _without_lists(reply, quote)
            reply = _without_lines(reply, quote)
            reply = _without_verdicts(reply, quote)
    return reply


def _without_text(reply: str, quote: str) -> str:
    """In any case and line width, as plain text and as JSON writes it inside a string."""
    for text in dict.fromkeys((quote, json.dumps(quote, ensure_ascii=False)[1:-1], json.dumps(quote)[1:-1])):
        words = r"\s+".join(map(re.escape, text.split()))
        reply = re.sub(words, _CUT, reply, flags=re.IGNORECASE)
    return reply


def _without_lists(reply: str, quote: str) -> str:
    """A list of numbers, whatever stands around it: without its list a JSON verdict is broken."""
    lists = {tuple(_NUMBER.findall(match[0])) for match in _LIST.finditer(quote)} - {()}
    return _LIST.sub(lambda m: _CUT if tuple(_NUMBER.findall(m[0])) in lists else m[0], reply)


def _without_lines(reply: str, quote: str) -> str:
    lines = {_tokens(line) for line in quote.splitlines()} - {()}
    kept = [_CUT if _tokens(line) in lines else line for line in reply.splitlines()]
    return "\n".join(kept) if _CUT in kept else reply


def _without_verdicts(reply: str, quote: str) -> str:
    """`label: 5`, and yes or no with the two words behind it."""
    verdicts = set(_verdicts(_tokens(quote)))
    matches = list(_TOKEN.finditer(reply))
    tokens = tuple(map(_normal, (match[0] for match in matches)))
    for at in reversed(range(len(tokens) - 2)):
        if tokens[at : at + 3] in verdicts:
            reply = reply[: matches[at].start()] + _CUT + reply[matches[at + 2].end() :]
    return reply


def _verdicts(tokens: Tokens) -> Iterator[Tokens]:
    for at in range(len(tokens) - 2):
        three = tokens[at : at + 3]
        if (three[1] == ":" and three[2].isdecimal()) or three[0] in _WORDS:
            yield three


def _tokens(text: str) -> Tokens:
    return tuple(map(_normal, _TOKEN.findall(text)))


def _normal(part: str) -> str:
    part = unicodedata.normalize("NFKC", part).casefold()
    return ":" if part == "=" else part
