"""Means with their coverage and intervals, for everything and for each group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mie.scoring.benchmarks import PARTITIONS
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.table import ScoreTable, Selected
from mie.vocabulary import PERSPECTIVES


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
        names, codes = np.unique(table.groups[key].astype(str), return_inverse=True)
        parts = np.split(
            np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=len(names)))
        )
        rows = dict(zip(names.tolist(), parts[:-1], strict=True))
        first = [name for name in PERSPECTIVES if name in rows] if key == "perspective" else []
        for name in dict.fromkeys((*first, *rows)):
            yield {key: name}, rows[name]
