"""What the tracks ask of Overall: the gap between scales, the slope over turns, switches of kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.scoring.clusters import Clusters
from mie.scoring.statistics import mean_interval, ratio_interval
from mie.scoring.table import ScoreTable

SCORE: Final = "overall"
SWITCHES: Final = ("A→A", "A→E", "E→A", "E→E")
_GAPS: Final = ("qa", "ssim", "lpips_all", "clip_all")  # beside Overall, which needs all of them


def scale_gap(table: ScoreTable, metric: str = SCORE) -> dict[str, Any]:
    """S_low - S_high over contexts (one image) that have both; several edits of a level are averaged.

    `n` pairs are complete, `unscored` lack a score on one side. `relative_drop` is the gap over S_low.
    """
    values = _values(table, metric)
    sides: dict[str, dict[str, list[int]]] = defaultdict(lambda: {"low": [], "high": []})
    for row in np.flatnonzero(table.groups["track"].astype(str) == "single"):
        sides[table.groups["context"][row]][table.groups["level"][row]].append(int(row))
    pairs = [side for side in sides.values() if side["low"] and side["high"]]
    low, high, rows = [], [], []
    for side in pairs:
        means = [_mean(values[side[level]]) for level in ("low", "high")]
        if not np.isnan(means).any():
            low.append(means[0])
            high.append(means[1])
            rows.append(side["low"][0])
    gaps = np.subtract(low, high)
    entry = _entry(gaps, table.clusters[rows], len(pairs))
    drop_interval = ratio_interval(gaps, low, table.clusters[rows])
    return {
        **entry,
        "low": _mean(np.array(low)),
        "high": _mean(np.array(high)),
        "relative_drop": drop_interval.value,
        "relative_drop_ci95": [drop_interval.low, drop_interval.high],
    }


def turn_slope(table: ScoreTable, metric: str = SCORE) -> dict[str, Any]:
    """The mean over conversations of the least-squares slope of the score against the turn.

    A conversation with fewer than two scored turns is unscored. `by_turn` has each turn's mean.
    """
    values = _values(table, metric)
    slopes, firsts = [], []
    talks = conversations(table)
    for rows in talks:
        turns = np.array([int(table.groups["turn"][row]) for row in rows], np.float64)
        scores = values[rows]
        there = ~np.isnan(scores)
        if len(set(turns[there])) >= 2:
            slopes.append(float(np.polyfit(turns[there], scores[there], 1)[0]))
            firsts.append(rows[0])
    entry = _entry(np.array(slopes), table.clusters[firsts], len(talks))
    by_turn: dict[str, list[int]] = defaultdict(list)
    for rows in talks:
        for row in rows:
            by_turn[table.groups["turn"][row]].append(row)
    entry["by_turn"] = {turn: _group(values, table, by_turn[turn]) for turn in sorted(by_turn)}
    return entry


def switch_means(table: ScoreTable, metric: str = SCORE) -> dict[str, dict[str, Any]]:
    """Mean score of a turn by the kinds of the turn before and of itself: A (attribute) and E (entity)."""
    values = _values(table, metric)
    found: dict[str, list[int]] = defaultdict(list)
    for rows in conversations(table):
        for before, row in pairwise(rows):
            found[f"{table.groups['kind'][before]}→{table.groups['kind'][row]}"].append(row)
    return {name: _group(values, table, found[name]) for name in SWITCHES if name in found}


def conversations(table: ScoreTable) -> list[list[int]]:
    """The rows of each conversation, by turn."""
    talks: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(table.groups["track"].astype(str) == "multi"):
        talks[table.groups["context"][row]].append(int(row))
    return [sorted(rows, key=lambda row: table.groups["turn"][row]) for rows in talks.values()]


def gaps_of_others(table: ScoreTable) -> dict[str, dict[str, Any]]:
    """The scale gap of single metrics, for runs whose Overall has no number."""
    return {name: scale_gap(table, name) for name in _GAPS if name in table.values}


def _values(table: ScoreTable, metric: str) -> NDArray[np.float64]:
    if metric not in table.values:
        return np.full(len(table.ids), np.nan)
    chosen = table.select(metric, 1)
    return np.where(chosen.scored, chosen.values, np.nan)


def _group(values: NDArray[np.float64], table: ScoreTable, rows: Sequence[int]) -> dict[str, Any]:
    there = [row for row in rows if not np.isnan(values[row])]
    return _entry(values[there], table.clusters[there], len(rows))


def _entry(values: NDArray[np.float64], clusters: Clusters, total: int) -> dict[str, Any]:
    return {
        "mean": _mean(values),
        "n": len(values),
        "unscored": total - len(values),
        **mean_interval(values, clusters).entry,
    }


def _mean(values: NDArray[np.float64]) -> float:
    """Of those that are numbers."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else np.nan


def add_tracks(document: dict[str, Any], table: ScoreTable, run: Mapping[str, Any]) -> None:
    """`scale_gap`, `turn_slope` and `switches` at the top, and beside the metrics where there is any."""
    gap, slope = scale_gap(table), turn_slope(table)
    gap["by_metric"] = gaps_of_others(table)
    slope["fed"] = run["config"].get("turns", "forced")  # its own outputs ("free"), or the references
    document |= {"scale_gap": gap, "turn_slope": slope, "switches": switch_means(table)}
    for name, entry in (("scale_gap", gap), ("turn_slope", slope)):
        if entry["n"] + entry["unscored"]:
            document["groups"][0]["metrics"][name] = entry
