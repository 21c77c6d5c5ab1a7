"""A section for each protocol that asks a judge: leaderboard, who judged, charts, the paper's own tables."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.report.charts import Chart, radars_for_page, turn_chart
from mie.report.judged import TITLES, Board, Judged, boards
from mie.report.leaderboard import Row, comparisons_table, means_table
from mie.report.markup import Markup, join, tag
from mie.report.scored import Cell, cell_of
from mie.report.sections import charts_grid, count_cell, section, words_table
from mie.scoring.benchmarks import Table, published, tables_of
from mie.scoring.benchmarks.miedb.published import MIEDB
from mie.scoring.statistics import compare_runs

# Section id -> its title in the page's navigation.
HEADINGS: Final = {f"protocol-{protocol}": title for protocol, title in TITLES.items()}
_MOST_REASONS: Final = 12
_MOST_PROMPTS: Final = 2  # beside a mean; all of them stand in the table of judges
_CURVES: Final = {
    "omni-iie": ("overall", "qa", "ssim"),
    "imgedit": ("memory", "understanding", "backtracking"),
}


def judged_section(judged: Judged, folder: Path, runs: Sequence[str]) -> Markup:
    """`folder` is that of the plots; `runs` are all runs of the page."""
    made = boards(judged)
    parts: list[object] = [_notice(judged), *(_board(judged, board) for board in made)]
    parts.append(charts_grid(_charts(judged, made, folder, runs)))
    parts += _published(judged)
    parts += [tag("h3", "Who judged"), _judges(judged)]
    parts += _comparisons(judged, made)
    parts += _own_tables(judged)
    parts += _reasons(judged)
    return section(f"protocol-{judged.protocol}", judged.title, *parts)


def _notice(judged: Judged) -> Markup:
    notes = [
        "Mean over the samples a measure applies to, its 95% interval over patients, and coverage. "
        "A question that the judge did not answer is no number; the states count how all of them ended."
    ]
    if not judged.one_judge:
        notes.append("These runs were scored by different judges: their means do not compare.")
    notes += [f"Edits of “{name}” have changed since it was scored." for name in judged.stale]
    return join(*(tag("p", note, class_="notice" if at else "lead") for at, note in enumerate(notes)))


def _board(judged: Judged, board: Board) -> Markup:
    first = f"{board.columns[0].key}@1"

    def standing(name: str) -> float:
        cell = board.rows[name].get(first)
        return -cell.mean if cell is not None and cell.n else math.inf

    order = sorted(board.rows, key=standing)
    rows = [Row(_head(judged, name), judged.numbers[name], board.rows[name]) for name in order]
    caption = f"{board.title}, variant {next(iter(judged.documents.values()))['variant']}"
    return means_table(rows, board.columns, 1, caption, "Run", best=board.best and judged.one_judge)


def _head(judged: Judged, name: str) -> Markup:
    """A run's name, and beneath it who gave it its numbers."""
    colour = tag("span", class_=f"swatch run-{judged.numbers[name] % 8}", aria_hidden="true")
    judge = judged.judges.get(name)
    words = "no judge" if judge is None else judge_words(judge)
    return join(colour, tag("span", name), tag("span", words, class_="coverage"))


def judge_words(judge: Mapping[str, Any]) -> str:
    """The exact model, where it ran, the prompts' hashes, and how its questions ended."""
    prompts = judge["prompts"]
    if len(prompts) <= _MOST_PROMPTS:
        texts = ", ".join(f"{name} {sha256[:8]}" for name, sha256 in prompts.items())
    else:
        together = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(prompts.items()))
        texts = f"{len(prompts)} prompts {hashlib.sha256(together.encode()).hexdigest()[:8]}"
    return f"{model_words(judge)} at {judge['provider']}; {texts}; {state_words(judge['states'])}"


def model_words(judge: Mapping[str, Any]) -> str:
    """As the endpoint names the one that replied."""
    return ", ".join(judge["answered_by"]) or str(judge["model"])


def state_words(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in states.items()) or "no questions"


