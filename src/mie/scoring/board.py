"""One row for each model: the columns of a benchmark's main table, over all attempts, beside published rows.

A model's row may come from several runs, of one perspective each, as long as no column has two sources. Means
at pass@1 and pass@k are those of the runs' summaries; mean@k and its spread over the attempts are taken here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.scoring.benchmarks import Benchmark, Column, PublishedRows, find_benchmark
from mie.scoring.clusters import Identity, clusters_of_samples
from mie.scoring.joint import Joint, count_joint
from mie.scoring.metric import Metric
from mie.scoring.results import Mean, Results, judges_differ, yardstick
from mie.scoring.scored_runs import aliases_of
from mie.scoring.scores import Selected
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.statistics.people import Human, samples_in_words
from mie.scoring.statistics.ranks import average_ranks

FIRST: Final = "pass@1"
PREFERENCE: Final = "rank"  # the column that people fill


@dataclass(frozen=True, slots=True)
class BoardCell:
    """A mean, and where attempts are averaged how far it moves from attempt to attempt."""

    mean: Mean
    spread: float = math.nan


@dataclass(slots=True)
class Model:
    """A row: `cells` by (how attempts count, number of the column)."""

    name: str
    runs: list[Run]
    results: list[Results]
    aliases: frozenset[str]
    cells: dict[tuple[str, int], BoardCell] = field(default_factory=dict)

    def source(self, column: Column) -> Results | None:
        """The run that has the column's samples."""
        found = [results for results in self.results if _has(results, column)]
        return found[0] if found else None

    def where(self, results: Results) -> Run:
        """The run of these results."""
        return self.runs[self.results.index(results)]


@dataclass(frozen=True, slots=True)
class ModelBoard:
    """The table."""

    benchmark: Benchmark
    variant: str
    columns: tuple[tuple[Column, Metric], ...]
    passes: tuple[str, ...]  # pass@1, pass@3, mean@3
    models: tuple[Model, ...]  # best first
    published: PublishedRows | None
    joint: Joint | None
    notices: tuple[str, ...]
    human: Human | None = None

    def heading(self, number: int) -> str:
        """What a column shares with its neighbours: `perception`."""
        column, _ = self.columns[number]
        return "" if column.group is None else column.group[1]

    def published_values(self) -> list[tuple[str, list[float | None]]]:
        """Each published model with a value for each column of the board, None where it has none."""
        if self.published is None:
            return []
        places = _matched(self.columns, self.published)
        return [
            (model, [None if at is None else values[at] for at in places])
            for model, values in self.published.rows
        ]

    def compares(self, number: int) -> bool:
        """Whether published values of a column come from the variant that ours do."""
        _, metric = self.columns[number]
        published = self.published
        return published is None or metric.name not in published.marked or published.variant == self.variant


def read_board(
    runs: Sequence[str | Path],
    benchmark: Benchmark | str = "miedb",
    *,
    variant: str = "paper",
    human: Human | None = None,
    success: Mapping[str, float] | None = None,
    force: bool = False,
) -> ModelBoard:
    """The board of scored runs. A run is a folder, or `NAME=FOLDER` to give its model a name.

    `human` fills the column of people's preference. `success` (metric -> least value) replaces the thresholds
    of the joint table. Columns whose models are of different datasets or judges are refused unless `force`.
    """
    chosen = find_benchmark(benchmark)
    chosen.check_variant(variant)
    if not runs:
        raise ConfigError("no run for the board", expected="one run folder or more")
    models = _models(runs, chosen, variant)
    published: PublishedRows | None = chosen.load("published")
    columns = _columns(chosen, published, models)
    notices = _check(models, columns, force=force)
    attempts = sorted({results.table.attempts for model in models for results in _with_samples(model)})
    passes = [FIRST, *(f"{kind}@{k}" for k in attempts if k > 1 for kind in ("pass", "mean"))]
    for model in models:
        for number, (column, metric) in enumerate(columns):
            results = model.source(column)
            for how in passes if results is not None else ():
                assert results is not None  # noqa: S101 (the loop is empty otherwise)
                cell = _cell(results, column, metric, how)
                if cell is not None:
                    model.cells[how, number] = cell
    if human is not None:
        notices += _add_preference(models, columns, human)
    return ModelBoard(
        chosen,
        variant,
        tuple(columns),
        tuple(how for how in passes if any((how, n) in m.cells for m in models for n in range(len(columns)))),
        tuple(_ranked(models, columns)),
        published,
        count_joint(
            chosen,
            {model.name: [results.table for results in _with_samples(model)] for model in models},
            success or {},
        ),
        tuple(notices),
        human,
    )


