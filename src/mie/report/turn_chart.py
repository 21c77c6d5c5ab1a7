"""How a score goes over the turns of a conversation: a line for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mie.report.charts import COLOURS, GUIDE, MARKS, STYLE, WIDTH, Chart, save_chart, short
from mie.report.measures import Measure
from mie.report.scored import Cell


def turn_chart(
    folder: Path,
    name: str,
    caption: str,
    measure: Measure,
    lines: Mapping[str, Mapping[int, Cell]],
    runs: Sequence[str],
) -> Chart | None:
    """Mean and 95% interval at each turn that has a number; None where no run has two such turns.

    `lines` maps a run to turn -> cell; `runs` are all of the page: their order decides colours and marks. A
    turn without a number is a gap, never a 0.
    """
    shown = {run: {turn: cell for turn, cell in at.items() if cell.n} for run, at in lines.items()}
    if not any(len(at) > 1 for at in shown.values()):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.0 + 0.2 * ((len(shown) + 1) // 2)), layout="constrained")
        axes = figure.subplots()
        for run, at in shown.items():
            number = runs.index(run)
            colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            every = range(min(at, default=0), max(at, default=-1) + 1)
            means = [at[turn].mean if turn in at else float("nan") for turn in every]
            axes.plot(every, means, marker=mark, color=colour, markersize=5, label=short(run, 30))
            sure = [turn for turn in at if at[turn].low == at[turn].low]  # not nan
            axes.vlines(sure, [at[t].low for t in sure], [at[t].high for t in sure], color=colour, alpha=0.5)
        axes.set_xlabel("turn")
        axes.set_ylabel(measure.titled)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=GUIDE, linewidth=0.8)
        if len(shown) > 1:
            figure.legend(loc="outside upper left", ncols=2, handlelength=1.4, fontsize=9)
        size = save_chart(figure, folder, name)
    said = "; ".join(
        f"{run}: " + ", ".join(f"turn {turn} {measure.show(cell.mean)}" for turn, cell in sorted(at.items()))
        for run, at in shown.items()
    )
    return Chart(name, caption, f"{caption}. {said}.", *size)
