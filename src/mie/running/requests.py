"""What is left to do of a run, as requests: row groups are read only where something is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mie.editors.base import Request, SampleRef
from mie.errors import MieError
from mie.images.png import decode_png
from mie.recipes.seeds import stable_hash
from mie.running.outputs import as_pixels
from mie.store.dataset import Dataset
from mie.store.exports.target import stem

_COLUMNS: Final = ("id", "prompt", "params", "colour", "input")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A sample whose own images cannot be decoded: its edits fail, with the reason."""

    sample_id: str
    attempt: int
    reason: str


def edit_seed(sample_id: str, attempt: int) -> int:
    """31 bits from what is edited, never from when or where: every run of every editor draws the same."""
    return stable_hash("edit", sample_id, attempt) >> 33


@contextmanager
def reading(dataset: Dataset) -> Iterator[None]:
    """A damaged shard as a `MieError`."""
    try:
        yield
    except (pa.ArrowException, EOFError) as error:
        raise MieError(
            "the dataset cannot be read",
            where=dataset.folder,
            found=error,
            fix="`mie verify` says what is wrong",
        ) from error


def requests(
    dataset: Dataset, split: str | None, todo: dict[str, list[int]], *, needs_target: bool
) -> Iterator[Request | Unreadable]:
    """The attempts in `todo` by sample id, in dataset order. `todo` is emptied on the way."""
    columns = [*_COLUMNS, *(["target_image"] if needs_target else [])]
    for path in dataset.shards(split):
        with reading(dataset), pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                if not todo:
                    return
                ids = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                if todo.keys().isdisjoint(ids):
                    continue
                for row in file.read_row_group(group, columns=columns).to_pylist():
                    if row["id"] in todo:
                        yield from _requests(row, todo.pop(row["id"]))


def _requests(row: dict[str, Any], attempts: list[int]) -> Iterator[Request | Unreadable]:
    try:
        image = as_pixels(decode_png(row["input"]["bytes"]))
        target = row.get("target_image")
        sample = SampleRef(
            id=row["id"],
            stem=stem(row["id"]),
            params=json.loads(row["params"]),
            colour=row["colour"],
            target_image=None if target is None else as_pixels(decode_png(target["bytes"])),
        )
    except (MieError, ValueError, TypeError) as error:
        reason = error.reason if isinstance(error, MieError) else str(error)
        yield from (Unreadable(row["id"], k, f"the sample cannot be read: {reason}") for k in attempts)
        return
    for k in attempts:
        # A copy each: an editor may work in place.
        pixels = image if k == attempts[-1] else image.copy()
        yield Request(pixels, row["prompt"], edit_seed(row["id"], k), k, sample=sample)
