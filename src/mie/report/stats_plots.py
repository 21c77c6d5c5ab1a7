"""Plots of what is in a dataset: PNG files that stay readable when a page shows them small.

Figures are made through matplotlib's objects, never `pyplot`, so a caller's own plots are left alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from mie.core.files import atomic_path, make_folder
from mie.datasets.stats import ORIGINAL, Stats
from mie.vocabulary import MODALITIES, SPLITS

# Paul Tol's "muted" scheme, safe for colour-blind readers; its pale grey darkened to show on white.
_MUTED: Final = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#777777"),
)
_MODALITY_COLOURS: Final = dict(zip(MODALITIES, _MUTED, strict=True))
_OTHER: Final = "#BBBBBB"
_BLUE: Final = "#0072B2"
_SPLIT_COLOURS: Final = dict(zip(SPLITS, (_BLUE, "#E69F00", "#009E73"), strict=True))  # Okabe and Ito
_INK: Final = "#333333"

_WIDTH, _DPI = 5.0, 200  # 1,000 pixels: at 400 the 10-point text is still 11 pixels high
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 10,
    "text.parse_math": False,  # a target may have a $ in its name
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "legend.frameon": False,
}
_TOP_TARGETS: Final = 30
_WHISKERS: Final = (5, 95)


def write_plots(stats: Stats, folder: Path) -> list[Path]:
    """Write `modality`, `targets`, `area` and `sizes` as PNG; equal numbers give equal bytes.

    A plot without anything to show is not written: a dataset without regions has no `area`.
    """
    make_folder(folder)
    paths = []
    with matplotlib.rc_context(_STYLE):
        for name, draw in _PLOTS.items():
            path = folder / f"{name}.png"
            figure = draw(stats)
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            with atomic_path(path) as temporary:
                _save(figure, temporary)
            paths.append(path)
    return paths


def _modality(stats: Stats) -> Figure | None:
    rows = stats.modality_splits
    if not rows:
        return None
    figure, axes = _bars_figure(len(rows))
    splits = [split for split in SPLITS if stats.by_split.get(split)]
    _stacked(axes, rows, splits, _SPLIT_COLOURS)
    axes.set_xlabel(f"samples (all in {splits[0]})" if len(splits) == 1 else "samples")
    return figure


def _targets(stats: Stats) -> Figure | None:
    rows = dict(list(stats.target_modalities.items())[:_TOP_TARGETS])
    if not rows:
        return None
    shown = {m for counts in rows.values() for m in counts}
    figure, axes = _bars_figure(len(rows), 0.26)
    _stacked(axes, rows, [m for m in stats.by_modality if m in shown], _MODALITY_COLOURS)
    left_out = len(stats.by_target) - len(rows)
    axes.set_xlabel(f"samples ({left_out} rarer not shown)" if left_out else "samples")
    return figure


def _area(stats: Stats) -> Figure | None:
    # A logarithmic axis has no place for an empty region.
    areas = {m: [a for a in values if a > 0] for m, values in stats.areas.items()}
    areas = {m: values for m, values in areas.items() if values}
    if not areas:
        return None
    figure, axes = _bars_figure(len(areas), 0.38)
    boxes = axes.boxplot(
        list(areas.values()),
        orientation="horizontal",
        whis=_WHISKERS,
        showfliers=False,
        widths=0.6,
        patch_artist=True,
        medianprops={"color": "black", "linewidth": 2.5},
        whiskerprops={"color": _INK},
        capprops={"color": _INK},
    )
    for box, modality in zip(boxes["boxes"], areas, strict=True):
        box.set(facecolor=(_MODALITY_COLOURS.get(modality, _OTHER), 0.55), edgecolor=_INK)
    axes.set_yticks(range(1, len(areas) + 1), [f"{m} ({len(v):,})" for m, v in areas.items()])
    axes.invert_yaxis()
    axes.set_xscale("log")
    _decades(axes, [np.percentile(values, end) for values in areas.values() for end in _WHISKERS])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _guides(axes, "x")
    axes.set_xlabel("region area, share of the image\n(box: quartiles; whiskers: 5% to 95%)")
    return figure


def _sizes(stats: Stats) -> Figure | None:
    if not stats.sizes:
        return None
    figure = Figure(figsize=(_WIDTH, 5.4), dpi=_DPI, layout="constrained")
    bins, shapes = figure.subplots(2, 1, height_ratios=[1, 2.2])
    rows = {name if name == ORIGINAL else f"{name} px": {"n": n} for name, n in stats.by_bin.items()}
    _stacked(bins, rows, ["n"], {"n": _BLUE})
    bins.set_xlabel("samples by longer side after scaling")
    height, width, samples = np.array(stats.sizes).T
    area = 15 + 300 * samples / samples.max()  # of the dot, in square points
    shapes.scatter(width, height, area, color=_BLUE, alpha=0.45, edgecolor="white", lw=0.6)
    shapes.set(xscale="log", yscale="log", aspect="equal", xlabel="width, px", ylabel="height, px")
    _pixel_axes(shapes, min(width.min(), height.min()), max(width.max(), height.max()))
    return figure


_PLOTS: Final[dict[str, Callable[[Stats], Figure | None]]] = {
    "modality": _modality,
    "targets": _targets,
    "area": _area,
    "sizes": _sizes,
}


def _bars_figure(rows: int, each: float = 0.34) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, 1.3 + each * max(rows, 2)), dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


def _stacked(
    axes: Axes, rows: Mapping[str, Mapping[str, int]], parts: Sequence[str], colours: Mapping[str, str]
) -> None:
    """One horizontal bar per row, first on top, cut into parts; the total stands at its end."""
    totals = np.zeros(len(rows))
    for part in parts:
        lengths = np.array([counts.get(part, 0) for counts in rows.values()])
        axes.barh(
            range(len(rows)), lengths, left=totals, height=0.72, color=colours.get(part, _OTHER), label=part
        )
        totals += lengths
    for at, total in enumerate(totals):
        axes.annotate(f"{total:,.0f}", (total, at), (3, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [textwrap.shorten(name, 34, placeholder="…") for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max(totals, default=1))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if len(parts) > 1:
        axes.figure.legend(
            loc="outside upper center", ncols=min(len(parts), 3), handlelength=1, columnspacing=1.2
        )


def _guides(axes: Axes, which: Literal["x", "both"]) -> None:
    axes.grid(axis=which, color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)


def _decades(axes: Axes, values: Iterable[float]) -> None:
    """Whole decades around the values: ticks that can be read, also when all values are equal."""
    logs = np.log10(np.fromiter(values, float))
    low, high = np.floor(logs.min()), min(0.0, np.ceil(logs.max()))
    axes.set_xlim(10 ** min(low, high - 1), 10**high)


def _pixel_axes(axes: Axes, low: int, high: int) -> None:
    """The same logarithmic range both ways, marked at powers of two."""
    ticks = 2 ** np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1)
    for axis, limit in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        limit(low / 1.35, high * 1.35)
        axis.set_ticks(ticks[(ticks >= low / 1.35) & (ticks <= high * 1.35)])
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(which="minor", length=0)
    _guides(axes, "both")


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    # Without the library's name and version the bytes depend on the picture alone.
    figure.savefig(path, format="png", metadata={"Software": None})
