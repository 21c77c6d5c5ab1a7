"""Means with their coverage and intervals, for everything and for each group."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

import mie
from mie.core.files import atomic_path, atomic_write, folder_lock
from mie.datasets.engine import run_tasks
from mie.editors.runs import Run, plain
from mie.errors import ImageError
from mie.judges import JudgeOptions
from mie.records import Pixels
from mie.scoring.benchmarks import check_variant
from mie.scoring.chunks import Chunk, Output, make_chunks, read_output, read_stored
from mie.scoring.judging import Judging, open_judging
from mie.scoring.results import GROUP_KEYS, NO_OUTPUT, RANGES, Selected
from mie.scoring.statistics import ScoreTable, mean_interval, read_score_table
from mie.vocabulary import PERSPECTIVES

PARTITIONS: Final = ("perspective", "modality", "task", "target", "source")


def summarise(
    table: ScoreTable, *, psnr_cap: float | None = None, partitions: Sequence[str] = PARTITIONS
) -> list[dict[str, Any]]:
    """`[{"group": {...}, "metrics": {"dice@1": {...}}}]`: everything first, then group by group.

    A metric's entry has `mean` over the `n` samples that have it, how many it applies to but are `unscored`,
    the interval `ci95` over patients (`mean_interval`), how many known `patients` and how many
    `images_without_patient` it rests on, or why there is `no_interval`; and where it makes sense how many
    values were `capped` at `psnr_cap`, or are `missing` outputs that count 0.
    """
    selected = {key: table.select(*key) for key in table.keys}
    groups: list[dict[str, Any]] = []
    for group, rows in _groups(table, partitions):
        metrics: dict[str, Any] = {}
        for (name, k), chosen in selected.items():
            if not chosen.applies[rows].any():
                continue
            scored = rows[chosen.scored[rows]]
            cap = psnr_cap if name.endswith("psnr") else None
            entry = _entry(chosen, rows, scored, cap)
            interval = mean_interval(chosen.values[scored], table.clusters[scored], bounds=RANGES.get(name))
            metrics[f"{name}@{k}"] = {**entry, **interval.entry}
        groups.append({"group": group, "metrics": metrics})
    return groups


def _entry(
    chosen: Selected, rows: NDArray[np.int64], scored: NDArray[np.int64], cap: float | None
) -> dict[str, Any]:
    values = chosen.values[scored]
    entry: dict[str, Any] = {
        "mean": float(values.mean()) if len(values) else math.nan,
        "n": len(values),
        "unscored": int(chosen.applies[rows].sum()) - len(values),
    }
    if cap is not None:
        entry["capped"] = int((values >= cap).sum())
    missing = int(chosen.missing[rows].sum())
    return {**entry, "missing": missing} if missing else entry


def _groups(
    table: ScoreTable, partitions: Sequence[str]
) -> Iterator[tuple[dict[str, str], NDArray[np.int64]]]:
    """(group, rows) with groups of one key in alphabetical order; perspectives in the paper's."""
    yield {}, np.arange(len(table.ids))
    for key in partitions:
        names, codes = np.unique(table.groups[key].astype(str), return_inverse=True)
        parts = np.split(
            np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=len(names)))
        )
        found = dict(zip(names.tolist(), parts[:-1], strict=True))
        for name in [p for p in PERSPECTIVES if p in found] if key == "perspective" else found:
            yield {key: name}, found[name]


# What protocols share in scoring a run: pixels in chunks, then a judge, then lines joined and added up.
#
# Scoring is cut into chunks whose lines lie in `scores/.parts/` until all are there: killed at any point,
# the
# same call goes on and ends with the same files, whatever the number of workers. A judge is asked once the
# pixels are done, in this process; its replies lie in `judge/`, and what lies there is not asked again.

Row: TypeAlias = Mapping[str, Any]
Line: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[int, int], None]
T = TypeVar("T")

# Below this many outputs the work is done before a pool of processes has started.
_POOL_FROM: Final = 300
# What every line says of its sample.
LINE_COLUMNS: Final = (*GROUP_KEYS, "id", "case_id", "patient_id")


class Inputs:
    """Samples of one image follow each other and hold the same file: it is decoded once."""

    def __init__(self) -> None:
        self._data = b""
        self._pixels: Pixels

    def read(self, data: bytes) -> Pixels:
        if data != self._data:
            self._pixels, self._data = read_stored(data), data
        return self._pixels


