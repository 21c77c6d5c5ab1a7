"""A blind review sheet: one page that opens from disk, with pictures inside and nothing that tells where a
sample comes from; a table for those who prefer a spreadsheet; and the key, which stays with whoever asks.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_path, atomic_write
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.report.gallery import rows_by_id
from mie.report.markup import Markup, tag
from mie.scoring.statistics.quality import COLUMNS, KEY_FILE, Key, read_key

_FILES: Final = ("index.html", "answers.csv", KEY_FILE)


def write_sheet(dataset: Dataset, key: Key, folder: Path) -> bool:
    """Write the sheet into a new folder; False where the same sheet is there already, which is left alone.

    The key is written last: a folder without it was interrupted, and is written again.
    """
    if _is_there(folder, key):
        return False
    folder.mkdir(parents=True, exist_ok=True)
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


def _page(key: Key, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    style, script = (_asset(f"blind_sheet.{kind}") for kind in ("css", "js"))
    # Nothing is fetched, and nothing runs but the one script whose hash stands here.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    yield '<!doctype html>\n<html lang="en">\n'
    yield tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", "Blind review"),
        tag("style", Markup(style)),
    )
    yield f'\n<body data-sheet="{key.sheet}" data-rows="{len(rows)}">\n'
    yield _asset("blind_sheet.html")
    for number, row in enumerate(rows, start=1):
        yield tag("p", row["prompt"], id=f"text-{number}", hidden=True) + "\n"
        for name, column in (("before", "input"), ("after", "target_image")):
            # Our own PNG, without file names or other notes inside; read by the script when it is shown.
            data = Markup(base64.b64encode(row[column]["bytes"]).decode())
            yield tag("script", data, type="text/plain", id=f"{name}-{number}") + "\n"
    yield tag("script", Markup(script)) + "\n</body>\n</html>\n"


def _asset(name: str) -> str:
    return (resources.files("mie.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
