"""Tables with intervals of an experiment's arms, as a page that opens from disk, CSV and JSON."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from mie.core.csv_cells import safe_row
from mie.core.files import atomic_write, make_folder
from mie.datasets.dataset import Dataset
from mie.experiments.arms import Measure, record_of, score_sample
from mie.experiments.config import ExperimentConfig
from mie.report.views import asset, render
from mie.scoring.statistics.intervals import mean_interval
from mie.training.compact_validation import summary

Records = Sequence[Mapping[str, Any]]


class Column(NamedTuple):
    """One figure of one perspective."""

    perspective: str
    metric: str
    title: str
    digits: int


class Published(NamedTuple):
    """Rows that a paper has, beside ours."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Results:
    title: str
    name: str
    labels: Mapping[str, str]  # of the arms
    records: Mapping[str, Sequence[Records]]  # by arm, of each seed
    columns: Sequence[Column]
    pairs: Sequence[tuple[str, str, Column]]  # arms to be compared on the same samples
    about: Sequence[str]
    published: Published | None = None
    pictures: Sequence[tuple[str, bytes]] = ()  # caption and PNG


def untrained(
    config: ExperimentConfig, datasets: Mapping[str, Path], extra: Measure | None = None
) -> list[dict[str, Any]]:
    """Return the records of the input itself, as a model that was not trained."""
    records = []
    for perspective, path in datasets.items():
        samples = Dataset(path).filter(perspective=perspective, split=config.test.split)
        for sample in islice(samples, config.test.limit):
            scores = score_sample(sample, sample.input)
            records.append(record_of(sample, {**scores, **(extra(sample, sample.input) if extra else {})}))
    return records


def cell(seeds: Sequence[Records], column: Column) -> dict[str, Any]:
    """Return mean, interval, count and each seed's mean; `mean` is None where nothing was scored."""
    mine = [[r for r in records if r["perspective"] == column.perspective] for records in seeds]
    whole = summary([r for records in mine for r in records], column.metric, by=lambda _: "all")
    if not whole["groups"]:
        return {
            "mean": None,
            "low": None,
            "high": None,
            "rows": 0,
            "patients": 0,
            "unscored": whole["unscored"],
            "seeds": [],
        }
    each = [summary(records, column.metric, by=lambda _: "all")["groups"] for records in mine]
    seed_means = [groups["all"]["mean"] if groups else None for groups in each]
    return {**whole["groups"]["all"], "unscored": whole["unscored"], "seeds": seed_means}


def difference(first: Sequence[Records], second: Sequence[Records], column: Column) -> dict[str, Any]:
    """Return the mean difference on the samples that both have, and its interval over patients.

    The seeds' scores of a sample are averaged first: they are no samples of their own.
    """

    def by_sample(seeds: Sequence[Records]) -> dict[str, tuple[str, float]]:
        scores: dict[str, list[float]] = {}
        patients: dict[str, str] = {}
        for record in (r for records in seeds for r in records if r["perspective"] == column.perspective):
            if column.metric in record["scores"]:
                scores.setdefault(record["id"], []).append(record["scores"][column.metric])
                patients[record["id"]] = record["patient"]
        return {name: (patients[name], float(np.mean(values))) for name, values in scores.items()}

    a, b = by_sample(first), by_sample(second)
    both = sorted(a.keys() & b.keys())
    if not both:
        return {"mean": None, "low": None, "high": None, "rows": 0}
    values = [a[name][1] - b[name][1] for name in both]
    interval = mean_interval(values, [a[name][0] for name in both])
    few = bool(interval.reason)
    return {
        "mean": float(np.mean(values)),
        "low": None if few else interval.low,
        "high": None if few else interval.high,
        "rows": len(both),
    }


def shown(value: Mapping[str, Any], digits: int) -> str:
    """Write a mean with its interval, the seeds' means and what was not scored."""
    if value["mean"] is None:
        return "unscored"
    text = f"{value['mean']:.{digits}f}"
    if value["low"] is not None:
        text += f" ({value['low']:.{digits}f} to {value['high']:.{digits}f})"
    seeds = [seed for seed in value.get("seeds", ()) if seed is not None]
    if len(seeds) > 1:
        text += " [" + ", ".join(f"{seed:.{digits}f}" for seed in seeds) + "]"
    if value.get("unscored"):
        text += f", {value['unscored']} unscored"
    return text


def write_results(results: Results, folder: Path) -> Path:
    """Write `index.html`, `table.csv` and `results.json` into `folder`; return the page."""
    make_folder(folder)
    cells = {
        arm: [cell(seeds, column) for column in results.columns] for arm, seeds in results.records.items()
    }
    compared = [
        {
            "first": results.labels[a],
            "second": results.labels[b],
            "column": column.title,
            "perspective": column.perspective,
            "text": shown(found := difference(results.records[a], results.records[b], column), column.digits),
            **found,
        }
        for a, b, column in results.pairs
    ]
    document = {
        "experiment": results.title,
        "name": results.name,
        "columns": [column._asdict() for column in results.columns],
        "arms": {arm: {"label": results.labels[arm], "cells": some} for arm, some in cells.items()},
        "differences": compared,
    }
    atomic_write(folder / "results.json", json.dumps(document, indent=1, allow_nan=False) + "\n")
    header = ["trained on", *(f"{column.perspective}: {column.title}" for column in results.columns)]
    rows = [
        [
            results.labels[arm],
            *(shown(one, column.digits) for one, column in zip(some, results.columns, strict=True)),
        ]
        for arm, some in cells.items()
    ]
    text = io.StringIO()
    csv.writer(text).writerows(map(safe_row, [header, *rows]))
    atomic_write(folder / "table.csv", text.getvalue())
    style = asset("grounding.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = render(
        "experiment.html",
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'",
        style=Markup(style),  # noqa: S704 (a file of this package)
        title=results.title,
        name=results.name,
        header=header,
        rows=rows,
        compared=compared,
        about=results.about,
        published=results.published,
        pictures=[
            (caption, Markup("data:image/png;base64," + base64.b64encode(png).decode()))  # noqa: S704 (base64)
            for caption, png in results.pictures
        ],
    )
    atomic_write(folder / "index.html", page)
    return folder / "index.html"