@dataclass(frozen=True, slots=True)
class Context:
    """How a chunk is measured. `setup` is the protocol's own, and crosses to other processes."""

    variant: str
    judged: bool
    inputs: Inputs
    setup: Any = None


@dataclass(frozen=True, slots=True)
class Method:
    """A protocol. Its functions stand at the top of a module: they are called in other processes too."""

    name: str
    version: int
    columns: tuple[str, ...]  # of the dataset, besides LINE_COLUMNS
    metrics: tuple[str, ...]  # in the order of the tables
    judged: tuple[str, ...]  # those that a judge gives; without one they apply to nothing
    measure: Callable[[Row, Sequence[Output], Context], Line]
    judging: Judging
    groups: tuple[str, ...] = ()  # group keys of its lines besides those of every protocol
    partitions: tuple[str, ...] = PARTITIONS
    missing_as_zero: bool = False  # `as_released` counts a sample without any output as 0
    psnr_cap: float | None = None  # of exact matches, in the variant `paper`
    finish: Callable[[dict[str, Any], ScoreTable, Path], None] | None = None  # adds to the document
    pool: bool = True  # several processes by default


@dataclass(frozen=True, slots=True)
class _Task:
    measure: Callable[[Row, Sequence[Output], Context], Line]
    columns: list[str]
    chunk: Chunk
    variant: str
    judged: bool
    setup: Any
    part: Path


@dataclass(frozen=True, slots=True)
class _Work:
    method: Method
    header: Mapping[str, Any]
    chunks: list[Chunk]
    parts: Path
    setup: Any
    progress: Progress | None = None
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(chunk.pairs for chunk in self.chunks))


