"""A blind review sheet: one page that opens from disk, with pictures inside and nothing that tells where a
sample comes from, or what is generated; a table for those who prefer a spreadsheet; and the key, which stays
with whoever asks.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from mie.core.files import atomic_path, atomic_write, make_folder
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.images.png import decode_png, encode_png
from mie.report.gallery import rows_by_id
from mie.report.views import asset, templates
from mie.scoring.statistics.realism import circle_around
from mie.scoring.statistics.sheet import COLUMNS, KEY_FILE, Key, Truth, read_key

_FILES: Final = ("index.html", "answers.csv", KEY_FILE)


def write_sheet(dataset: Dataset, key: Key, folder: Path) -> bool:
    """Write the sheet into a new folder; False where the same sheet is there already, which is left alone.

    The key is written last: a folder without it was interrupted, and is written again.
    """
    if _is_there(folder, key):
        return False
    make_folder(folder)
    ids = [sample for sample, _ in key.rows]
    rows = {row["id"]: row for row in rows_by_id(dataset, set(ids))}
    with atomic_path(folder / "index.html") as temporary, temporary.open("w", encoding="utf-8") as file:
        for piece in _page(key, [rows[sample] for sample in ids]):
            file.write(piece)
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(COLUMNS)
    writer.writerows((key.sheet, row, "", "") for row in range(1, len(ids) + 1))
    atomic_write(folder / "answers.csv", table.getvalue())
    atomic_write(folder / KEY_FILE, key.as_json())
    return True


def _is_there(folder: Path, key: Key) -> bool:
    if not folder.exists():
        return False
    if (folder / KEY_FILE).is_file():
        if read_key(folder) == key:
            return True
        found = "another sheet"
    else:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else ["a file"]
        strange = [name for name in names if name not in _FILES and not name.endswith(".tmp")]
        if not strange:
            return False
        found = ", ".join(sorted(strange)[:5])
    raise MieError(
        "the output folder holds something else",
        where=folder,
        expected="a new folder",
        found=found,
        fix="choose another folder: what people answered is not written over",
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """One row that asks whether an edit is good; the pictures are PNG files as base64."""

    prompt: str
    before: Markup
    after: Markup


@dataclass(frozen=True, slots=True)
class _Picture:
    """One row that asks whether an image is real, and where to look: width and height, then the circle."""

    picture: Markup
    circle: str


def _page(key: Key, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the page piece by piece: with its pictures it may be large."""
    style, name = asset("blind_sheet.css"), "blind_sheet"
    pictures: Iterator[_Pair | _Picture] = (_pair(row) for row in rows)
    if key.question == "real":
        style, name = style + asset("blind_sheet_real.css"), "blind_sheet_real"
        pictures = (_picture(row, truth) for row, truth in zip(rows, key.truth, strict=True))
    script = templates().get_template(f"{name}.js").render() + "\n"
    # Nothing is fetched, and nothing runs but the one script whose hash stands here.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # Files of this package, and base64, need no escaping.
    code = {"style": Markup(style), "script": Markup(script)}  # noqa: S704
    template = templates().get_template(f"{name}.html")
    return template.generate(policy=policy, sheet=key.sheet, rows=len(rows), pictures=pictures, **code)


def _pair(row: Mapping[str, Any]) -> _Pair:
    return _Pair(row["prompt"], _base64(row["input"]["bytes"]), _base64(row["target_image"]["bytes"]))


def _picture(row: Mapping[str, Any], truth: Truth) -> _Picture:
    """All images are written alike, whatever wrote them first: RGB, without further chunks."""
    pixels = decode_png(row[truth.image]["bytes"])
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    height, width = pixels.shape[:2]
    column, line, radius = circle_around(decode_png(row["mask"]["bytes"]) > 0)
    return _Picture(_base64(encode_png(pixels)), f"{width} {height} {column:g} {line:g} {radius:g}")


def _base64(png: bytes) -> Markup:
    return Markup(base64.b64encode(png).decode())  # noqa: S704


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
