"""Whole volumes of a run: which rows of the dataset belong together, and where their outputs lie."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.datasets.schema import params_of
from mie.editors.runs import Run
from mie.errors import MieError
from mie.scoring.attempts import Output, make_chunks


@dataclass(frozen=True, slots=True)
class Place:
    """A row of the dataset."""

    shard: Path
    group: int  # of rows
    row: int  # in its group
    index: int  # in its volume


@dataclass(frozen=True, slots=True)
class VolumeChunk:
    """One whole volume: its slices in order, each with its attempts. Scored as one line."""

    number: int
    volume: str
    places: tuple[Place, ...]
    outputs: tuple[tuple[str, tuple[Output, ...]], ...]

    @property
    def pairs(self) -> int:
        return sum(len(attempts) for _, attempts in self.outputs)

    def key(self, header: Mapping[str, Any]) -> str:
        """Changes with anything that the volume's scores depend on."""
        attempts = [
            [sample, [[o.k, o.path is not None, o.reason, o.stamp] for o in outputs]]
            for sample, outputs in self.outputs
        ]
        return hashlib.sha256(canonical([header, self.volume, attempts]).encode()).hexdigest()[:16]

    def rows(self, columns: list[str]) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
        """One item: the volume's rows under "rows", and the attempts at each of them."""
        found: dict[Place, dict[str, Any]] = {}
        by_group: dict[tuple[Path, int], list[Place]] = defaultdict(list)
        for place in self.places:
            by_group[place.shard, place.group].append(place)
        for (shard, group), places in by_group.items():
            with ShardFile(shard) as file:
                table = file.read_row_group(group, columns=columns, use_threads=False)
                for place in places:
                    found[place] = table.slice(place.row, 1).to_pylist()[0]
        rows = [found[place] for place in self.places]
        yield {"rows": rows}, tuple(attempts for _, attempts in self.outputs)


def make_volume_chunks(run: Run, dataset: Dataset) -> list[VolumeChunk]:
    """The whole volumes that the run was made for, in dataset order."""
    outputs = {sample: attempts for chunk in make_chunks(run, dataset) for sample, attempts in chunk.outputs}
    places: dict[str, list[tuple[Place, str]]] = defaultdict(list)
    for shard in dataset.shards(run.info["config"].get("split")):
        with ShardFile(shard) as file:
            for group in range(file.metadata.num_row_groups):
                table = file.read_row_group(group, columns=["id", "params"])
                for at, row in enumerate(table.to_pylist()):
                    facts = params_of(row).get("volume")
                    if isinstance(facts, Mapping) and outputs.get(row["id"]):
                        place = Place(shard, group, at, int(facts["index"]))
                        places[str(facts["id"])].append((place, str(row["id"])))
    if not places:
        raise MieError(
            "the run has no whole volumes",
            where=run.folder,
            expected="a dataset that was built with `slices: all` in a data set's layout",
            found=f"{len(outputs):,} samples of single images",
            fix="score it with another benchmark; `mie score --list` shows them",
        )
    chunks = []
    for number, (volume, found) in enumerate(places.items()):
        found.sort(key=lambda item: item[0].index)
        slices = tuple((sample, outputs[sample]) for _, sample in found)
        chunks.append(VolumeChunk(number, volume, tuple(place for place, _ in found), slices))
    return chunks
