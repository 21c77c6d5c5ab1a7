"""A run cut into chunks that are scored on their own: a few row groups of the dataset with their outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset
from mie.editors.runs import Run

# Outputs in a chunk: some hundred milliseconds of work, which is what an interruption may cost.
_PAIRS: Final = 48


@dataclass(frozen=True, slots=True)
class Output:
    """Where an attempt's output lies, or why there is none."""

    k: int
    path: str | None
    reason: str = ""
    stamp: tuple[int, int] = (0, 0)  # size and time of change: a file that was replaced is scored again


@dataclass(frozen=True, slots=True)
class Chunk:
    """Row groups `groups` of a shard; `outputs` lists (sample id, attempts) for their rows, in order.

    A run that was limited may leave out the last rows.
    """

    number: int
    shard: Path
    groups: tuple[int, ...]
    outputs: tuple[tuple[str, tuple[Output, ...]], ...]

    @property
    def pairs(self) -> int:
        return sum(len(attempts) for _, attempts in self.outputs)

    def key(self, header: Mapping[str, Any]) -> str:
        """Changes with anything that the chunk's scores depend on."""
        attempts = [
            [sample, [[o.k, o.path is not None, o.reason, o.stamp] for o in outputs]]
            for sample, outputs in self.outputs
        ]
        return hashlib.sha256(canonical([header, attempts]).encode()).hexdigest()[:16]

    def rows(self, columns: list[str]) -> Iterator[tuple[dict[str, Any], tuple[Output, ...]]]:
        """Each row with its attempts. One row group is in memory, and one row of it as Python objects."""
        with pq.ParquetFile(self.shard) as file:
            rows = chain.from_iterable(_rows(file, group, columns) for group in self.groups)
            for row, (_, attempts) in zip(rows, self.outputs, strict=False):
                if attempts:  # none where the run's filters left the sample out
                    yield row, attempts


def _rows(file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[dict[str, Any]]:
    table = file.read_row_group(
        group, columns=columns, use_threads=False
    )  # each thread keeps memory of its own
    for at in range(table.num_rows):
        yield table.slice(at, 1).to_pylist()[0]


def make_chunks(run: Run, dataset: Dataset) -> list[Chunk]:
    """The samples that the run was made for, in dataset order."""
    edits = run.edits()
    config = run.info["config"]
    chosen = set(run.sample_ids(dataset)) if config.get("where") else None
    left = len(dataset) if chosen is not None else config.get("limit") or len(dataset)
    chunks: list[Chunk] = []

    def output(sample: str, k: int) -> Output:
        edit = edits.get((sample, k))
        if edit is None:
            return Output(k, None, "no output")
        if edit.state != "done":
            return Output(k, None, f"edit failed: {edit.reason}")
        path = run.output_path(sample, k)
        try:
            status = path.stat()
        except OSError:
            return Output(k, None, "output file is gone")
        return Output(k, str(path), stamp=(status.st_size, status.st_mtime_ns))

    for shard in dataset.shards(config.get("split")):
        with pq.ParquetFile(shard) as file:
            ids = iter(file.read(columns=["id"]).column("id").to_pylist()[:left])
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        groups: list[int] = []
        outputs: list[tuple[str, tuple[Output, ...]]] = []
        for group, size in enumerate(sizes):
            groups.append(group)
            for _, sample in zip(range(size), ids, strict=False):
                attempts = range(run.attempts if chosen is None or sample in chosen else 0)
                outputs.append((sample, tuple(output(sample, k) for k in attempts)))
                left -= 1
            if outputs and (len(outputs) * run.attempts >= _PAIRS or group == len(sizes) - 1 or not left):
                chunks.append(Chunk(len(chunks), shard, tuple(groups), tuple(outputs)))
                groups, outputs = [], []
        if not left:
            break
    return chunks
