"""A blind review sheet: one page that opens from disk, with pictures inside and nothing that tells where a
sample comes from; a table for those who prefer a spreadsheet; and the key, which stays with whoever asks.
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

from markupsafe import Markup

from mie.core.files import atomic_path, atomic_write, make_folder
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.report.gallery import rows_by_id
from mie.report.views import asset, templates
from mie.scoring.statistics.quality import COLUMNS, KEY_FILE, Key, read_key

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
    """One row of the sheet; the pictures are PNG files as base64."""

    prompt: str
    before: Markup
    after: Markup


def _page(key: Key, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the page piece by piece: with its pictures it may be large."""
    style, script = asset("blind_sheet.css"), asset("blind_sheet.js")
    # Nothing is fetched, and nothing runs but the one script whose hash stands here.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    pairs = (_Pair(row["prompt"], _base64(row["input"]), _base64(row["target_image"])) for row in rows)
    # Files of this package, and base64, need no escaping.
    code = {"style": Markup(style), "script": Markup(script)}  # noqa: S704
    template = templates().get_template("blind_sheet.html")
    return template.generate(policy=policy, sheet=key.sheet, rows=len(rows), pairs=pairs, **code)


def _base64(image: Mapping[str, bytes]) -> Markup:
    return Markup(base64.b64encode(image["bytes"]).decode())  # noqa: S704


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
