"""Plain data that the templates lay out: tables, their rows and cells, sections; and the templates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mie.report.scored import Cell, Support
from mie.scoring.benchmarks import Table
from mie.scoring.metric import Metric
from mie.scoring.statistics.compare import Comparison

COLOURS: Final = 8  # runs beyond these share colours again
# Control characters have no place in a page; lone surrogates cannot be written as UTF-8.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
NONE: Final = "–"


@dataclass(frozen=True, slots=True)
class Label:
    """The heading of a row: a name, behind the colour of its run."""

    name: str
    run: int | None = None  # its number on the page
    group: str = ""  # stands above the name
    note: str = ""  # stands below it
    badge: str = ""

    @property
    def colour(self) -> int | None:
        return None if self.run is None else self.run % COLOURS


@dataclass(frozen=True, slots=True)
class Head:
    """The heading of a column."""

    text: str
    meaning: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class MeanCell:
    """A mean with its interval, written and drawn, and its coverage."""

    mean: str
    interval: str = ""
    reason: str = ""  # why there is no interval
    coverage: str = ""
    best: bool = False
    partial: bool = False
    drawn: tuple[str, str, str] | None = None  # low, mean and high in the drawing, 0 to 100


@dataclass(frozen=True, slots=True)
class MeansTable:
    caption: str
    heads: list[Head]
    rows: list[tuple[Label, list[MeanCell | None]]]
    published: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A piece of text, then one in the type of code, then text again."""

    before: str
    code: str
    after: str = ""


Row: TypeAlias = tuple[Label, list[str | MeanCell | list[Code]]]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of short texts or, where `words` is set, of sentences; some columns at its end are numbers."""

    caption: str
    heads: tuple[str, ...]
    rows: list[Row]
    words: bool = False
    numbers: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: `content` is laid out by the template."""

    id: str
    title: str
    link: str  # its name in the navigation
    template: str
    content: Mapping[str, Any] = field(default_factory=dict)


def means_table(
    caption: str,
    first: str,
    columns: Sequence[Metric],
    rows: Sequence[tuple[Label, Mapping[str, Cell]]],
    k: int = 1,
    *,
    best: bool,
) -> MeansTable:
    """Make a table of means, intervals drawn on the column's common scale; `best` marks its best mean."""
    shown: list[tuple[Label, list[MeanCell | None]]] = [(label, []) for label, _ in rows]
    for metric in columns:
        cells = [cell_at(found, metric, k) for _, found in rows]
        scale = value_range(metric, [cell for cell in cells if cell is not None])
        means = [cell.mean for cell in cells if cell is not None and cell.n]
        better = max if metric.higher_is_better else min
        top = better(means) if best and len(means) > 1 else math.nan
        for (_, line), cell in zip(shown, cells, strict=True):
            line.append(mean_cell(metric, cell, scale, best=cell.mean == top) if cell else None)
    return MeansTable(caption, [Head(first), *map(head, columns)], shown)


def cell_at(cells: Mapping[str, Cell], metric: Metric, k: int = 1) -> Cell | None:
    """Return a metric's cell at pass@k; some means are of no single attempt and stand under the bare name."""
    return cells.get(f"{metric.name}@{k}") or (cells.get(metric.name) if k == 1 else None)


def head(metric: Metric, mark: str = "") -> Head:
    return Head(metric.title, metric.meaning, mark)


def mean_cell(metric: Metric, cell: Cell, scale: tuple[float, float], *, best: bool) -> MeanCell:
    """Make the cell of a mean, its interval drawn on `scale`."""
    low, high = scale

    def at(value: float) -> str:
        return f"{2 + 96 * min(max((value - low) / (high - low), 0), 1):.1f}"

    there = cell.n > 0 and not math.isnan(cell.low)
    return MeanCell(
        mean=metric.show(cell.mean),
        interval=interval(metric, cell.low, cell.high) if there else "no interval" * bool(cell.no_interval),
        reason=cell.no_interval,
        coverage=" · ".join([f"n {cell.coverage}", *cell.notes]),
        best=best,
        partial=bool(cell.unscored or cell.missing),
        drawn=(at(cell.low), at(cell.mean), at(cell.high)) if there else None,
    )


