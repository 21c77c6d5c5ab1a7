"""A JSON list written record by record, in the style of the file that it once came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Style:
    """How `json.dump` was told to lay out a list."""

    indent: str | None = "    "
    ascii: bool = False
    spaced: bool = True  # a space after the colon
    end: str = "\n"

    @classmethod
    def of(cls, text: str) -> Style:
        """The style of a file; exact for what `json.dump` writes."""
        indent = re.match(r"\[\n([ \t]{1,16})\S", text)
        return cls(
            indent=indent[1] if indent else None,
            ascii=text.isascii(),
            spaced=re.match(r'\[\s*\{\s*"(?:[^"\\]|\\.)*":\S', text) is None,
            end="\n" if text.endswith("\n") else "",
        )

    @classmethod
    def recalled(cls, body: object) -> Style:
        """The style that `as_json` gave; the usual one for anything else."""
        if isinstance(body, Mapping) and set(body) == set(cls.__dataclass_fields__):
            indent, end = body["indent"], body["end"]
            blank = indent is None or (isinstance(indent, str) and re.fullmatch(r"[ \t]{1,16}", indent))
            if blank and end in ("", "\n"):
                return cls(indent, bool(body["ascii"]), bool(body["spaced"]), end)
        return cls()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def write_list(file: TextIO, records: Iterable[Mapping[str, Any]], style: Style) -> None:
    """What `json.dump(list(records), file)` would write in that style, without the list in memory."""
    colon = ": " if style.spaced else ":"
    between = ", " if style.spaced and style.indent is None else ","
    encoder = json.JSONEncoder(ensure_ascii=style.ascii, indent=style.indent, separators=(between, colon))
    margin = "" if style.indent is None else "\n" + style.indent
    opening = "["
    for record in records:
        # JSON text has no line breaks inside strings, so each one starts a line that must move right.
        body = encoder.encode(record)
        file.write(opening + margin + (body.replace("\n", margin) if margin else body))
        opening = between
    last = "" if style.indent is None else "\n"
    file.write(("[]" if opening == "[" else last + "]") + style.end)
