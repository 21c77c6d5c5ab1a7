"""Charts of the report, one small picture per metric: SVG for light and dark pages, and a PNG copy.

Each is drawn for 345 pixels, the width that it has on a phone: text is never smaller than 11 pixels. Drawn
through matplotlib's objects, never `pyplot`; equal numbers give equal bytes.
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
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from mie.core.files import atomic_write
from mie.report.layouts import Radar, layout_of
from mie.report.layouts import metric as find_metric
from mie.report.scored import Cell
from mie.report.views import value_range, whole_scale
from mie.scoring.metric import Metric

# Okabe and Ito, safe for colour-blind readers, without their yellow; each run has a mark of its own too.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6FAC", "#6B7280")
MARKS: Final = "osD^vPX*"
_INK, _SOFT, _GUIDE, _PAPER = "#1F2933", "#5A6673", "#E1E5EA", "#FFFFFF"
# What the dark copy of a chart has instead.
_DARK: Final = {
    _INK: "#E6E9ED",
    _SOFT: "#A3ADB8",
    _GUIDE: "#38414C",
    COLOURS[0]: "#4BA3DB",
    COLOURS[1]: "#F08A3C",
}
_WIDTH: Final = 3.6  # inches of 96 pixels
_DPI: Final = 220  # of the PNG
_TEXT, _SMALL = 10.0, 9.5  # points: 13.3 and 12.7 pixels
_CHARACTERS: Final = 43  # of a line of text across a chart
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": _TEXT,
    "legend.fontsize": _SMALL,
    "xtick.labelsize": _SMALL,
    "ytick.labelsize": _SMALL,
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
_LABEL: Final = 0.25  # inches of a row's label
_GAP: Final = 0.07  # below a row
_CAP: Final = 100.0  # dB: exact matches, whose PSNR is infinite, stand here


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
    metric: Metric,
    rows: Mapping[str, Mapping[str, Cell]],
    runs: Sequence[str],
) -> Chart:
    """Draw a row for each group, in it a dot with its 95% interval for each run that has a number.

    `rows` maps a row's label to run -> cell; the runs' order decides colours and marks.
    """
    shown = [run for run in runs if any(run in cells for cells in rows.values())]
    limits = value_range(metric, [cell for cells in rows.values() for cell in cells.values()])
    labels = [(label, _support_words(cells.values())) for label, cells in rows.items()]
    with matplotlib.rc_context(_STYLE):
        figure, axes, bands = _rows(metric, limits, labels, band=0.16 * len(shown), runs=shown)
        step = (bands[0][1] - bands[0][0]) / len(shown)
        for at, run in enumerate(shown):
            colour, mark = _look(runs.index(run))
            tops = [band[0] for band, cells in zip(bands, rows.values(), strict=True) if run in cells]
            heights = [top + (at + 0.5) * step for top in tops]
            found = [cells[run] for cells in rows.values() if run in cells]
            _dots(axes, found, heights, limits, colour, mark, short(run, 22))
        if len(shown) > 1:
            figure.legend(loc="outside upper left", ncols=2, handlelength=1, columnspacing=1.2)
        size = _save(figure, folder, name)
    alt = "; ".join(
        f"{label}: " + ", ".join(f"{run} {metric.show(cells[run].mean)}" for run in runs if run in cells)
        for label, cells in rows.items()
    )
    return Chart(name, caption, f"{caption}. {alt}.", *size)


def leaderboard_chart(
    folder: Path, name: str, caption: str, metric: Metric, cells: Mapping[str, Cell], runs: Sequence[str]
) -> Chart:
    """Draw a row for each run with its mean and 95% interval, the number written beside its name."""
    limits = value_range(metric, cells.values())
    labels = [(run, metric.show(cell.mean)) for run, cell in cells.items()]
    with matplotlib.rc_context(_STYLE):
        figure, axes, bands = _rows(metric, limits, labels, band=0.16)
        for (run, cell), (top, bottom) in zip(cells.items(), bands, strict=True):
            _dots(axes, [cell], [(top + bottom) / 2], limits, *_look(runs.index(run)), run)
        size = _save(figure, folder, name)
    alt = ", ".join(f"{run} {metric.show(cell.mean)}" for run, cell in cells.items())
    return Chart(name, caption, f"{caption}. {alt}.", *size)


def distribution_chart(
    folder: Path,
    name: str,
    caption: str,
    metric: Metric,
    values: Mapping[str, NDArray[np.float64]],
    runs: Sequence[str],
) -> Chart | None:
    """Draw a histogram for each run over the same bins; a line marks the median. None without values.

    Infinite values stand in the last bin, at 100 dB.
    """
    capped = {run: np.clip(v[~np.isnan(v)], None, _CAP) for run, v in values.items()}
    capped = {run: v for run, v in capped.items() if v.size}
    if not capped:
        return None
    low = min(float(v.min()) for v in capped.values())
    high = max(float(v.max()) for v in capped.values())
    limits = (min(low, 0.0), max(high, 1.0)) if metric.decibels else whole_scale(metric, low, high)
    medians = {run: metric.show(float(np.median(v))) for run, v in capped.items()}
    labels = [(run, f"n {v.size:,}, median {medians[run]}") for run, v in capped.items()]
    with matplotlib.rc_context(_STYLE):
        figure, axes, bands = _rows(metric, limits, labels, band=0.42)
        edges = np.linspace(*limits, _BINS + 1)
        for (run, found), (top, bottom) in zip(capped.items(), bands, strict=True):
            colour, _ = _look(runs.index(run))
            counts, _ = np.histogram(found, edges)
            tops = bottom - (bottom - top) * counts / counts.max()
            axes.stairs(tops, edges, baseline=bottom, fill=True, color=colour, alpha=0.55, linewidth=0)
            axes.stairs(tops, edges, baseline=bottom, color=colour, linewidth=1.2)
            median = float(np.median(found))
            axes.plot([median, median], [bottom, top], color=_INK, linewidth=1.6)
        size = _save(figure, folder, name)
    alt = ", ".join(f"{run} median {median}" for run, median in medians.items())
    return Chart(name, caption, f"{caption}. {alt}.", *size)


_ASIDE: Final = 0.05  # turns that a line is moved, so that equal ones are all seen


def turn_chart(
    folder: Path,
    name: str,
    caption: str,
    metric: Metric,
    lines: Mapping[str, Mapping[int, Cell]],
    runs: Sequence[str],
) -> Chart | None:
    """Draw a line for each run over the turns of a conversation; None where no run has two turns.

    `lines` maps a run to turn -> cell; `runs` are all of the page: their order decides colours and marks. A
    turn without a number is a gap, never a 0.
    """
    shown = {run: {turn: cell for turn, cell in at.items() if cell.n} for run, at in lines.items()}
    if not any(len(at) > 1 for at in shown.values()):
        return None
    with matplotlib.rc_context(_STYLE):
        # Two columns hold names of 22 letters.
        columns, letters = (2, 22) if max(map(len, shown)) <= 22 else (1, 46)
        height = 2.8 + 0.2 * math.ceil(len(shown) / columns)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        for place, (run, at) in enumerate(shown.items()):
            colour, mark = _look(runs.index(run))
            aside = _ASIDE * (place - (len(shown) - 1) / 2)
            every = range(min(at, default=0), max(at, default=-1) + 1)
            means = [at[turn].mean if turn in at else math.nan for turn in every]
            across = [turn + aside for turn in every]
            axes.plot(across, means, marker=mark, color=colour, markersize=5, label=short(run, letters))
            sure = [turn for turn in at if not math.isnan(at[turn].low)]
            ends = [at[t].low for t in sure], [at[t].high for t in sure]
            axes.vlines([turn + aside for turn in sure], *ends, color=colour, alpha=0.5)
        low, high = value_range(metric, [cell for at in shown.values() for cell in at.values()])
        axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        axes.set_xlabel("turn")
        axes.set_ylabel(metric.title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=_GUIDE, linewidth=0.8)
        if len(shown) > 1:
            figure.legend(loc="outside upper left", ncols=columns, handlelength=1.4)
        size = _save(figure, folder, name)
    alt = "; ".join(
        f"{run}: " + ", ".join(f"turn {turn} {metric.show(cell.mean)}" for turn, cell in sorted(at.items()))
        for run, at in shown.items()
    )
    return Chart(name, caption, f"{caption}. {alt}.", *size)


def tradeoff_chart(
    folder: Path,
    name: str,
    caption: str,
    axes_of: tuple[Metric, Metric],
    points: Mapping[str, tuple[Cell, Cell]],
) -> Chart:
    """Draw a point for each run, one metric against another, with both 95% intervals."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 3.4 + 0.2 * ((len(points) + 1) // 2)), layout="constrained")
        axes = figure.subplots()
        for number, (run, pair) in enumerate(points.items()):
            colour, mark = _look(number)
            x, y = pair
            ends = [(c.mean - c.low, c.high - c.mean) if math.isfinite(c.low) else (0.0, 0.0) for c in pair]
            bars: dict[str, Any] = {"xerr": np.array(ends[0])[:, None], "yerr": np.array(ends[1])[:, None]}
            axes.errorbar(x.mean, y.mean, fmt=mark, color=colour, elinewidth=1, label=short(run, 22), **bars)
        for at, metric in enumerate(axes_of):
            low, high = value_range(metric, [pair[at] for pair in points.values()])
            spare = 0.03 * (high - low)  # a mark at the end of the scale is whole
            (axes.set_xlim if at == 0 else axes.set_ylim)(low - spare, high + spare)
            (axes.set_xlabel if at == 0 else axes.set_ylabel)(metric.title)
        axes.grid(color=_GUIDE, linewidth=0.8)
        figure.legend(loc="outside upper left", ncols=2, handlelength=1)
        size = _save(figure, folder, name)
    first, second = axes_of
    alt = "; ".join(f"{run}: {first.show(x.mean)}, {second.show(y.mean)}" for run, (x, y) in points.items())
    return Chart(name, caption, f"{caption}. {alt}.", *size)


