"""A scored run as the report needs it: small columns of numbers, read line by line from its files."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.scoring.table import ScoreTable, Selected, read_score_table

PROTOCOL: Final = "miedb"
_NOTHING: Final[dict[str, Any]] = {"groups": [{"group": {}, "metrics": {}}]}


@dataclass(frozen=True, slots=True)
class Cell:
    """One mean of a summary: over `n` samples, with `unscored` more that the metric applies to."""

    mean: float
    low: float
    high: float
    n: int
    unscored: int
    capped: int = 0  # of the n, exact matches that count as the highest PSNR
    missing: int = 0  # of the n, samples without an output that count 0 (`as_released`)

    @property
    def coverage(self) -> str:
        return f"{self.n:,}/{self.n + self.unscored:,}"

    @property
    def notes(self) -> list[str]:
        """What else a reader of the mean must know."""
        found = ((self.capped, "exact"), (self.missing, "missing, as 0"))
        return [f"{count:,} {what}" for count, what in found if count]


@dataclass(frozen=True, slots=True)
class Drifted:
    """An output that was shifted, zoomed or cropped against its input."""

    sample_id: str
    attempt: int
    dx: float
    dy: float
    scale: float


@dataclass(slots=True)
class ScoredRun:
    """A run with the scores of one variant. `values[metric]` is (samples, attempts), NaN where absent."""

    folder: Path
    name: str
    info: dict[str, Any]
    summary: dict[str, Any]
    ids: list[str]
    values: dict[str, NDArray[np.float64]]
    unscored: Counter[tuple[str, str]]  # (metric, reason) -> attempts
    unscored_samples: int  # with something unscored in any attempt
    drifted: list[Drifted]
    drift_checked: int
    failures: Counter[str]  # reason -> attempts
    edits: int
    stale: bool  # edits were made after the scores
    _table: ScoreTable | None = None

    @property
    def digest(self) -> str:
        return str(self.info["dataset"]["digest"])

    @property
    def cells(self) -> dict[str, Cell]:
        """`dice@1` and so on over all samples."""
        return self.groups(())[()]

    def groups(self, keys: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, Cell]]:
        """The summary's groups that are cut by exactly these keys: values -> `dice@1` -> cell."""
        found = {}
        for group in self.summary["groups"]:
            if set(group["group"]) == set(keys):
                cells = {name: cell_of(numbers) for name, numbers in group["metrics"].items()}
                found[tuple(str(group["group"][key]) for key in keys)] = cells
        return found

    def first(self, metric: str) -> NDArray[np.float64]:
        """Each sample's pass@1 value, as its mean counts it; NaN where unscored."""
        return self._selected(metric).values

    def first_attempt(self, metric: str) -> NDArray[np.intp]:
        """Which attempt `first` took."""
        return self._selected(metric).attempts

    def _selected(self, metric: str) -> Selected:
        path = self.folder / "scores" / f"{PROTOCOL}.{self.summary['variant']}.jsonl"
        self._table = self._table or read_score_table(path)
        return self._table.select(metric, 1)

    def dataset(self) -> Dataset:
        """The dataset the run was made on; `MieError` where it is gone or has changed since."""
        known = self.info["dataset"]
        stated, beside = Path(known["path"]), self.folder / known.get("relative_path", known["path"])
        found = Dataset(stated if stated.exists() else beside)
        if found.digest != self.digest:
            raise MieError(
                "the dataset is not the one this run was made on",
                where=found.folder,
                expected=f"digest {self.digest[:16]}",
                found=found.digest[:16],
            )
        return found


def read_runs(folders: Sequence[Path], variant: str) -> list[ScoredRun]:
    """The runs, scored by `variant`, with names that tell them apart."""
    runs = [_read_run(Path(folder), variant) for folder in folders]
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            for run in runs:
                if run.name == name:
                    run.name = f"{name} ({run.folder.resolve().name})"
    for at, run in enumerate(runs):
        if run.name in {other.name for other in runs[:at]}:
            run.name = f"{run.name} #{at + 1}"
    return runs


