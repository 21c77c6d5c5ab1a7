"""Several runs with their scores by one benchmark, under the names that people know them by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.clusters import Identity
from mie.scoring.metric import Metric
from mie.scoring.scores import ScoreTable, read_score_table


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRun:
    """A run's numbers by key (`dice@1`): sample -> value, None where the metric applies but has none."""

    name: str
    aliases: frozenset[str]  # folder, path, editor; none of them shared with another run
    values: Mapping[str, Mapping[str, float | None]]
    identities: Mapping[str, Identity]  # of each sample
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # by name, without its k
    same_scale: frozenset[str] = frozenset()  # metrics on the scale of people's own scores


def read_scored_runs(
    folders: Sequence[Path | str], *, variant: str = "paper", benchmark: str | None = None
) -> list[ScoredRun]:
    """The runs with their scores by one benchmark and variant; without a name, by the only one they share.

    Refused where the runs are of different datasets, or were scored in different ways.
    """
    runs = [Run.open(folder) for folder in folders]
    names = _names(runs)
    files = [_files(run, variant) for run in runs]
    chosen = shared_benchmark(folders, variant=variant, benchmark=benchmark) if runs else ""
    tables = [read_score_table(found[chosen]) for found in files]
    _check_same(dict(zip(names, tables, strict=True)))
    aliases = aliases_of(runs, names, folders)
    return [
        ScoredRun(
            name,
            known,
            _values(table),
            dict(zip(table.ids, table.identities, strict=True)),
            {metric: table.metric(metric) for metric in table.values},
            BENCHMARKS[chosen].same_scale if chosen in BENCHMARKS else frozenset(),
        )
        for name, known, table in zip(names, aliases, tables, strict=True)
    ]


def shared_benchmark(
    folders: Sequence[Path | str], *, variant: str = "paper", benchmark: str | None = None
) -> str:
    """The benchmark that all runs were scored by; `ConfigError` where there are several and none is named."""
    runs = [Run.open(folder) for folder in folders]
    names, files = _names(runs), [_files(run, variant) for run in runs]
    shared = [name for name in files[0] if all(name in found for found in files)]
    chosen = [name for name in shared if benchmark in (None, name)]
    if not chosen:
        raise MieError(
            "the runs have no scores in common",
            where=", ".join(map(str, folders)),
            expected=f"scores/{benchmark or 'BENCHMARK'}.{variant}.jsonl in each",
            found="; ".join(f"{n}: {', '.join(f) or 'none'}" for n, f in zip(names, files, strict=True)),
            fix="run `mie score` on each",
        )
    if len(chosen) > 1:
        raise ConfigError(
            "the runs are scored by several benchmarks",
            expected="one of them",
            found=", ".join(chosen),
            fix="choose one with --benchmark",
        )
    return chosen[0]


def _files(run: Run, variant: str) -> dict[str, Path]:
    """Benchmark -> file."""
    ending = f".{variant}.jsonl"
    found = sorted((run.folder / "scores").glob(f"*{ending}"))
    return {path.name.removesuffix(ending): path for path in found}


def _values(table: ScoreTable) -> dict[str, dict[str, float | None]]:
    out: dict[str, dict[str, float | None]] = {}
    for name, k in table.keys:
        chosen = table.select(name, k)
        out[f"{name}@{k}"] = {
            table.ids[row]: float(chosen.values[row]) if chosen.scored[row] else None
            for row in np.flatnonzero(chosen.applies)
        }
    return out


def _names(runs: Sequence[Run]) -> list[str]:
    """By folder; by the whole path where two folders have one name."""
    names = [run.folder.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def aliases_of(
    runs: Sequence[Run], names: Sequence[str], folders: Sequence[Path | str]
) -> list[frozenset[str]]:
    """Names that people may know each run by: its folder, path and editor; none that two runs share."""

    def editor(run: Run) -> set[str]:
        about: Mapping[str, Any] = run.info.get("editor", {})
        return {str(about[key]) for key in ("name", "spec") if about.get(key)}

    sets = [
        {name, str(folder), run.folder.resolve().name} | editor(run)
        for run, name, folder in zip(runs, names, folders, strict=True)
    ]
    times = Counter(alias for known in sets for alias in known)
    return [frozenset(alias for alias in known if times[alias] == 1) for known in sets]


def _check_same(tables: Mapping[str, ScoreTable]) -> None:
    """One dataset, one way of scoring and, where a judge scored, one judge."""
    for key in ("dataset_digest", "version", "judge"):
        found = {name: table.header.get(key) for name, table in tables.items()}
        if key == "judge":  # what may move its numbers, not what it cost
            judges = {name: judge or {} for name, judge in found.items()}
            differ = judges_differ(list(judges.values()))
            found = {name: yardstick(judge) for name, judge in judges.items()}
        else:
            differ = len(set(map(str, found.values()))) > 1
        if differ:
            raise ConfigError(
                f"the runs differ in {key}",
                expected="one dataset, scored in one way",
                found=", ".join(f"{name}: {str(value)[:40]}" for name, value in found.items()),
                fix="compare runs on the same dataset, and score them the same way",
            )


def judges_differ(judges: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any two of these would grade differently: another model, setting, or text of one prompt.

    A prompt that only one of them was asked with says nothing: a run may have no output of some kind.
    """
    prompts: dict[str, set[str]] = {}
    for judge in judges:
        for name, sha256 in judge.get("prompts", {}).items():
            # By question: another version, or a set of the user's, is another text of the same one.
            prompts.setdefault(name.partition("@")[0], set()).add(sha256)
    alone = {yardstick({**judge, "prompts": {}} if judge else {}) for judge in judges}
    return len(alone) > 1 or any(len(texts) > 1 for texts in prompts.values())


def yardstick(judge: Mapping[str, Any]) -> str:
    """All that may move a judge's numbers, in words."""
    if not judge:
        return "no judge"
    words = [f"{judge['model']} at {judge['provider']}"]
    words += [f"answered by {model}" for model in judge["answered_by"] if model != judge["model"]]
    words += [f"{key} {value}" for key, value in sorted(judge["parameters"].items())]
    words += [f"prompt {name} ({sha256[:8]})" for name, sha256 in sorted(judge["prompts"].items())]
    return ", ".join(words)
