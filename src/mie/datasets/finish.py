"""From parts to a dataset: compare all samples, name the shards, count, describe.

What a build and a merge have in common. Every step is safe to repeat from the start; `dataset.json` is
written last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mie.core.documents import DatasetInfo, add_facts
from mie.core.files import atomic_path, atomic_write
from mie.datasets.dataset import shard_name
from mie.datasets.leaks import (
    Traces,
    duplicates,
    image_leaks,
    intact_volumes,
    patient_leaks,
    whole_conversations,
    whole_groups,
)
from mie.datasets.part import INDEX_SCHEMA, part_path
from mie.datasets.rejected import read_rejected
from mie.datasets.schema import REFERENCES, TEXT_COLUMNS, ShardWriter, has_references, read_rows, read_table
from mie.datasets.stats import Tally
from mie.errors import MieError
from mie.perspectives import PERSPECTIVES
from mie.records import Rejection
from mie.vocabulary import SPLITS

# The index without what is kept in arrays (hashes, thumbnails) or read when it is needed (`pixels`).
_LISTED: Final = tuple(
    name for name in INDEX_SCHEMA.names if name not in ("hash", "thumb", "pixels", "goal_hash", "goal_thumb")
)
_REPEATED: Final = (
    *("split", "source", "patient_id", "perspective", "modality", "task", "target", "group", "volume"),
)
# Fields of `Traces` that are columns of the index.
_COMPARED: Final = {
    "ids": "id",
    "splits": "split",
    "sources": "source",
    "case_ids": "case_id",
    "patients": "patient_id",
    "content": "content",
}
# A row as it is on its way from `parts/` to `data/`, and as it is to be there.
Change = Callable[[dict[str, Any]], dict[str, Any]]


def claim_parts(folder: Path, fingerprint: str) -> Path:
    """`parts/`; refused when it belongs to something else."""
    parts = folder / "parts"
    stamp = parts / "plan"
    if stamp.exists() and stamp.read_text() != fingerprint:
        raise MieError(
            "this folder holds an unfinished build of something else",
            where=folder,
            expected="the same recipe over the same files",
            fix="choose another folder, or give --overwrite to start afresh",
        )
    parts.mkdir(exist_ok=True)
    atomic_write(stamp, fingerprint)
    return parts


@dataclass(frozen=True, slots=True)
class Index:
    """What the parts say about their samples, column by column, and which samples must go."""

    columns: dict[str, list[Any]]
    parts: list[int]  # the number of each sample's part
    dropped: dict[int, Rejection]

    @property
    def kept(self) -> list[int]:
        return [at for at in range(len(self.parts)) if at not in self.dropped]

    @property
    def drop(self) -> set[tuple[int, str]]:
        """(part, id) of what must go: two parts of a merge may hold the same sample."""
        return {(self.parts[at], self.columns["id"][at]) for at in self.dropped}

    def tally(self, rejections: Iterable[Rejection]) -> Tally:
        tally = Tally()
        for at in self.kept:
            counted = {name: self.columns[name][at] for name in Tally.COLUMNS}
            tally.keep({**counted, REFERENCES: self.columns[REFERENCES][at]})
        for rejection in rejections:
            tally.refuse(rejection.gate)
        return tally


def compare(parts: Path, numbers: Sequence[int], *, several: bool) -> Index:
    """Compare the samples of all parts; `several` perspectives also share target images."""
    columns, of_part, traces = _read_index(parts, numbers, goals=several)
    named = columns["perspective"] if several else [None] * len(of_part)
    dropped = _offenders(traces, columns["target"], named)
    for i in intact_volumes(set(dropped), columns["volume"]):
        del dropped[i]
    for i, other in whole_conversations(set(dropped), columns["group"], columns["turn"]).items():
        reason = f"another turn of its conversation was rejected: {dropped[other].reason}"
        dropped[i] = replace(dropped[other], reason=reason, target=columns["target"][i])
    for i, other in whole_groups(set(dropped), columns["volume"]).items():
        reason = f"another slice of its volume was rejected: {dropped[other].reason}"
        where = columns["case_id"][i]
        dropped[i] = replace(dropped[other], where=where, reason=reason, numbers={"id": columns["id"][i]})
    return Index(columns, of_part, dropped)


def _read_index(
    parts: Path, numbers: Sequence[int], *, goals: bool
) -> tuple[dict[str, list[Any]], list[int], Traces]:
    """What all parts say: a column each, each sample's part, and what samples are compared by.

    A part at a time: a million samples have thumbnails of 256 MB, and objects for them would take twice that.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _LISTED}
    of_part: list[int] = []
    known: dict[str, str] = {}  # one object for each name, not one for each sample
    hashes, thumbs, owners, goal_hashes, goal_thumbs = ([] for _ in range(5))
    for number in numbers:
        found = read_table(part_path(parts, number, "index"))
        start = len(of_part)
        for name, column in columns.items():
            if name not in found.column_names:  # parts that an earlier version left
                column += [None] * found.num_rows
            elif name in _REPEATED:
                column += (v and known.setdefault(v, v) for v in found.column(name).to_pylist())
            else:
                column += found.column(name).to_pylist()
        of_part += [number] * found.num_rows
        hashes.append(_numbers(found.column("hash"), np.uint64))
        thumbs.append(b"".join(found.column("thumb").to_pylist()))
        if goals and "goal_hash" in found.column_names:
            shown = found.append_column("owner", pa.array(range(start, len(of_part)), pa.int64()))
            shown = shown.filter(shown.column("goal_hash").is_valid())
            owners.append(_numbers(shown.column("owner"), np.int64))
            goal_hashes.append(_numbers(shown.column("goal_hash"), np.uint64))
            goal_thumbs.append(b"".join(shown.column("goal_thumb").to_pylist()))
    traces = Traces(
        **{field: columns[name] for field, name in _COMPARED.items()},
        hashes=np.concatenate([np.empty(0, np.uint64), *hashes]),
        thumbs=np.frombuffer(b"".join(thumbs), np.uint8).reshape(-1, 256),
        goal_owners=np.concatenate([np.empty(0, np.int64), *owners]),
        goal_hashes=np.concatenate([np.empty(0, np.uint64), *goal_hashes]),
        goal_thumbs=np.frombuffer(b"".join(goal_thumbs), np.uint8).reshape(-1, 256),
    )
    return columns, of_part, traces


