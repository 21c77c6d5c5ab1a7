"""What people said, on the page: charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mie.report.charts import Chart, leaderboard_chart
from mie.report.markup import Markup, join, tag
from mie.report.people import SHARE, STRENGTH, Figure, People, Table, tables
from mie.report.scored import Cell, ScoredRun
from mie.report.sections import charts_grid, section
from mie.report.tables import FILES


def people_charts(people: People, runs: Sequence[ScoredRun], folder: Path) -> list[Chart]:
    """Of each comparison the Bradley-Terry strengths, in the runs' colours; of yes and no the shares."""
    names = [run.name for run in runs]
    drawn = []
    for at, question in enumerate(people.compared):
        board = question.found["leaderboard"]
        cells = {
            people.name_of(one["model"]): Cell(
                one["strength"], one["ci95"][0], one["ci95"][1], n=board["rankings"], unscored=0
            )
            for one in board.get("bradley-terry", ())
        }
        if cells:
            others = [name for name in cells if name not in names]
            caption = f"Preference, {question.name}"
            chart = leaderboard_chart(folder, f"people_{at}", caption, STRENGTH, cells, [*names, *others])
            drawn.append(chart)
    shares = {
        f"{question.name}: {people.name_of(one.model)}": Cell(
            one.value, one.low, one.high, n=one.answers, unscored=0
        )
        for question in people.scored
        if question.yes_no
        for one in question.tallies
    }
    if shares:
        drawn.append(leaderboard_chart(folder, "people_shares", "Share of yes", SHARE, shares, list(shares)))
    return drawn


def people_section(people: People, charts: Sequence[Chart]) -> Markup:
    lead = (
        "Strengths are natural logarithms whose mean over the models is 0: a model one above another is "
        "preferred e times as often. 95% intervals: over patients for strengths and correlations, "
        "Wilson’s for shares. The mean rank is over the rankings that cover every model. A flag is neither "
        "yes nor no."
    )
    parts: list[object] = [tag("p", lead, class_="lead"), charts_grid(charts)]
    for question in people.compared:
        if reason := question.found["leaderboard"].get("reason"):
            parts.append(tag("p", f"No leaderboard for {question.name}: {reason}.", class_="notice"))
        if absent := question.found["not_among_the_runs"]:
            parts.append(tag("p", f"Ranked for {question.name}, but not on this page: {', '.join(absent)}."))
    if people.without_metrics and people.compared:
        parts.append(
            tag("p", f"Metrics are not compared with people: {people.without_metrics}.", class_="notice")
        )
    parts += [_html(people, table) for table in tables(people)]
    links = join(*(tag("a", name, href=f"tables/{name}") for name in FILES), between=", ")
    parts.append(tag("p", "The tables as files: ", links, "."))
    return section("people", "What people said", *parts)


def _html(people: People, table: Table) -> Markup:
    body = []
    for name, cells in table.rows:
        number = people.numbers.get(name)
        mark = "" if number is None else tag("span", class_=f"swatch run-{number % 8}", aria_hidden="true")
        body.append(tag("tr", tag("th", join(mark, name), scope="row"), *(_cell(cell) for cell in cells)))
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in table.heads)))
    made = tag("table", tag("caption", tag("span", table.caption)), head, tag("tbody", *body), class_="means")
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=table.caption)


def _cell(cell: Figure) -> Markup:
    spans = [tag("span", cell.value, class_="mean" if cell.value != "–" else "none")]
    spans += [tag("span", cell.interval, class_="interval")] if cell.interval else []
    spans += [tag("span", cell.coverage, class_="coverage")] if cell.coverage else []
    return tag("td", *spans)
