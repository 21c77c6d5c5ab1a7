"""A dataset on disk: `dataset.json`, and the samples in its shards, by position, filtered, as a table."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import shutil
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast, overload

import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.documents import DatasetInfo, plural, read_document, write_document
from mie.core.files import refuse_foreign
from mie.core.registry import unknown_name
from mie.core.storage import SUMS, local
from mie.datasets.parquet import ShardFile, shard_files
from mie.datasets.schema import (
    IMAGE_COLUMNS,
    SCHEMA,
    SCHEMA_VERSION,
    has_references,
    params_of,
    read_rows,
    read_table,
    references_of,
    row_errors,
    sample_from_row,
)
from mie.errors import MieError
from mie.images.png import decode_png, encode_png
from mie.images.resize import fitted_size, resize_image
from mie.records import Pixels, Reference, Sample


class StoredSample:
    """One sample of a dataset, with the fields of `mie.Sample`. Each image is decoded at its first use."""

    id: str
    perspective: str
    task: str
    target: str
    modality: str
    anatomy: str
    prompt: str
    prompt_template: str
    description: str
    colour: str | None
    split: str
    bin: int | None
    source: str
    case_id: str
    patient_id: str | None
    recipe: str
    recipe_version: int
    seed: int
    license: str
    group: str | None
    turn: int | None

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    @cached_property
    def input(self) -> Pixels:
        """The image to edit, `(H, W, 3) uint8`."""
        return decode_png(self._row["input"]["bytes"])

    @cached_property
    def target_image(self) -> Pixels:
        """The image after the edit, `(H, W, 3) uint8`."""
        return decode_png(self._row["target_image"]["bytes"])

    @cached_property
    def mask(self) -> Pixels | None:
        """`(H, W) uint8`, 0 outside the edited region; None where the sample has no mask."""
        stored = self._row["mask"]
        return None if stored is None else decode_png(stored["bytes"])

    @cached_property
    def params(self) -> dict[str, Any]:
        """What the recipe chose for this sample."""
        return params_of(self._row)

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """Further input images: those that the instruction speaks of, and demonstrations."""
        return references_of(self._row)

    @property
    def parents(self) -> tuple[str, ...]:
        """The ids of the samples that this one was made from."""
        return tuple(self._row["parents"] or ())

    def as_sample(self) -> Sample:
        """The whole sample as a plain record, every image decoded."""
        return sample_from_row(self._row)

    def __getattr__(self, name: str) -> Any:
        row = self.__dict__.get("_row", {})
        if name in row and name not in IMAGE_COLUMNS:
            return row[name]
        raise AttributeError(f"a sample has no field {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._row})

    def __repr__(self) -> str:
        shown = ("id", "perspective", "task", "target", "modality", "split", "prompt")
        return f"StoredSample({', '.join(f'{name}={self._row[name]!r}' for name in shown)})"

    def _repr_html_(self) -> str:
        return samples_html([self])


class Samples(ABC):
    """What a dataset and a part of one have in common: items, iteration, filters, a table in notebooks."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _whole(self) -> Dataset:
        """The dataset on disk."""

    @abstractmethod
    def _positions(self) -> Sequence[int]:
        """Where the samples stand in the dataset."""

    @abstractmethod
    def _where(self) -> Where:
        """The filters so far."""

    @overload
    def __getitem__(self, at: int) -> StoredSample: ...
    @overload
    def __getitem__(self, at: slice) -> list[StoredSample]: ...
    def __getitem__(self, at: int | slice) -> StoredSample | list[StoredSample]:
        """The sample at a position, or a list of those in a slice."""
        index = self._whole().row_index
        if isinstance(at, slice):
            return [StoredSample(index.row(position)) for position in self._positions()[at]]
        try:
            position = self._positions()[at]
        except IndexError:
            raise IndexError(f"no sample {at}: there are {len(self)}") from None
        return StoredSample(index.row(position))

    def __iter__(self) -> Iterator[StoredSample]:
        index = self._whole().row_index
        return (StoredSample(index.row(position)) for position in self._positions())

    def filter(self, **columns: Value | Collection[Value]) -> Subset:
        """The samples whose columns have these values: `filter(modality="CT", split=["val", "test"])`.

        Nothing is copied. The result can be iterated, indexed, filtered again, and passed to `mie.run`.
        """
        where = dict(self._where())
        for name, given in columns.items():
            if name not in FILTERS:
                raise unknown_name("column to filter by", name, FILTERS)
            plain = isinstance(given, str | int) or given is None
            values: Iterable[Value] = [given] if plain else given  # type: ignore[list-item, assignment]
            allowed = where.get(name)
            where[name] = tuple(v for v in dict.fromkeys(values) if allowed is None or v in allowed)
        return Subset(self._whole(), where)

    def _repr_html_(self) -> str:
        shown = self[:_SHOWN]
        rest = len(self) - len(shown)
        more = f"<p>… and {rest:,} more</p>" if rest else ""
        return f"<p>{html.escape(repr(self))}</p>{samples_html(shown)}{more}"