def score_by(
    method: Method,
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Progress | None = None,
    judge: JudgeOptions | None = None,
    facts: Mapping[str, Any] | None = None,
    setup: Any = None,
) -> dict[str, Any]:
    """Score every output of a run; write `scores/` and `summary/` into its folder; return the summary.

    `workers` are processes: all cores by default, none beside this one when there is little to do. `progress`
    is told (done, total) outputs. `facts` go into the scores' header: what the numbers rest on besides the
    run. Of a dry run only the estimate is returned.
    """
    check_variant(variant)
    run = Run.open(run_folder)
    dataset = run.dataset()
    names = tuple(name for name in method.metrics if judge is not None or name not in method.judged)
    header: dict[str, Any] = {
        "protocol": method.name,
        "variant": variant,
        "version": method.version,
        "dataset_digest": dataset.digest,
        "edits_sha256": _sha256(run.folder / "edits.jsonl"),
        "mie": mie.__version__,
        "attempts": run.attempts,
        "metrics": names,
        "groups": method.groups,
        "missing_as_zero": method.missing_as_zero and variant == "as_released",
        **(facts or {}),
    }
    name = f"{method.name}.{variant}"
    scores, summary = run.folder / "scores" / f"{name}.jsonl", run.folder / "summary" / f"{name}.json"
    parts = run.folder / "scores/.parts" / name
    with folder_lock(parts), contextlib.ExitStack() as stack:
        chunks = make_chunks(run, dataset)
        work = _Work(method, header, chunks, parts, setup, progress)
        asked = None
        if judge is not None:  # first, so that a wrong key or a private dataset stops before any work
            asked = stack.enter_context(open_judging(method.judging, judge, run, dataset, chunks, variant))
            if judge.dry_run:
                about = {"protocol": method.name, "variant": variant, "run": str(run_folder)}
                return {**about, "dry_run": asked.estimate()}
        paths = _score_chunks(work, workers)
        if asked is None:
            _join(scores, header, map(Path.read_bytes, paths))
        else:
            record = asked.ask(progress and (lambda done: progress(done, max(done, work.total))))
            _join(scores, {**header, "judge": record}, asked.filled(paths))
        document = _document(method, scores, str(run_folder))
        summary.parent.mkdir(exist_ok=True)
        atomic_write(summary, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        # A worker of a call that was killed may still be writing there; what it leaves harms nothing.
        shutil.rmtree(parts, ignore_errors=True)
    with contextlib.suppress(OSError):
        parts.parent.rmdir()  # unless another variant is being scored
    return document


def line_of(row: Row, applies: Sequence[str], attempts: list[dict[str, Any]], **groups: str) -> Line:
    """A line of scores; `groups` are the protocol's own, or replace one of every protocol's."""
    return {
        "id": row["id"],
        "group": {**{key: row[key] for key in GROUP_KEYS}, **groups},
        "patient": row["patient_id"],
        "case": row["case_id"],
        "applies": tuple(applies),
        "attempts": attempts if applies else [],
    }


def whole_image(row: Row) -> bool:
    """The edit concerns the whole image, so that it has no foreground and no background."""
    return row["perspective"] == "transformation" and row["mask"] is None


def each_output(
    outputs: Sequence[Output],
    variant: str,
    reference: Callable[[], T],
    score: Callable[[T, Pixels], dict[str, Any]],
) -> list[dict[str, Any]]:
    """An entry for each attempt: what `score` says of its pixels, or why there are none.

    `reference` reads the sample's own images, once for all attempts.
    """
    try:
        held = reference()
    except ImageError as error:
        return [_no_output(output.k, f"the sample's own images: {error.reason}") for output in outputs]
    return [_attempt_entry(held, output, variant, score) for output in outputs]


def _attempt_entry(
    held: T, output: Output, variant: str, score: Callable[[T, Pixels], dict[str, Any]]
) -> dict[str, Any]:
    if output.path is None:
        return _no_output(output.k, output.reason)
    try:
        pixels = read_output(Path(output.path), variant)
    except ImageError as error:
        return _no_output(output.k, f"unreadable output: {error.reason}")
    return {"k": output.k, **score(held, pixels)}


def _no_output(k: int, reason: str) -> dict[str, Any]:
    return {"k": k, "metrics": {}, "unscored": {NO_OUTPUT: reason}}


def _score_chunks(work: _Work, workers: int | None) -> list[Path]:
    """The chunks' files, in order; those that an earlier call left are taken as they are."""
    method, header = work.method, work.header
    columns = list(dict.fromkeys((*LINE_COLUMNS, *method.columns)))
    judged = any(name in header["metrics"] for name in method.judged)
    paths = [work.parts / f"{chunk.number:05d}-{chunk.key(header)}.jsonl" for chunk in work.chunks]
    tasks = [
        _Task(method.measure, columns, chunk, header["variant"], judged, work.setup, path)
        for chunk, path in zip(work.chunks, paths, strict=True)
        if not path.exists()
    ]
    left = sum(task.chunk.pairs for task in tasks)
    done = work.total - left
    if workers is None and (left < _POOL_FROM or not method.pool):
        workers = 1
    for pairs in run_tasks(_score_chunk, tasks, workers=workers):
        done += pairs
        if work.progress is not None:
            work.progress(done, work.total)
    return paths


def _score_chunk(task: _Task) -> int:
    """Write the lines of one chunk, all or nothing."""
    context = Context(task.variant, task.judged, Inputs(), task.setup)
    lines = [task.measure(row, outputs, context) for row, outputs in task.chunk.rows(task.columns)]
    text = [json.dumps(plain(line), ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines]
    atomic_write(task.part, "".join(text))
    return task.chunk.pairs


def _sha256(path: Path) -> str:
    """Of the file's bytes; of none for a run that has not made its first edit."""
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def _join(scores: Path, header: Mapping[str, Any], parts: Iterable[bytes]) -> None:
    with atomic_path(scores) as temporary, temporary.open("wb") as file:
        file.write((json.dumps(header, ensure_ascii=False) + "\n").encode())
        file.writelines(parts)


def _document(method: Method, scores: Path, run: str) -> dict[str, Any]:
    table = read_score_table(scores)
    variant = table.header["variant"]
    cap = method.psnr_cap if variant == "paper" else None
    document = {
        "protocol": method.name,
        "variant": variant,
        "run": run,
        "n_samples": len(table.ids),
        "groups": summarise(table, psnr_cap=cap, partitions=method.partitions),
        # What needs a judge has no number without one.
        "not_covered": dict(table.not_covered),
        **({"judge": table.header["judge"]} if "judge" in table.header else {}),
        "drift": {"measured": int((table.drift >= 0).sum()), "flagged": int((table.drift == 1).sum())},
    }
    if method.finish is not None:
        method.finish(document, table, scores)
    return plain(document)


def read_lines(scores: Path) -> Iterator[Line]:
    """The lines of a file of scores, without its header."""
    with scores.open(encoding="utf-8") as file:
        next(file)
        yield from map(json.loads, file)
