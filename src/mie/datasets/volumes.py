"""Whole volumes in a dataset: which rows are the slices of one volume, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.datasets.schema import params_of


@dataclass(frozen=True, slots=True, order=True)
class SliceRow:
    """A slice of a whole volume, and where its row is stored."""

    index: int  # in its volume, from 0
    id: str  # of the sample
    shard: Path
    group: int  # of rows
    row: int  # in its group
    position: int  # in the dataset
    marked: int  # pixels of its region


def most_telling(slices: Sequence[SliceRow]) -> SliceRow:
    """The slice that shows most of the region; the middle one where none is marked."""
    largest = max(slices, key=lambda one: one.marked)
    return largest if largest.marked else slices[len(slices) // 2]


def volume_slices(dataset: Dataset, split: str | None = None) -> dict[str, list[SliceRow]]:
    """Volume id -> its slices that are there, by index; volumes in the order of the dataset."""
    volumes: dict[str, list[SliceRow]] = defaultdict(list)
    start = 0  # position of the shard's first row
    for shard in dataset.shards(split):
        with ShardFile(shard) as file:
            params = file.read(columns=["params"]).column("params").to_pylist()
            # Most datasets have no volumes: their shards are left at the text, unparsed.
            if any('"volume"' in (text or "") for text in params):
                for row, volume in _slices(file, shard, start):
                    volumes[volume].append(row)
        start += len(params)
    return {name: sorted(slices) for name, slices in volumes.items()}


def _slices(file: ShardFile, shard: Path, start: int) -> Iterator[tuple[SliceRow, str]]:
    """The shard's slices of whole volumes, each with its volume."""
    position = start - 1
    for group in range(file.metadata.num_row_groups):
        for at, row in enumerate(file.read_row_group(group, columns=["id", "params"]).to_pylist()):
            position += 1
            facts = params_of(row).get("volume")
            if isinstance(facts, Mapping) and "id" in facts:
                index, marked = int(facts["index"]), int(facts.get("marked", 0))
                yield SliceRow(index, str(row["id"]), shard, group, at, position, marked), str(facts["id"])
