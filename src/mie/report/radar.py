"""The radar chart of MedEBench: EA, CP and VQ, an axis for each organ, a line for each run."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from mie.images.files import atomic_write
from mie.report.charts import COLOURS, GUIDE, MARKS, STYLE, Chart, save_chart

PANELS: Final = {"ea@1": "Editing accuracy", "cp@1": "Context preservation", "vq@1": "Visual quality"}
_PAPER: Final = "#FFFFFF"
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
        about: dict[str, Any] = {"facecolor": _PAPER, "bbox_inches": "tight", "metadata": {"Software": None}}
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
