"""Plain files: `input/`, `target/` and `mask/`, with `samples.jsonl` (all fields) and `samples.csv`."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Final

from mie.core.hashing import file_stem
from mie.datasets.exports.target import ExportFolder, Row, fields, json_line, png
from mie.datasets.schema import SCHEMA

PLACES: Final = {"input": "input", "target_image": "target", "mask": "mask"}  # column -> folder


def write(rows: Iterable[Row], out: ExportFolder) -> None:
    """All splits together; the column `split` tells them apart. Image columns hold paths."""
    with out.text("samples.jsonl") as lines, out.text("samples.csv") as sheet:
        table = csv.DictWriter(sheet, SCHEMA.names, lineterminator="\n")
        table.writeheader()
        for row in rows:
            files: dict[str, str | None] = {}
            for column, place in PLACES.items():
                data = png(row, column)
                files[column] = None if data is None else f"{place}/{file_stem(row['id'])}.png"
                if data is not None:
                    out.put(f"{place}/{file_stem(row['id'])}.png", data)
            body = {**fields(row), **files}
            lines.write(json_line({name: body[name] for name in SCHEMA.names}))
            # As in the shards: `params` as JSON text. A list becomes words with spaces between.
            table.writerow({**row, **files, "parents": " ".join(row["parents"] or ())})