def _numbers(column: Any, kind: type) -> NDArray[Any]:
    return np.array(column.to_pylist(), kind)  # Arrow's `to_numpy` imports pandas, which takes longer


def pixel_digests_of(parts: Path, numbers: Sequence[int]) -> dict[str, list[bytes | None]]:
    """Each sample's digests of input, target image and mask, by its id."""
    tables = (read_table(part_path(parts, number, "index"), ["id", "pixels"]) for number in numbers)
    return {row["id"]: row["pixels"] for found in tables for row in found.to_pylist()}


def _offenders(
    traces: Traces, targets: Sequence[str], perspectives: Sequence[str | None]
) -> dict[int, Rejection]:
    """Samples that must go, by index, each with the first reason that was found."""
    found: dict[int, Rejection] = {}
    for offence in (*duplicates(traces), *patient_leaks(traces), *image_leaks(traces)):
        i = offence.index
        rejection = Rejection(
            traces.sources[i],
            traces.case_ids[i],
            offence.gate,
            offence.reason,
            targets[i],
            {"id": traces.ids[i]},
            perspectives[i],
        )
        found.setdefault(i, rejection)
    return found


def part_rejections(parts: Path, numbers: Sequence[int]) -> Iterator[Rejection]:
    """What the parts rejected, in their order."""
    for number in numbers:
        path = part_path(parts, number, "rejected")
        if path.exists():
            yield from read_rejected(path)


def write_shards(
    parts: Path, numbers: Sequence[int], data: Path, drop: set[tuple[int, str]], change: Change | None = None
) -> dict[str, str]:
    """The parts' shards under their final names, without the rows to drop; the digests of changed rows."""
    digests: dict[str, str] = {}
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    found = [path for n in numbers for s in SPLITS if (path := part_path(parts, n, s)).exists()]
    wide = any(has_references(path) for path in found)  # then every shard has the column
    for split in SPLITS:
        shards = [(n, path, keep) for n, path, keep in _kept(parts, numbers, split, drop) if keep]
        for number, (part, path, keep) in enumerate(shards):
            target = data / shard_name(split, number, len(shards))
            if keep == "all" and change is None and wide == has_references(path):
                link(path, target)
                continue
            with ShardWriter(target, wide=wide) as writer:
                for row in read_rows(path):
                    if (part, row["id"]) in drop:
                        continue
                    if change is not None:
                        row = change(row)
                        digests[row["id"]] = row["sha256"]
                    writer.write(row)
    return digests


def _kept(
    parts: Path, numbers: Sequence[int], split: str, drop: set[tuple[int, str]]
) -> Iterator[tuple[int, Path, str]]:
    """Each part's shard with how much of it stays: "all", "some" or "" for nothing."""
    for number in numbers:
        path = part_path(parts, number, split)
        if path.exists():
            ids = read_table(path, ["id"]).column("id").to_pylist()
            gone = sum((number, i) in drop for i in ids)
            yield number, path, "all" if not gone else ("some" if gone < len(ids) else "")


def link(path: Path, target: Path) -> None:
    """A second name for the file; `parts/` keeps its own until the dataset is whole."""
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links, or another one
        with atomic_path(target) as temporary:
            shutil.copyfile(path, temporary)


def add_perspective_facts(
    info: DatasetInfo,
    data: Path,
    rejections: Sequence[Rejection],
    modalities: Mapping[str, Mapping[str, str]],
) -> None:
    """What each perspective says about its samples. `modalities`: perspective -> data set -> modality."""
    for name, of_sources in modalities.items():
        facts = PERSPECTIVES[name].facts
        if facts is None:
            continue
        own = [r for r in rejections if r.perspective in (None, name)]
        shards = sorted(data.iterdir())
        rows = (row for path in shards for row in read_rows(path, TEXT_COLUMNS) if row["perspective"] == name)
        add_facts(info, name, facts(rows, own, of_sources))
