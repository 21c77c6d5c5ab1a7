"""A run on disk: `run.json`, the lines of `edits.jsonl`, and the files in `outputs/`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from mie.core.documents import plural, read_document, write_document
from mie.core.files import refuse_foreign
from mie.core.hashing import file_stem
from mie.core.storage import local
from mie.datasets.dataset import Dataset, Where
from mie.errors import MieError
from mie.records import Edit

SCHEMA_VERSION: Final = 1
STATES: Final = ("done", "failed", "refused")  # a refused edit was declined by the model's provider
_REMARK: Final = 1000  # characters that are shown


class Run:
    """The folder of a run, finished or not."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder = folder
        self.info = info

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        counts = self.info["counts"]
        # Runs of earlier versions count no refusals.
        others = "".join(f", {counts[state]:,} {state}" for state in STATES[1:] if counts.get(state))
        return (
            f"{self.info['editor']['spec']} on {self.info['dataset']['name']}: "
            f"{plural(counts['done'], 'edit')} of {plural(counts['samples'], 'sample')}{others}, "
            f"{self.info['status']}, in {self.folder}"
        )

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """Open the run in `folder`, which may be a URL."""
        folder = local(folder)
        return cls(folder, read_document(folder / "run.json", "run", version=SCHEMA_VERSION))

    @property
    def attempts(self) -> int:
        return int(self.info["config"]["attempts"])

    @property
    def complete(self) -> bool:
        return bool(self.info["status"] == "complete")

    def dataset(self, folder: Path | str | None = None) -> Dataset:
        """The dataset that was edited: in `folder`, at its recorded path, or at its path relative to the run.

        `MieError` where it is gone, or has changed since.
        """
        recorded = self.info["dataset"]
        places = [local(recorded["path"] if folder is None else folder)]
        if folder is None:
            places.append(Path(os.path.normpath(self.folder.absolute() / recorded["relative_path"])))
        place = next((p for p in places if (p / "dataset.json").is_file()), None)
        if place is None:
            raise MieError(
                "the dataset of this run is not there",
                where=self.folder,
                expected=f"{recorded['name']}, digest {recorded['digest'][:16]}",
                found=f"no dataset at {places[0]}",
                fix=f"move it back, or put a link to it at {places[0]}",
            )
        dataset = Dataset(place)
        if dataset.digest != recorded["digest"]:
            raise MieError(
                "the dataset has changed since the run",
                where=place,
                expected=f"digest {recorded['digest'][:16]}",
                found=f"digest {dataset.digest[:16]}",
                fix="run the editor again into a new folder",
            )
        return dataset

    def sample_ids(self, dataset: Dataset | None = None) -> list[str]:
        """The samples that the run edits, in dataset order."""
        config = self.info["config"]
        return chosen_ids(
            self.dataset() if dataset is None else dataset,
            split=config["split"],
            limit=config["limit"],
            where=config.get("where"),
        )

    def output_path(self, sample_id: str, attempt: int) -> Path:
        """Where an attempt's output is, if it has one."""
        return self.folder / output_name(sample_id, attempt)

    def edits(self) -> dict[tuple[str, int], Edit]:
        """The latest edit for each (sample id, attempt). A line that is still being written is left out."""
        return read_edits(self.folder / "edits.jsonl")


def chosen_ids(
    dataset: Dataset, *, split: str | None, limit: int | None, where: Where | None = None
) -> list[str]:
    """The ids of a split (None: all) that pass the filters, in dataset order, at most `limit` of them."""
    filters = {name: set(values) for name, values in (where or {}).items()}
    columns = dataset.table(["id", *(name for name in filters if name != "id")], split)
    rows = zip(*(columns[name] for name in filters), strict=True) if filters else [()] * len(columns["id"])
    ids = (
        sample_id
        for sample_id, row in zip(columns["id"], rows, strict=True)
        if all(value in allowed for value, allowed in zip(row, filters.values(), strict=True))
    )
    return list(islice(dict.fromkeys(ids), limit))


def output_name(sample_id: str, attempt: int) -> str:
    """An output's path in the run's folder: the id, or a digest of it where it is no safe file name."""
    return f"outputs/{file_stem(sample_id)}_{attempt}.png"


def edit_line(edit: Edit) -> bytes:
    """One line of `edits.jsonl`."""
    body = {name: getattr(edit, name) for name in Edit.__slots__}
    return json.dumps(plain(body), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def read_edits(path: Path) -> dict[tuple[str, int], Edit]:
    """Every edit of an `edits.jsonl`, the later of two lines for the same attempt; none without the file."""
    edits: dict[tuple[str, int], Edit] = {}
    if not path.exists():
        return edits
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break  # torn by a kill, or being written right now
            edit = _edit(line, where=f"{path}:{number}")
            edits[edit.sample_id, edit.attempt] = edit
    return edits


def _edit(line: bytes, *, where: str) -> Edit:
    try:
        body = json.loads(line)
        size = body.pop("size", None)
        edit = Edit(**body, size=None if size is None else (int(size[0]), int(size[1])))
        valid = (
            isinstance(edit.sample_id, str)
            and isinstance(edit.attempt, int)
            and edit.state in STATES
            and (edit.state != "done" or edit.path == output_name(edit.sample_id, edit.attempt))
        )
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        valid = False
    if not valid:
        raise MieError("not an edit", where=where, expected="the fields of an edit", found=repr(line[:200]))
    return edit


def refuse_other_files(folder: Path) -> None:
    """Raise unless `folder` is absent, empty, or holds a run."""
    is_run = (folder / "run.json").is_file()
    refuse_foreign(folder, "a run", lambda _: is_run)


def write_run_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Write `run.json`."""
    write_document(folder / "run.json", plain({"schema_version": SCHEMA_VERSION, **info}))


def plain(value: Any) -> Any:
    """The value in JSON's own types; numbers that are not finite become "inf", "-inf" and "nan".

    An editor's `meta` may hold NumPy numbers, paths, anything: what JSON cannot express becomes text.
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
    # Half of a surrogate pair (a file name in another encoding) cannot be written in UTF-8.
    return str(value).encode(errors="replace").decode()


def remarks(meta: Mapping[str, Any]) -> list[str]:
    """What an editor's `meta` says that people should know: how it was understood, and its doubts.

    A remote editor may put anything there: what is no text is left out, control characters are replaced.
    """
    lines = []
    parse = meta.get("parse")
    if isinstance(parse, Mapping):
        targets = parse.get("targets")
        names = (
            [_requested(t) for t in targets if isinstance(t, Mapping)] if isinstance(targets, list) else []
        )
        lines.append(f"understood as: {parse.get('operation')}{': ' if names else ''}{', '.join(names)}")
        unknown = parse.get("unknown")
        if isinstance(unknown, list) and unknown:
            lines.append(f"not known: {', '.join(map(str, unknown))}")
    for key, title in (("taken_for", "taken for"), ("note", "note")):
        if isinstance(meta.get(key), str):
            lines.append(f"{title}: {meta[key]}")
    return ["".join(c if c.isprintable() else "?" for c in line)[:_REMARK] for line in lines]


def _requested(target: Mapping[str, Any]) -> str:
    name, side, colour = (target.get(key) for key in ("name", "side", "colour"))
    where = f"{side} " if side and not str(name).startswith(str(side)) else ""
    return f"{where}{name}" + (f" in {colour}" if colour else "")


def read_run(folder: Path | str) -> Run:
    """Open the run in `folder`."""
    return Run.open(folder)