class Subset(Samples):
    """The samples of a dataset that a filter chose."""

    def __init__(self, dataset: Dataset, where: Where) -> None:
        self.dataset = dataset
        self.where = where

    def ids(self) -> list[str]:
        """The samples' ids, in the order of the dataset."""
        names = self.dataset.table(["id"])["id"]
        return [names[position] for position in self._positions()]

    def __len__(self) -> int:
        return len(self._positions())

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={_shown(values)}" for name, values in self.where.items())
        return (
            f"{self.dataset.name}: {len(self):,} of {plural(len(self.dataset), 'sample')}, {chosen or 'all'}"
        )

    def _whole(self) -> Dataset:
        return self.dataset

    def _where(self) -> Where:
        return self.where

    def _positions(self) -> Sequence[int]:
        return self._found

    @cached_property
    def _found(self) -> list[int]:
        columns = list(self.where)
        if not columns:
            return list(range(len(self.dataset)))
        rows = zip(*self.dataset.table(columns).values(), strict=True)
        wanted = [set(self.where[name]) for name in columns]
        return [at for at, row in enumerate(rows) if all(v in w for v, w in zip(row, wanted, strict=True))]


class RowIndex:
    """Rows of Parquet files by position. The row group that was read last stays in memory."""

    def __init__(self, shards: Iterable[Path]) -> None:
        self._groups: list[tuple[Path, int]] = []
        self._starts: list[int] = []
        self.rows = 0
        for path in shards:
            metadata = pq.read_metadata(path)
            for group in range(metadata.num_row_groups):
                self._groups.append((path, group))
                self._starts.append(self.rows)
                self.rows += metadata.row_group(group).num_rows
        self._read: tuple[int, pa.Table] | None = None

    def row(self, position: int) -> dict[str, Any]:
        """The row at a position, images as PNG bytes."""
        at = bisect_right(self._starts, position) - 1
        if self._read is None or self._read[0] != at:
            path, group = self._groups[at]
            with ShardFile(path) as file:
                self._read = at, file.read_row_group(group)
        return dict(self._read[1].slice(position - self._starts[at], 1).to_pylist()[0])


def samples_html(samples: Sequence[StoredSample]) -> str:
    """A table with thumbnails. Every text is escaped."""
    head = "".join(f"<th>{name}</th>" for name in ("input", "target image", "mask", "instruction", "about"))
    rows = "".join(_row_html(sample) for sample in samples)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row_html(sample: StoredSample) -> str:
    pictures = "".join(f"<td>{_thumbnail(sample, name)}</td>" for name in IMAGE_COLUMNS)
    about = f"{sample.modality} · {sample.task} · {sample.target} · {sample.split}"
    return f"<tr>{pictures}<td>{html.escape(sample.prompt)}</td><td>{html.escape(about)}</td></tr>"


def _thumbnail(sample: StoredSample, name: str) -> str:
    try:
        pixels = getattr(sample, name)
    except MieError as error:
        return html.escape(error.reason)
    if pixels is None:
        return "–"
    height, width = pixels.shape[:2]
    if max(height, width) > _THUMBNAIL:
        pixels = resize_image(pixels, fitted_size(height, width, _THUMBNAIL))
    data = base64.b64encode(encode_png(pixels)).decode()
    return f'<img alt="{name.replace("_", " ")}" src="data:image/png;base64,{data}">'


def _shown(values: tuple[Value, ...]) -> str:
    return repr(values[0]) if len(values) == 1 else repr(list(values))


class Dataset(Samples):
    """A finished dataset folder, or its URL.

    `len(ds)`, `ds[0].input`, `ds.filter(modality="CT")`, `for sample in ds`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = local(folder)
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
        return f"{self.name}: {plural(len(self), 'sample')} in {self.folder}"

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
        return shard_files(self.folder, split)

    @cached_property
    def has_references(self) -> bool:
        """Whether some samples have further input images."""
        return any(has_references(path) for path in self.shards()[:1])

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
_FILES: Final = ("dataset.json", "README.md", "rejected.parquet", SUMS)
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


# The columns that `filter` takes: text and whole numbers.
FILTERS: Final = tuple(
    field.name for field in SCHEMA if pa.types.is_string(field.type) or pa.types.is_integer(field.type)
)
_SHOWN: Final = 5  # samples in a notebook's table
_THUMBNAIL: Final = 96  # pixels of the longer side

Value = str | int | None
# Column -> the values that a sample may have there.
Where = Mapping[str, tuple[Value, ...]]