def value_range(metric: Metric, cells: Iterable[Cell]) -> tuple[float, float]:
    """Return the range of an axis of means: the metric's whole scale, so that small differences look small.

    Decibels have no end: there the range is that of the values, at least `_DECIBELS` wide.
    """
    ends = [end for cell in cells for end in (cell.mean, cell.low, cell.high) if math.isfinite(end)]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    if metric.decibels:
        spare = max(_DECIBELS - (high - low), 0.12 * (high - low)) / 2
        return math.floor(low - spare), math.ceil(high + spare)
    return whole_scale(metric, low, high)


def whole_scale(metric: Metric, low: float, high: float) -> tuple[float, float]:
    """Return the metric's scale, from 0 where it goes below 0 and no value does.

    A metric without an end has at its end the least of 1, 5, 10 and 100 that holds all values.
    """
    start, end = metric.scale or (0.0, math.inf)
    if math.isinf(end):
        end = next((bound for bound in (1.0, 5.0, 10.0, 100.0) if bound >= high), high)
    start = max(start, 0.0) if low >= 0 else start
    if low < start:  # differences and strengths: of both signs
        spare = 0.06 * (max(high, 0.0) - low)
        return low - spare, max(high, 0.0) + spare
    return start, max(end, high)


_DECIBELS: Final = 6.0


def comparison_table(metric: Metric, pairs: Iterable[Comparison]) -> TextTable:
    """Make a row of each pair; its difference is bold where the interval leaves out 0 and Holm's p < .05."""
    rows: list[Row] = []
    for pair in pairs:
        low, high = pair.ci95
        sure = (low > 0 or high < 0) and pair.p_holm < 0.05
        ends = "no interval" if pair.reason else f"[{signed(metric, low)}, {signed(metric, high)}]"
        support = Support(pair.patients, pair.unknown)
        rest = f"{support}; " if pair.n else ""
        rows.append(
            (
                Label(f"{pair.a} − {pair.b}"),
                [
                    MeanCell(signed(metric, pair.difference), ends, pair.reason, best=sure),
                    f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}",
                    p_value(pair.p),
                    p_value(pair.p_holm),
                    MeanCell(f"{pair.n:,}", coverage=f"{rest}{pair.left_out:,} left out"),
                ],
            )
        )
    heads = ("Runs", "Difference", "Win / tie / loss", "p", "p, Holm", "n")
    return TextTable(f"{metric.title}: paired differences", heads, rows)


def interval(metric: Metric, low: float, high: float) -> str:
    return "" if math.isnan(low) else f"[{metric.show(low)}, {metric.show(high)}]"


def signed(metric: Metric, value: float) -> str:
    """Return a difference with its sign: `+.031`."""
    return ("+" if value > 0 else "") + metric.show(value)


def p_value(p: float) -> str:
    """Return `.032`, `< .001`, or a dash where there was nothing to test."""
    if math.isnan(p):
        return NONE
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def count(number: int, of: int | None = None) -> str:
    """Return a count with its share.

    >>> count(0, of=40), count(10, of=40), count(1234)
    ('0', '10 (25.0%)', '1,234')
    """
    return f"{number:,}" + (f" ({number / of:.1%})" if of and number else "")


def text_table(table: Table) -> TextTable:
    """Return a benchmark's own table for the page."""
    return TextTable(table.title, table.header, [(Label(row[0]), list(row[1:])) for row in table.rows])


def asset(name: str) -> str:
    return (resources.files("mie.report") / "assets" / name).read_text(encoding="utf-8")


def render(template: str, **context: Any) -> str:
    """Lay out a template; all text is escaped."""
    return templates().get_template(template).render(context)


@cache
def templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("mie.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["mean"] = lambda value: isinstance(value, MeanCell)
    return environment


def _printable(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    return value