def _judges(judged: Judged) -> Markup:
    body = []
    for name, judge in judged.judges.items():
        prompts = [tag("div", text, " ", tag("code", sha256)) for text, sha256 in judge["prompts"].items()]
        asked = state_words(judge["states"]) + (
            f"; {judge['repaired']:,} repaired" if judge["repaired"] else ""
        )
        before = judge.get("preparing")
        if before:
            asked += f". About samples: {state_words(before['states'])}"
        apart = judge.get("disagreement")
        repeats = str(judge["repeats"])
        if apart:
            repeats += f"; apart by {apart['mean']:.2f} on average, {apart['largest']:g} at most"
        cost = "price unknown" if judge["cost_usd"] is None else f"{judge['cost_usd']:.2f} USD"
        settings = ", ".join(f"{key} {value}" for key, value in judge["parameters"].items())
        tokens = f"{judge['usage']['input']:,} + {judge['usage']['output']:,}; {cost}"
        cells = (model_words(judge), judge["provider"], settings, join(*prompts), asked, repeats, tokens)
        body.append(tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells)))
    heads = ("Run", "Model", "Provider", "Settings", "Prompts, SHA-256", "Answers", "Repeats", "Tokens, cost")
    if not body:
        return tag("p", "No judge was asked: what needs one has no number.")
    return words_table("The judge behind these numbers", heads, body, numbers=0)


def _charts(judged: Judged, made: Sequence[Board], folder: Path, runs: Sequence[str]) -> list[Chart]:
    charts: list[Chart | None] = []
    if judged.protocol == "medebench":
        charts += radars_for_page(judged.documents, folder, "medebench_radar", runs)
    measures = {m.key: m for board in made for m in board.columns}
    for key in _CURVES.get(judged.protocol, ()):
        if key in measures:
            name = f"{judged.protocol.replace('-', '_')}_turns_{key}"
            lines = {run: _turns(document, key) for run, document in judged.documents.items()}
            m = measures[key]
            charts.append(turn_chart(folder, name, f"{m.label} by turn", m, lines, runs))
    return [chart for chart in charts if chart is not None]


def _turns(document: Mapping[str, Any], key: str) -> dict[int, Cell]:
    """Turn -> the metric's cell."""
    groups = [
        item for item in document["groups"] if list(item["group"]) == ["turn"] and item["group"]["turn"]
    ]
    return {
        int(item["group"]["turn"]): cell_of(item["metrics"][f"{key}@1"])
        for item in groups
        if f"{key}@1" in item["metrics"]
    }


def _published(judged: Judged) -> list[Markup]:
    if judged.protocol == "miedb":
        rows = [(row.model, row.rubric) for row in sorted(MIEDB, key=lambda row: -row.rubric)]
        found = [published("published, by the authors' judge", ("model", "Rubric"), rows, "{:.1f}")]
    else:
        tables = tables_of(next(iter(judged.documents.values())))
        found = [table for table in tables if table.title.startswith("published")]
    lead = "Measured by the authors on their own data with their own judge: for orientation."
    return [
        tag("h3", "Published results"),
        tag("p", lead, class_="lead"),
        *(tag("div", _plain(table), class_="published") for table in found),
    ]


def _own_tables(judged: Judged) -> list[Markup]:
    """Each run's tables, as `mie score` prints them."""
    folded = []
    for name, document in judged.documents.items():
        tables = [table for table in tables_of(document) if not table.title.startswith("published")]
        if tables:
            folded.append(tag("details", tag("summary", f"Tables of {name}"), *map(_plain, tables)))
    return folded


def _plain(table: Table) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in table.header)))
    body = (
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", text) for text in row[1:]))
        for row in table.rows
    )
    shown = tag("table", tag("caption", tag("span", table.title)), head, tag("tbody", *body), class_="means")
    return tag("div", shown, class_="scroll", tabindex="0", role="region", aria_label=table.title)


def _comparisons(judged: Judged, made: Sequence[Board]) -> list[Markup]:
    """The main table's measures, run against run; nothing across datasets or judges."""
    if len(judged.documents) < 2 or judged.datasets > 1 or not judged.one_judge or judged.protocol == "miedb":
        return []
    whole = [document["groups"][0]["metrics"] for document in judged.documents.values()]
    tables = [
        comparisons_table(m, compare_runs(judged.files, f"{m.key}@1"))
        for m in dict.fromkeys(m for board in made for m in board.columns)
        if all(f"{m.key}@1" in found and found[f"{m.key}@1"]["n"] for found in whole)
    ]
    return [tag("details", tag("summary", "Run against run"), *tables)] if tables else []


def _reasons(judged: Judged) -> list[Markup]:
    reasons = judged.reasons()
    if not reasons:
        return []
    rows = [
        tag("tr", tag("th", run, scope="row"), tag("td", metric), tag("td", why), count_cell(number))
        for (run, metric, why), number in reasons.most_common(_MOST_REASONS)
    ]
    table = words_table("Most frequent first", ("Run", "Metric", "Reason", "Attempts"), rows, numbers=1)
    return [tag("details", tag("summary", "Unscored, with reasons"), table)]
