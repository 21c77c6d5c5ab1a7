"""The tables at a glance: DICE against the number of training samples, and decibels against their bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from measured import GROUPS, Bench

from mie.report.charts import COLOURS
from mie.training.compact_validation import summary
from mie.vocabulary import MODALITIES

_BAR_DICE, _BAR_DB = 0.75, 3.0
_LOW = 0.3
_BLUE, _RED, _GREY = COLOURS[0], COLOURS[1], COLOURS[7]
_WIDTH, _HEIGHT, _DPI = 7.5, 5.0, 110  # inches of a panel; pages show about 800 pixels of width
_SMALL, _NORMAL = 9, 11  # points
# Each modality has a colour and a mark of its own, the same in every plot.
_STYLES = dict(zip(MODALITIES, zip((*COLOURS, "#000000", "#A6761D"), "osD^vPX*<>", strict=True), strict=True))
_OTHER = (_GREY, "h")  # a modality that an import could not name


def draw(benches: Sequence[Bench], name: str, path: Path) -> None:
    """The run `name` of each dataset, in panels below each other."""
    figure_of(benches, name).savefig(path, dpi=_DPI)


def figure_of(benches: Sequence[Bench], name: str) -> Figure:
    panels = [
        (panel, bench)
        for bench in benches
        for perspective, panel in (("perception", _dice), ("transformation", _decibels))
        if bench.part(perspective).get(name) and bench.trained(perspective)
    ]
    if not panels:
        raise SystemExit(f"nothing to plot: run {name!r} has no perception or transformation")
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(panels)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (panel, bench) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        panel(axis, bench, name)
        axis.tick_params(labelsize=_SMALL)
    return figure


def _dice(axis: Any, bench: Bench, name: str) -> None:
    """Each data set that was trained on; those that are far below the rest by name."""
    by, trained = GROUPS["perception"], bench.trained("perception")
    records = bench.part("perception")[name]
    groups = summary(records, "dice", by=by)["groups"]
    modality = {by(record): record["modality"] for record in records}
    for kind in sorted(set(modality.values())):
        some = [group for group in groups if trained.get(group) and modality[group] == kind]
        colour, mark = _STYLES.get(kind, _OTHER)
        axis.scatter(
            [trained[group] for group in some],
            [groups[group]["mean"] for group in some],
            color=colour,
            marker=mark,
            s=36,
            label=kind if some else None,
        )
        for group in some:
            if groups[group]["mean"] < _LOW:
                at = (trained[group], groups[group]["mean"])
                axis.annotate(group, at, (6, -3), textcoords="offset points", fontsize=_SMALL)
    axis.axhline(_BAR_DICE, color=_GREY, linestyle="--", linewidth=1)
    axis.set(xscale="log")
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set(ylim=(-0.03, 1.03), xlabel="training samples", ylabel="DICE on the test split")
    axis.set_title("Perception: a point for each data set", fontsize=_NORMAL)
    axis.legend(fontsize=_SMALL, loc="lower right", ncols=2)


def _decibels(axis: Any, bench: Bench, name: str) -> None:
    trained = bench.trained("transformation")
    records = bench.part("transformation")[name]
    groups = summary(records, "gain_psnr", by=GROUPS["transformation"])["groups"]
    targets = sorted((target for target in groups if trained.get(target)), key=lambda t: groups[t]["mean"])
    for at, target in enumerate(targets):
        one = groups[target]
        axis.barh(at, one["mean"], color=_BLUE if one["mean"] >= _BAR_DB else _RED)
        if one["low"] is not None:
            axis.hlines(at, one["low"], one["high"], color="#1F2933")
    axis.axvline(_BAR_DB, color=_GREY, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(targets)), targets, fontsize=_SMALL)
    axis.set_xlabel("dB gained over the input, mean and 95% interval")
    axis.set_title("Transformation", fontsize=_NORMAL)
