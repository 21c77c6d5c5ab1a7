"""Scored runs as the report needs them: the only module here that reads score files."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.files import digest
from mie.core.storage import local
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.report.layouts import Layout, layout_of, ordered
from mie.scoring.clusters import Clusters, patients_in_words
from mie.scoring.metric import Metric
from mie.scoring.results import NO_OUTPUT, ScoreTable, judges_differ, read_score_table, split_key
from mie.scoring.statistics.compare import Comparison, compare_runs

_NO_EDITS: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes


@dataclass(frozen=True, slots=True)
class Support:
    """The patients that a number rests on, and the images whose patient is unknown."""

    patients: int
    images: int

    @classmethod
    def of(cls, clusters: Clusters) -> Support:
        return cls(clusters.patients, clusters.unknown)

    def __str__(self) -> str:
        return patients_in_words(self.patients, self.images)


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
    support: Support | None = None  # of the n; None where the samples are not known
    no_interval: str = ""  # why there is none

    @property
    def coverage(self) -> str:
        return f"{self.n:,}/{self.n + self.unscored:,}"

    @property
    def notes(self) -> list[str]:
        """What else a reader of the mean must know."""
        found = ((self.capped, "exact"), (self.missing, "missing, as 0"))
        words = [str(self.support)] if self.n and self.support else []
        return words + [f"{count:,} {what}" for count, what in found if count]


@dataclass(frozen=True, slots=True)
class Drift:
    """An output that was shifted, zoomed or cropped against its input."""

    sample_id: str
    attempt: int
    dx: float
    dy: float
    scale: float


@dataclass(slots=True)
class Samples:
    """The score file behind a summary."""

    path: Path
    table: ScoreTable
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # (metric, reason) -> attempts
    unscored: int = 0  # samples with something unscored in any attempt
    drifted: list[Drift] = field(default_factory=list)
    drift_checked: int = 0
    _codes: dict[str, tuple[dict[str, int], NDArray[np.intp]]] = field(default_factory=dict)

    def first(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return each sample's pass@1, NaN where it has none, and the attempt that it comes from."""
        table = self.table
        attempts = np.zeros(len(table.ids), np.intp)
        if table.header["variant"] == "as_released":
            attempts = np.asarray((~table.absent).argmax(axis=1), np.intp)
        selected = table.select(name, 1)
        return np.where(selected.scored, selected.values, np.nan), attempts

    def rows(self, group: Mapping[str, str]) -> NDArray[np.bool_]:
        """Return which samples are in a group of the summary."""
        inside = np.ones(len(self.table.ids), np.bool_)
        for key, value in group.items():
            if key not in self._codes:  # numbers compare faster than names
                names, codes = np.unique(self.table.groups[key], return_inverse=True)
                self._codes[key] = {str(name): at for at, name in enumerate(names)}, codes
            numbers, codes = self._codes[key]
            inside &= codes == numbers.get(str(value), -1)
        return inside

    def support(self, rows: NDArray[np.bool_]) -> Support:
        return Support.of(self.table.clusters[rows])


@dataclass(slots=True)
class Scores:
    """One run by one benchmark: its summary and, where there is a score file, its samples."""

    benchmark: str
    document: Mapping[str, Any]
    samples: Samples | None
    stale: bool  # edits were made after the scores
    groups: list[tuple[dict[str, str], dict[str, Cell]]] = field(init=False)  # group, `dice@1` -> cell

    def __post_init__(self) -> None:
        known = self._supports()
        self.groups = [
            ({key: str(value) for key, value in item["group"].items()}, _cells(item["metrics"], supports))
            for item, supports in zip(self.document["groups"], known, strict=True)
        ]

    @property
    def judge(self) -> Mapping[str, Any] | None:
        return self.document.get("judge")

    @property
    def cells(self) -> dict[str, Cell]:
        """`dice@1` and so on over all samples."""
        return next((cells for group, cells in self.groups if not group), {})

    def by(self, key: str) -> dict[str, dict[str, Cell]]:
        """Return the groups that are cut by this key alone: value -> `dice@1` -> cell."""
        return {group[key]: cells for group, cells in self.groups if list(group) == [key]}

    def entry(self, name: str) -> Cell | None:
        """Return a mean that stands at the top of the summary; None where it rests on nothing."""
        found = self.document.get(name)
        return cell_of(found) if found and found["n"] + found["unscored"] else None

    def _supports(self) -> Iterator[dict[str, Support]]:
        samples = self.samples
        if samples is None:
            yield from ({} for _ in self.document["groups"])
            return
        keys = [f"{name}@{k}" for name, k in samples.table.keys]
        scored = {key: samples.table.select(*split_key(key)).scored for key in keys}
        for item in self.document["groups"]:
            rows = samples.rows(item["group"])
            yield {key: samples.support(rows & scored[key]) for key in item["metrics"] if key in scored}


