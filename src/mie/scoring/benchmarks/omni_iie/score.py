"""What Omni IIE Bench measures in a run, at 768 x 768, with networks that are loaded once in a process.

Beside the metrics: what the tracks ask of Overall (the gap between scales, the slope over turns, switches of
kind), and the tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.editors.runs import Run
from mie.errors import ImageError
from mie.records import Pixels
from mie.scoring import conversations
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
from mie.scoring.conversations import SWITCHES
from mie.scoring.reference import edits_whole_image, in_colour, read_stored
from mie.scoring.scores import ScoreTable, number, read_scores_file, split_key
from mie.scoring.statistics import ratio_interval

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
    return {**line_of(row, applies, attempts, **places_of(row)), "area": area_of(row, state.side)}


def area_of(row: Row, side: int) -> float | None:
    """The share of the squared image inside the sample's region; None where it has none."""
    if row["mask"] is None:
        return None
    try:
        region = read_stored(row["mask"]["bytes"]) > 0
    except ImageError:
        return None
    return float(pixels.squared_region(region, side).mean())


def aggregate(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    areas = _areas(scores)
    if table.header["variant"] == "as_released":
        weigh_by_area(document, table, areas)
    document["regions"] = region_statistics(table, areas)
    add_tracks(document, table, Run.open(scores.parents[1]).info)
    document["weights"] = table.header["weights"]


# What the released aggregation weighs by area: that inside the region, or that outside.
WEIGHED: Final = {"lpips_fg": "fg", "lpips_bg": "bg", "clip_bg": "bg"}


def _areas(scores: Path) -> NDArray[np.float64]:
    """The share of each sample's image inside its region, `(N,)`; nan where it has none."""
    _, lines = read_scores_file(scores)
    return np.array([number(line.body.get("area")) for line in lines], np.float64)


def weigh_by_area(document: dict[str, Any], table: ScoreTable, areas: NDArray[np.float64]) -> None:
    """The released means of FG- and BG-LPIPS and BG-CLIP: samples count by the area they are measured on.

    The text does not say so. `plain` beside it is the mean that the text promises. There is no interval of a
    weighted mean in the release; ours is that of the ratio of sums over patients.
    """
    for item in document["groups"]:
        inside = table.rows_of(item["group"])
        for key, entry in item["metrics"].items():
            name, k = split_key(key)
            if name not in WEIGHED:
                continue
            chosen = table.select(name, k)
            rows = np.flatnonzero(chosen.scored & inside & ~np.isnan(areas))
            weights = areas[rows] if WEIGHED[name] == "fg" else 1 - areas[rows]
            entry["plain"] = entry["mean"]
            if weights.sum() > 0:
                found = ratio_interval(chosen.values[rows] * weights, weights, table.clusters[rows])
                entry.pop("no_interval", None)
                entry |= {"mean": found.value, "weighed_by": f"{WEIGHED[name]} area", **found.entry}


def region_statistics(table: ScoreTable, areas: NDArray[np.float64]) -> dict[str, Any]:
    """How large the edited regions are, by scale and by kind, and how often conversations switch kind."""
    groups = {"all": np.ones(len(table.ids), np.bool_)}
    for key in ("level", "kind"):
        for value in sorted({str(one) for one in table.groups[key]} - {""}):
            groups[f"{key} {value}"] = table.rows_of({key: value})
    sizes = {}
    for name, inside in groups.items():
        there = areas[inside & ~np.isnan(areas)]
        quartiles = np.quantile(there, [0.25, 0.5, 0.75]).tolist() if len(there) else [math.nan] * 3
        sizes[name] = {
            "n": len(there),
            "without_region": int((inside & np.isnan(areas)).sum()),
            "mean": conversations.mean(there),
            "quartiles": quartiles,
        }
    talks = _talks(table)
    switches: Counter[str] = Counter()
    for rows in talks:
        for before, row in pairwise(rows):
            switches[f"{table.groups['kind'][before]}→{table.groups['kind'][row]}"] += 1
    turns = [len(rows) for rows in talks]
    return {
        "area": sizes,
        "switches": {name: switches[name] for name in SWITCHES},
        "conversations": len(talks),
        "turns": sum(turns),
        "mean_turns": sum(turns) / len(turns) if turns else math.nan,
        "most_turns": max(turns, default=0),
    }


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
        found.append(_by_metric_table(document))
    found += _statistics_tables(document)
    known = [(name, one, "" if many is None else many) for name, (one, many) in OMNI_IIE.items()]
    found.append(published("published, Overall", ("model", "single-turn", "multi-turn"), known, "{:.3f}"))
    return found


def _by_metric_table(document: Document) -> Table:
    """Each metric's slope a turn, and its mean by switch of kind."""
    shape = BENCHMARK.metric("turn_slope")
    rows = []
    for name, slope in document["turn_slope"].get("by_metric", {}).items():  # earlier versions have none
        metric, means = BENCHMARK.metric(name), document["switches_by_metric"][name]
        cells = [cell(means[switch], metric) if switch in means else "–" for switch in SWITCHES]
        rows.append((metric.label, _sign(slope) + cell(slope, shape), *cells))
    header = ("metric", "slope a turn (conversations)", *SWITCHES)
    return Table("each metric by turn and by switch of kind: mean (scored)", header, tuple(rows))


def _statistics_tables(document: Document) -> list[Table]:
    """The sizes of the regions and the switches of kind, as counts."""
    about = document.get("regions")
    if not about:
        return []
    rows = [
        (name, str(entry["n"]), _percent(entry["mean"]), " / ".join(map(_percent, entry["quartiles"])))
        for name, entry in about["area"].items()
    ]
    found = [Table("area of the region", ("samples", "n", "mean", "quartiles"), tuple(rows))]
    if about["conversations"]:
        counts = [(name, str(count)) for name, count in about["switches"].items()]
        counts += [
            ("conversations", str(about["conversations"])),
            (
                "turns",
                f"{about['turns']}, mean {number(about['mean_turns']):.2f}, most {about['most_turns']}",
            ),
        ]
        found.append(Table("switches of kind, counted", ("switch", "turns"), tuple(counts)))
    return found


def _percent(share: float | str | None) -> str:
    value = number(share)
    return "–" if math.isnan(value) else f"{value:.1%}"


def _sign(entry: Mapping[str, Any]) -> str:
    return "+" if number(entry["mean"]) > 0 else ""


SCORE: Final = "overall"
_SINGLE: Final = (*LPIPS, *CLIP, "qa", "ssim", "psnr")  # beside Overall, which needs all but PSNR


def scale_gap(table: ScoreTable, metric: str = SCORE) -> dict[str, Any]:
    """S_low - S_high over contexts (one image) that have both, in the single-turn track."""
    single = np.flatnonzero(table.groups["track"].astype(str) == "single")
    return conversations.scale_gap(table, metric, single, "context", "level")


def turn_slope(table: ScoreTable, metric: str = SCORE) -> dict[str, Any]:
    """The mean slope of the score against the turn, in the multi-turn track."""
    return conversations.turn_slope(table, metric, _talks(table))


def switch_means(table: ScoreTable, metric: str = SCORE) -> dict[str, dict[str, Any]]:
    """Mean score of a turn by the kinds of the turn before and of itself: A (attribute) and E (entity)."""
    return conversations.switch_means(table, metric, _talks(table))


def _talks(table: ScoreTable) -> list[list[int]]:
    multi = np.flatnonzero(table.groups["track"].astype(str) == "multi")
    return conversations.by_conversation(table, multi, "context")


def _by_metric(table: ScoreTable, measure: Callable[[ScoreTable, str], Any]) -> dict[str, Any]:
    """The same of single metrics, also for runs whose Overall has no number."""
    return {name: measure(table, name) for name in _SINGLE if name in table.values}


def add_tracks(document: dict[str, Any], table: ScoreTable, run: Mapping[str, Any]) -> None:
    """`scale_gap`, `turn_slope` and `switches` at the top, and beside the metrics where there is any."""
    gap, slope = scale_gap(table), turn_slope(table)
    gap["by_metric"] = _by_metric(table, scale_gap)
    slope["by_metric"] = _by_metric(table, turn_slope)
    slope["fed"] = run["config"].get("turns", "forced")  # its own outputs ("free"), or the references
    document |= {
        "scale_gap": gap,
        "turn_slope": slope,
        "switches": switch_means(table),
        "switches_by_metric": _by_metric(table, switch_means),
    }
    for name, entry in (("scale_gap", gap), ("turn_slope", slope)):
        if entry["n"] + entry["unscored"]:
            document["groups"][0]["metrics"][name] = entry
