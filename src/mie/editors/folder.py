"""Outputs that another program made: a folder of pictures, found by their names.

Names for attempt k of a sample; the first match wins:

    <sample id>_<k>                                the naming of our own runs
    <stem of output_image>_<k>                     a dataset imported from MieDB
    <id>_<k>                                       ... from MedEBench
    <key> (k = 0), <key>_<k>                       ... from ImgEdit
    <dataset>/<sample_id>_<level> (k = 0), ..._<k> ... from Omni IIE
    <sample id>_<colour>_<k>                       a dataset of ours that was exported as MieDB

An import keeps a benchmark's own names in `params["miedb"]` (`output_image`), `params["medebench"]` (`id`),
`params["imgedit"]` (`key`) and `params["omni-iie"]` (`dataset`, `sample_id`, `level`). Any picture suffix is
accepted; of several files with one stem the first suffix in `SUFFIXES` wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mie.editors.base import Edited, EditError, Editor, Request, SampleRef, Turn
from mie.editors.outputs import read_output
from mie.errors import ConfigError
from mie.images.provenance import MARK, read_mark
from mie.records import Pixels

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")


class Folder(Editor):
    """Takes outputs that another program wrote to a folder, by their file names.

    The folder is listed once; names from a dataset never become paths.
    """

    deterministic = True
    generative = False  # whether a model made them is not known; the marks that they have are kept
    thread_safe = True
    workers = None

    def __init__(self, folder: str) -> None:
        self._root = Path(folder).expanduser()
        if not self._root.is_dir():
            raise ConfigError("no such folder", where=folder, expected="a folder with an editor's outputs")
        self._real_root = os.path.realpath(self._root)
        self._files = _listed(self._root)
        if not self._files:
            raise ConfigError(
                "there is no picture in this folder", where=folder, expected=", ".join(SUFFIXES)
            )

    def about(self) -> dict[str, Any]:
        return {"folder": self._real_root, "files": len(self._files)}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        raise EditError("a folder of outputs needs a sample of a dataset", fix="use it with `mie run`")

    def edit_request(self, request: Request) -> Edited:
        if request.sample is None:
            return super().edit_request(request)
        names = list(output_names(request.sample, request.attempt))
        name = next((name for name in names if name in self._files), None)
        if name is None:
            shown = " or ".join(f"{name}.png" for name in names)
            raise EditError("no output in the folder", expected=shown[:300])
        relative = self._files[name]
        path = self._root / relative
        if not os.path.realpath(path).startswith(self._real_root.rstrip(os.sep) + os.sep):
            raise EditError("the output is a link out of the folder", found=relative)
        edited = read_output(path, like=request.image.shape)
        mark = read_mark(path)
        return Edited(edited.image, {"file": relative, **({MARK: mark} if mark else {}), **edited.meta})


def output_names(sample: SampleRef, attempt: int) -> Iterator[str]:
    """The names, without suffix, that attempt `attempt` of a sample may have."""
    yield f"{sample.id}_{attempt}"
    if sample.stem != sample.id:
        yield f"{sample.stem}_{attempt}"
    again = f"_{attempt}" if attempt else ""
    if (names := _strings(sample, "miedb", "output_image")) is not None:
        yield f"{PurePosixPath(names[0]).stem}_{attempt}"
    elif (names := _strings(sample, "medebench", "id")) is not None:
        yield f"{names[0]}_{attempt}"
    elif (names := _strings(sample, "imgedit", "key")) is not None:
        yield f"{names[0]}{again}"
    elif (names := _strings(sample, "omni-iie", "dataset", "sample_id", "level")) is not None:
        yield f"{names[0]}/{names[1]}_{names[2]}{again}"
    elif sample.colour:
        yield f"{sample.stem}_{'multi' if ',' in sample.colour else sample.colour}_{attempt}"


def _strings(sample: SampleRef, benchmark: str, *keys: str) -> list[str] | None:
    """What the import of a benchmark keeps of a sample, where it keeps it all."""
    original = sample.params.get(benchmark)
    if not isinstance(original, Mapping) or not all(isinstance(original.get(key), str | int) for key in keys):
        return None
    return [str(original[key]) for key in keys]


def _listed(root: Path) -> dict[str, str]:
    """Name without suffix -> relative path, of the pictures in the folder and in its sub-folders."""
    ranked: dict[str, tuple[int, str]] = {}
    for relative in _names(root):
        stem, suffix = os.path.splitext(relative)  # noqa: PTH122 (a stem may hold dots and slashes)
        if suffix.lower() in SUFFIXES:
            rank = (SUFFIXES.index(suffix.lower()), relative)
            ranked[stem] = min(rank, ranked.get(stem, rank))
    return {stem: relative for stem, (_, relative) in ranked.items()}


def _names(root: Path) -> Iterator[str]:
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False):
            yield from (f"{entry.name}/{leaf.name}" for leaf in os.scandir(entry) if not leaf.is_dir())
        else:
            yield entry.name
