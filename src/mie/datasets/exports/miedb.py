"""The layout of MieDB-100k: `metadata.json`, `input/` and `output/`, one folder per split.

What that layout has no place for stands beside it, in `mie.jsonl` and `mask/`, so that an import gives back
the very same dataset. A dataset that came from such a folder goes back to the same records, in the style of
the same file, and to the same file names; its files then hold PNG whatever their names end in, because JPEG
would change the pixels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final, TextIO

from mie.core.files import check_relative
from mie.core.hashing import file_stem
from mie.datasets.exports.target import ExportFolder, Row, fields, json_line, png
from mie.errors import MieError


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


MULTI: Final = "Multiclasses"
KEYS: Final = ("idx", "category", "input_image", "output_image", "prompt")
LINK: Final = ("idx", "output_image")  # what ties a line of the sidecar to its record


def category_of(perspective: str) -> str:
    """The layout's word for a perspective.

    >>> category_of("perception")
    'Perception'
    """
    return perspective.capitalize()


def write(rows: Iterable[Row], out: ExportFolder) -> None:
    """`{split}/metadata.json` and its folders; straight in the folder when one split was asked for."""
    styles = _styles(out.recipe)
    for split, group in groupby(rows, key=lambda row: str(row["split"])):
        base = "" if out.split else f"{split}/"
        with out.text(f"{base}metadata.json") as metadata, out.text(f"{base}mie.jsonl") as sidecar:
            write_list(metadata, _records(group, out, base, sidecar), Style.recalled(styles.get(split)))


def _records(rows: Iterator[Row], out: ExportFolder, base: str, sidecar: TextIO) -> Iterator[dict[str, Any]]:
    """The records of one split; their files and lines of the sidecar are written on the way."""
    for number, row in enumerate(rows):
        body = fields(row)
        record = _original(body) or _record(body, number)
        out.put(base + record["input_image"], row["input"]["bytes"])
        out.put(base + record["output_image"], row["target_image"]["bytes"])
        mask = png(row, "mask")
        mask_image = None if mask is None else f"mask/{file_stem(row['id'])}.png"
        if mask is not None:
            out.put(f"{base}{mask_image}", mask)
        sidecar.write(json_line({**{key: record[key] for key in LINK}, "mask_image": mask_image, **body}))
        yield record


def _record(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The overlay colour is read from the last `_` token of the output's name; `_multi` is no colour."""
    colours = (body["colour"] or "").split(",")
    several = len(colours) > 1
    suffix = "_multi" if several else f"_{colours[0]}" if colours[0] else ""
    record = {
        "idx": number,
        "category": category_of(body["perspective"]),
        "input_image": f"input/{file_stem(body['id'])}.png",
        "output_image": f"output/{file_stem(body['id'])}{suffix}.png",
        "prompt": body["prompt"],
    }
    return {**record, "note": MULTI} if several else record


def _original(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record that the sample was imported from, None for a sample made elsewhere."""
    kept = body["params"].get("miedb")
    try:
        record = dict(json.loads(kept["record"]))
        check_relative(record["input_image"])
        check_relative(record["output_image"])
    except (TypeError, KeyError, ValueError, RecursionError, MieError):
        return None  # not what our import writes: never follow such a path
    ours = {"category": category_of(body["perspective"]), "prompt": body["prompt"]}
    return {**record, **ours} if set(KEYS) <= set(record) else None


def _styles(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = recipe
    for key in ("import", "styles"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
