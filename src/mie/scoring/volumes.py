"""Whole volumes of a run as chunks of scoring: their rows in the dataset, and where their outputs lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mie.core.documents import plural
from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.datasets.volumes import SliceRow, volume_slices
from mie.editors.runs import Run
from mie.errors import MieError
from mie.scoring.attempts import Output, chunk_key, make_chunks


@dataclass(frozen=True, slots=True)
class VolumeChunk:
    """One whole volume: its slices in order, each with its attempts. Scored as one line."""

    number: int
    volume: str
    slices: tuple[SliceRow, ...]
    outputs: tuple[tuple[str, tuple[Output, ...]], ...]

    @property
    def pairs(self) -> int:
        return sum(len(attempts) for _, attempts in self.outputs)

    def key(self, header: Mapping[str, Any]) -> str:
        """Changes with anything that the volume's scores depend on."""
        return chunk_key([header, self.volume], self.outputs)

    def rows(self, columns: list[str]) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
        """One item: the volume's rows under "rows", and the attempts at each of them."""
        found: dict[SliceRow, dict[str, Any]] = {}
        by_group: dict[tuple[Path, int], list[SliceRow]] = defaultdict(list)
        for one in self.slices:
            by_group[one.shard, one.group].append(one)
        for (shard, group), members in by_group.items():
            with ShardFile(shard) as file:
                table = file.read_row_group(group, columns=columns, use_threads=False)
                for one in members:
                    found[one] = table.slice(one.row, 1).to_pylist()[0]
        rows = [found[one] for one in self.slices]
        yield {"rows": rows}, tuple(attempts for _, attempts in self.outputs)


def make_volume_chunks(run: Run, dataset: Dataset) -> list[VolumeChunk]:
    """The whole volumes that the run was made for, in dataset order."""
    outputs = {sample: attempts for chunk in make_chunks(run, dataset) for sample, attempts in chunk.outputs}
    chunks: list[VolumeChunk] = []
    for volume, slices in volume_slices(dataset, run.info["config"].get("split")).items():
        edited = tuple(one for one in slices if outputs.get(one.id))
        if edited:
            made = tuple((one.id, outputs[one.id]) for one in edited)
            chunks.append(VolumeChunk(len(chunks), volume, edited, made))
    if not chunks:
        raise MieError(
            "the run has no whole volumes",
            where=run.folder,
            expected="a dataset that was built with `slices: all` in a data set's layout",
            found=f"{plural(len(outputs), 'sample')} of single images",
            fix="score it with another benchmark; `mie score --list` shows them",
        )
    return chunks
