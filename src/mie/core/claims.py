"""Whose folder is this: datasets are only ever written into new folders, or over what we wrote ourselves."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from mie.errors import MieError

_FILES: Final = ("dataset.json", "README.md", "rejected.parquet")
_TEMPORARY: Final = r"\..*\.tmp"
# Our folders and what we put into them.
_FOLDERS: Final = {
    "data": re.compile(rf"(train|val|test)-\d{{5}}-of-\d{{5}}\.parquet|{_TEMPORARY}"),
    "parts": re.compile(rf"plan|(train|val|test)-\d{{5}}\.parquet|\d{{5}}\.[a-z]+\.parquet|{_TEMPORARY}"),
    "stats": re.compile(rf"[a-z]+\.png|{_TEMPORARY}"),
    "judge": re.compile(r".+\.jsonl|\.lock|part-\d{5}"),
}
# What a judge was asked about the samples. It was paid for and is found by its content: never removed.
_KEPT: Final = ("judge",)


def refuse_foreign(folder: Path) -> None:
    """Raise unless `folder` is absent, empty, or holds a dataset or an unfinished one and nothing else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise MieError("the output is not a folder", where=folder, expected="a new folder", found="a file")
    ours = any((folder / name).is_dir() for name in ("data", "parts"))
    strange = []
    for path in folder.iterdir():
        if path.name in _FOLDERS and path.is_dir():
            inside = (leaf.name for leaf in path.iterdir())
            strange += [f"{path.name}/{leaf}" for leaf in inside if not _FOLDERS[path.name].fullmatch(leaf)]
        # A README of somebody else's stands in many folders; ours stands beside our shards.
        elif not (
            (path.name in _FILES and ours) or path.name == ".lock" or re.fullmatch(_TEMPORARY, path.name)
        ):
            strange.append(path.name)
    if strange:
        raise MieError(
            "the output folder holds something else",
            where=folder,
            expected="a new folder, or one with a dataset of ours",
            found=", ".join(sorted(strange)[:5]),
            fix="choose another folder",
        )


def clear(folder: Path) -> None:
    """Remove our files from a folder that `refuse_foreign` has accepted."""
    # The marker goes first: a folder without it is never taken for a finished dataset.
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS.keys() - set(_KEPT):
        shutil.rmtree(folder / name, ignore_errors=True)
