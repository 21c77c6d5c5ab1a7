"""The leaderboard on the page: a row per run, in each cell the mean, its interval drawn, and its coverage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mie.report.markup import Markup, join, tag
from mie.report.measures import AS_RELEASED, COLUMNS, MAIN, PUBLISHED, Measure, in_order, measure
from mie.report.scored import PROTOCOL, Cell, ScoredRun
from mie.scoring.clusters import patients_in_words
from mie.scoring.results import LOWER_IS_BETTER, judges_differ
from mie.scoring.statistics.compare import compare_runs


def ranked(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """Best first: by the first measure of the published table that the runs have."""
    keys = [f"{key}@1" for key in MAIN if any(f"{key}@1" in run.cells for run in runs)]

    def standing(run: ScoredRun) -> tuple[float, ...]:
        means = [run.cells[key].mean if key in run.cells else math.nan for key in keys]
        return tuple(math.inf if math.isnan(mean) else -mean for mean in means)

    return sorted(runs, key=lambda run: (standing(run), run.name))


def passes(runs: Sequence[ScoredRun]) -> list[int]:
    """The k of every `name@k` in the summaries."""
    return sorted({int(key.rpartition("@")[2]) for run in runs for key in run.cells})


def columns(cells: Iterable[Mapping[str, Cell]], k: int) -> list[Measure]:
    """The measures at pass@k that any of these has, in the order of the published table."""
    found = {name for each in cells for name, _, at in (key.rpartition("@") for key in each) if at == str(k)}
    return [measure(key) for key in in_order(found)]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of means: its heading, the number of its run (which decides the colour) and its cells."""

    head: Markup
    run: int
    cells: Mapping[str, Cell]


def means_table(
    rows: Sequence[Row], shown: Sequence[Measure], k: int, caption: str, first: str, *, best: bool
) -> Markup:
    """A table of means, intervals drawn on the column's common scale; `best` puts its best mean in bold."""
    body = [[tag("th", row.head, scope="row")] for row in rows]
    for m in shown:
        cells = [row.cells.get(f"{m.key}@{k}") for row in rows]
        scale = _scale(m, cells)
        means = [cell.mean for cell in cells if cell is not None and cell.n]
        better = min if m.key.startswith(LOWER_IS_BETTER) else max
        top = better(means) if best and len(means) > 1 else math.nan
        for row, line, cell in zip(rows, body, cells, strict=True):
            line.append(_mean(m, cell, scale, row.run, top=cell is not None and cell.mean == top))
    lines = [tag("tr", *line) for line in body]
    return _table(caption, [first, *(_heading(m) for m in shown)], lines)


def published_table() -> Markup:
    """The published rows, in a table of their own."""
    heads = [join(_heading(m), tag("sup", "†") if m.key in AS_RELEASED else "") for m in COLUMNS]
    body = [
        tag(
            "tr",
            tag("th", row.model, " ", tag("span", "published", class_="badge"), scope="row"),
            *(
                tag("td", tag("span", m.show(v), class_="mean"))
                for m, v in zip(COLUMNS, row.values, strict=True)
            ),
        )
        for row in PUBLISHED
    ]
    return _table("MieDB-100k, measured by its authors on their own test set", ["Model", *heads], body)


def run_name(run: ScoredRun, number: int) -> Markup:
    """A run's name behind the colour it has in the charts."""
    return join(tag("span", class_=f"swatch run-{number % 8}", aria_hidden="true"), tag("span", run.name))


def _mean(m: Measure, cell: Cell | None, scale: tuple[float, float], number: int, *, top: bool) -> Markup:
    if cell is None:
        return tag("td", tag("span", "–", title="does not apply", class_="none"))
    parts: list[object] = [tag("strong" if top else "span", m.show(cell.mean), class_="mean")]
    if cell.n and not math.isnan(cell.low):
        parts.append(tag("span", f"[{m.show(cell.low)}, {m.show(cell.high)}]", class_="interval"))
        parts.append(_drawn(cell, scale, number))
    whole = "" if cell.unscored == cell.missing == 0 else " partial"
    coverage = " · ".join([f"n {cell.coverage}", *cell.notes])
    parts.append(tag("span", coverage, class_=f"coverage{whole}", title="scored of those it applies to"))
    return tag("td", *parts)