def _look(number: int) -> tuple[str, str]:
    """Return the colour and the mark of a run."""
    return COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]


def _support_words(cells: Any) -> str:
    largest = max(cells, key=lambda cell: cell.n)
    support = largest.support
    if support is None:
        return f"n {largest.n:,}"
    who = str(support) if support.patients and not support.images else "patients unknown"
    return f"n {largest.n:,}, {who}"


def _rows(
    metric: Metric,
    limits: tuple[float, float],
    labels: Sequence[tuple[str, str]],
    *,
    band: float,
    runs: Sequence[str] = (),
) -> tuple[Figure, Axes, list[tuple[float, float]]]:
    """Return a figure of rows and the (top, bottom) of each: above it its label, and a text at the right.

    Labels beside the rows would leave no place for the rows on a phone. Heights are in inches.
    """
    step = _LABEL + band + _GAP
    legend = 0.22 * math.ceil(len(runs) / 2) if len(runs) > 1 else 0.0
    figure = Figure(figsize=(_WIDTH, len(labels) * step + 0.55 + legend), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.09)  # type: ignore[union-attr, call-arg] # marks at the edge
    axes = figure.subplots()
    axes.set_xlim(limits)
    axes.set_ylim(len(labels) * step, 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    cut = limits[0] > max((metric.scale or (0.0,))[0], 0.0)
    axes.set_xlabel(f"{metric.title}; axis starts at {limits[0]:g}" if cut else metric.title)
    ticks = [tick for tick in axes.get_xticks() if limits[0] <= tick <= limits[1]]
    bands, across = [], axes.get_yaxis_transform()
    for row, (label, note) in enumerate(labels):
        top = row * step + _LABEL
        bands.append((top, top + band))
        text = short(label, _CHARACTERS - len(note) - 2)
        axes.text(0, top - _LABEL / 2, text, transform=across, va="center")
        axes.text(
            1, top - _LABEL / 2, note, transform=across, va="center", ha="right", color=_SOFT, size=_SMALL
        )
        axes.vlines(ticks, top, top + band, color=_GUIDE, linewidth=0.8, zorder=0)
    return figure, axes, bands


def _dots(
    axes: Axes,
    cells: Sequence[Cell],
    heights: Sequence[float],
    limits: tuple[float, float],
    colour: str,
    mark: str,
    label: str,
) -> None:
    """Draw means with their intervals; infinite ones at the right end."""
    for y, cell in zip(heights, cells, strict=True):
        ends = np.clip(np.nan_to_num([cell.low, cell.high], nan=cell.mean), *limits)
        axes.plot(ends, [y, y], color=colour, linewidth=1.8, solid_capstyle="round")
        if cell.mean > limits[1]:
            axes.annotate("∞", (limits[1], y), (-6, 0), textcoords="offset points", va="center", ha="right")
    means = [min(cell.mean, limits[1]) for cell in cells]
    axes.plot(means, heights, mark, color=colour, markersize=6, label=label, clip_on=False)


def short(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def _save(figure: Figure, folder: Path, name: str) -> tuple[int, int]:
    """Write the three files; return (width, height) in CSS pixels."""
    # Laid out once for both files, and drawn once for each: `savefig` would draw four times, and that is most
    # of the time a report takes.
    canvas = FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    svg, png = io.StringIO(), io.BytesIO()
    figure.set(dpi=_DPI, facecolor=_PAPER)
    canvas.print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set(facecolor="none", edgecolor="none")
    about = {"Date": None, "Creator": None}
    FigureCanvasSVG(figure).print_svg(svg, metadata=about)  # type: ignore[no-untyped-call]
    light = svg.getvalue()
    dark = light
    for colour, instead in _DARK.items():
        dark = dark.replace(colour.lower(), instead.lower())
    (folder / f"{name}.png").write_bytes(png.getvalue())
    (folder / f"{name}.svg").write_text(light, encoding="utf-8")
    (folder / f"{name}.dark.svg").write_text(dark, encoding="utf-8")
    width, height = figure.get_size_inches() * 96
    return round(width), round(height)


# Radar charts: an axis for each group, a line for each run.


def radar_chart(documents: Mapping[str, Mapping[str, Any]], path: Path) -> Path | None:
    """Write a PNG with a panel for each metric of the benchmark's radar; None where it has no numbers.

    `documents` maps a run's name to what scoring it returned. A group that a run has no number for leaves a
    gap in its line, never a 0.
    """
    radar = layout_of(next(iter(documents.values()))["protocol"]).radar
    panels = _panels(documents, radar) if radar else {}
    if radar is None or not panels:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = _radar_figure(panels, radar, list(documents))
        FigureCanvasAgg(figure)
        png = io.BytesIO()
        about: dict[str, Any] = {"bbox_inches": "tight", "metadata": {"Software": None}}
        figure.savefig(png, format="png", dpi=180, facecolor=_PAPER, **about)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, png.getvalue())
    return path


def radars_for_page(
    documents: Mapping[str, Mapping[str, Any]], radar: Radar, folder: Path, name: str, runs: Sequence[str]
) -> list[Chart]:
    """Write the panels as charts of a report's page, whose runs decide the colours."""
    charts = []
    for metric, found in _panels(documents, radar).items():
        file = f"{name}_{metric}"
        with matplotlib.rc_context(_STYLE):
            size = _save(_radar_figure({metric: found}, radar, runs), folder, file)
        alt = "; ".join(
            f"{run}: " + ", ".join(f"{group} {mean:.2f}" for group, mean in means.items())
            for run, means in found.items()
        )
        caption = f"{radar.panels[metric]} by {radar.key}"
        charts.append(Chart(file, caption, f"{caption}. {alt}.", *size))
    return charts


def _panels(
    documents: Mapping[str, Mapping[str, Any]], radar: Radar
) -> dict[str, dict[str, dict[str, float]]]:
    """Return metric -> run -> group -> mean, for those that have any."""
    found = {
        metric: {name: _group_means(document, radar.key, metric) for name, document in documents.items()}
        for metric in radar.panels
    }
    return {metric: by_run for metric, by_run in found.items() if any(by_run.values())}


def _radar_figure(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]], radar: Radar, order: Sequence[str]
) -> Figure:
    groups = sorted({group for runs in panels.values() for means in runs.values() for group in means})
    figure = Figure(figsize=(_WIDTH * len(panels), 4.0), layout="constrained")
    for at, (metric, runs) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), at, projection="polar")
        means = [mean for by_group in runs.values() for mean in by_group.values() if math.isfinite(mean)]
        scale = whole_scale(find_metric(metric), min(means, default=0.0), max(means, default=0.0))
        _radar_panel(axes, groups, runs, order, scale)
        if len(panels) > 1:
            axes.set_title(radar.panels[metric], pad=14)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(panels)))
    return figure


