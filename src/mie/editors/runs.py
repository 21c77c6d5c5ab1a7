"""A run on disk: what `run.json` says, the lines of `edits.jsonl`, and where each output lies."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write, refuse_foreign
from mie.core.hashing import file_stem
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.records import Edit

SCHEMA_VERSION: Final = 1
STATES: Final = ("done", "failed")
_LEFT: Final = re.compile(r"\.lock|\..*\.tmp")  # of a run that was killed before it had begun


class Run:
    """A run folder: finished, or as far as it has come."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder = folder
        self.info = info

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        folder = Path(folder)
        path = folder / "run.json"
        if not path.is_file():
            raise MieError(
                "no run here", where=folder, expected="a folder with run.json", fix="check the path"
            )
        try:
            info = json.loads(path.read_text(encoding="utf-8"))
            version = info.get("schema_version")
        except (ValueError, AttributeError) as error:
            raise MieError("run.json is not a JSON object", where=path, found=error) from None
        if version != SCHEMA_VERSION:
            raise MieError(
                "run of another schema version",
                where=path,
                expected=SCHEMA_VERSION,
                found=version,
                fix="read it with the version of mie that wrote it",
            )
        return cls(folder, info)

    @property
    def attempts(self) -> int:
        return int(self.info["config"]["attempts"])

    @property
    def complete(self) -> bool:
        return bool(self.info["status"] == "complete")

    def dataset(self, folder: Path | str | None = None) -> Dataset:
        """The dataset that was edited: at `folder`, where it was, or where it lies from here.

        Refused when it is not the very same dataset.
        """
        known = self.info["dataset"]
        beside = Path(os.path.normpath(self.folder.absolute() / known["relative_path"]))
        places = [Path(folder)] if folder is not None else [Path(known["path"]), beside]
        place = next((p for p in places if (p / "dataset.json").is_file()), None)
        if place is None:
            raise MieError(
                "the run's dataset is not there",
                where=self.folder,
                expected=f"{known['name']}, digest {known['digest'][:16]}",
                found="nothing at " + " or ".join(dict.fromkeys(map(str, places))),
                fix="move it back to one of these places" if folder is None else "check the path",
            )
        dataset = Dataset(place)
        if dataset.digest != known["digest"]:
            raise MieError(
                "the dataset has changed since the run",
                where=place,
                expected=f"digest {known['digest'][:16]}",
                found=f"digest {dataset.digest[:16]}",
                fix="run the editor again into a new folder",
            )
        return dataset

    def sample_ids(self, dataset: Dataset | None = None) -> list[str]:
        """The samples that the run is about, in dataset order."""
        config = self.info["config"]
        return chosen_ids(dataset or self.dataset(), split=config["split"], limit=config["limit"])

    def output_path(self, sample_id: str, attempt: int) -> Path:
        return self.folder / output_name(sample_id, attempt)

    def edits(self) -> dict[tuple[str, int], Edit]:
        """The last word on each (sample id, attempt). A line that is being written is not yet there."""
        return read_edits(self.folder / "edits.jsonl")


def chosen_ids(dataset: Dataset, *, split: str | None, limit: int | None) -> list[str]:
    """The ids of a split (None: all) in dataset order, at most `limit` of them."""
    return list(islice(dict.fromkeys(dataset.table(["id"], split)["id"]), limit))


def output_name(sample_id: str, attempt: int) -> str:
    """Relative to the run's folder. The id itself, or a digest of it where it is no safe file name."""
    return f"outputs/{file_stem(sample_id)}_{attempt}.png"


def edit_line(edit: Edit) -> bytes:
    """One line of `edits.jsonl`."""
    body = {name: getattr(edit, name) for name in Edit.__slots__}
    return json.dumps(plain(body), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def read_edits(path: Path) -> dict[tuple[str, int], Edit]:
    """Every edit of an `edits.jsonl`, the later of two lines for the same attempt. No file: no edits."""
    found: dict[tuple[str, int], Edit] = {}
    if not path.exists():
        return found
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break  # torn by a kill, or being written right now
            edit = _edit(line, where=f"{path}:{number}")
            found[edit.sample_id, edit.attempt] = edit
    return found


def _edit(line: bytes, *, where: str) -> Edit:
    try:
        body = json.loads(line)
        size = body.pop("size", None)
        edit = Edit(**body, size=None if size is None else (int(size[0]), int(size[1])))
        sound = (
            isinstance(edit.sample_id, str)
            and isinstance(edit.attempt, int)
            and edit.state in STATES
            and (edit.state == "failed" or edit.path == output_name(edit.sample_id, edit.attempt))
        )
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        sound = False
    if not sound:
        raise MieError(
            "not a line of a run", where=where, expected="the fields of an edit", found=repr(line[:200])
        )
    return edit


def refuse_other_files(folder: Path) -> None:
    """Raise unless `folder` is absent, empty, or a run's."""
    known = (folder / "run.json").is_file()
    refuse_foreign(folder, "a run", lambda path: known or _LEFT.fullmatch(path.name) is not None)


def write_run_info(folder: Path, info: Mapping[str, Any]) -> None:
    body = {"schema_version": SCHEMA_VERSION, **info}
    atomic_write(folder / "run.json", json.dumps(plain(body), indent=2, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """The value in JSON's own types; numbers that are not finite become "inf", "-inf" and "nan".

    What an editor wants remembered may hold NumPy numbers, paths, anything: what JSON has no word for
    becomes text.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # a NumPy number or array
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    # Half of a surrogate pair (a file name in another encoding) has no place in UTF-8.
    return str(value).encode(errors="replace").decode()


def read_run(folder: Path | str) -> Run:
    """The run in `folder`."""
    return Run.open(folder)