def _models(places: Sequence[str | Path], benchmark: Benchmark, variant: str) -> list[Model]:
    named = [_named(place) for place in places]
    runs = [Run.open(folder) for _, folder in named]
    results = [Results.open(folder, benchmark.name, variant) for _, folder in named]
    aliases = aliases_of(runs, [folder.resolve().name for _, folder in named], [f for _, f in named])
    names = [name or _editor(run) for (name, _), run in zip(named, runs, strict=True)]
    groups: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(names):
        groups[name].append(at)
    models = []
    for name, members in groups.items():
        together = [[at] for at in members] if _overlap([results[at] for at in members]) else [members]
        for one in together:
            label = name if len(together) == 1 else f"{name} ({runs[one[0]].folder.resolve().name})"
            known = frozenset().union(*(aliases[at] for at in one)) | {label, name}
            models.append(Model(label, [runs[at] for at in one], [results[at] for at in one], known))
    twice = [name for name, count in Counter(model.name for model in models).items() if count > 1]
    if twice:
        raise ConfigError(
            "two runs of one name have the same samples",
            found=twice[0],
            expected="one row for each model",
            fix="name them: mie board 'my model=out/run-a' 'the other=out/run-b'",
        )
    # A name that several models share tells none of them apart.
    times = Counter(alias for model in models for alias in model.aliases)
    for model in models:
        model.aliases = frozenset(alias for alias in model.aliases if times[alias] == 1)
    return models


def _named(place: str | Path) -> tuple[str, Path]:
    """Name and folder of `NAME=FOLDER`; a folder whose own name has a = in it is a folder."""
    text = str(place)
    if Path(text).is_dir() or "=" not in text:
        return "", Path(text)
    name, _, folder = text.partition("=")
    if not name.strip():
        raise ConfigError("a run without a name", expected="NAME=FOLDER", found=text)
    return name.strip(), Path(folder)


def _editor(run: Run) -> str:
    about = run.info["editor"]
    return str(about.get("name") or about.get("spec") or run.folder.name)


def _overlap(results: Sequence[Results]) -> bool:
    """Whether two runs have samples of one perspective, so that they cannot stand in one row."""
    seen: set[str] = set()
    for one in results:
        there = set(one.by("perspective")) if not one.has_samples else set(one.table.groups["perspective"])
        if seen & there or not there:
            return len(results) > 1
        seen |= there
    return False


def _with_samples(model: Model) -> list[Results]:
    return [results for results in model.results if results.has_samples]


def _columns(
    benchmark: Benchmark, published: PublishedRows | None, models: Sequence[Model]
) -> list[tuple[Column, Metric]]:
    """The paper's columns, those without any number too: a gap is seen, not hidden."""
    columns = benchmark.model_columns
    if not columns and published is not None:
        columns = tuple(Column(metric.name) for metric in published.columns)
    if not columns:
        there = dict.fromkeys(key.rpartition("@")[0] for m in models for r in m.results for key in r.keys)
        columns = tuple(Column(name) for name in benchmark.main or there)
    found = []
    for column in columns:
        metric = benchmark.metric(column.metric)
        found.append((column, replace(metric, label=column.label) if column.label else metric))
    return found


