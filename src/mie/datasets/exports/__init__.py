"""Datasets in the layouts that others read.

>>> sorted(FORMATS)
['folder', 'miedb', 'omnigen2', 'webdataset']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mie.datasets.dataset import Dataset
from mie.datasets.exports import folder as plain
from mie.datasets.exports import miedb, omnigen2, webdataset
from mie.datasets.exports.target import ExportFolder, Row, claimed
from mie.errors import ConfigError, MieError
from mie.vocabulary import SPLITS, nearest_name

# Each takes rows in dataset order (so the rows of a split stand together) and the folder to fill.
FORMATS: Final[dict[str, Callable[[Iterable[Row], ExportFolder], None]]] = {
    "folder": plain.write,
    "miedb": miedb.write,
    "omnigen2": omnigen2.write,
    "webdataset": webdataset.write,
}


def export(
    dataset: Dataset,
    folder: Path,
    format: str,
    *,
    split: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the dataset, or one split of it, to `folder`; returns the number of samples.

    PNG files are copied from the shards as they are. `folder` must be new, or hold the same export (whole or
    interrupted), which is then written again to the same bytes. `progress` gets (done, total).
    """
    if format not in FORMATS:
        raise _unknown("export format", format, FORMATS)
    if split is not None and split not in SPLITS:
        raise _unknown("split", split, SPLITS)
    counts = dataset.info["counts"]["by_split"]
    total = sum(counts.values()) if split is None else counts.get(split, 0)
    if not total:
        raise MieError(
            "there is nothing to export",
            where=dataset.folder,
            expected="samples" if split is None else f"samples in the split {split!r}",
            found=", ".join(f"{name}: {n}" for name, n in counts.items()) or "an empty dataset",
        )
    with claimed(Path(folder), dataset, format, split) as out:
        FORMATS[format](_whole(dataset, split, total, progress or (lambda done, total: None)), out)
    return int(total)


def _whole(
    dataset: Dataset, split: str | None, total: int, progress: Callable[[int, int], None]
) -> Iterator[dict[str, Any]]:
    done = 0
    for row in dataset.rows(split):
        yield row
        done += 1
        progress(done, total)
    if done != total:
        raise MieError(
            "the dataset is not whole",
            where=dataset.folder,
            expected=f"{total} samples",
            found=done,
            fix="`mie verify` says what is missing",
        )


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    near = nearest_name(name, known)
    fix = f"did you mean {near!r}?" if near else None
    return ConfigError(f"unknown {what} {name!r}", expected=", ".join(known), fix=fix)


__all__ = ["FORMATS", "export"]