@dataclass(slots=True)
class ScoredRun:
    """A run on the page, with its scores by every benchmark."""

    folder: Path
    name: str
    info: dict[str, Any]
    variant: str
    scores: dict[str, Scores]
    failures: Counter[tuple[str, str]]  # (state, reason) -> attempts
    edits: int

    @property
    def digest(self) -> str:
        return str(self.info["dataset"]["digest"])

    def dataset(self) -> Dataset:
        """Open the dataset the run was made on; `MieError` where it is gone or has changed since."""
        known = self.info["dataset"]
        stated, beside = local(known["path"]), self.folder / known.get("relative_path", known["path"])
        found = Dataset(stated if stated.exists() else beside)
        if found.digest != self.digest:
            raise MieError(
                "the dataset is not the one this run was made on",
                where=found.folder,
                expected=f"digest {self.digest[:16]}",
                found=found.digest[:16],
            )
        return found


@dataclass(frozen=True, slots=True)
class BenchmarkScores:
    """The runs that were scored by one benchmark, by their names, in the order of the page."""

    layout: Layout
    scores: dict[str, Scores]
    numbers: dict[str, int]  # which run of the page: its colour
    datasets: int  # how many different ones

    @property
    def judges(self) -> dict[str, Mapping[str, Any]]:
        """Run -> its judge, where it has one."""
        return {name: scores.judge for name, scores in self.scores.items() if scores.judge}

    def only(self, names: Iterable[str]) -> BenchmarkScores:
        """Return the same with these runs alone."""
        return replace(self, scores={name: self.scores[name] for name in names})

    @property
    def one_judge(self) -> bool:
        return not judges_differ(list(self.judges.values()))

    @property
    def files(self) -> dict[str, Path]:
        """Run -> its score file, where it has one."""
        return {name: found.samples.path for name, found in self.scores.items() if found.samples}

    def comparisons(self, metric: Metric) -> list[Comparison]:
        """Compare each run with each other one on a metric at pass@1."""
        return compare_runs(self.files, f"{metric.name}@1")


def by_benchmark(runs: Sequence[ScoredRun], benchmark: str) -> BenchmarkScores:
    there = {at: run for at, run in enumerate(runs) if benchmark in run.scores}
    return BenchmarkScores(
        layout_of(benchmark),
        {run.name: run.scores[benchmark] for run in there.values()},
        {run.name: at for at, run in there.items()},
        len({run.digest for run in there.values()}),
    )


def read_runs(folders: Sequence[Path], variant: str) -> list[ScoredRun]:
    """Read runs and their scores by `variant`; their names tell them apart."""
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


def benchmarks_of(runs: Iterable[ScoredRun]) -> list[str]:
    """Return every benchmark that any of the runs was scored by, in the order of the page."""
    return ordered(name for run in runs for name in run.scores)


def cell_of(numbers: Mapping[str, Any], support: Support | None = None) -> Cell:
    """Return a summary's entry."""
    low, high = (_number(end) for end in numbers.get("ci95") or (None, None))
    n, unscored, capped, missing = (
        int(numbers.get(name, 0)) for name in ("n", "unscored", "capped", "missing")
    )
    reason = str(numbers.get("no_interval", ""))
    return Cell(_number(numbers["mean"]), low, high, n, unscored, capped, missing, support, reason)


