"""Charts of the report, one small picture per measure: SVG for light and dark pages, and a PNG copy.

Each is readable at 340 pixels. Drawn through matplotlib's objects, never `pyplot`; equal numbers give equal
bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from mie.core.files import atomic_write
from mie.report.measures import Measure
from mie.report.scored import Cell

# Okabe and Ito, safe for colour-blind readers, without their yellow; each run has a mark of its own too.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6FAC", "#6B7280")
MARKS: Final = "osD^vPX*"
_INK, GUIDE, _PAPER = "#1F2933", "#E1E5EA", "#FFFFFF"
# What the dark copy of a chart has instead.
_DARK: Final = {_INK: "#E6E9ED", GUIDE: "#38414C", COLOURS[0]: "#4BA3DB", COLOURS[1]: "#F08A3C"}
WIDTH: Final = 4.4
STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 10,
    "text.parse_math": False,  # a model may have a $ in its name
    "svg.fonttype": "path",
    "svg.hashsalt": "mie",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "legend.frameon": False,
}
_BINS: Final = 40


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart on disk: `plots/NAME.svg`, `.dark.svg` and `.png`, its size in pixels, and what it says."""

    name: str
    caption: str
    alt: str
    width: int
    height: int


def means_chart(
    folder: Path,
    name: str,
    caption: str,
    measure: Measure,
    rows: Mapping[str, Mapping[str, Cell]],
    runs: Sequence[str],
) -> Chart:
    """A row per group (or one row), in it a dot with its 95% interval for each run that has a number.

    `rows` maps a row's label to run -> cell; the runs' order decides colours and marks.
    """
    shown = [run for run in runs if any(run in cells for cells in rows.values())]
    step = 0.78 / max(len(shown), 1)
    height = 1.0 + len(rows) * max(0.3, 0.14 * len(shown)) + 0.2 * math.ceil(len(shown) / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        edge = _limits(axes, measure, [cell for cells in rows.values() for cell in cells.values()])
        for at, run in enumerate(shown):
            number = runs.index(run)
            colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            found = [(row, cells[run]) for row, cells in enumerate(rows.values()) if run in cells]
            heights = [row + (at - (len(shown) - 1) / 2) * step for row, _ in found]
            for y, (_, cell) in zip(heights, found, strict=True):
                ends = np.clip(np.nan_to_num([cell.low, cell.high], nan=cell.mean), None, edge)
                axes.plot(ends, [y, y], color=colour, linewidth=1.8, solid_capstyle="round")
            means = [min(cell.mean, edge) for _, cell in found]
            axes.plot(means, heights, mark, color=colour, markersize=5.5, label=short(run, 30), clip_on=False)
            for y, (_, cell) in zip(heights, found, strict=True):
                if cell.mean > edge:
                    axes.annotate("∞", (edge, y), (5, 0), textcoords="offset points", va="center")
        counts = [max(cell.n for cell in cells.values()) for cells in rows.values()]
        labels = [f"{short(label, 22)} ({n:,})" for label, n in zip(rows, counts, strict=True)]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(labeltop=len(rows) > 8)
        for border in range(1, len(rows)):
            axes.axhline(border - 0.5, color=GUIDE, linewidth=0.8)
        _finish(axes, measure)
        if len(shown) > 1:
            figure.legend(loc="outside upper left", ncols=2, handlelength=1, columnspacing=1.2, fontsize=9)
        size = save_chart(figure, folder, name)
    said = "; ".join(
        f"{label}: " + ", ".join(f"{run} {measure.show(cells[run].mean)}" for run in runs if run in cells)
        for label, cells in rows.items()
    )
    return Chart(name, caption, f"{caption}. {said}.", *size)


def leaderboard_chart(
    folder: Path, name: str, caption: str, measure: Measure, cells: Mapping[str, Cell], runs: Sequence[str]
) -> Chart:
    """A row per run with its mean and 95% interval, the number written beside it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.75 + 0.34 * len(cells)), layout="constrained")
        axes = figure.subplots()
        edge = _limits(axes, measure, list(cells.values()))
        for row, (run, cell) in enumerate(cells.items()):
            number = runs.index(run)
            colour = COLOURS[number % len(COLOURS)]
            ends = np.clip(np.nan_to_num([cell.low, cell.high], nan=cell.mean), None, edge)
            axes.plot(ends, [row, row], color=colour, linewidth=2.4, solid_capstyle="round")
            axes.plot(
                min(cell.mean, edge),
                row,
                MARKS[number % len(MARKS)],
                color=colour,
                markersize=7,
                clip_on=False,
            )
            axes.text(1.04, row, measure.show(cell.mean), transform=axes.get_yaxis_transform(), va="center")
        axes.set_yticks(range(len(cells)), [short(run, 24) for run in cells])
        axes.set_ylim(len(cells) - 0.5, -0.5)
        _finish(axes, measure)
        size = save_chart(figure, folder, name)
    said = ", ".join(f"{run} {measure.show(cell.mean)}" for run, cell in cells.items())
    return Chart(name, caption, f"{caption}. {said}.", *size)


def distribution_chart(
    folder: Path,
    name: str,
    caption: str,
    measure: Measure,
    values: Mapping[str, NDArray[np.float64]],
    runs: Sequence[str],
) -> Chart:
    """A histogram per run over the same bins, one above the other; a line marks the median.

    Infinite values stand in the last bin, at 100 dB.
    """
    capped = {
        run: np.clip(v[~np.isnan(v)], None, 100.0 if measure.decibels else None) for run, v in values.items()
    }
    capped = {run: v for run, v in capped.items() if v.size}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.52 * len(capped)), layout="constrained")
        axes = figure.subplots()
        low = min(0.0, *(float(v.min()) for v in capped.values()))
        high = max(float(v.max()) for v in capped.values())
        top = max(high, low + 1e-6) if measure.decibels or high > 1 else 1.0  # grades go beyond 1
        edges = np.linspace(low, top, _BINS + 1)
        for row, (run, found) in enumerate(capped.items()):
            colour = COLOURS[runs.index(run) % len(COLOURS)]
            counts, _ = np.histogram(np.clip(found, edges[0], edges[-1]), edges)
            tops = row + 0.4 - 0.8 * counts / counts.max()
            axes.stairs(tops, edges, baseline=row + 0.4, fill=True, color=colour, alpha=0.55, linewidth=0)
            axes.stairs(tops, edges, baseline=row + 0.4, color=colour, linewidth=1.2)
            median = float(np.median(found))
            axes.plot([median, median], [row + 0.42, row - 0.42], color=_INK, linewidth=1.6)
            axes.text(1.04, row, measure.show(median), transform=axes.get_yaxis_transform(), va="center")
        axes.set_yticks(range(len(capped)), [f"{short(run, 20)} ({v.size:,})" for run, v in capped.items()])
        axes.set_ylim(len(capped) - 0.45, -0.6)
        axes.set_xlim(edges[0], edges[-1])
        _finish(axes, measure)
        size = save_chart(figure, folder, name)
    said = ", ".join(f"{run} median {measure.show(float(np.median(v)))}" for run, v in capped.items())
    return Chart(name, caption, f"{caption}. {said}.", *size)


def _limits(axes: Axes, measure: Measure, cells: Sequence[Cell]) -> float:
    """Set the range of the value axis; returns its upper end, where infinite means are drawn."""
    ends = [end for cell in cells for end in (cell.mean, cell.low, cell.high) if math.isfinite(end)]
    if not measure.decibels and all(0 <= end <= 1 for end in ends):
        axes.set_xlim(0, 1)
        return 1.0
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    pad = 0.06 * (high - low) or 1.0
    axes.set_xlim(low - pad, high + pad)
    return high + pad


def _finish(axes: Axes, measure: Measure) -> None:
    axes.set_xlabel(measure.titled)
    axes.tick_params(axis="y", length=0, pad=8)  # a mark at 0 reaches over the edge
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x", color=GUIDE, linewidth=0.8)
    axes.set_axisbelow(True)


def short(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def save_chart(figure: Figure, folder: Path, name: str) -> tuple[int, int]:
    """Write the three files; (width, height) in CSS pixels."""
    FigureCanvasAgg(figure)
    # Laid out once for both files: it is half of the work.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=180, facecolor=_PAPER, metadata={"Software": None})
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    light = svg.getvalue()
    dark = light
    for colour, instead in _DARK.items():
        dark = dark.replace(colour.lower(), instead.lower())
    (folder / f"{name}.png").write_bytes(png.getvalue())
    (folder / f"{name}.svg").write_text(light, encoding="utf-8")
    (folder / f"{name}.dark.svg").write_text(dark, encoding="utf-8")
    width, height = figure.get_size_inches() * 96
    return round(width), round(height)


# How a score goes over the turns of a conversation: a line for each run.


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


# The radar chart of MedEBench: EA, CP and VQ, an axis for each organ, a line for each run.

PANELS: Final = {"ea@1": "Editing accuracy", "cp@1": "Context preservation", "vq@1": "Visual quality"}
_RADAR_PAPER: Final = "#FFFFFF"
_STYLE: Final[dict[Any, Any]] = {**STYLE, "font.size": 9, "axes.edgecolor": GUIDE}


def radar_chart(documents: Mapping[str, Mapping[str, Any]], path: Path) -> Path | None:
    """A PNG with a panel for each of EA, CP and VQ that was scored; None where nothing was.

    `documents` maps a run's name to what scoring it by `medebench` returned. An organ that a run has no
    number for leaves a gap in its line, never a 0.
    """
    panels = _panels(documents)
    if not panels:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = _figure(panels, list(documents))
        FigureCanvasAgg(figure)
        png = io.BytesIO()
        about: dict[str, Any] = {
            "facecolor": _RADAR_PAPER,
            "bbox_inches": "tight",
            "metadata": {"Software": None},
        }
        figure.savefig(png, format="png", dpi=150, **about)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, png.getvalue())
    return path


def radars_for_page(
    documents: Mapping[str, Mapping[str, Any]], folder: Path, name: str, runs: Sequence[str]
) -> list[Chart]:
    """The panels as charts of a report's page, whose runs decide the colours."""
    charts = []
    for key, found in _panels(documents).items():
        file = f"{name}_{key.partition('@')[0]}"
        with matplotlib.rc_context(_STYLE):
            size = save_chart(_figure({key: found}, runs), folder, file)
        said = "; ".join(
            f"{run}: " + ", ".join(f"{organ} {mean:.2f}" for organ, mean in means.items())
            for run, means in found.items()
        )
        caption = f"{PANELS[key]} by organ"
        charts.append(Chart(file, caption, f"{caption}. {said}.", *size))
    return charts


def _panels(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Metric -> run -> organ -> mean, for those that have any."""
    return {
        key: {name: _organs(document, key) for name, document in documents.items()}
        for key in PANELS
        if any(_organs(document, key) for document in documents.values())
    }


def _figure(panels: Mapping[str, Mapping[str, Mapping[str, float]]], order: Sequence[str]) -> Figure:
    organs = sorted({organ for runs in panels.values() for means in runs.values() for organ in means})
    figure = Figure(figsize=(4.2 * len(panels), 4.6), layout="constrained")
    for at, (key, runs) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), at, projection="polar")
        _panel(axes, PANELS[key], organs, runs, order)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    return figure


def _panel(
    axes: Axes, title: str, organs: list[str], runs: Mapping[str, Mapping[str, float]], order: Sequence[str]
) -> None:
    assert isinstance(axes, PolarAxes)  # noqa: S101 (as it was made)
    angles = np.linspace(0, 2 * np.pi, len(organs), endpoint=False)
    closed = np.append(angles, angles[0])
    for name, means in runs.items():
        number = order.index(name)
        values = np.array([means.get(organ, math.nan) for organ in organs])
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        ring = np.append(values, values[0])
        axes.plot(closed, ring, color=colour, marker=mark, markersize=4, linewidth=1.6, label=name)
        if not np.isnan(values).any():
            axes.fill(closed, ring, color=colour, alpha=0.08)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [organ if len(organ) <= 18 else f"{organ[:17]}…" for organ in organs])
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"])
    axes.grid(color=GUIDE, linewidth=0.8)
    axes.set_title(title, pad=16)


def _organs(document: Mapping[str, Any], key: str) -> dict[str, float]:
    """Organ -> mean of the metric, where there is one."""
    found = {}
    for item in document["groups"]:
        entry = item["metrics"].get(key)
        if list(item["group"]) == ["organ"] and entry is not None and entry["n"]:
            found[item["group"]["organ"]] = float(entry["mean"])
    return found