def _read_run(folder: Path, variant: str) -> ScoredRun:
    info = read_document(folder / "run.json", fix="give the folder that `mie run` wrote")
    name = f"{PROTOCOL}.{variant}"
    place, fix = folder / "summary" / f"{name}.json", f"run `mie score {folder} --variant {variant}` first"
    judged_alone = _scored_otherwise(folder, variant)
    summary = _NOTHING | {"variant": variant} if judged_alone else read_document(place, fix=fix)
    run = ScoredRun(
        folder=folder,
        name=str(info["editor"].get("name") or info["editor"].get("spec") or folder.name),
        info=info,
        summary=summary,
        ids=[],
        values={},
        unscored=Counter(),
        unscored_samples=0,
        drifted=[],
        drift_checked=0,
        failures=Counter(),
        edits=0,
        stale=False,
    )
    if judged_alone:
        _read_failures(run)
        return run
    scores = folder / "scores" / f"{name}.jsonl"
    lines = _lines(scores, fix=fix)
    header = next(lines, {})
    for what, found, expected in (
        ("variant", header.get("variant"), variant),
        ("variant", summary.get("variant"), variant),
        ("dataset_digest", header.get("dataset_digest"), run.digest),
    ):
        if found != expected:
            raise MieError(
                "scores of something else", where=scores, expected=f"{what} {expected}", found=found
            )
    _read_scores(run, lines)
    _read_failures(run)
    run.stale = header.get("edits_sha256") != sha256_of(folder / "edits.jsonl")
    return run


def _scored_otherwise(folder: Path, variant: str) -> bool:
    """The run has no scores by MieDB, but some by another protocol: it is shown there alone."""
    there = {path.name.removesuffix(f".{variant}.json") for path in folder.glob(f"summary/*.{variant}.json")}
    return bool(there) and PROTOCOL not in there


def _read_scores(run: ScoredRun, lines: Iterator[dict[str, Any]]) -> None:
    columns: dict[str, array[float]] = {}  # row, attempt, value; row, attempt, value; ...
    attempts = 1
    for row, line in enumerate(lines):
        run.ids.append(line["id"])
        run.unscored_samples += any(attempt.get("unscored") for attempt in line["attempts"])
        for attempt in line["attempts"]:
            k = int(attempt["k"])
            attempts = max(attempts, k + 1)
            for metric, value in attempt["metrics"].items():
                columns.setdefault(metric, array("d")).extend((row, k, float(value)))
            for metric, reason in attempt.get("unscored", {}).items():
                run.unscored[sys.intern(metric), sys.intern(str(reason))] += 1
            drift = attempt.get("drift")
            if drift:
                run.drift_checked += 1
                if drift["flag"]:
                    shift = (float(drift["dx"]), float(drift["dy"]), float(drift["scale"]))
                    run.drifted.append(Drifted(line["id"], k, *shift))
    for metric, cells in columns.items():
        table = np.full((len(run.ids), attempts), np.nan)
        rows, ks, values = np.frombuffer(cells).reshape(-1, 3).T
        table[rows.astype(np.intp), ks.astype(np.intp)] = values
        run.values[metric] = table


def _read_failures(run: ScoredRun) -> None:
    path = run.folder / "edits.jsonl"
    if not path.exists():
        return  # not one edit was made yet
    last: dict[tuple[str, int], str | None] = {}  # a later line for the same attempt wins
    for line in _lines(path, fix="give the folder that `mie run` wrote"):
        failed = line["state"] == "failed"
        last[line["sample_id"], int(line["attempt"])] = str(line.get("reason")) if failed else None
    run.edits = len(last)
    run.failures = Counter(reason for reason in last.values() if reason is not None)


def sha256_of(path: Path) -> str:
    """Of the file's bytes; of none where there is no file."""
    if not path.exists():
        return hashlib.sha256(b"").hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cell_of(numbers: Mapping[str, Any]) -> Cell:
    """A summary's entry."""
    low, high = (_number(end) for end in numbers.get("ci95") or (None, None))
    counts = (int(numbers.get(name, 0)) for name in ("n", "unscored", "capped", "missing"))
    return Cell(_number(numbers["mean"]), low, high, *counts)


def _number(value: Any) -> float:
    """A number of a JSON document; "inf" and "nan" are written as text there, no number as null."""
    return math.nan if value is None else float(value)


def read_document(path: Path, *, fix: str) -> dict[str, Any]:
    """A file with one JSON object; `MieError` with `fix` for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MieError("file is missing", where=path, fix=fix) from None
    except ValueError as error:
        raise MieError("not a JSON document", where=path, found=error, fix=fix) from None
    if not isinstance(found, dict):
        raise MieError("not a JSON object", where=path, found=type(found).__name__, fix=fix)
    return found


def _lines(path: Path, *, fix: str) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    if not line.endswith("\n"):
                        return  # the run was killed while it wrote its last line
                    where = f"{path}, line {number}"
                    raise MieError("not a JSON line", where=where, found=error, fix=fix) from None
    except FileNotFoundError:
        raise MieError("file is missing", where=path, fix=fix) from None
