"""What an output of a turn shows, read back by de-blending, and what conversations amount to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.datasets.schema import params_of
from mie.editors.runs import Run
from mie.images.overlay import deblend, dice
from mie.images.resize import resize_to
from mie.perspectives.dialogue.state import State, from_labels, regions
from mie.records import Mask, Pixels
from mie.scoring import conversations
from mie.scoring.attempts import Context, Entry, LineBody, Output, Row, each_output, line_of
from mie.scoring.benchmarks import Document, Table, by_group, cell, first_attempts
from mie.scoring.benchmarks.dialogue import BENCHMARK
from mie.scoring.metric import SHARE
from mie.scoring.metrics.background import background_psnr
from mie.scoring.metrics.psnr import psnr
from mie.scoring.reference import in_colour, read_stored
from mie.scoring.scores import ScoreTable
from mie.vocabulary import COLOURS, OPACITY

MIN_DICE: Final = 0.8
MAX_LEAK: Final = 0.1
MIN_PSNR: Final = 30.0
UNDO: Final = ("undo", "back")
_LEAST: Final = 24  # pixels of a target that must be free of paint, to speak of a leak


@dataclass(frozen=True)
class Turn:
    """The truth of one turn."""

    image: Pixels  # before the turn
    target: Pixels
    before: State
    after: State
    masks: Mapping[str, Mask]  # of all targets of the conversation, and of filled holes
    returns: bool  # an undo that leads back to an earlier image

    @classmethod
    def of(cls, row: Row, params: Mapping[str, Any]) -> Turn:
        image, target = (in_colour(read_stored(row[name]["bytes"])) for name in ("input", "target_image"))
        before, after = (State.from_json(params[name]) for name in ("before", "after"))
        masks = from_labels(read_stored(row["mask"]["bytes"]), params)
        return cls(image, target, before, after, masks, returns(params))

    @cached_property
    def seen(self) -> dict[str, Mask]:
        """Where each overlay of the state is seen."""
        return regions(self.after, self.masks)

    @cached_property
    def base(self) -> Pixels:
        """The image without its overlays, un-blended from the truth: under paint right to two grey levels."""
        base = self.target.copy()
        for one in self.after.overlays:
            region = self.seen[one.target]
            paint = OPACITY * np.array(COLOURS[one.colour])
            values = (base[region] - paint) / (1 - OPACITY)
            base[region] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
        return base

    @cached_property
    def background(self) -> Mask:
        """Everything but the targets."""
        return np.asarray(~np.logical_or.reduce(list(self.masks.values())))

    @cached_property
    def free(self) -> list[Mask]:
        """What of each target must show no paint."""
        painted = np.logical_or.reduce([np.zeros(self.target.shape[:2], np.bool_), *self.seen.values()])
        found = [mask & ~painted for mask in self.masks.values()]
        return [mask for mask in found if np.count_nonzero(mask) >= _LEAST]

    @cached_property
    def changed(self) -> Mask:
        return np.asarray((self.image != self.target).any(axis=2))

    @property
    def applies(self) -> list[str]:
        there = {
            "passed": True,
            "overlay_dice": bool(self.after.overlays),
            "colour": bool(self.after.overlays),
            "leak": bool(self.free),
            "b_psnr": bool(self.background.any()),
            "return_psnr": self.returns,
            "base": self.before.base != self.after.base,
        }
        return [name for name, applies in there.items() if applies]


def returns(params: Mapping[str, Any]) -> bool:
    return params["operation"]["name"] in UNDO and params["returns_to"] is not None


def score_turn(turn: Turn, output: Pixels, psnr_cap: float | None = None) -> dict[str, Any]:
    """`{"metrics": {name: value}, "unscored": {}}` of an output of any size."""
    entry = Entry(psnr_cap)
    size = (turn.target.shape[0], turn.target.shape[1])
    if output.shape[:2] != size:
        entry.body["resized_from"] = list(output.shape[:2])
        output = resize_to(output, size)
    values = _values(turn, output)
    worst = values.pop("worst_dice", 1.0)
    values["passed"] = float(
        worst > MIN_DICE
        and values.get("leak", 0.0) < MAX_LEAK
        and values.get("b_psnr", np.inf) > MIN_PSNR
        and values.get("base", 1.0) > 0.5
    )
    for name, value in values.items():
        entry.measure([BENCHMARK.metric(name)], lambda value=value: [value])  # type: ignore[misc]
    return entry.body


def _values(turn: Turn, output: Pixels) -> dict[str, float]:
    found = {colour: deblend(turn.base, output, colour) for colour in COLOURS}
    values: dict[str, float] = {}
    if turn.after.overlays:
        each, right = [], []
        for one in turn.after.overlays:
            others = [
                turn.seen[other.target]
                for other in turn.after.overlays
                if other.colour == one.colour and other.target != one.target
            ]
            painted = found[one.colour]
            if others:
                painted = painted & ~np.logical_or.reduce(others)
            each.append(dice(painted, turn.seen[one.target]))
            right.append(shown_colour(turn.base, output, turn.seen[one.target]) == one.colour)
        values |= {"overlay_dice": float(np.mean(each)), "worst_dice": min(each)}
        values["colour"] = float(np.mean(right))
    if turn.free:
        painted = np.logical_or.reduce(list(found.values()))
        values["leak"] = max(np.count_nonzero(painted & mask) / np.count_nonzero(mask) for mask in turn.free)
    if turn.background.any():
        values["b_psnr"] = background_psnr(turn.target, output, ~turn.background)
    if turn.returns:
        values["return_psnr"] = psnr(turn.target, output)
    if turn.before.base != turn.after.base:
        shown = output[turn.changed].astype(np.int16)
        to_truth = np.abs(shown - turn.target[turn.changed]).mean()
        values["base"] = float(to_truth < np.abs(shown - turn.image[turn.changed]).mean())
    return values


def shown_colour(base: Pixels, output: Pixels, region: Mask) -> str | None:
    """The colour with the largest mean alpha in the region; None where no paint is seen there."""
    image, shown = base[region].astype(np.float64), output[region].astype(np.float64)
    alphas: dict[str, float] = {}
    for colour, rgb in COLOURS.items():
        towards = np.array(rgb, np.float64) - image
        alpha: NDArray[np.float64] = ((shown - image) * towards).sum(1) / ((towards**2).sum(1) + 1e-6)
        alphas[colour] = float(alpha.mean())
    best = max(alphas, key=lambda colour: alphas[colour])
    return best if alphas[best] > OPACITY / 2 else None


def measure(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    if row["perspective"] != "dialogue":
        return line_of(row, (), [], **dict.fromkeys(BENCHMARK.groups, ""))
    params = params_of(row)
    operation = params["operation"]
    groups = {
        "operator": str(operation["name"]),
        "phrasing": str(params["phrasing"]),
        "kind": str(params["kind"]),
        "switch": str(params["switch"]),
        "turn": f"{row['turn']:02d}",
        "dialogue": str(row["group"]),
        "context": str(params.get("context", "")),
        "level": str(params.get("level", "")) if row["turn"] == params["turns"] else "",
    }
    turn = Turn.of(row, params)
    attempts = each_output(
        outputs,
        context.variant,
        lambda: turn,
        lambda truth, output: score_turn(truth, output, context.psnr_cap),
    )
    return line_of(row, turn.applies, attempts, **groups)


def aggregate(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    """Add what conversations amount to: survival, slope, switches, recovery, scale gap, first failures."""
    there = np.flatnonzero(table.groups["dialogue"].astype(str) != "")
    talks = conversations.by_conversation(table, there, "dialogue")
    passed = conversations.values_of(table, "passed")
    curve = conversations.survival(table, "passed", talks)
    slope = conversations.turn_slope(table, "passed", talks)
    leveled = [int(row) for row in there if table.groups["level"][row]]
    entries = {
        "whole": _whole(table, talks, passed),
        "half_life": _half_life(curve),
        "turn_slope": slope,
        "recovery": conversations.mean_of(passed, table, _after_failures(table, talks, passed), SHARE),
        "scale_gap": conversations.scale_gap(table, "passed", leveled, "context", "level"),
    }
    document |= {
        "fed": Run.open(scores.parents[1]).info["config"].get("turns", "forced"),
        "survival": curve,
        "switches": conversations.switch_means(table, "passed", talks),
        "first_failures": _first_failures(table, talks, passed),
        **entries,
    }
    document["groups"][0]["metrics"] |= {
        name: entry for name, entry in entries.items() if entry["n"] + entry["unscored"]
    }


def _whole(table: ScoreTable, talks: Sequence[Sequence[int]], passed: NDArray[np.float64]) -> dict[str, Any]:
    """The share of conversations with every turn passed. No score, and no failure: unscored."""
    values = np.full(len(table.ids), np.nan)
    for rows in talks:
        found = passed[list(rows)]
        values[rows[0]] = 0.0 if (found == 0).any() else found.min()  # nan where a turn has no score
    return conversations.mean_of(values, table, [rows[0] for rows in talks], SHARE)


def _half_life(curve: Mapping[str, Any]) -> dict[str, Any]:
    half = curve["half_life"]
    return {"mean": np.nan if half is None else float(half), "n": curve["conversations"], "unscored": 0}


def _after_failures(
    table: ScoreTable, talks: Sequence[Sequence[int]], passed: NDArray[np.float64]
) -> list[int]:
    """The undo turns of conversations in which an earlier turn had failed."""
    return [
        row
        for rows in talks
        for at, row in enumerate(rows)
        if table.groups["operator"][row] in UNDO and (passed[list(rows[:at])] == 0).any()
    ]


def _first_failures(
    table: ScoreTable, talks: Sequence[Sequence[int]], passed: NDArray[np.float64]
) -> dict[str, dict[str, int]]:
    """What the first turn that failed asked for, how it was said, and which switch it was."""
    counts: dict[str, Counter[str]] = {key: Counter() for key in ("operator", "phrasing", "switch", "turn")}
    for rows in talks:
        first = next((row for row in rows if not passed[row] > 0.5), None)
        if first is not None and passed[first] == 0:
            for key, found in counts.items():
                found[str(table.groups[key][first]) or "first turn"] += 1
    return {key: dict(found.most_common()) for key, found in counts.items()}


_COLUMNS: Final = ("passed", "overlay_dice", "colour", "leak", "b_psnr", "return_psnr")


def tables(document: Document) -> list[Table]:
    columns = first_attempts(BENCHMARK, document, _COLUMNS)
    titles = {"task": "family", "operator": "operation", "switch": "switch of kind"}
    found = [
        by_group(document, key, columns, title=f"by {title}: mean (scored)") for key, title in titles.items()
    ]
    entries = [(name, document[name]) for name in ("whole", "turn_slope", "recovery", "scale_gap")]
    half = document["survival"]["half_life"]
    longest = max((point["turn"] for point in document["survival"]["curve"]), default=0)
    rows = [(BENCHMARK.metric(name).label, cell(entry, BENCHMARK.metric(name))) for name, entry in entries]
    rows.insert(1, ("Half-life in turns", str(half) if half else f"more than {longest}"))
    found.append(Table(f"conversations ({document['fed']})", ("", "mean (scored)"), tuple(rows)))
    curve = document["survival"]["curve"]
    points = tuple(
        (str(point["turn"]), f"{point['survival']:.3f}", f"{point['at_risk']:,}") for point in curve
    )
    found.append(Table("survival: all turns so far passed", ("turn", "share", "conversations"), points))
    first = document["first_failures"]["operator"]
    failures = tuple((name, f"{count:,}") for name, count in first.items())
    found.append(Table("the first turn that failed", ("operation", "conversations"), failures))
    return found
