"""A dataset from a stream of samples, in one process: what importers use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from mie.core.documents import DatasetInfo
from mie.core.files import atomic_write, folder_lock
from mie.datasets.card import data_card
from mie.datasets.dataset import clear, refuse_other_files, shard_name, write_info
from mie.datasets.rejected import nothing_kept, write_rejected
from mie.datasets.schema import RowEncoder, ShardWriter, has_references, read_rows
from mie.datasets.stats import Tally
from mie.errors import MieError
from mie.records import Rejection, Sample
from mie.vocabulary import SPLITS

ROWS_PER_SHARD: Final = 256


def write_dataset(
    samples: Iterable[Sample | Rejection | Mapping[str, Any]],
    folder: Path,
    *,
    name: str,
    description: str,
    recipe: Mapping[str, Any],
    licenses: Mapping[str, Mapping[str, str]],
    deidentified: bool,
) -> DatasetInfo:
    """Write the samples to `folder` in the order they come (per split) and return what `dataset.json` says.

    A sample may come as the row of another dataset, whose images are not encoded again. Samples are taken one
    at a time, so a generator keeps memory flat. Rejections go to `rejected.parquet`; so
    does a sample whose id was there before. After any error, and where no sample was kept, the folder holds
    no dataset, and the same call may be made again.
    """
    _refuse_occupied(folder)  # before the lock, which would leave its file in a folder that is not ours
    with folder_lock(folder):
        _refuse_occupied(folder)
        clear(folder)
        parts, data = folder / "parts", folder / "data"
        parts.mkdir()
        data.mkdir()
        try:
            tally, rejections, counts = _write_parts(samples, parts)
            shards = {
                _part(parts, split, number): data / shard_name(split, number, count)
                for split, count in counts.items()
                for number in range(count)
            }
            wide = any(map(has_references, shards))  # then every shard has the column
            for part, shard in shards.items():
                if wide and not has_references(part):
                    _widen(part)
                part.replace(shard)
            write_rejected(folder / "rejected.parquet", rejections)
            info = tally.info(
                name=name,
                description=description,
                recipe=recipe,
                licenses=licenses,
                deidentified=deidentified,
            )
            atomic_write(folder / "README.md", data_card(info))
        except BaseException:
            clear(folder)
            raise
        if not info["counts"]["samples"]:
            clear(folder)
            write_rejected(folder / "rejected.parquet", rejections)
            raise nothing_kept(folder, rejections, "put it right and run the same command again")
        write_info(folder, info)
        parts.rmdir()
    return info


def _write_parts(
    samples: Iterable[Sample | Rejection | Mapping[str, Any]], parts: Path
) -> tuple[Tally, list[Rejection], dict[str, int]]:
    """The shards under names without their count, which is known only at the end."""
    tally, encoder = Tally(), RowEncoder()
    rejections: list[Rejection] = []
    counts = dict.fromkeys(SPLITS, 0)
    seen: set[str] = set()
    with ExitStack() as stack:
        shelves = {split: stack.enter_context(ExitStack()) for split in SPLITS}
        writers: dict[str, ShardWriter] = {}
        for sample in samples:
            if isinstance(sample, Rejection):
                rejections.append(sample)
                tally.refuse(sample.gate)
                continue
            row = encoder.row(sample)[0] if isinstance(sample, Sample) else dict(sample)
            if row["id"] in seen:
                reason = f"another sample has the id {row['id']}"
                rejection = Rejection(row["source"], row["case_id"], "duplicate", reason, row["target"])
                rejections.append(rejection)
                tally.refuse(rejection.gate)
                continue
            seen.add(row["id"])
            split = row["split"]
            if split not in writers or writers[split].rows == ROWS_PER_SHARD:
                shelves[split].close()  # ends the full shard; its shelf is empty and serves the next one
                writers[split] = shelves[split].enter_context(ShardWriter(_part(parts, split, counts[split])))
                counts[split] += 1
            writers[split].write(row)
            tally.keep(row)
    return tally, rejections, counts


def _widen(path: Path) -> None:
    with ShardWriter(path, wide=True) as writer:
        for row in read_rows(path):
            writer.write(row)


def _part(parts: Path, split: str, number: int) -> Path:
    return parts / f"{split}-{number:05d}.parquet"


def _refuse_occupied(folder: Path) -> None:
    """Never write over a dataset, an unfinished build, or anything that we did not make."""
    dataset, build = (folder / "dataset.json").exists(), (folder / "parts/plan").exists()
    if dataset or build:
        raise MieError(
            "the output folder is taken",
            where=folder,
            expected="a new folder",
            found="a dataset" if dataset else "an unfinished build",
            fix="choose another folder",
        )
    refuse_other_files(folder)
