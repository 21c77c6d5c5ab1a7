"""Means with their coverage and intervals, for everything and for each group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mie.scoring.benchmarks import PARTITIONS
from mie.scoring.statistics.bootstrap import bootstrap_means
from mie.scoring.table import ScoreTable, Selected
from mie.vocabulary import PERSPECTIVES


def summarise(
    table: ScoreTable, *, psnr_cap: float | None = None, partitions: Sequence[str] = PARTITIONS
) -> list[dict[str, Any]]:
    """`[{"group": {...}, "metrics": {"dice@1": {...}}}]`: everything first, then group by group.

    A metric's entry has `mean` over the `n` samples that have it, how many it applies to but are `unscored`,
    the interval `ci95` that `bootstrap_mean` gives (seed 0, clustered), and where it makes sense how many
    values were `capped` at `psnr_cap`, or are `missing` outputs that count 0.
    """
    selected = {key: table.select(*key) for key in table.keys}
    groups: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    samples: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []
    for group, rows in _groups(table, partitions):
        metrics: dict[str, Any] = {}
        for (name, k), chosen in selected.items():
            if not chosen.applies[rows].any():
                continue
            scored = rows[chosen.scored[rows]]
            cap = psnr_cap if table.metric(name).decibels else None
            metrics[f"{name}@{k}"] = entry = _entry(chosen, rows, scored, cap)
            entries.append(entry)
            samples.append((chosen.values[scored], table.clusters[scored]))
        groups.append({"group": group, "metrics": metrics})
    for entry, interval in zip(entries, bootstrap_means(samples), strict=True):
        entry["ci95"] = list(interval)
    return groups


def _entry(
    chosen: Selected, rows: NDArray[np.int64], scored: NDArray[np.int64], cap: float | None
) -> dict[str, Any]:
    values = chosen.values[scored]
    entry: dict[str, Any] = {
        "mean": float(values.mean()) if len(values) else math.nan,
        "n": len(values),
        "unscored": int(chosen.applies[rows].sum()) - len(values),
        "ci95": None,
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
