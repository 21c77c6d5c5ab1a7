"""The folder that an export fills: claimed first, filled file by file, and marked as whole last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, TextIO, TypeAlias

from mie.core.documents import read_document, write_document
from mie.core.files import atomic_path, folder_lock, refuse_foreign
from mie.datasets.dataset import Dataset
from mie.datasets.schema import IMAGE_COLUMNS, SCHEMA, params_of
from mie.errors import MieError

Row: TypeAlias = Mapping[str, Any]  # as `Dataset.rows` gives it

MARKER: Final = "mie.json"  # says which dataset an export holds, and whether it is whole


class ExportFolder:
    """Where an export goes; `split` is the one that was asked for, None for all."""

    def __init__(self, root: Path, split: str | None, recipe: Mapping[str, Any]) -> None:
        self.root = root
        self.split = split
        self.recipe = recipe  # of the dataset
        self._written: dict[str, bytes] = {}

    def put(self, relative: str, data: bytes) -> None:
        """Write a file, whole or not at all; once for all samples that share it."""
        relative = str(PurePosixPath(relative))
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if relative in self._written:
            if self._written[relative] != digest:
                raise MieError(
                    "two samples want the same file for different content",
                    where=relative,
                    fix="`mie verify` shows whether sample ids are unique",
                )
            return
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{len(self._written)}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)  # synced by `claimed`, once for all: one by one costs more than the writing
        self._written[relative] = digest

    @contextmanager
    def text(self, relative: str) -> Iterator[TextIO]:
        """A text file to write to, line by line; it appears when it is whole."""
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            yield file


@contextmanager
def claimed(folder: Path, dataset: Dataset, format: str, split: str | None) -> Iterator[ExportFolder]:
    """Hold the folder for this export. Refused when it holds anything but this very export."""
    info = dataset.info
    marker = {
        "format": format,
        "split": split,
        **{
            name: info[name]
            for name in ("digest", "name", "description", "licenses", "deidentified", "recipe")
        },
    }
    _refuse_other(folder, marker)
    with folder_lock(folder):
        _refuse_other(folder, marker)
        _write_marker(folder, {"complete": False, **marker})
        yield ExportFolder(folder, split, info["recipe"])
        os.sync()
        _write_marker(folder, {"complete": True, **marker})


def _write_marker(folder: Path, marker: Mapping[str, Any]) -> None:
    write_document(folder / MARKER, marker)


def _refuse_other(folder: Path, marker: Mapping[str, Any]) -> None:
    try:
        there = read_document(folder / MARKER, "export")
    except (OSError, MieError):
        there = {}
    keys = ("format", "split", "digest")
    same = all(there.get(key) == marker[key] for key in keys)
    if not same and set(keys) <= set(there):
        raise MieError(
            "this folder holds another export",
            where=folder,
            expected=", ".join(str(marker[key]) for key in keys),
            found=", ".join(str(there[key]) for key in keys),
            fix="choose another folder",
        )
    refuse_foreign(folder, "this very export", lambda _: same)


def png(row: Row, column: str) -> bytes | None:
    return None if row[column] is None else row[column]["bytes"]


def fields(row: Row) -> dict[str, Any]:
    """Every column but the images, with `params` as an object."""
    body = {name: row[name] for name in SCHEMA.names if name not in IMAGE_COLUMNS}
    body["params"] = params_of(row)
    return body


def json_line(body: Mapping[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False) + "\n"
