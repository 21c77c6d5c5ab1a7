"""The sections of the page, top to bottom."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mie.report.charts import Chart
from mie.report.leaderboard import (
    Row,
    columns,
    comparisons_table,
    means_table,
    passes,
    published_table,
    run_name,
)
from mie.report.markup import Markup, join, tag
from mie.report.measures import MAIN, Measure, measure
from mie.report.scored import Cell, ScoredRun

MOST_ROWS: Final = 40
_MOST_REASONS: Final = 12
# The ways to cut the samples that have charts, and those that only have numbers.
CHARTED: Final = {"modality": "By modality", "target": "By target"}
_OTHER: Final = ("perspective", "task", "source", "anatomy")


_DASH: Final = tag("td", "–", class_="number", title="not scored by MieDB")


def section(name: str, title: str, *children: object) -> Markup:
    return tag("section", tag("h2", title, id=name), *children, aria_labelledby=name)


def leaderboard(runs: Sequence[ScoredRun], charts: Sequence[Chart]) -> Markup | None:
    """None where no run was scored by MieDB."""
    if not any(run.cells for run in runs):
        return None
    variant = runs[0].summary["variant"]
    parts: list[object] = [
        tag(
            "p",
            "Mean over the samples a measure applies to, its 95% interval over patients, and coverage: ",
            tag("b", "n scored/applies"),
            ". The best mean of a column is bold.",
            class_="lead",
        )
    ]
    rows = [Row(run_name(run, number), number, run.cells) for number, run in enumerate(runs) if run.cells]
    for k in passes(runs):
        shown = columns([run.cells for run in runs], k)
        title = "First attempt (pass@1)" if k == 1 else f"Best of {k} attempts (pass@{k})"
        main = [m for m in shown if m.key in MAIN]
        more = [m for m in shown if m.key not in MAIN]
        parts.append(means_table(rows, main, k, f"{title}, variant {variant}", "Run", best=True))
        if more:
            table = means_table(rows, more, k, f"More measures. {title}, variant {variant}", "Run", best=True)
            parts.append(tag("details", tag("summary", "More measures"), table))
    parts.append(charts_grid(charts))
    parts.append(tag("h3", "Published results, for orientation"))
    parts.append(tag("div", published_table(), class_="published"))
    parts.append(
        tag(
            "p",
            tag("sup", "†"),
            " B-PSNR and B-SSIM come from the released script (variant ",
            tag("code", "as_released"),
            "), which paints two image rows instead of removing the region; they do not compare with ",
            tag("code", "paper"),
            ". Published rows were measured by their authors on another test set.",
            class_="lead",
        )
    )
    return section("leaderboard", "Leaderboard", *parts)


def charts_grid(charts: Iterable[Chart]) -> Markup:
    return tag("div", *(_chart(chart) for chart in charts), class_="charts")


def _chart(chart: Chart) -> Markup:
    plots = f"plots/{chart.name}"
    picture = tag(
        "picture",
        tag("source", srcset=f"{plots}.dark.svg", media="(prefers-color-scheme: dark)"),
        tag("img", src=f"{plots}.svg", alt=chart.alt, width=chart.width, height=chart.height, loading="lazy"),
    )
    files = join(tag("a", "SVG", href=f"{plots}.svg"), " ", tag("a", "PNG", href=f"{plots}.png"))
    caption = tag("figcaption", tag("span", files, class_="files"), chart.caption)
    return tag("figure", caption, picture, class_="chart")


def groups(runs: Sequence[ScoredRun], cut: str, charts: Sequence[Chart]) -> Markup | None:
    """The charts of one way to cut the samples, and its numbers folded beneath."""
    numbers = _group_numbers(runs, cut, "The numbers")
    return numbers and section(f"by-{cut}", CHARTED[cut], charts_grid(charts), numbers)


def other_groups(runs: Sequence[ScoredRun]) -> Markup | None:
    """Groups that have numbers but no charts."""
    folded = [_group_numbers(runs, cut, f"By {cut}") for cut in _OTHER]
    shown = [part for part in folded if part]
    return section("groups", "More groups", *shown) if shown else None


def _group_numbers(runs: Sequence[ScoredRun], cut: str, title: str) -> Markup | None:
    by_value = group_cells(runs, cut)
    if not by_value:
        return None
    rows = []
    for value in list(by_value)[:MOST_ROWS]:
        for number, run in enumerate(runs):
            if run.name in by_value[value]:
                head = join(tag("span", value), tag("br"), tag("small", run_name(run, number)))
                rows.append(Row(head, number, by_value[value][run.name]))
    shown = [m for m in columns([row.cells for row in rows], 1) if m.key in MAIN]
    table = means_table(
        rows,
        shown,
        1,
        f"By {cut}, first attempt (pass@1), variant {runs[0].summary['variant']}",
        cut.capitalize(),
        best=False,
    )
    left_out = len(by_value) - MOST_ROWS
    note = f"The {left_out} rarest are in tables/groups.csv only." if left_out > 0 else ""
    return tag("details", tag("summary", title), table, tag("p", note) if note else "")


def group_cells(runs: Sequence[ScoredRun], cut: str) -> dict[str, dict[str, dict[str, Cell]]]:
    """Group -> run -> `dice@1` -> cell, the largest groups first."""
    found: dict[str, dict[str, dict[str, Cell]]] = {}
    for run in runs:
        for (value,), cells in run.groups((cut,)).items():
            found.setdefault(value, {})[run.name] = cells

    def samples(value: str) -> int:
        return max((c.n + c.unscored for cells in found[value].values() for c in cells.values()), default=0)

    return {value: found[value] for value in sorted(found, key=lambda value: (-samples(value), value))}


def distributions(charts: Sequence[Chart]) -> Markup | None:
    if not charts:
        return None
    lead = "Each run's samples at the first attempt, on common bins. The line and the number are the median."
    return section("distributions", "Distributions", tag("p", lead, class_="lead"), charts_grid(charts))


def compared(found: Sequence[tuple[Measure, list[Any]]]) -> Markup | None:
    if not found:
        return None
    lead = (
        "First minus second, on the samples both runs were scored on. The 95% interval and p are of one "
        "test of the mean difference over patients; Holm's method corrects p over the pairs. Bold: the "
        "interval leaves out zero and the corrected p is under .05."
    )
    tables = [
        tag("details", tag("summary", m.label), comparisons_table(m, pairs), open=at == 0)
        for at, (m, pairs) in enumerate(found)
    ]
    return section("comparisons", "Run against run", tag("p", lead, class_="lead"), *tables)


def problems(runs: Sequence[ScoredRun]) -> Markup:
    """What went wrong or could not be measured: counts first, then reasons."""
    rows = []
    for number, run in enumerate(runs):
        failed, moved = sum(run.failures.values()), len(run.drifted)
        without = run.unscored_samples
        rows.append(
            tag(
                "tr",
                tag("th", run_name(run, number), scope="row"),
                count_cell(run.edits),
                count_cell(failed, of=run.edits),
                count_cell(without, of=len(run.ids)) if run.ids else _DASH,
                count_cell(moved, of=run.drift_checked) if run.ids else _DASH,
            )
        )
    heads = (
        "Run",
        "Attempts made",
        "Failed attempts",
        "Samples with something unscored",
        "Outputs with drift",
    )
    parts: list[object] = [words_table("Counts", heads, rows, numbers=4)]
    reasons = [
        (run_name(run, number), "the edit failed", reason, count)
        for number, run in enumerate(runs)
        for reason, count in run.failures.most_common(_MOST_REASONS)
    ] + [
        (run_name(run, number), "every measure" if name == "*" else measure(name).label, reason, count)
        for number, run in enumerate(runs)
        for (name, reason), count in run.unscored.most_common(_MOST_REASONS)
    ]
    parts.append(tag("h3", "Failures and unscored, with reasons"))
    if reasons:
        body = [
            tag("tr", tag("th", name, scope="row"), tag("td", what), tag("td", reason), count_cell(count))
            for name, what, reason, count in reasons
        ]
        parts.append(
            words_table("Most frequent first", ("Run", "What", "Reason", "Attempts"), body, numbers=1)
        )
        parts.append(
            tag("p", "All of them: ", _link("tables/failures.csv"), ", ", _link("tables/unscored.csv"), ".")
        )
    else:
        computed = " and every measure could be computed" if any(run.ids for run in runs) else ""
        parts.append(tag("p", f"Every attempt was made{computed}."))
    parts += [tag("h3", "Drift", id="drift"), *_drift(runs)]
    return section("coverage", "Coverage, failures and drift", *parts)


def _drift(runs: Sequence[ScoredRun]) -> list[Markup]:
    lead = tag(
        "p",
        "An output that is shifted, zoomed or cropped against its input loses every pixel measure, however "
        "good the edit. Found by phase correlation on the background.",
        class_="lead",
    )
    body = []
    for number, run in enumerate(runs):
        worst = sorted(
            run.drifted, key=lambda d: (-max(abs(d.dx), abs(d.dy), 100 * abs(d.scale - 1)), d.sample_id)
        )
        for d in worst[:_MOST_REASONS]:
            body.append(
                tag(
                    "tr",
                    tag("th", run_name(run, number), scope="row"),
                    tag("td", tag("code", d.sample_id), f" attempt {d.attempt}"),
                    tag("td", f"{d.dx:+.1f}, {d.dy:+.1f}".replace("-", "−"), class_="number"),
                    tag("td", f"{d.scale:.3f}", class_="number"),
                )
            )
    if not body:
        return [lead, tag("p", "No output was flagged.")]
    table = words_table("Largest first", ("Run", "Sample", "Shift x, y (px)", "Scale"), body, numbers=2)
    return [
        lead,
        tag("details", tag("summary", "The largest"), table),
        tag("p", "All of them: ", _link("tables/drift.csv"), "."),
    ]


def configuration(runs: Sequence[ScoredRun]) -> Markup:
    parts = []
    for number, run in enumerate(runs):
        text = json.dumps(run.info, indent=2, ensure_ascii=False)
        parts.append(tag("details", tag("summary", run_name(run, number)), tag("pre", text, tabindex="0")))
    lead = "What each run.json says: enough to repeat the run."
    return section("configuration", "Configuration", tag("p", lead, class_="lead"), *parts)


def files(more: Sequence[str] = ()) -> Markup:
    names = ("leaderboard.csv", "leaderboard.md", "leaderboard.tex", "published.csv", "groups.csv", *more)
    items = (tag("li", _link(f"tables/{name}")) for name in names)
    lead = tag("p", "Every chart above links to its SVG and PNG; the tables are here.", class_="lead")
    return section("files", "Files", lead, tag("ul", *items))


def words_table(caption: str, heads: Sequence[str], body: Sequence[Markup], *, numbers: int) -> Markup:
    """A table of words; its last `numbers` columns are numbers."""
    kinds = [None] * (len(heads) - numbers) + ["number"] * numbers
    named = zip(heads, kinds, strict=True)
    head = tag("thead", tag("tr", *(tag("th", text, scope="col", class_=kind) for text, kind in named)))
    table = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_="words")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def count_cell(count: int, of: int | None = None) -> Markup:
    share = f" ({count / of:.1%})" if of and count else ""
    return tag("td", f"{count:,}{share}", class_="number")


def _link(name: str) -> Markup:
    return tag("a", name, href=name)
