"""The datasets that a config names are proved before any GPU is touched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mie.errors import MieError
from mie.training.config import TrainConfig

Show = Callable[[str], None]


def dataset_folders(config: TrainConfig) -> dict[str, Path]:
    """Every string below `data` that is the path of a dataset's folder, as the file has it."""
    paths = {text: config.path(text) for text in sorted(set(_strings(config.data)))}
    return {text: path for text, path in paths.items() if (path / "dataset.json").is_file()}


def check_datasets(
    config: TrainConfig, known: Mapping[str, Any], show: Show = lambda _: None
) -> dict[str, Any]:
    """Name, digest and count of each dataset; one that fails `mie verify` is refused.

    `known` is an earlier result: a dataset whose files are the same since then is not decoded again.
    """
    facts = {}
    for text, folder in dataset_folders(config).items():
        from mie.store.dataset import Dataset

        dataset = Dataset(folder)
        files = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in dataset.shards()]
        fact = {
            "name": dataset.name,
            "digest": dataset.digest,
            "samples": len(dataset),
            "files": hashlib.sha256(repr(files).encode()).hexdigest(),
        }
        if known.get(text) != fact:
            show(f"verifying {folder}")
            _verify(folder)
        facts[text] = fact
    return facts


def _verify(folder: Path) -> None:
    from mie.building.verify import verify

    result = verify(folder)
    if not result.ok:
        first = result.problems[0]
        raise MieError(
            "the dataset fails `mie verify`",
            where=folder,
            found=f"{len(result.problems)} problems, the first: {first.check}, {first.where}: {first.reason}",
            fix=f"run `mie verify {folder}` to see all of them, and build the dataset again",
        )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
