"""A dataset on disk: what `dataset.json` says and the samples in its shards."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from mie.core.documents import DatasetInfo, read_document, write_document
from mie.core.files import refuse_foreign
from mie.datasets.browse import RowIndex, Samples, Where
from mie.datasets.schema import SCHEMA_VERSION, read_table, row_errors, sample_from_row
from mie.datasets.shards import read_rows
from mie.errors import MieError
from mie.records import Sample
from mie.vocabulary import SPLITS

_SHARD = re.compile(r"(train|val|test)-(\d{5})-of-(\d{5})\.parquet")


class Dataset(Samples):
    """A finished dataset folder: `len(ds)`, `ds[0].input`, `ds.filter(modality="CT")`, `for sample in ds`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
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
        fix = "rebuild it, or read it with the version of mie that wrote it"
        body = read_document(path, "dataset", version=SCHEMA_VERSION, fix=fix)
        self.info = cast("DatasetInfo", body)

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def digest(self) -> str:
        return str(self.info["digest"])

    def __len__(self) -> int:
        return int(self.info["counts"]["samples"])

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"{self.name}: {len(self):,} samples in {self.folder}"

    @cached_property
    def row_index(self) -> RowIndex:
        """Rows by their position in dataset order."""
        return RowIndex(self.shards())

    def _whole(self) -> Dataset:
        return self

    def _positions(self) -> Sequence[int]:
        return range(self.row_index.rows)

    def _where(self) -> Where:
        return {}

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
            with row_errors(path):
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


def write_info(folder: Path, info: DatasetInfo) -> None:
    """Write `dataset.json`, last of all: its presence says that the dataset is whole."""
    write_document(folder / "dataset.json", {"schema_version": SCHEMA_VERSION, **info})


# What a dataset's folder holds. Datasets are only written into new folders, or over what we wrote ourselves.
_FILES: Final = ("dataset.json", "README.md", "rejected.parquet")
_TEMPORARY: Final = r"\..*\.tmp"
# Our folders and what we put into them.
_FOLDERS: Final = {
    "data": re.compile(rf"(train|val|test)-\d{{5}}-of-\d{{5}}\.parquet|{_TEMPORARY}"),
    "parts": re.compile(rf"plan|(train|val|test)-\d{{5}}\.parquet|\d{{5}}\.[a-z]+\.parquet|{_TEMPORARY}"),
    "stats": re.compile(rf"[a-z]+\.png|{_TEMPORARY}"),
    "judge": re.compile(r".+\.jsonl|\.lock|part-\d{5}"),
}
# What a judge was asked about the samples. It was paid for and is found by its content: never removed.
_KEPT: Final = ("judge",)


def refuse_other_files(folder: Path) -> None:
    """Raise unless `folder` is absent, empty, or holds a dataset or an unfinished one and nothing else."""
    # A README of somebody else's stands in many folders; ours stands beside our shards. The rejections alone
    # are left of a build that kept no sample.
    built = any((folder / name).is_dir() for name in ("data", "parts"))

    def ours(path: Path) -> bool:
        if path.name in _FOLDERS and path.is_dir():
            return all(_FOLDERS[path.name].fullmatch(leaf.name) for leaf in path.iterdir())
        return path.name == "rejected.parquet" or (path.name in _FILES and built)

    refuse_foreign(folder, "a dataset of ours", ours)


def clear(folder: Path) -> None:
    """Remove our files from a folder that `refuse_other_files` has accepted."""
    # The marker goes first: a folder without it is never taken for a finished dataset.
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS.keys() - set(_KEPT):
        shutil.rmtree(folder / name, ignore_errors=True)
