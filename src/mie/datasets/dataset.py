"""A dataset on disk: what `dataset.json` says and the samples in its shards."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mie.core.files import atomic_write
from mie.datasets.schema import SCHEMA_VERSION, read_table, sample_from_row
from mie.datasets.shards import read_rows
from mie.errors import MieError
from mie.records import Sample
from mie.vocabulary import SPLITS

_SHARD = re.compile(r"(train|val|test)-(\d{5})-of-(\d{5})\.parquet")


class Dataset:
    """A finished dataset folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        path = self.folder / "dataset.json"
        if not path.is_file():
            unfinished = (self.folder / "parts").is_dir()
            raise MieError(
                "no finished dataset here",
                where=self.folder,
                expected="a folder with dataset.json",
                found="an unfinished build" if unfinished else "no dataset.json",
                fix="run the same `mie build` again to finish it" if unfinished else "check the path",
            )
        try:
            self.info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise MieError("dataset.json is not valid JSON", where=path, found=error) from None
        version = self.info.get("schema_version")
        if version != SCHEMA_VERSION:
            raise MieError(
                "dataset of another schema version",
                where=path,
                expected=SCHEMA_VERSION,
                found=version,
                fix="rebuild it, or read it with the version of mie that wrote it",
            )

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def digest(self) -> str:
        return str(self.info["digest"])

    def __len__(self) -> int:
        return int(self.info["counts"]["samples"])

    def shards(self, split: str | None = None) -> list[Path]:
        """The shard files in dataset order: train, val, test, then by number."""
        found = []
        for path in (self.folder / "data").glob("*.parquet"):
            match = _SHARD.fullmatch(path.name)
            if match and split in (None, match[1]):
                found.append((SPLITS.index(match[1]), int(match[2]), path))
        return [path for _, _, path in sorted(found)]

    def rows(
        self, split: str | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Raw rows; images as PNG bytes."""
        for path in self.shards(split):
            yield from read_rows(path, columns)

    def samples(self, split: str | None = None) -> Iterator[Sample]:
        """Samples with decoded images, one at a time."""
        for row in self.rows(split):
            yield sample_from_row(row)

    def table(self, columns: Sequence[str], split: str | None = None) -> dict[str, list[Any]]:
        """Some text columns whole, for statistics."""
        out: dict[str, list[Any]] = {name: [] for name in columns}
        for path in self.shards(split):
            read = read_table(path, list(columns))
            for name in columns:
                out[name].extend(read.column(name).to_pylist())
        return out


def dataset_digest(sample_digests: Iterable[str]) -> str:
    """SHA-256 over the samples' digests in dataset order."""
    digest = hashlib.sha256()
    for line in sample_digests:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def shard_name(split: str, number: int, count: int) -> str:
    return f"{split}-{number:05d}-of-{count:05d}.parquet"


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """`dataset.json`, written last: its presence says that the dataset is whole."""
    body = {"schema_version": SCHEMA_VERSION, **info}
    atomic_write(folder / "dataset.json", json.dumps(body, indent=2, ensure_ascii=False) + "\n")