def _cells(metrics: Mapping[str, Any], supports: Mapping[str, Support]) -> dict[str, Cell]:
    return {key: cell_of(entry, supports.get(key)) for key, entry in metrics.items()}


def _number(value: Any) -> float:
    """Return a number of a JSON document; "inf" and "nan" are written as text there, no number as null."""
    return math.nan if value is None else float(value)


def _read_run(folder: Path, variant: str) -> ScoredRun:
    info = _document(folder / "run.json", fix="give the folder that `mie run` wrote")
    ending = f".{variant}.json"
    names = ordered(path.name.removesuffix(ending) for path in folder.glob(f"summary/*{ending}"))
    if not names:
        raise MieError(
            "scores are missing",
            where=folder / "summary",
            expected=f"the summary of a benchmark, variant {variant}",
            fix=f"run `mie score {folder} --variant {variant}` first",
        )
    path = folder / "edits.jsonl"
    edits = digest(path) if path.exists() else _NO_EDITS
    failures, made = _failures(path)
    return ScoredRun(
        folder=folder,
        name=str(info["editor"].get("name") or info["editor"].get("spec") or folder.name),
        info=info,
        variant=variant,
        scores={name: _scores(folder, name, variant, info["dataset"]["digest"], edits) for name in names},
        failures=failures,
        edits=made,
    )


def _scores(folder: Path, benchmark: str, variant: str, dataset_digest: str, edits: str) -> Scores:
    again = f"run `mie score {folder} --protocol {benchmark} --variant {variant}` again"
    document = _document(folder / "summary" / f"{benchmark}.{variant}.json", fix=again)
    path = folder / "scores" / f"{benchmark}.{variant}.jsonl"
    if not path.exists() and not layout_of(benchmark).judged:
        return Scores(benchmark, document, None, stale=False)
    samples = Samples(path, read_score_table(path))
    header = samples.table.header
    for what, found, expected in (
        ("variant", header.get("variant"), variant),
        ("variant", document.get("variant"), variant),
        ("dataset_digest", header.get("dataset_digest"), dataset_digest),
    ):
        if found != expected:
            raise MieError(
                "scores of something else",
                where=path,
                expected=f"{what} {expected}",
                found=found,
                fix=again,
            )
    _read_notes(samples)
    return Scores(benchmark, document, samples, stale=header.get("edits_sha256") != edits)


def _read_notes(samples: Samples) -> None:
    """Read what is not a number: reasons and drift."""
    lines = _lines(samples.path, fix="run `mie score` again")
    next(lines, None)
    for line in lines:
        samples.unscored += any(attempt.get("unscored") for attempt in line["attempts"])
        for attempt in line["attempts"]:
            for name, reason in attempt.get("unscored", {}).items():
                samples.reasons[sys.intern(name), sys.intern(str(reason))] += 1
            drift = attempt.get("drift")
            if drift:
                samples.drift_checked += 1
                if drift["flag"]:
                    shift = (float(drift["dx"]), float(drift["dy"]), float(drift["scale"]))
                    samples.drifted.append(Drift(line["id"], int(attempt["k"]), *shift))


def metric_of_reason(name: str) -> str | None:
    """Return the metric that a reason is about; None where it is about all of them."""
    return None if name == NO_OUTPUT else name


def _failures(path: Path) -> tuple[Counter[tuple[str, str]], int]:
    """Return (state, reason) -> attempts without an output, and how many attempts were made."""
    if not path.exists():
        return Counter(), 0  # not one edit was made yet
    last: dict[tuple[str, int], tuple[str, str] | None] = {}  # a later line for the same attempt wins
    for line in _lines(path, fix="give the folder that `mie run` wrote"):
        state = str(line["state"])
        what = None if state == "done" else (state, str(line.get("reason")))
        last[line["sample_id"], int(line["attempt"])] = what
    return Counter(reason for reason in last.values() if reason is not None), len(last)


def _document(path: Path, *, fix: str) -> dict[str, Any]:
    """Read a file with one JSON object; `MieError` with `fix` for anything else."""
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
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return  # the run was killed while it wrote its last line
                where = f"{path}, line {number}"
                raise MieError("not a JSON line", where=where, found=error, fix=fix) from None
