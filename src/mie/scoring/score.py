"""Scoring a run: pixels in chunks, then a judge, then lines joined and added up.

The lines of a chunk lie in `scores/.parts/` until all are there: killed at any point, the same call resumes
and ends with the same files, whatever the number of workers. A judge is asked once the pixels are done, in
this process; its replies lie in `judge/`, and what lies there is not asked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

import mie
from mie.core.files import atomic_write, folder_lock
from mie.datasets.engine import Standing, report, run_tasks
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.judges import JudgeOptions
from mie.scoring.attempts import Chunk, Context, Inputs, LineBody, Output, Row, make_chunks, measure_metrics
from mie.scoring.benchmarks import BENCHMARKS, PARTITIONS, Benchmark, find_benchmark
from mie.scoring.judging import JudgeSession, Questions, open_session
from mie.scoring.metric import METRICS, Metric
from mie.scoring.results import Results
from mie.scoring.scores import (
    GROUP_KEYS,
    ScoreTable,
    Selected,
    encode_line,
    read_score_table,
    scores_path,
    summary_path,
    write_scores_file,
    write_summary,
)
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.volumes import VolumeChunk, make_volume_chunks
from mie.vocabulary import PERSPECTIVES

Progress: TypeAlias = Callable[[int, int], None]

# Below this many outputs the work is done before a pool of processes has started.
_POOL_FROM: Final = 300
# What every line says of its sample.
LINE_COLUMNS: Final = (*GROUP_KEYS, "id", "case_id", "patient_id")


Measure: TypeAlias = Callable[[Row, Sequence[Output], Context], LineBody]
Aggregate: TypeAlias = Callable[[dict[str, Any], ScoreTable, Path], None]


class ScoreRun(Protocol):
    """A benchmark's own way through a run's folder; returns the document that `mie score --json` prints."""

    def __call__(
        self,
        run_folder: Path | str,
        *,
        variant: str,
        workers: int | None,
        progress: Progress | None,
    ) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Task:
    benchmark: Benchmark | str  # by name where another process has to find it
    chunk: Chunk | VolumeChunk
    variant: str
    metrics: tuple[str, ...]
    setup: Any
    part: Path


@dataclass(frozen=True, slots=True)
class _Work:
    benchmark: Benchmark
    header: Mapping[str, Any]
    chunks: Sequence[Chunk | VolumeChunk]
    parts: Path
    setup: Any
    progress: Progress | None = None
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(chunk.pairs for chunk in self.chunks))


def score(
    run: Run | Path | str,
    benchmark: Benchmark | str = "miedb",
    *,
    variant: str = "paper",
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    judge: JudgeOptions | str | None = None,
) -> Results:
    """Score every output of a run; write `scores/` and `summary/` into its folder; return the results.

    Args:
        run: The run, or its folder.
        benchmark: Its name, or a `Benchmark`.
        variant: `paper` (what the text promises) or `as_released` (what the public script prints).
        workers: Processes: all cores by default, none beside this one when there is little to do.
        engine: "local" or "ray".
        progress: Is told (done, total) outputs.
        judge: Grades what pixels cannot: a spec such as `local:FOLDER`, or `JudgeOptions`. One on another
            machine needs `JudgeOptions(spec, allow_remote=True)`.

    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    document = score_run(
        find_benchmark(benchmark),
        folder,
        variant=variant,
        workers=workers,
        engine=engine,
        progress=progress,
        judge=_options(judge),
    )
    return Results(folder, document)


def estimate(
    run: Run | Path | str,
    benchmark: Benchmark | str = "miedb",
    *,
    judge: JudgeOptions | str,
    variant: str = "paper",
) -> dict[str, Any]:
    """What a judge would cost: calls, tokens, US dollars. Nothing is asked, and nothing is scored."""
    options = _options(judge)
    assert options is not None  # noqa: S101 (a judge is given)
    folder = run.folder if isinstance(run, Run) else Path(run)
    document = score_run(
        find_benchmark(benchmark), folder, variant=variant, judge=replace(options, dry_run=True)
    )
    found: dict[str, Any] = document["dry_run"]
    return found


