"""What the tables say at a glance: DICE against how much was trained on, and decibels against their bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from measured import GROUPS, Bench

from mie.report.charts import COLOURS, MARKS
from mie.training.compact_validation import summary

_BAR_DICE, _BAR_DB = 0.83, 3.0
_LOW = 0.4
_BLUE, _RED, _GREY = COLOURS[0], COLOURS[1], COLOURS[7]


def draw(benches: Sequence[Bench], name: str, path: Path) -> None:
    """The run `name` of each dataset, in panels side by side."""
    panels = [
        (panel, bench)
        for bench in benches
        for perspective, panel in (("perception", _dice), ("transformation", _decibels))
        if bench.part(perspective).get(name) and bench.trained(perspective)
    ]
    if not panels:
        raise SystemExit(f"nothing to plot: run {name!r} has no perception or transformation")
    figure = Figure(figsize=(6.5 * len(panels), 6), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (panel, bench) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axis, bench, name)
    figure.savefig(path, dpi=110)


def _dice(axis: Any, bench: Bench, name: str) -> None:
    """Each data set that was trained on; those that are far below the rest by name."""
    by, trained = GROUPS["perception"], bench.trained("perception")
    records = bench.part("perception")[name]
    found = summary(records, "dice", by=by)["groups"]
    modality = {by(record): record["modality"] for record in records}
    for number, kind in enumerate(sorted(set(modality.values()))):
        some = [group for group in found if trained.get(group) and modality[group] == kind]
        axis.scatter(
            [trained[group] for group in some],
            [found[group]["mean"] for group in some],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKS[
                (number + number // len(COLOURS)) % len(MARKS)
            ],  # a colour's second time, another mark
            s=36,
            label=kind if some else None,
        )
        for group in some:
            if found[group]["mean"] < _LOW:
                at = (trained[group], found[group]["mean"])
                axis.annotate(group, at, (6, -3), textcoords="offset points", fontsize=7)
    axis.axhline(_BAR_DICE, color=_GREY, linestyle="--", linewidth=1)
    axis.set(xscale="log")
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set(ylim=(-0.03, 1.03), xlabel="training samples", ylabel="DICE on the test split")
    axis.set_title("Perception: a point for each data set", fontsize=11)
    axis.legend(fontsize=8, loc="lower right")


def _decibels(axis: Any, bench: Bench, name: str) -> None:
    trained = bench.trained("transformation")
    found = summary(bench.part("transformation")[name], "gain_psnr", by=GROUPS["transformation"])["groups"]
    targets = sorted((target for target in found if trained.get(target)), key=lambda t: found[t]["mean"])
    for at, target in enumerate(targets):
        one = found[target]
        axis.barh(at, one["mean"], color=_BLUE if one["mean"] >= _BAR_DB else _RED)
        if one["low"] is not None:
            axis.hlines(at, one["low"], one["high"], color="#1F2933")
    axis.axvline(_BAR_DB, color=_GREY, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(targets)), targets, fontsize=8)
    axis.set_xlabel("dB gained over the input, mean and 95% interval")
    axis.set_title("Transformation", fontsize=11)
