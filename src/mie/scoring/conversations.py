"""What shows over the turns of conversations: slopes, switches of kind, the gap between scales, survival.

Every number is over patients: the turns of a conversation, and the conversations of a patient, are alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.scoring.clusters import Clusters
from mie.scoring.scores import ScoreTable
from mie.scoring.statistics import mean_interval, ratio_interval
from mie.scoring.statistics.intervals import MIN_PATIENTS, jackknife_intervals

SWITCHES: Final = ("A→A", "A→E", "E→A", "E→E")  # of attribute (A) and entity (E)
Range = tuple[float, float]


def by_conversation(table: ScoreTable, rows: Iterable[int], key: str) -> list[list[int]]:
    """The rows of each conversation, by turn; `key` is the group that names it."""
    talks: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        talks[table.groups[key][row]].append(int(row))
    return [sorted(found, key=lambda row: table.groups["turn"][row]) for found in talks.values()]


def scale_gap(
    table: ScoreTable, metric: str, rows: Iterable[int], context: str, level: str
) -> dict[str, Any]:
    """S_low - S_high over contexts that have both; several edits of a level are averaged.

    `n` pairs are complete, `unscored` lack a score on one side. `relative_drop` is the gap over S_low.
    """
    values = values_of(table, metric)
    sides: dict[str, dict[str, list[int]]] = defaultdict(lambda: {"low": [], "high": []})
    for row in rows:
        sides[table.groups[context][row]][table.groups[level][row]].append(int(row))
    pairs = [side for side in sides.values() if side["low"] and side["high"]]
    low, high, firsts = [], [], []
    for side in pairs:
        means = [mean(values[side[name]]) for name in ("low", "high")]
        if not np.isnan(means).any():
            low.append(means[0])
            high.append(means[1])
            firsts.append(side["low"][0])
    gaps = np.subtract(low, high)
    entry = _entry(gaps, table.clusters[firsts], len(pairs))
    drop_interval = ratio_interval(gaps, low, table.clusters[firsts])
    return {
        **entry,
        "low": mean(np.array(low)),
        "high": mean(np.array(high)),
        "relative_drop": drop_interval.value,
        "relative_drop_ci95": [drop_interval.low, drop_interval.high],
    }


def turn_slope(table: ScoreTable, metric: str, talks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The mean over conversations of the least-squares slope of the score against the turn.

    A conversation with fewer than two scored turns is unscored. `by_turn` has each turn's mean.
    """
    values = values_of(table, metric)
    slopes, firsts = [], []
    for rows in talks:
        turns = np.array([int(table.groups["turn"][row]) for row in rows], np.float64)
        scores = values[list(rows)]
        there = ~np.isnan(scores)
        if len(set(turns[there])) >= 2:
            flat = np.ptp(scores[there]) == 0  # a fit would leave some 1e-17
            slopes.append(0.0 if flat else float(np.polyfit(turns[there], scores[there], 1)[0]))
            firsts.append(rows[0])
    entry = _entry(np.array(slopes), table.clusters[firsts], len(talks))
    by_turn: dict[str, list[int]] = defaultdict(list)
    for rows in talks:
        for row in rows:
            by_turn[table.groups["turn"][row]].append(row)
    entry["by_turn"] = {turn: mean_of(values, table, by_turn[turn]) for turn in sorted(by_turn)}
    return entry


def switch_means(table: ScoreTable, metric: str, talks: Sequence[Sequence[int]]) -> dict[str, dict[str, Any]]:
    """Mean score of a turn by the kinds of the turn before and of itself."""
    values = values_of(table, metric)
    found: dict[str, list[int]] = defaultdict(list)
    for rows in talks:
        for before, row in pairwise(rows):
            found[f"{table.groups['kind'][before]}→{table.groups['kind'][row]}"].append(row)
    return {name: mean_of(values, table, found[name]) for name in SWITCHES if name in found}


def survival(table: ScoreTable, metric: str, talks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """P(turns 1 to n all pass), by the product-limit estimate of Kaplan and Meier.

    A conversation counts at a turn while all turns before it have passed. It leaves, without a failure, where
    it ends or where a turn has no score. `half_life` is the first turn after which at most half are left, and
    None where more than half outlive the longest conversations.
    """
    values = values_of(table, metric)
    ends: list[tuple[int, bool]] = []  # turns that were lived through, and whether the next one failed
    for rows in talks:
        lived, failed = 0, False
        for row in rows:
            if np.isnan(values[row]):
                break
            if values[row] < 0.5:
                failed = True
                break
            lived += 1
        ends.append((lived, failed))
    longest = max((len(rows) for rows in talks), default=0)
    clusters = table.clusters[[rows[0] for rows in talks]]
    names, patients = np.unique(clusters.codes, return_inverse=True)
    risk, deaths = (np.zeros((len(names), longest)) for _ in range(2))
    for (lived, failed), patient in zip(ends, patients, strict=True):
        risk[patient, : lived + failed] += 1
        deaths[patient, lived : lived + failed] += 1
    curve = _product_limit(risk.sum(0), deaths.sum(0))
    low = high = np.full(longest, np.nan)
    if len(risk) >= MIN_PATIENTS:
        others = zip(risk.sum(0) - risk, deaths.sum(0) - deaths, strict=True)
        without = np.stack([_product_limit(*each) for each in others])
        low, high = jackknife_intervals(curve, without, np.bincount(patients))
    below = np.flatnonzero(curve <= 0.5)
    return {
        "curve": [
            {
                "turn": at + 1,
                "survival": float(curve[at]),
                "ci95": [max(0.0, float(low[at])), min(1.0, float(high[at]))],
                "at_risk": int(risk[:, at].sum()),
            }
            for at in range(longest)
            if risk[:, at].any()
        ],
        "half_life": int(below[0]) + 1 if len(below) else None,
        "conversations": len(talks),
        "whole": sum(lived == len(rows) for (lived, _), rows in zip(ends, talks, strict=True)),
        "first_failures": _first_failures(ends),
        "patients": clusters.patients,
        "images_without_patient": clusters.unknown,
    }


def _product_limit(risk: NDArray[np.float64], deaths: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        stay = np.where(risk > 0, 1 - deaths / risk, 1.0)
    return np.asarray(np.cumprod(stay), np.float64)


def _first_failures(ends: Sequence[tuple[int, bool]]) -> dict[str, int]:
    counts: dict[int, int] = defaultdict(int)
    for lived, failed in ends:
        if failed:
            counts[lived + 1] += 1
    return {str(turn): counts[turn] for turn in sorted(counts)}


def values_of(table: ScoreTable, metric: str) -> NDArray[np.float64]:
    """Each row's first attempt, nan where it has no score."""
    if metric not in table.values:
        return np.full(len(table.ids), np.nan)
    chosen = table.select(metric, 1)
    return np.where(chosen.scored, chosen.values, np.nan)


def mean_of(
    values: NDArray[np.float64], table: ScoreTable, rows: Sequence[int], bounds: Range | None = None
) -> dict[str, Any]:
    """The mean of those rows that have a number, with its coverage and its interval."""
    there = [row for row in rows if not np.isnan(values[row])]
    return _entry(values[there], table.clusters[there], len(rows), bounds)


def _entry(
    values: NDArray[np.float64], clusters: Clusters, total: int, bounds: Range | None = None
) -> dict[str, Any]:
    return {
        "mean": mean(values),
        "n": len(values),
        "unscored": total - len(values),
        **mean_interval(values, clusters, bounds=bounds).entry,
    }


def mean(values: NDArray[np.float64]) -> float:
    """Of those that are numbers."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else np.nan
