"""What is looked at: a dataset and runs on it, read row group by row group and file by file."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow.parquet as pq

from mie.core.files import inside
from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset
from mie.editors.runs import Run, output_name
from mie.errors import ConfigError, MieError

Place: TypeAlias = tuple[str, int, int]  # shard, row group, row

INDEXED: Final = (
    "id", "sha256", "perspective", "task", "target", "modality", "anatomy", "source", "split",
    "group", "turn", "colour",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample, and where its row lies."""

    fields: dict[str, Any]
    place: Place


class Material:
    """A dataset and named runs on that very dataset; nothing but file names is kept in memory."""

    def __init__(self, dataset: Dataset, runs: dict[str, Run]) -> None:
        self.dataset = dataset
        self.runs = runs
        self._shards: dict[str, Path] = {path.name: path for path in dataset.shards()}

    @classmethod
    def open(cls, places: Sequence[Path]) -> Material:
        """A dataset, runs, or both. A run brings its dataset."""
        datasets = [Dataset(p) for p in places if not (p / "run.json").is_file()]
        if len(datasets) > 1:
            raise ConfigError("a review is of one dataset", found=", ".join(str(d.folder) for d in datasets))
        runs: dict[str, Run] = {}
        for folder in (p for p in places if (p / "run.json").is_file()):
            name = folder.resolve().name
            if name in runs:
                raise ConfigError("two runs have the same name", found=name, fix="rename one of the folders")
            runs[name] = Run.open(folder)
        dataset = datasets[0] if datasets else next(iter(runs.values())).dataset()
        for run in runs.values():
            known = run.info["dataset"]["digest"]
            if known != dataset.digest:
                raise MieError(
                    "the run is of another dataset",
                    where=run.folder,
                    expected=f"digest {dataset.digest[:16]}",
                    found=f"digest {known[:16]}",
                )
        return cls(dataset, runs)

    def entries(self) -> Iterator[Entry]:
        """Every sample in dataset order, without its images."""
        for name, path in self._shards.items():
            with pq.ParquetFile(path) as file:
                rows = file.read(columns=list(INDEXED)).to_pylist()
                sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            places = ((name, group, at) for group, size in enumerate(sizes) for at in range(size))
            for row, place in zip(rows, places, strict=True):
                yield Entry(row, place)

    def row(self, place: Sequence[Any], columns: Sequence[str]) -> dict[str, Any]:
        shard, group, at = place
        path = self._shards.get(shard)
        if path is None:
            raise MieError("the dataset has lost a shard", where=self.dataset.folder, expected=shard)
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(group, columns=list(columns), use_threads=False)
        return dict(table.slice(at, 1).to_pylist()[0])

    def outputs(self, run: str) -> dict[str, str]:
        """Sample id -> SHA-256 of the first attempt's output, of the edits that worked."""
        edits = self.runs[run].edits().values()
        return {e.sample_id: str(e.sha256) for e in edits if e.attempt == 0 and e.state == "done"}

    def output(self, run: str, sample_id: str, sha256: str) -> bytes:
        """The output's file, refused when it lies elsewhere or is not what it was."""
        folder = self.runs[run].folder
        data = inside(folder, folder, output_name(sample_id, 0)).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise MieError("an output has changed since its run", where=folder, expected=sha256)
        return data

    def fingerprint(self, run: str) -> str:
        """What the run is, wherever it lies."""
        info = self.runs[run].info
        known = {"dataset": info["dataset"]["digest"], "editor": info["editor"]["spec"]}
        return hashlib.sha256(canonical([run, known, info["config"]]).encode()).hexdigest()


# The samples of a dataset that a kind of work can be about.


@dataclass(frozen=True, slots=True)
class Candidate:
    sample_id: str
    sha256: str
    strata: str
    places: tuple[Place, ...]
    turns: tuple[str, ...]  # sample ids; itself where there is one turn
    painted: bool = True  # a perception sample
    several: bool = False  # classes in its mask


def candidates(
    material: Material, kind: str, stratify: Sequence[str], regions: Container[str] | None
) -> Iterable[Candidate]:
    texts: dict[str, str] = {}  # one string per stratum, not one per sample
    dialogues: dict[tuple[str, str], list[tuple[int, Candidate]]] = defaultdict(list)
    for entry in material.entries():
        row = entry.fields
        strata = canonical({name: row[name] for name in stratify})
        strata = texts.setdefault(strata, strata)
        painted, several = row["perspective"] == "perception", "," in (row["colour"] or "")
        one = Candidate(
            row["id"], row["sha256"], strata, (entry.place,), (row["id"],), painted=painted, several=several
        )
        if kind == "questions":
            if row["group"] is not None and row["turn"] is not None:
                dialogues[row["source"], row["group"]].append((row["turn"], one))
        elif kind != "mask" or painted or (regions is not None and one.sample_id in regions):
            yield one
    for turns in dialogues.values():
        if len(turns) > 1:
            ordered = [one for _, one in sorted(turns, key=lambda t: t[0])]
            yield replace(
                ordered[0],
                sha256="\n".join(one.sha256 for one in ordered),
                places=tuple(one.places[0] for one in ordered),
                turns=tuple(one.sample_id for one in ordered),
            )