def _matched(columns: Sequence[tuple[Column, Metric]], published: PublishedRows) -> list[int | None]:
    """Which published column each column of the board is: the second `overall` is the second there.

    Where the paper has fewer, its number is that over all samples.
    """
    places: list[int | None] = [None] * len(columns)
    for name in dict.fromkeys(metric.name for metric in published.columns):
        there = [at for at, metric in enumerate(published.columns) if metric.name == name]
        ours = [at for at, (column, _) in enumerate(columns) if column.metric == name]
        if len(ours) > len(there):
            ours.sort(key=lambda at: columns[at][0].group is not None)
        for mine, theirs in zip(ours, there, strict=False):
            places[mine] = theirs
    return places


def _has(results: Results, column: Column) -> bool:
    """By the summary alone: no sample is read."""
    groups = (item for item in results.document["groups"] if item["group"] == column.where)
    return any(f"{column.metric}@1" in item["metrics"] for item in groups)


def _check(models: Sequence[Model], columns: Sequence[tuple[Column, Metric]], *, force: bool) -> list[str]:
    """Refuse a column whose numbers do not compare, or say so; what else a reader must know."""
    notices = []
    for column, metric in columns:
        there = {model.name: found for model in models if (found := model.source(column)) is not None}
        digests = {name: str(found.header.get("dataset_digest", "")) for name, found in there.items()}
        judges = {name: found.judge or {} for name, found in there.items()}
        problem, facts = "", {name: digest[:12] for name, digest in digests.items()}
        if len(set(digests.values())) > 1:
            problem = "were made on different datasets"
        elif metric.judged and judges_differ(list(judges.values())):
            problem = "were scored by different judges"
            facts = {name: yardstick(judge) for name, judge in judges.items()}
        if problem and not force:
            raise MieError(
                f"the runs behind {metric.label} {problem}",
                expected="one dataset and one judge",
                found="; ".join(f"{name}: {what}" for name, what in facts.items()),
                fix="put runs that compare on one board, or pass --force to show them side by side",
            )
        if problem:
            notices.append(f"{metric.label}: the runs {problem}; its rows do not compare.")
        counts = {len(one.table.ids) for one in there.values() if one.has_samples}
        if len(counts) > 1 and not problem:
            notices.append(f"{metric.label}: the runs cover different samples of the dataset.")
    for model in models:
        for run, results in zip(model.runs, model.results, strict=True):
            if not run.complete:
                notices.append(f"A run of “{model.name}” is not complete.")
            if results.stale:
                notices.append(f"Edits of “{model.name}” have changed since it was scored.")
    return list(dict.fromkeys(notices))


def _cell(results: Results, column: Column, metric: Metric, how: str) -> BoardCell | None:
    kind, k = how.split("@")
    means = results.means(**column.where)
    if kind == "pass":
        found = means.get(f"{column.metric}@{k}")
        return None if found is None else BoardCell(found)
    if not results.has_samples or column.metric not in results.table.values:
        return None
    table = results.table
    if table.attempts != int(k):
        return None
    inside = table.rows_of(column.where)
    if not _is_plain(means[f"{column.metric}@1"], table.select(column.metric, 1), inside):
        return None  # the benchmark aggregates in its own way, which a mean over attempts has no rule for
    chosen = table.average(column.metric)
    scored = np.flatnonzero(chosen.scored & inside)
    interval = mean_interval(chosen.values[scored], table.clusters[scored], bounds=metric.scale)
    cap = results.benchmark.psnr_cap if results.variant == "paper" and metric.decibels else None
    interval = interval.capped(cap)
    applies = int((chosen.applies & inside).sum())
    mean = Mean(
        metric,
        float(chosen.values[scored].mean()) if len(scored) else math.nan,
        interval.low,
        interval.high,
        len(scored),
        applies - len(scored),
        missing=int((chosen.missing & inside).sum()),
        patients=interval.patients,
        images=interval.unknown,
    )
    return BoardCell(mean, table.spread(column.metric, inside))


def _is_plain(mean: Mean, chosen: Selected, inside: np.ndarray[Any, Any]) -> bool:
    values = chosen.values[chosen.scored & inside]
    if not len(values) or not math.isfinite(mean.mean):
        return True
    return bool(np.isclose(values.mean(), mean.mean, rtol=1e-6, atol=1e-9))