def _radar_panel(
    axes: Axes,
    groups: list[str],
    runs: Mapping[str, Mapping[str, float]],
    order: Sequence[str],
    scale: tuple[float, float],
) -> None:
    assert isinstance(axes, PolarAxes)  # noqa: S101 (as it was made)
    angles = np.linspace(0, 2 * np.pi, len(groups), endpoint=False)
    closed = np.append(angles, angles[0])
    for name, means in runs.items():
        colour, mark = _look(order.index(name))
        values = np.array([means.get(group, math.nan) for group in groups])
        ring = np.append(values, values[0])
        axes.plot(closed, ring, color=colour, marker=mark, markersize=4, linewidth=1.6, label=short(name, 22))
        if not np.isnan(values).any():
            axes.fill(closed, ring, color=colour, alpha=0.08)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [short(group, 16) for group in groups])
    low, high = scale
    ticks = [low + (high - low) * part for part in (0.25, 0.5, 0.75, 1.0)]
    axes.set_ylim(low, high)
    axes.set_yticks(ticks, ["", f"{ticks[1]:g}", "", f"{ticks[3]:g}"])
    axes.spines["polar"].set_color(_GUIDE)
    axes.grid(color=_GUIDE, linewidth=0.8)
    axes.set_rlabel_position(180 / len(groups))  # between two axes


def _group_means(document: Mapping[str, Any], key: str, metric: str) -> dict[str, float]:
    """Return group -> mean of the metric, where there is one."""
    found = {}
    for item in document["groups"]:
        entry = item["metrics"].get(f"{metric}@1")
        if list(item["group"]) == [key] and entry is not None and entry["n"]:
            found[item["group"][key]] = float(entry["mean"])
    return found
