"""The folder that an export fills: claimed first, filled file by file, and marked as whole last."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, TextIO, TypeAlias

from mie.core.files import atomic_path, atomic_write, folder_lock
from mie.datasets.dataset import Dataset
from mie.datasets.schema import IMAGE_COLUMNS, SCHEMA
from mie.errors import MieError

Row: TypeAlias = Mapping[str, Any]  # as `Dataset.rows` gives it

MARKER: Final = "mie.json"  # says which dataset an export holds, and whether it is whole
_HEX: Final = re.compile(r"[0-9a-f]{1,64}")


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
    _refuse_foreign(
        folder, marker
    )  # before the lock, which would leave its file in a folder that is not ours
    try:
        with folder_lock(folder):
            _refuse_foreign(folder, marker)
            _write_marker(folder, {"complete": False, **marker})
            for left in folder.rglob(".*.tmp"):
                left.unlink()
            yield ExportFolder(folder, split, info["recipe"])
            os.sync()
            _write_marker(folder, {"complete": True, **marker})
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise MieError(
            "the disk is full",
            where=folder,
            found=os.strerror(error.errno or 0),
            fix="free some space and run the same command again",
        ) from error


def _write_marker(folder: Path, marker: Mapping[str, Any]) -> None:
    atomic_write(folder / MARKER, json.dumps(marker, indent=2, ensure_ascii=False) + "\n")


def _refuse_foreign(folder: Path, marker: Mapping[str, Any]) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise MieError("the output is not a folder", where=folder, fix="choose another folder")
    found = sorted(p.name for p in folder.iterdir() if p.name != ".lock" and not p.name.endswith(".tmp"))
    if found and not _same(folder / MARKER, marker):
        raise MieError(
            "the output folder is not empty",
            where=folder,
            expected="a new folder, or one with this very export",
            found="another export" if MARKER in found else ", ".join(found[:5]),
            fix="choose another folder",
        )


def _same(path: Path, marker: Mapping[str, Any]) -> bool:
    try:
        there = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(there, dict) and all(
        there.get(key) == marker[key] for key in ("format", "split", "digest")
    )


def stem(sample_id: str) -> str:
    """A file name for the sample: its id where that is hexadecimal, as ours are; else a digest of the id.

    Such a name means the same on every file system: no case, no separator, no reserved word.
    """
    return sample_id if _HEX.fullmatch(sample_id) else hashlib.sha256(sample_id.encode()).hexdigest()[:32]


def png(row: Row, column: str) -> bytes | None:
    return None if row[column] is None else row[column]["bytes"]


def fields(row: Row) -> dict[str, Any]:
    """Every column but the images, with `params` as an object."""
    body = {name: row[name] for name in SCHEMA.names if name not in IMAGE_COLUMNS}
    body["params"] = json.loads(row["params"])
    return body


def json_line(body: Mapping[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False) + "\n"