def _ranked(models: Sequence[Model], columns: Sequence[Any]) -> list[Model]:
    """Best first, by the first column that tells two models apart."""

    def standing(model: Model) -> list[float]:
        keys = []
        for number, (_, metric) in enumerate(columns):
            cell = model.cells.get((FIRST, number))
            value = math.nan if cell is None else cell.mean.mean
            keys.append(math.inf if math.isnan(value) else -value if metric.higher_is_better else value)
        return keys

    return sorted(models, key=lambda model: (standing(model), model.name))


def _add_preference(
    models: Sequence[Model], columns: Sequence[tuple[Column, Metric]], human: Human
) -> list[str]:
    """The mean rank over the rankings that cover every model that people were shown."""
    number = next((at for at, (column, _) in enumerate(columns) if column.metric == PREFERENCE), None)
    if number is None:
        return ["People's ranks have no column in this benchmark's table."]
    column, metric = columns[number]
    identities = _identities(models, column)
    names = {alias: model for model in models for alias in model.aliases}
    rated = human.models
    rankings = [
        (sample, order)
        for sample, by_rater in human.orders.items()
        if sample in identities
        for order in by_rater.values()
    ]
    whole = [(sample, order) for sample, order in rankings if len(order) == len(rated)]
    places = [average_ranks([order[name] for name in rated]) for _, order in whole]
    clusters = clusters_of_samples([sample for sample, _ in whole], identities)
    for at, name in enumerate(rated):
        if name in names:
            ranks = [float(place[at]) for place in places]
            found = mean_interval(ranks, clusters, bounds=(1.0, float(len(rated))))
            left = sum(name in order for _, order in rankings) - len(ranks)
            mean = Mean(
                metric,
                float(np.mean(ranks)) if ranks else math.nan,
                found.low,
                found.high,
                len(ranks),
                left,
                patients=found.patients,
                images=found.unknown,
            )
            names[name].cells[FIRST, number] = BoardCell(mean)
    others = [name for name in rated if name not in names]
    known = {sample for model in models for results in _with_samples(model) for sample in results.table.ids}
    gone = [sample for sample in human.orders if sample not in known]
    notes = [f"People also ranked {', '.join(others)}, which are not on the board."] if others else []
    if gone:
        notes.append(f"{samples_in_words(gone)}, and left out here.")
    if not whole:
        notes.append("No ranking by people covers every model: there is no mean rank.")
    return notes


def _identities(models: Sequence[Model], column: Column) -> dict[str, Identity]:
    """Sample -> its patient and image, of the column's group."""
    found: dict[str, Identity] = {}
    for model in models:
        for results in _with_samples(model):
            table = results.table
            for row in np.flatnonzero(table.rows_of(column.where)):
                found[table.ids[row]] = table.identities[row]
    return found


def document(board: ModelBoard) -> dict[str, Any]:
    """The board as `mie board --json` prints it."""
    return {
        "protocol": board.benchmark.name,
        "variant": board.variant,
        "columns": [
            {"metric": metric.name, "label": metric.label, "group": column.where}
            for column, metric in board.columns
        ],
        "models": [
            {
                "model": model.name,
                "runs": [str(run.folder) for run in model.runs],
                "cells": [
                    {"at": how, "column": number, **_numbers(cell)}
                    for (how, number), cell in sorted(model.cells.items())
                ],
            }
            for model in board.models
        ],
        "published": [
            {"model": model, "values": values, "variant": board.published.variant}
            for model, values in board.published_values()
            if board.published is not None
        ],
        "joint": None if board.joint is None else board.joint.document(),
        "notices": list(board.notices),
    }


def _numbers(cell: BoardCell) -> dict[str, Any]:
    mean = cell.mean
    return {
        "mean": mean.mean,
        "ci95": [mean.low, mean.high],
        "spread": cell.spread,
        "n": mean.n,
        "unscored": mean.unscored,
        "capped": mean.capped,
        "missing": mean.missing,
        "patients": mean.patients,
        "images_without_patient": mean.images,
    }
