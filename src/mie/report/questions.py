"""`mie vqa report`: answerers and physicians on one page, with blind and permuted scores beside each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mie
from mie.core.files import atomic_write
from mie.questions.record import PHASES, TASKS
from mie.questions.scoring.metrics import MARKED, METRICS, NAME, NOT_MARKED, PUBLISHED
from mie.report.answer_rows import AnswerRow, labels, read_rows
from mie.report.charts import Chart, means_chart, radars_for_page, tradeoff_chart
from mie.report.layouts import Radar
from mie.report.page import POLICY, claimed, write_assets
from mie.report.question_charts import heat_map
from mie.report.question_examples import questions_sections
from mie.report.scored import Cell
from mie.report.tables import markdown_table, tex, write_csv
from mie.report.views import (
    NONE,
    Head,
    Label,
    MeansTable,
    Row,
    Section,
    TextTable,
    comparison_table,
    count,
    mean_cell,
    means_table,
    render,
    value_range,
)
from mie.scoring.metric import SHARE, Metric
from mie.scoring.statistics.compare import compare_runs

_MARKER: Final = ".mie-question-report"
_MACRO: Final = Metric("macro", "Accuracy, mean of tasks", "each task weighs the same", scale=SHARE)
_SHOWN: Final = ("accuracy", "blind", "permuted", "consistent", "number", "place")
_WORDS: Final = ("exact", "rouge1", "rougel", "bleu", "bertscore", "text", "judged")
NOT_FOUND: Final = "not found"
Progress = Callable[[int, int], None]


def write_question_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    variant: str = "paper",
    questions: Path | str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the report of scored answers to the folder `out`; returns its `index.html`.

    All must be on the same set of questions. `questions` is the set's folder, where it was moved.
    """
    rows = read_rows(runs, variant)
    folder = Path(out)
    with claimed(folder, _MARKER, "a report"):
        for name in ("tables", "plots", "images"):
            (folder / name).mkdir()
        write_assets(folder / "assets")
        files = _write_tables(rows, folder / "tables")
        sections = [
            _results(rows),
            _published(),
            _blind(rows, folder / "plots"),
            _phases(rows, folder / "plots"),
            _tasks(rows, folder / "plots"),
            _modalities(rows, folder / "plots"),
            _comparisons(rows),
            _people(rows),
            _unscored(rows),
            *questions_sections(rows, questions, folder, progress),
            Section("files", "Files", "Files", "files.html", {"names": files}),
        ]
        index = folder / "index.html"
        atomic_write(index, _page(rows, variant, [one for one in sections if one is not None]))
    return index


def _columns(rows: Sequence[AnswerRow], names: Sequence[str]) -> list[Metric]:
    there = {key.partition("@")[0] for row in rows for key in row.cells}
    return [METRICS[name] for name in names if name in there]


# ---- Sections ----


def _results(rows: Sequence[AnswerRow]) -> Section:
    closed = _columns(rows, _SHOWN)
    if any("macro@1" in row.cells for row in rows):
        closed.insert(1, _MACRO)
    cells = [(label, row.cells) for label, row in zip(labels(rows), rows, strict=True)]
    tables = (
        [means_table("Closed, number and place questions", "Answerer", closed, cells, best=True)]
        if closed
        else []
    )
    words = _columns(rows, _WORDS)
    if words:
        tables.append(means_table("Open questions", "Answerer", words, cells, best=True))
    return Section("results", "Results", "Results", "question_results.html", {"tables": tables})


def _published() -> Section:
    lines: list[Row] = [
        (
            Label(name, badge="published"),
            [
                NOT_FOUND if value is None else c.show(value)
                for c, value in zip(PUBLISHED.columns, values, strict=True)
            ],
        )
        for name, values in PUBLISHED.rows
    ]
    heads = ("Answerer", *(column.label for column in PUBLISHED.columns))
    table = TextTable(PUBLISHED.caption, heads, lines, numbers=len(PUBLISHED.columns))
    content = {"tables": [table], "lead": f"{PUBLISHED.note} Source: {PUBLISHED.source}."}
    return Section("published", "Published accuracies", "Published", "question_tables.html", content)