def score_run(
    benchmark: Benchmark,
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    judge: JudgeOptions | None = None,
    setup: tuple[Any, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """`score`, as the document that `mie score --json` prints. Of a dry run only the estimate is returned.

    `setup` replaces that of the benchmark.
    """
    benchmark.check_variant(variant)
    if judge is not None and benchmark.questions is None and not _accepts_judge(benchmark):
        raise ConfigError(f"the benchmark {benchmark.name} asks no judge", fix="leave out --judge")
    run = Run.open(run_folder)
    if judge is None and benchmark.own_metrics and set(benchmark.judged) == set(benchmark.find_metrics()):
        raise ConfigError(
            f"every metric of {benchmark.name} comes from a judge",
            fix="name one with --judge; `mie score --list` shows benchmarks that need none",
        )
    if benchmark.score is not None:
        if engine != "local":
            raise ConfigError(f"the benchmark {benchmark.name} is scored in one process", found=engine)
        return _score_otherwise(benchmark, run, variant, workers, progress, judge)
    dataset = run.dataset()
    metrics = {n: m for n, m in benchmark.find_metrics().items() if judge is not None or not m.judged}
    state, facts = setup or (benchmark.load("setup") or _no_setup)()
    header: dict[str, Any] = {
        "protocol": benchmark.name,
        "variant": variant,
        "version": benchmark.version,
        "dataset_digest": dataset.digest,
        "edits_sha256": _sha256(run.folder / "edits.jsonl"),
        "mie": mie.__version__,
        "attempts": run.attempts,
        "metrics": tuple(metrics),
        "groups": benchmark.groups,
        "missing_as_zero": benchmark.missing_as_zero and variant == "as_released",
        **facts,
        **_specs(benchmark, metrics),
    }
    scores = scores_path(run.folder, benchmark.name, variant)
    parts = run.folder / "scores/.parts" / f"{benchmark.name}.{variant}"
    with _tidied(parts), folder_lock(parts), contextlib.ExitStack() as stack:
        chunks: list[Any] = (make_volume_chunks if benchmark.unit == "volume" else make_chunks)(run, dataset)
        if not any(chunk.pairs for chunk in chunks):
            raise _no_samples(run)
        work = _Work(benchmark, header, chunks, parts, state, progress)
        session: JudgeSession | None = None
        if judge is not None:  # first, so that a wrong key or a private dataset stops before any work
            questions: Questions = benchmark.load("questions")
            session = stack.enter_context(open_session(questions, judge, run, dataset, chunks, variant))
            if judge.dry_run:
                about = {"protocol": benchmark.name, "variant": variant, "run": str(run_folder)}
                return {**about, "dry_run": session.estimate()}
        paths = _score_chunks(work, workers, engine)
        _check_applies(benchmark, run, parts, paths, judge)
        if session is None:
            write_scores_file(scores, header, map(Path.read_bytes, paths))
        else:
            record = session.ask(progress and (lambda done: progress(done, max(done, work.total))))
            write_scores_file(scores, {**header, "judge": record}, session.lines(paths))
        document = _document(benchmark, scores, str(run_folder))
        document = write_summary(summary_path(run.folder, benchmark.name, variant), document)
        # A worker of a call that was killed may still be writing there; what it leaves harms nothing.
        shutil.rmtree(parts, ignore_errors=True)
    return document


@contextlib.contextmanager
def _tidied(parts: Path) -> Iterator[None]:
    """Leave no empty folder behind: neither `.parts`, nor `scores` where nothing was scored."""
    try:
        yield
    finally:
        for folder in (parts, parts.parent, parts.parent.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless something is there, such as another variant that is being scored


def _no_samples(run: Run) -> MieError:
    config, name = run.info["config"], run.info["dataset"]["name"]
    if config.get("where"):
        found = f"no sample of {name} passes the run's filter"
    elif config.get("split"):
        found = f"split {config['split']!r} of {name} is empty"
    else:
        found = f"{name} is empty"
    return MieError(
        "the run is about no samples",
        where=run.folder,
        expected="at least one sample to score",
        found=found,
        fix="run the editor on a split that has samples",
    )


def _check_applies(
    benchmark: Benchmark, run: Run, parts: Path, paths: Sequence[Path], judge: JudgeOptions | None
) -> None:
    """`MieError` where no metric applies to any sample: there would be nothing but empty tables."""
    counts: Counter[str] = Counter()
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            body = json.loads(text)
            if body["applies"]:
                return
            counts[body["group"]["perspective"]] += 1
    shutil.rmtree(parts, ignore_errors=True)
    needs_judge = judge is None and bool(benchmark.judged)
    raise MieError(
        f"no metric of {benchmark.name} applies to any sample of this run",
        where=run.folder,
        expected="a sample that one of its metrics applies to",
        found=", ".join(f"{count:,} {perspective}" for perspective, count in counts.items()),
        fix="name a judge with --judge" if needs_judge else "`mie score --list` says what each metric needs",
    )


def _options(judge: JudgeOptions | str | None) -> JudgeOptions | None:
    return JudgeOptions(judge) if isinstance(judge, str) else judge


def _no_setup() -> tuple[None, dict[str, Any]]:
    return None, {}


def _accepts_judge(benchmark: Benchmark) -> bool:
    function = benchmark.load("score")
    if function is None:
        return False
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "judge" or p.kind is p.VAR_KEYWORD for p in parameters)


def _specs(benchmark: Benchmark, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Metrics that another package brought: written down, to be shown where the package is not installed."""
    ours = benchmark.own_metrics if benchmark.name in BENCHMARKS.targets else ()
    specs = {name: metric.record() for name, metric in metrics.items() if name not in ours}
    return {"specs": specs} if specs else {}


def _score_chunks(work: _Work, workers: int | None, engine: str) -> list[Path]:
    """The chunks' files, in order; those that an earlier call left are taken as they are."""
    benchmark, header = work.benchmark, work.header
    paths = [work.parts / f"{chunk.number:05d}-{chunk.key(header)}.jsonl" for chunk in work.chunks]
    todo = [(chunk, path) for chunk, path in zip(work.chunks, paths, strict=True) if not path.exists()]
    left = sum(chunk.pairs for chunk, _ in todo)
    done = work.total - left
    elsewhere = _found_elsewhere(benchmark, header["metrics"])
    local = engine == "local"
    if not elsewhere and not local:
        raise ConfigError(
            "other processes cannot be given this benchmark", expected="one that is installed", found=engine
        )
    if not elsewhere or (local and workers is None and (left < _POOL_FROM or not benchmark.pool)):
        workers = 1
    named: Benchmark | str = benchmark if workers == 1 and local else benchmark.name
    tasks = [
        _Task(named, chunk, header["variant"], header["metrics"], work.setup, path) for chunk, path in todo
    ]
    witnesses = [path for chunk, _ in todo[:1] for path in _files(chunk)]
    for pairs in run_tasks(
        _score_chunk,
        tasks,
        engine=engine,
        workers=workers,
        describe=_sample_name,
        output=work.parts,
        inputs=witnesses,
    ):
        done += pairs
        if work.progress is not None:
            work.progress(done, work.total)
    return paths


def _found_elsewhere(benchmark: Benchmark, names: Sequence[str]) -> bool:
    """Another process can import all of it: nothing was made by the running script."""
    if benchmark.name not in BENCHMARKS or BENCHMARKS[benchmark.name] is not benchmark:
        return False
    return not any(name in METRICS.targets and not isinstance(METRICS.targets[name], str) for name in names)


def _score_chunk(task: _Task) -> int:
    """Write the lines of one chunk, all or nothing."""
    benchmark = find_benchmark(task.benchmark)
    measure: Measure = benchmark.load("measure") or measure_metrics
    columns = list(dict.fromkeys((*LINE_COLUMNS, *benchmark.columns)))
    known = benchmark.find_metrics()
    metrics = {name: known[name] for name in task.metrics}
    context = Context(benchmark, task.variant, metrics, Inputs(), task.setup)
    lines = []
    for number, (row, outputs) in enumerate(task.chunk.rows(columns)):
        report(number)
        lines.append(measure(row, outputs, context))
    atomic_write(task.part, "".join(map(encode_line, lines)))
    return task.chunk.pairs


def _sample_name(task: _Task, standing: Standing) -> str:
    """The sample that a chunk was measuring."""
    samples = [sample for sample, outputs in task.chunk.outputs if outputs]
    return f"sample {samples[standing[0]]}" if standing[0] < len(samples) else ""


def _files(chunk: Chunk | VolumeChunk) -> list[Path]:
    """A shard and an output: whoever sees them can score the run."""
    shard = chunk.shard if isinstance(chunk, Chunk) else chunk.slices[0].shard
    outputs = (output.path for _, attempts in chunk.outputs for output in attempts)
    return [shard, *(Path(path) for path in outputs if path is not None)][:2]


def _sha256(path: Path) -> str:
    """Of the file's bytes; of none for a run that has not made its first edit."""
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def _document(benchmark: Benchmark, scores: Path, run: str) -> dict[str, Any]:
    table = read_score_table(scores)
    variant = table.header["variant"]
    cap = benchmark.psnr_cap if variant == "paper" else None
    document = {
        "protocol": benchmark.name,
        "variant": variant,
        "run": run,
        "n_samples": len(table.ids),
        "groups": summarise(table, psnr_cap=cap, partitions=benchmark.partitions),
        # What needs a judge has no number without one.
        "not_covered": dict(table.not_covered),
        **({"judge": table.header["judge"]} if "judge" in table.header else {}),
        "drift": {"measured": int((table.drift >= 0).sum()), "flagged": int((table.drift == 1).sum())},
    }
    aggregate: Aggregate | None = benchmark.load("aggregate")
    if aggregate is not None:
        aggregate(document, table, scores)
    return document


def _score_otherwise(
    benchmark: Benchmark,
    run: Run,
    variant: str,
    workers: int | None,
    progress: Progress | None,
    judge: JudgeOptions | None,
) -> dict[str, Any]:
    """By the benchmark's own function; the document it returns is checked, completed and stored."""
    options = {"variant": variant, "workers": workers, "progress": progress}
    asked = {} if judge is None else {"judge": judge}
    found = benchmark.load("score")(run.folder, **options, **asked)
    if isinstance(found, Mapping) and "dry_run" in found:
        return dict(found)
    if not _is_document(found):
        raise MieError(
            f"the benchmark {benchmark.name} returned no summary",
            expected='{"groups": [{"group": {}, "metrics": {"NAME@1": {"mean": ..., "n": ...}}}]}',
            found=repr(found)[:200],
        )
    document = {
        "protocol": benchmark.name,
        "variant": variant,
        "run": str(run.folder),
        "n_samples": max((e["n"] for e in found["groups"][0]["metrics"].values()), default=0),
        "not_covered": {},
        "drift": {"measured": 0, "flagged": 0},
        **found,
    }
    for item in document["groups"]:
        for key, entry in item["metrics"].items():
            item["metrics"][key] = {"unscored": 0, "ci95": None, **entry}
    return write_summary(summary_path(run.folder, benchmark.name, variant), document)


def _is_document(found: Any) -> bool:
    try:
        return bool(found["groups"]) and all(
            isinstance(item["group"], dict) and all({"mean", "n"} <= set(e) for e in item["metrics"].values())
            for item in found["groups"]
        )
    except (TypeError, KeyError, AttributeError):
        return False


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
    specs = {name: table.metric(name) for name in table.values}
    groups: list[dict[str, Any]] = []
    for group, rows in _groups(table, partitions):
        metrics: dict[str, Any] = {}
        for (name, k), chosen in selected.items():
            if not chosen.applies[rows].any():
                continue
            scored = rows[chosen.scored[rows]]
            cap = psnr_cap if specs[name].decibels else None
            bounds = specs[name].scale
            interval = mean_interval(chosen.values[scored], table.clusters[scored], bounds=bounds)
            metrics[f"{name}@{k}"] = {**_entry(chosen, rows, scored, cap), **interval.capped(cap).entry}
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
    """(group, rows) with groups of one key in alphabetical order; perspectives in the paper's first."""
    yield {}, np.arange(len(table.ids))
    for key in partitions:
        found = table.groups[key].tolist()
        names = sorted(set(found))
        numbers = {name: number for number, name in enumerate(names)}
        kind = np.int16 if len(names) < 2**15 else np.int64  # two bytes are sorted in linear time
        codes = np.fromiter((numbers[name] for name in found), kind, len(found))
        order, sizes = np.argsort(codes, kind="stable"), np.bincount(codes, minlength=len(names))
        parts = np.split(order, np.cumsum(sizes))
        rows = dict(zip(names, parts[:-1], strict=True))
        first = [name for name in PERSPECTIVES if name in rows] if key == "perspective" else []
        for name in dict.fromkeys((*first, *rows)):
            yield {key: name}, rows[name]
