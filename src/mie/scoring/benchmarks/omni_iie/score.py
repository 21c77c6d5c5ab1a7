"""What Omni IIE Bench measures in a run, at 768 x 768, with networks that are loaded once in a process.

Beside the metrics: what the tracks ask of Overall (the gap between scales, the slope over turns, switches of
kind), and the tables.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.editors.runs import Run
from mie.records import Pixels
from mie.scoring.attempts import Context, LineBody, Output, Row, each_output, line_of
from mie.scoring.benchmarks import (
    Document,
    PublishedRows,
    Table,
    by_group,
    cell,
    first_attempts,
    published,
)
from mie.scoring.benchmarks.omni_iie import BENCHMARK, CLIP, LPIPS, pixels
from mie.scoring.benchmarks.omni_iie.pixels import Weights, load_networks
from mie.scoring.benchmarks.omni_iie.qa import places_of
from mie.scoring.clusters import Clusters
from mie.scoring.reference import edits_whole_image, in_colour, read_stored
from mie.scoring.scores import ScoreTable, number
from mie.scoring.statistics import mean_interval, ratio_interval

NO_JUDGE: Final = "no qa: it needs a judge (--judge)"


@dataclass(frozen=True, slots=True)
class _Setup:
    weights: Weights
    side: int


def setup(weights: Weights | None = None) -> tuple[_Setup, Mapping[str, Any]]:
    """The published weights, or files of your own, which the header then names by their digests."""
    state = _Setup(weights or Weights(), pixels.SIDE)
    return state, {"weights": load_networks(state.weights).about(), "side": state.side}


def measure(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    state: _Setup = context.setup
    networks = load_networks(state.weights)

    def read_reference() -> pixels.Reference:
        mask = None if row["mask"] is None else read_stored(row["mask"]["bytes"]) > 0
        target = in_colour(read_stored(row["target_image"]["bytes"]))
        return pixels.Reference.of(target, mask, state.side)

    # A transformation changes the whole image: it has no foreground, and so no Overall.
    left_out = pixels.DECOUPLED if edits_whole_image(row) else ()
    names = [name for name in (*pixels.METRICS, "qa", "overall") if name not in left_out]
    applies = [name for name in names if context.judged or name != "qa"]

    def score(reference: pixels.Reference, output: Pixels) -> dict[str, Any]:
        entry = pixels.score_output(reference, output, context.variant, networks)
        entry["unscored"] = {name: why for name, why in entry["unscored"].items() if name in applies}
        if "overall" in applies and not context.judged:
            entry["unscored"]["overall"] = NO_JUDGE
        return entry

    attempts = each_output(outputs, context.variant, read_reference, score)
    return line_of(row, applies, attempts, **places_of(row))


def aggregate(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    add_tracks(document, table, Run.open(scores.parents[1]).info)
    document["weights"] = table.header["weights"]


# Overall scores of the paper: single-turn, and multi-turn where it is given.
OMNI_IIE: Final[dict[str, tuple[float, float | None]]] = {
    "Qwen-image-edit": (0.687, 0.676),
    "Step1X": (0.680, 0.654),
    "ICEdit": (0.626, None),
    "FLUX": (0.614, None),
    "InstructPix2Pix": (0.530, None),
    "MGIE": (0.520, 0.404),
    "HQEdit": (0.457, None),
}
_OVERALL: Final = BENCHMARK.metric("overall")
PUBLISHED: Final = PublishedRows(
    caption="Omni IIE Bench, measured by its authors",
    columns=(replace(_OVERALL, label="single-turn"), replace(_OVERALL, label="multi-turn")),
    rows=tuple(OMNI_IIE.items()),
    note="Measured by the authors on their own data.",
    source="published by the authors of Omni IIE Bench, Overall",
)
_COLUMNS: Final = ("overall", *LPIPS, *CLIP, "qa", "ssim")


def tables(document: Document) -> list[Table]:
    whole = document["groups"][0]["metrics"]
    columns = first_attempts(BENCHMARK, document, _COLUMNS)
    found = [
        by_group(document, "track", columns, title="by track: mean (scored)"),
        by_group(document, "level", columns, title="single-turn by scale: mean (scored)"),
    ]
    if "scale_gap" in whole:
        gap = document["scale_gap"]
        row = [_OVERALL.show(gap[key]) for key in ("low", "high")]
        row += [cell(gap, BENCHMARK.metric("scale_gap")), _percent(gap["relative_drop"])]
        header = ("low", "high", "gap (pairs)", "relative drop")
        found.append(Table("scale gap in Overall, on complete pairs", header, (tuple(row),)))
    if "turn_slope" in whole:
        slope = document["turn_slope"]
        turns = [(turn.lstrip("0"), cell(entry, _OVERALL)) for turn, entry in slope["by_turn"].items()]
        rows = (*turns, ("slope a turn", _sign(slope) + cell(slope, BENCHMARK.metric("turn_slope"))))
        found.append(Table(f"Overall by turn ({slope['fed']})", ("turn", "mean (scored)"), rows))
        switches = tuple((name, cell(entry, _OVERALL)) for name, entry in document["switches"].items())
        found.append(Table("Overall by switch of kind", ("switch", "mean (scored)"), switches))
    known = [(name, one, "" if many is None else many) for name, (one, many) in OMNI_IIE.items()]
    found.append(published("published, Overall", ("model", "single-turn", "multi-turn"), known, "{:.3f}"))
    return found


def _percent(share: float | str | None) -> str:
    value = number(share)
    return "–" if math.isnan(value) else f"{value:.1%}"


def _sign(entry: Mapping[str, Any]) -> str:
    return "+" if number(entry["mean"]) > 0 else ""


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
