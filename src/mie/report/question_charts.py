"""Charts of answered questions: tasks by answerers as a heat map, and what each step of a set kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mie.report.charts import _INK, _PAPER, _SOFT, _STYLE, _WIDTH, COLOURS, Chart, _save, short
from mie.scoring.metric import Metric

_ROW: Final = 0.3  # inches
_DARK_FROM: Final = 0.6  # of the colour map: below it text is dark


def heat_map(
    folder: Path,
    name: str,
    caption: str,
    metric: Metric,
    rows: Mapping[str, Mapping[str, float]],
    runs: Sequence[str],
) -> Chart:
    """Draw a cell for each row (a task) and run, its mean written in it; a cell without a number is empty.

    Runs are columns with numbers; their names stand below, because a phone has no place above the cells.
    """
    values = np.array([[found.get(run, math.nan) for run in runs] for found in rows.values()])
    height = _ROW * (len(rows) + len(runs)) + 0.75
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        colours = matplotlib.colormaps["cividis"]
        axes.imshow(values, cmap=colours, vmin=0, vmax=1, aspect="auto")
        for at, line in enumerate(values):
            for column, value in enumerate(line):
                text, colour = ("–", _SOFT) if math.isnan(value) else (metric.show(value), _PAPER)
                if not math.isnan(value) and value > _DARK_FROM:
                    colour = "#1F2934"  # not the ink, which the dark copy turns light
                axes.text(column, at, text, ha="center", va="center", color=colour, size=8.5)
        axes.set_yticks(range(len(rows)), [short(row, 14) for row in rows])
        axes.set_xticks(range(len(runs)), [str(at + 1) for at in range(len(runs))])
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        names = "\n".join(f"{at + 1}  {short(run, 38)}" for at, run in enumerate(runs))
        figure.supxlabel(names, size=9.5, color=_INK, ha="left", x=0.02)
        size = _save(figure, folder, name)
    alt = "; ".join(
        f"{row}: " + ", ".join(f"{run} {metric.show(found[run])}" for run in runs if run in found)
        for row, found in rows.items()
    )
    return Chart(name, caption, f"{caption}. {alt}.", *size)


def funnel_chart(folder: Path, name: str, caption: str, steps: Sequence[tuple[str, int]]) -> Chart:
    """Draw a bar for each step of making the set: how many questions were left after it."""
    most = max(count for _, count in steps)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.5 * len(steps) + 0.2), layout="constrained")
        axes = figure.subplots()
        for at, (label, count) in enumerate(steps):
            width = count / most if most else 0.0
            axes.barh(at, width, left=(1 - width) / 2, height=0.42, color=COLOURS[0])
            axes.text(0, at - 0.38, short(label, 30), va="center", color=_INK)
            axes.text(1, at - 0.38, f"{count:,}", va="center", ha="right", color=_SOFT)
        axes.set_ylim(len(steps) - 0.6, -0.7)
        axes.set_xlim(0, 1)
        axes.set_axis_off()
        size = _save(figure, folder, name)
    alt = ", ".join(f"{label} {count:,}" for label, count in steps)
    return Chart(name, caption, f"{caption}. {alt}.", *size)


def funnel_steps(info: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(step, questions left) as the set's `questions.json` says; empty where it says nothing."""
    return [(str(step["step"]), int(step["questions"])) for step in info.get("funnel") or ()]
