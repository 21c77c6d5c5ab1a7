"""Datasets in the layouts that others read.

>>> FORMATS.names()
['folder', 'miedb', 'omnigen2', 'webdataset']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mie.core.registry import Registry, unknown_name
from mie.datasets.dataset import Dataset
from mie.datasets.exports.target import ExportFolder, Row, claimed
from mie.datasets.schema import row_errors
from mie.errors import MieError
from mie.vocabulary import SPLITS

# Each takes rows in dataset order (so the rows of a split stand together) and the folder to fill.
FORMATS: Final[Registry[Callable[[Iterable[Row], ExportFolder], None]]] = Registry(
    "export format",
    {
        "folder": "mie.datasets.exports.layouts:write_folder",
        "miedb": "mie.datasets.exports.miedb:write",
        "omnigen2": "mie.datasets.exports.layouts:write_omnigen2",
        "webdataset": "mie.datasets.exports.layouts:write_webdataset",
    },
    group="mie.exports",
)


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
    write = FORMATS[format]
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    counts = dataset.info["counts"]["by_split"]
    total = sum(counts.values()) if split is None else counts.get(split, 0)
    if not total:
        raise MieError(
            "there is nothing to export",
            where=dataset.folder,
            expected="samples" if split is None else f"samples in the split {split!r}",
            found=", ".join(f"{name}: {n}" for name, n in counts.items()) or "an empty dataset",
        )
    with claimed(Path(folder), dataset, format, split) as out, row_errors(dataset.folder):
        write(_whole(dataset, split, total, progress or (lambda done, total: None)), out)
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


__all__ = ["FORMATS", "export"]