def _blind(rows: Sequence[AnswerRow], plots: Path) -> Section | None:
    axes = METRICS["blind"], METRICS["accuracy"]
    points = {
        row.name: (row.cells["blind@1"], row.cells["accuracy@1"])
        for row in rows
        if all(row.cells.get(key) and row.cells[key].n for key in ("blind@1", "accuracy@1"))
    }
    tables = _marks(rows)
    if not points and not tables:
        return None
    caption = "With images against without"
    charts = (
        [tradeoff_chart(plots, "blind", caption, axes, points, diagonal=True, runs=[r.name for r in rows])]
        if points
        else []
    )
    content = {"charts": charts, "tables": tables}
    return Section("blind", "Blind against seeing", "Blind", "question_blind.html", content)


def _marks(rows: Sequence[AnswerRow]) -> list[MeansTable | TextTable]:
    """Accuracy on questions that are marked blind and on the rest, and who marked them."""
    groups = (NOT_MARKED, MARKED)
    if not any(_has(row, "marked", name) for row in rows for name in groups):
        return []
    names = {name: f"{_number(rows, name):,} closed questions" for name in groups}
    marks = rows[0].results.document.get("marks") or {"built": 0, "runs": []}
    lines: list[Row] = [
        (Label("the build's guess from other patients' answers"), ["", "", "", count(marks["built"]), ""])
    ]
    lines += [
        (
            Label(one["answerer"]),
            [
                ", ".join(one["models"]),
                one["run"],
                ", ".join(one["passes"]),
                count(one["right"]),
                f"{one['by_luck']:.0f}",
            ],
        )
        for one in marks["runs"]
    ]
    heads = ("Answerer", "Model", "Run", "Passes", "Right", "By luck alone")
    return [
        _grid(rows, "marked", names, "Accuracy on questions marked as needing no image, and on the others"),
        _shares(rows[0]),
        TextTable("Who marked them", heads, lines, numbers=2),
    ]