def _drawn(cell: Cell, scale: tuple[float, float], number: int) -> Markup:
    low, high = scale

    def at(value: float) -> str:
        return f"{2 + 96 * min(max((value - low) / (high - low), 0), 1):.1f}"

    return tag(
        "svg",
        tag("line", x1="2", x2="98", y1="6", y2="6", class_="axis"),
        tag("line", x1=at(cell.low), x2=at(cell.high), y1="6", y2="6", class_="bar"),
        tag("circle", cx=at(cell.mean), cy="6", r="3.2"),
        viewBox="0 0 100 12",
        class_=f"drawn run-{number % 8}",
        aria_hidden="true",
    )


def _scale(m: Measure, cells: Iterable[Cell | None]) -> tuple[float, float]:
    ends = [e for c in cells if c for e in (c.mean, c.low, c.high) if math.isfinite(e)]
    if not m.decibels and all(0 <= end <= 1 for end in ends):
        return 0.0, 1.0
    return min(0.0, *ends, 0.0), max(1.0, *ends, 1.0)


def _heading(m: Measure) -> Markup:
    return tag("span", m.titled, title=m.meaning or None)


def _table(caption: str, heads: Sequence[object], body: Sequence[Markup]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    table = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_="means")
    # Focusable, so that a keyboard can scroll it where the screen is narrow.
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


# Run against run: paired differences on the samples both were scored on.


def comparisons(runs: Sequence[ScoredRun]) -> list[tuple[Measure, list[Any]]]:
    """Per measure of the published table every pair of runs; nothing across datasets or judges."""
    if len(runs) < 2 or len({run.digest for run in runs}) > 1:
        return []
    variant = runs[0].summary["variant"]
    files = {run.name: run.folder / "scores" / f"{PROTOCOL}.{variant}.jsonl" for run in runs}
    found = []
    judges = [run.summary.get("judge") or {} for run in runs]
    several = judges_differ(judges)
    for key in MAIN:
        if several and any(key in judge.get("metrics", ()) for judge in judges):
            continue  # another judge is another yardstick
        if all(f"{key}@1" in run.cells and run.cells[f"{key}@1"].n for run in runs):
            found.append((measure(key), compare_runs(files, f"{key}@1")))
    return found


def comparisons_table(m: Measure, pairs: Sequence[Any]) -> Markup:
    """A row per pair, the difference bold where its interval leaves out zero and Holm's p is under .05."""
    body = []
    for pair in pairs:
        low, high = pair.ci95
        sure = (low > 0 or high < 0) and pair.p_holm < 0.05
        difference = signed(m, pair.difference)
        body.append(
            tag(
                "tr",
                tag("th", join(tag("b", pair.a), " − ", tag("b", pair.b)), scope="row"),
                tag(
                    "td",
                    tag("strong" if sure else "span", difference, class_="mean"),
                    tag("span", f"[{signed(m, low)}, {signed(m, high)}]", class_="interval"),
                ),
                tag("td", f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}"),
                tag("td", p_value(pair.p)),
                tag("td", p_value(pair.p_holm)),
                tag(
                    "td",
                    f"{pair.n:,}",
                    tag("span", patients_in_words(pair.patients, pair.unknown), class_="coverage"),
                    tag("span", f"{pair.left_out:,} left out", class_="coverage"),
                ),
            )
        )
    heads = ("Runs", "Difference", "Win / tie / loss", "p", "p, Holm", "n")
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    caption = f"{m.titled}: paired differences"
    table = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_="means")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def signed(m: Measure, value: float) -> str:
    """A difference with its sign: `+.031`."""
    return ("+" if value > 0 else "") + m.show(value)


def p_value(p: float) -> str:
    """`.032`, `< .001`, or a dash where there was nothing to test."""
    if math.isnan(p):
        return "–"
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
