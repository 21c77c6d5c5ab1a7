"""The lists of another benchmark, as they came: what `mie import` read, written back.

A sample holds its record in `params["imported"]`. Lists are equal as JSON; masks and other files that a
sample holds changed are equal to the byte; images are equal to the pixel, as PNG whatever their names are.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from mie.core.files import check_relative
from mie.datasets.exports.target import MARKER, ExportFolder, Row, json_line
from mie.datasets.schema import params_of
from mie.errors import MieError


def _write(format: str, rows: Iterable[Row], out: ExportFolder) -> None:
    lists: dict[str, dict[str | int, Any]] = {}
    lacking = None
    for row in rows:
        body = params_of(row).get("imported")
        if not isinstance(body, Mapping):
            lacking = row["id"] if row["turn"] in (None, 1) else lacking  # later turns need none
            continue
        if body.get("format") != format:
            raise _not_ours(format, row["id"], f"it came in by {body.get('format')!r}")
        lists.setdefault(_name(body["list"]), {})[body["at"]] = body["record"]
        for column, name in body["images"].items():
            out.put(_name(name), row[column]["bytes"])
        for name, text in body["files"].items():
            try:
                out.put(_name(name), base64.b64decode(text, validate=True))
            except binascii.Error as error:
                raise MieError("a stored file cannot be read", where=row["id"], found=error) from None
    if lacking is not None or not lists:
        raise _not_ours(format, lacking, "it holds no record")
    for name, records in lists.items():
        with out.text(name) as file:
            file.write(_as_text(name, records))


def _as_text(name: str, records: Mapping[str | int, Any]) -> str:
    """A list where records have numbers, JSON lines by the file's name, else an object by their keys."""
    if not all(isinstance(at, int) for at in records):
        return json.dumps(records, ensure_ascii=False, indent=2) + "\n"
    ordered = [records[at] for at in sorted(records)]
    if name.endswith(".jsonl"):
        return "".join(json_line(record) for record in ordered)
    return json.dumps(ordered, ensure_ascii=False, indent=2) + "\n"


def _name(text: object) -> str:
    """A path inside the folder that is not the export's own mark: a dataset may come from strangers."""
    name = check_relative(text)
    if name == MARKER:
        raise MieError("a list has the name of the export's mark", found=name)
    return name


def _not_ours(format: str, sample: str | None, found: str) -> MieError:
    return MieError(
        f"this dataset was not imported from {format}",
        where=sample,
        expected=f"samples that `mie import -f {format}` made, with their records",
        found=found,
        fix="import the folder again (datasets of earlier versions hold no records), or use another format",
    )


write_imgedit: Final = partial(_write, "imgedit")
write_omni_iie: Final = partial(_write, "omni-iie")