def _shares(row: AnswerRow) -> TextTable:
    """Of each task's closed questions, how many are marked."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in row.lines.values():
        if line.group["kind"] == "closed":
            counts[line.group["task"]][line.group["marked"]] += 1
    lines: list[Row] = [
        (
            Label(task, note=TASKS[task].name),
            [count(found.total()), count(found[MARKED]), f"{found[MARKED] / found.total():.0%}"],
        )
        for task in TASKS
        if (found := counts.get(task))
    ]
    return TextTable("Marked by task", ("Task", "Closed questions", "Marked", "Share"), lines, numbers=3)


def _number(rows: Sequence[AnswerRow], group: str) -> int:
    cells = [row.by("marked").get(group, {}).get("accuracy@1") for row in rows]
    return max((cell.n + cell.unscored for cell in cells if cell is not None), default=0)


def _phases(rows: Sequence[AnswerRow], plots: Path) -> Section | None:
    """The radar by phase, and the numbers behind it."""
    there = [phase for phase in PHASES if any(phase in row.by("phase") for row in rows)]
    if not there:
        return None
    documents = {row.name: _ordered(row.results.document, "phase", there) for row in rows}
    charts: list[Chart] = []
    if len(there) > 2:
        radar = Radar("phase", {"accuracy": "Accuracy"})
        charts = radars_for_page(documents, radar, plots, "phases", [row.name for row in rows])
    names = {phase: PHASES[phase] for phase in there}
    content = {"table": _grid(rows, "phase", names, "Accuracy by clinical phase"), "charts": charts}
    return Section("phases", "By clinical phase", "Phases", "question_groups.html", content)


def _tasks(rows: Sequence[AnswerRow], plots: Path) -> Section | None:
    there = [task for task in TASKS if any(_has(row, "task", task) for row in rows)]
    if not there:
        return None
    means = {
        task: {row.name: row.by("task")[task]["accuracy@1"].mean for row in rows if _has(row, "task", task)}
        for task in there
    }
    chart = heat_map(
        plots, "tasks", "Accuracy by task", METRICS["accuracy"], means, [row.name for row in rows]
    )
    names = {task: TASKS[task].name for task in there}
    missing = [f"{task.code} ({task.name})" for task in TASKS.values() if task.code not in there]
    content = {
        "table": _grid(rows, "task", names, "Accuracy by task"),
        "charts": [chart],
        "note": f"No closed questions: {', '.join(missing)}." if missing else "",
    }
    return Section("tasks", "By task", "Tasks", "question_groups.html", content)


def _modalities(rows: Sequence[AnswerRow], plots: Path) -> Section | None:
    names = sorted({name for row in rows for name in row.by("modality") if _has(row, "modality", name)})
    if len(names) < 2:
        return None
    cells = {
        name: {
            row.name: row.by("modality")[name]["accuracy@1"] for row in rows if _has(row, "modality", name)
        }
        for name in names
    }
    runs = [row.name for row in rows]
    chart = means_chart(plots, "modalities", "Accuracy by modality", METRICS["accuracy"], cells, runs)
    table = _grid(rows, "modality", dict.fromkeys(names, ""), "Accuracy by modality")
    return Section(
        "modalities", "By modality", "Modalities", "question_groups.html", {"table": table, "charts": [chart]}
    )


def _has(row: AnswerRow, key: str, name: str) -> bool:
    cell = row.by(key).get(name, {}).get("accuracy@1")
    return cell is not None and cell.n > 0


def _grid(rows: Sequence[AnswerRow], key: str, names: Mapping[str, str], caption: str) -> MeansTable:
    """A row for each group, a column for each run."""
    metric = METRICS["accuracy"]
    lines = []
    for name, note in names.items():
        cells = [row.by(key).get(name, {}).get("accuracy@1") for row in rows]
        scale = value_range(metric, [cell for cell in cells if cell is not None])
        means = [cell.mean for cell in cells if cell is not None and cell.n]
        top = max(means) if len(means) > 1 else math.nan
        shown = [
            None if cell is None else mean_cell(metric, cell, scale, best=cell.mean == top) for cell in cells
        ]
        lines.append((Label(name, note=note), shown))
    return MeansTable(caption, [Head(key.capitalize()), *(Head(row.name) for row in rows)], lines)


def _ordered(document: Mapping[str, Any], key: str, order: Sequence[str]) -> dict[str, Any]:
    """The document with the groups of one key in this order, and no others."""
    groups = [
        item for item in document["groups"] if list(item["group"]) == [key] and item["group"][key] in order
    ]
    return {**document, "groups": sorted(groups, key=lambda item: order.index(item["group"][key]))}


def _comparisons(rows: Sequence[AnswerRow]) -> Section | None:
    files = {row.name: row.results.path for row in rows if "accuracy@1" in row.results.keys}
    if len(files) < 2:
        return None
    table = comparison_table(METRICS["accuracy"], compare_runs(files, "accuracy@1"))
    folds = {"folds": [("Accuracy", table)]}
    return Section("comparisons", "Paired comparisons", "Comparisons", "comparisons.html", folds)


def _people(rows: Sequence[AnswerRow]) -> Section | None:
    people = [row for row in rows if row.people and "people" in row.results.document]
    if not people:
        return None
    metric, tables = METRICS["accuracy"], []
    for row in people:
        found = row.results.document["people"]
        lines: list[Row] = [
            (
                Label(one["rater"]),
                [count(one["closed"]), metric.show(one["accuracy"]), _seconds(one["median_seconds"])],
            )
            for one in found["raters"]
        ]
        alpha, n = found["agreement"]["krippendorff_alpha"], found["agreement"]["questions"]
        words = NONE if alpha is None else f"{float(alpha):.2f}"
        caption = f"{row.name}: Krippendorff's alpha {words} over {n:,} questions that several answered"
        heads = ("Physician", "Closed questions", "Accuracy", "Median time")
        tables.append(TextTable(caption, heads, lines, numbers=3))
    return Section(
        "people", "Physicians", "Physicians", "question_tables.html", {"tables": tables, "lead": _LEAD_PEOPLE}
    )


_LEAD_PEOPLE: Final = (
    "Each answered in the browser without seeing the key. Their row above is the mean over the people who "
    "answered a question, over the questions that somebody answered."
)
_LEAD_UNSCORED: Final = (
    "A reply that cannot be read without a doubt has no score: it is counted here, and is neither right, "
    "wrong nor drawn at random."
)


def _seconds(value: Any) -> str:
    return NONE if value is None or math.isnan(float(value)) else f"{float(value):.0f} s"


def _unscored(rows: Sequence[AnswerRow]) -> Section | None:
    lines: list[Row] = [
        (Label(row.name, at), [METRICS[metric].label, reason, count(number)])
        for at, row in enumerate(rows)
        for metric, reasons in row.results.document["reasons"].items()
        if metric in ("accuracy", "blind", "number", "place", "exact", "judged")
        for reason, number in reasons.items()
    ]
    if not lines:
        return None
    table = TextTable(
        "Replies without a score", ("Answerer", "Metric", "Reason", "Replies"), lines, words=True, numbers=1
    )
    content = {"tables": [table], "lead": _LEAD_UNSCORED}
    return Section("unscored", "Unscored replies", "Unscored", "question_tables.html", content)


# ---- Files and page ----


def _write_tables(rows: Sequence[AnswerRow], folder: Path) -> list[str]:
    numbers = ("mean", "ci95_low", "ci95_high", "n", "unscored", "patients", "images_without_patient")
    lines: list[tuple[object, ...]] = []
    for row in rows:
        for item in row.results.document["groups"]:
            (key, value) = next(iter(item["group"].items()), ("all", ""))
            lines += [
                (row.name, key, value, *_line(metric, entry)) for metric, entry in item["metrics"].items()
            ]
        lines += [(row.name, "macro", "task", *_line(m, e)) for m, e in row.results.document["macro"].items()]
    write_csv(folder / "scores.csv", ("answerer", "group", "value", "metric", *numbers), lines)
    columns = _columns(rows, (*_SHOWN, *_WORDS))
    head = ("answerer", *(metric.label for metric in columns))
    body = [
        (row.name, *(_plain(metric, row.cells.get(f"{metric.name}@1")) for metric in columns)) for row in rows
    ]
    atomic_write(folder / "leaderboard.md", markdown_table(head, body) + "\n")
    lines_of_tex = [" & ".join(map(tex, line)) + r" \\" for line in (head, *body)]
    rules = [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule", lines_of_tex[0], r"\midrule"]
    text = "\n".join([*rules, *lines_of_tex[1:], r"\bottomrule", r"\end{tabular}"])
    atomic_write(folder / "leaderboard.tex", text + "\n")
    return ["leaderboard.md", "leaderboard.tex", "scores.csv"]


def _line(metric: str, entry: Mapping[str, Any]) -> tuple[object, ...]:
    low, high = entry["ci95"]
    rest = (entry["n"], entry["unscored"], entry["patients"], entry["images_without_patient"])
    return (metric.partition("@")[0], entry["mean"], low, high, *rest)


def _plain(metric: Metric, cell: Cell | None) -> str:
    if cell is None or not cell.n:
        return NONE
    ends = "" if math.isnan(cell.low) else f" [{metric.show(cell.low)}, {metric.show(cell.high)}]"
    return f"{metric.show(cell.mean)}{ends} ({cell.coverage})"


def _page(rows: Sequence[AnswerRow], variant: str, sections: Sequence[Section]) -> str:
    known = rows[0].run.info["questions"]
    notices = [f"The answers of “{row.name}” are not complete." for row in rows if not row.run.complete]
    if variant == "as_released":
        notices.append(
            "Variant as_released: a reply that cannot be read is given the most similar option, so an error "
            "or a refusal can count as right."
        )
    blind = [row.name for row in rows if "blind@1" not in row.cells and not row.people]
    if blind:
        notices.append(f"No blind score, so it is unknown what needs the image: {', '.join(blind)}.")
    numbers = sorted({len(row.results) for row in rows})
    if len(numbers) > 1:
        notices.append(
            "These rows are over different questions; only the paired comparisons are over the same."
        )
    facts = {
        "Protocol": f"{NAME}, variant {variant}",
        "Questions": " / ".join(f"{number:,}" for number in numbers),
        "Answerers": len(rows),
        "Set digest": known["digest"][:12],
    }
    return render(
        "report.html",
        title=f"Answers to {known['name']}",
        policy=POLICY,
        facts=facts,
        notices=notices,
        sections=sections,
        version=mie.__version__,
    )
