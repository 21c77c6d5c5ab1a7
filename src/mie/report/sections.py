"""The sections of the page, top to bottom: each writes its charts and returns the data for its template."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.report.charts import (
    Chart,
    distribution_chart,
    leaderboard_chart,
    means_chart,
    radars_for_page,
    turn_chart,
)
from mie.report.layouts import (
    Board,
    Layout,
    in_order,
    metric,
    own_tables,
    published_tables,
)
from mie.report.people import Answers, people_row
from mie.report.scored import (
    BenchmarkScores,
    Cell,
    ScoredRun,
    Scores,
    metric_of_reason,
)
from mie.report.views import (
    NONE,
    Code,
    Head,
    Label,
    MeanCell,
    MeansTable,
    Row,
    Section,
    TextTable,
    cell_at,
    comparison_table,
    count,
    head,
    means_table,
    text_table,
)
from mie.scoring.metric import Metric
from mie.scoring.results import judges_differ

_MOST_ROWS: Final = 40
_MOST_REASONS: Final = 12
_WITHOUT_OUTPUT: Final = {"failed": "the edit failed", "refused": "the model declined"}
_MOST_PROMPTS: Final = 2  # beside a mean; all of them stand in the table of judges
_MOST_DOTS: Final = 60  # groups times runs that one chart can hold
# The ways to cut the samples that have charts, and those that only have numbers.
_CHARTED: Final = {"modality": "Modalities", "target": "Targets"}
_OTHER: Final = ("perspective", "task", "source", "anatomy")


def ranked(runs: Sequence[ScoredRun], layout: Layout) -> list[ScoredRun]:
    """Return the runs, best first: by the first column of the leaderboard that they have."""
    cells = {id(run): _cells(run, layout) for run in runs}
    keys = [f"{name}@1" for name in layout.main if any(f"{name}@1" in found for found in cells.values())]

    def standing(run: ScoredRun) -> tuple[float, ...]:
        means = [cells[id(run)][key].mean if key in cells[id(run)] else math.nan for key in keys]
        return tuple(math.inf if math.isnan(mean) else -mean for mean in means)

    return sorted(runs, key=lambda run: (standing(run), run.name))


def passes(runs: Iterable[ScoredRun], layout: Layout) -> list[int]:
    """Return the k of every `name@k` in the summaries."""
    return sorted({int(key.rpartition("@")[2]) for run in runs for key in _cells(run, layout)})


def columns(cells: Iterable[Mapping[str, Cell]], k: int = 1) -> list[Metric]:
    """Return the metrics at pass@k that any of these has, in the order of the published table."""
    keys = (key.partition("@") for each in cells for key in each)
    return in_order(name for name, _, at in keys if (at or "1") == str(k))


def label(runs: Sequence[ScoredRun], number: int) -> Label:
    return Label(runs[number].name, number)


def _cells(run: ScoredRun, layout: Layout) -> dict[str, Cell]:
    return run.scores[layout.name].cells if layout.name in run.scores else {}


def leaderboard(runs: Sequence[ScoredRun], layout: Layout, plots: Path) -> Section:
    rows = [(label(runs, at), found) for at, run in enumerate(runs) if (found := _cells(run, layout))]
    tables: list[tuple[MeansTable, MeansTable | None]] = []
    for k in passes(runs, layout):
        shown = columns([cells for _, cells in rows], k)
        title = "First attempt (pass@1)" if k == 1 else f"Best of {k} attempts (pass@{k})"
        caption = f"{title}, variant {runs[0].variant}"
        main = [m for m in shown if m.name in layout.main]
        more = [m for m in shown if m.name not in layout.main]
        tables.append(
            (
                means_table(caption, "Run", main, rows, k, best=True),
                means_table(f"More metrics. {caption}", "Run", more, rows, k, best=True) if more else None,
            )
        )
    names, charts = [run.name for run in runs], []
    for m in (metric(name) for name in layout.main):
        cells = {row.name: cell for row, found in rows if (cell := cell_at(found, m)) and cell.n}
        if cells:
            charts.append(leaderboard_chart(plots, f"leaderboard_{m.name}", m.label, m, cells, names))
    published = layout.published and MeansTable(
        layout.published.caption,
        [
            Head("Model"),
            *(head(m, "†" if m.name in layout.published.marked else "") for m in layout.published.columns),
        ],
        [
            (
                Label(model, badge="published"),
                [MeanCell(m.show(v)) for m, v in zip(layout.published.columns, values, strict=True)],
            )
            for model, values in layout.published.rows
        ],
        published=True,
    )
    content = {"tables": tables, "charts": charts, "published": published, "layout": layout}
    return Section("leaderboard", "Leaderboard", "Leaderboard", "leaderboard.html", content)


def groups(runs: Sequence[ScoredRun], layout: Layout, plots: Path) -> list[Section]:
    """Return a section for each cut that has charts, and one for all that have numbers alone."""
    sections = []
    for cut, link in _CHARTED.items():
        numbers = _group_numbers(runs, layout, cut, "The numbers")
        if numbers:
            content = {"charts": _group_charts(runs, layout, cut, plots), "folds": [numbers]}
            sections.append(Section(f"by-{cut}", f"By {cut}", link, "groups.html", content))
    folds = [_group_numbers(runs, layout, cut, f"By {cut}") for cut in _OTHER]
    if any(folds):
        content = {"charts": [], "folds": [fold for fold in folds if fold]}
        sections.append(Section("groups", "More groups", "Groups", "groups.html", content))
    return sections


def _group_cells(
    runs: Sequence[ScoredRun], layout: Layout, cut: str
) -> dict[str, dict[int, dict[str, Cell]]]:
    """Return group -> number of the run -> `dice@1` -> cell, the largest groups first."""
    found: dict[str, dict[int, dict[str, Cell]]] = {}
    for number, run in enumerate(runs):
        if layout.name in run.scores:
            for value, cells in run.scores[layout.name].by(cut).items():
                found.setdefault(value, {})[number] = cells

    def samples(value: str) -> int:
        return max((c.n + c.unscored for cells in found[value].values() for c in cells.values()), default=0)

    return {value: found[value] for value in sorted(found, key=lambda value: (-samples(value), value))}


def _group_numbers(
    runs: Sequence[ScoredRun], layout: Layout, cut: str, title: str
) -> tuple[str, MeansTable, str] | None:
    """Return a title, a table, and a note on what is left out."""
    by_value = _group_cells(runs, layout, cut)
    if not by_value:
        return None
    rows = [
        (Label(runs[number].name, number, group=value), cells)
        for value in list(by_value)[:_MOST_ROWS]
        for number, cells in by_value[value].items()
    ]
    shown = [m for m in columns([cells for _, cells in rows]) if m.name in layout.main]
    caption = f"By {cut}, first attempt (pass@1), variant {runs[0].variant}"
    left_out = len(by_value) - _MOST_ROWS
    note = f"The {left_out} rarest are in tables/groups.csv only." if left_out > 0 else ""
    return title, means_table(caption, cut.capitalize(), shown, rows, best=False), note


def _group_charts(runs: Sequence[ScoredRun], layout: Layout, cut: str, plots: Path) -> list[Chart]:
    charts, names = [], [run.name for run in runs]
    by_value = _group_cells(runs, layout, cut)
    for m in (metric(name) for name in layout.main):
        rows = {
            value: {runs[at].name: c for at, cells in by_run.items() if (c := cell_at(cells, m)) and c.n}
            for value, by_run in by_value.items()
        }
        rows = {value: cells for value, cells in rows.items() if cells}
        if rows:
            shown = dict(list(rows.items())[: max(8, _MOST_DOTS // len(runs))])
            caption = f"{m.label} by {cut}"
            if len(shown) < len(rows):
                caption += f", {len(shown)} largest of {len(rows)}"
            charts.append(means_chart(plots, f"{cut}_{m.name}", caption, m, shown, names))
    return charts


def distributions(runs: Sequence[ScoredRun], layout: Layout, plots: Path) -> Section | None:
    """Return a histogram of each metric whose samples have more than yes and no."""
    samples = {r.name: r.scores[layout.name].samples for r in runs if layout.name in r.scores}
    there = {name: found for name, found in samples.items() if found}
    shown = {name for found in there.values() for name in found.table.values} - layout.shares
    charts = []
    for m in in_order(shown):
        values = {run: found.first(m.name)[0] for run, found in there.items() if m.name in found.table.values}
        chart = distribution_chart(
            plots, f"distribution_{m.name}", m.label, m, values, [run.name for run in runs]
        )
        charts += [chart] if chart else []
    if not charts:
        return None
    return Section(
        "distributions", "Distributions", "Distributions", "distributions.html", {"charts": charts}
    )


def comparisons(scored: BenchmarkScores) -> Section | None:
    """Return, for each column of the leaderboard, every pair of runs; nothing across datasets or judges."""
    if len(scored.files) < 2 or scored.datasets > 1:
        return None
    judges = [scores.judge or {} for scores in scored.scores.values()]
    several = judges_differ(judges)
    folds = []
    for m in (metric(name) for name in scored.layout.main):
        if several and any(m.name in judge.get("metrics", ()) for judge in judges):
            continue  # another judge is another yardstick
        if _in_all(scored.scores.values(), m):
            folds.append((m.label, comparison_table(m, scored.comparisons(m))))
    if not folds:
        return None
    return Section("comparisons", "Run against run", "Comparisons", "comparisons.html", {"folds": folds})


def _in_all(scores: Iterable[Scores], m: Metric) -> bool:
    return all((found := one.cells.get(f"{m.name}@1")) and found.n for one in scores)


# One section for each benchmark: leaderboard, who judged, charts, the paper's own tables.


def benchmark(
    scored: BenchmarkScores, runs: Sequence[ScoredRun], plots: Path, people: Answers | None = None
) -> Section:
    layout, documents = scored.layout, [scores.document for scores in scored.scores.values()]
    people = people or {}
    boards = [(board, *_board_rows(board, scored, people)) for board in layout.boards]
    boards = [(board, shown, rows) for board, shown, rows in boards if shown]
    content = {
        "judged": layout.judged or bool(scored.judges),
        "notices": _benchmark_notices(scored),
        "boards": [_board_table(scored, people, *board) for board in boards],
        "charts": _benchmark_charts(scored, [m for _, shown, _ in boards for m in shown], runs, plots),
        "published": [text_table(table) for table in published_tables(layout, documents[0])],
        "judges": _judges_table(scored.judges),
        "comparisons": _benchmark_comparisons(scored, [m for _, shown, _ in boards for m in shown]),
        "own": [
            (name, [text_table(table) for table in own_tables(scores.document)])
            for name, scores in scored.scores.items()
        ],
        "reasons": _benchmark_reasons(scored),
    }
    return Section(f"protocol-{layout.name}", layout.title, layout.title, "benchmark.html", content)


def _board_rows(
    board: Board, scored: BenchmarkScores, people: Answers
) -> tuple[list[Metric], dict[str, dict[str, Cell]]]:
    """Return the columns that any run has a cell for, and run -> `ea@1` -> cell."""
    rows: dict[str, dict[str, Cell]] = {}
    for name, scores in scored.scores.items():
        if board.entries:
            found = {f"{m.name}@1": scores.entry(m.name) for m in board.columns}
            rows[name] = {key: cell for key, cell in found.items() if cell}
        elif board.spread:
            which, key = f"{board.spread[0]}@1", board.spread[1]
            rows[name] = {f"{v}@1": cells[which] for v, cells in scores.by(key).items() if which in cells}
            rows[name] |= {which: scores.cells[which]} if which in scores.cells else {}
        elif board.group:
            cells = scores.by(board.group[0]).get(board.group[1])
            rows |= {name: cells} if cells else {}
        else:
            rows[name] = scores.cells
    known = {m.name: m for other in scored.layout.boards for m in other.columns}
    shown = board.columns or [known.get(m.name, m) for m in columns(rows.values())]
    said = {name for name in people if name in scored.scores for name in people[name]}
    return [m for m in shown if m.name in said or any(cell_at(cells, m) for cells in rows.values())], rows


def _board_table(
    scored: BenchmarkScores,
    people: Answers,
    board: Board,
    shown: Sequence[Metric],
    rows: Mapping[str, Mapping[str, Cell]],
) -> MeansTable:
    def standing(name: str) -> float:
        cell = cell_at(rows[name], shown[0])
        return (-cell.mean if shown[0].higher_is_better else cell.mean) if cell and cell.n else math.inf

    order = sorted(rows, key=standing)
    lines = [
        (Label(name, scored.numbers[name], note=_judge_note(scored, name)), rows[name]) for name in order
    ]
    beside = any(m.name in people.get(name, {}) for name in order for m in shown)
    if beside:
        lines += [people_row(name, scored.numbers[name], people[name]) for name in order if name in people]
    variant = next(iter(scored.scores.values())).document["variant"]
    caption = f"{board.title}, variant {variant}"
    return means_table(caption, "Run", shown, lines, best=board.best and scored.one_judge and not beside)


def _judge_note(scored: BenchmarkScores, name: str) -> str:
    """Return who gave a run its numbers."""
    if name in scored.judges:
        return judge_words(scored.judges[name])
    return "no judge" if scored.layout.judged else ""


def _benchmark_notices(scored: BenchmarkScores) -> list[str]:
    notes = []
    if not scored.one_judge:
        notes.append("These runs were scored by different judges: their means do not compare.")
    stale = [name for name, scores in scored.scores.items() if scores.stale]
    return notes + [f"Edits of “{name}” have changed since it was scored." for name in stale]


def judge_words(judge: Mapping[str, Any]) -> str:
    """Return the exact model, where it ran, the prompts' hashes, and how its questions ended."""
    prompts = judge["prompts"]
    if len(prompts) <= _MOST_PROMPTS:
        texts = ", ".join(f"{name} {sha256[:8]}" for name, sha256 in prompts.items())
    else:
        together = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(prompts.items()))
        texts = f"{len(prompts)} prompts {hashlib.sha256(together.encode()).hexdigest()[:8]}"
    return f"{model_words(judge)} at {judge['provider']}; {texts}; {_state_words(judge['states'])}"


def model_words(judge: Mapping[str, Any]) -> str:
    """Return the model as the endpoint names the one that replied."""
    return ", ".join(judge["answered_by"]) or str(judge["model"])


def _state_words(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in states.items()) or "no questions"


def _judges_table(judges: Mapping[str, Mapping[str, Any]]) -> TextTable | None:
    rows: list[Row] = []
    for name, judge in judges.items():
        asked = _state_words(judge["states"])
        asked += f"; {judge['repaired']:,} repaired" if judge["repaired"] else ""
        if judge.get("preparing"):
            asked += f". About samples: {_state_words(judge['preparing']['states'])}"
        repeats, apart = str(judge["repeats"]), judge.get("disagreement")
        if apart:
            repeats += f"; apart by {apart['mean']:.2f} on average, {apart['largest']:g} at most"
        cost = "price unknown" if judge["cost_usd"] is None else f"{judge['cost_usd']:.2f} USD"
        rows.append(
            (
                Label(name),
                [
                    model_words(judge),
                    judge["provider"],
                    ", ".join(f"{key} {value}" for key, value in judge["parameters"].items()),
                    [Code(f"{text} ", sha256) for text, sha256 in judge["prompts"].items()],
                    asked,
                    repeats,
                    f"{judge['usage']['input']:,} + {judge['usage']['output']:,}; {cost}",
                ],
            )
        )
    heads = ("Run", "Model", "Provider", "Settings", "Prompts, SHA-256", "Answers", "Repeats", "Tokens, cost")
    return TextTable("The judge behind these numbers", heads, rows, words=True) if rows else None


def _benchmark_charts(
    scored: BenchmarkScores, shown: Sequence[Metric], runs: Sequence[ScoredRun], plots: Path
) -> list[Chart]:
    layout, names = scored.layout, [run.name for run in runs]
    file = layout.name.replace("-", "_")
    documents = {name: scores.document for name, scores in scored.scores.items()}
    charts = radars_for_page(documents, layout.radar, plots, f"{file}_radar", names) if layout.radar else []
    for m in (m for m in dict.fromkeys(shown) if m.name in layout.curves):
        lines = {
            name: {
                int(turn): c for turn, cells in scores.by("turn").items() if turn and (c := cell_at(cells, m))
            }
            for name, scores in scored.scores.items()
        }
        chart = turn_chart(plots, f"{file}_turns_{m.name}", f"{m.label} by turn", m, lines, names)
        charts += [chart] if chart else []
    return charts


def _benchmark_comparisons(scored: BenchmarkScores, shown: Iterable[Metric]) -> list[TextTable]:
    """Compare run against run on what the tables show; nothing across datasets or judges."""
    whole = len(scored.files) == len(scored.scores) > 1
    if not whole or scored.datasets > 1 or not scored.one_judge or scored.layout.leads:
        return []
    compared = (m for m in dict.fromkeys(shown) if _in_all(scored.scores.values(), m))
    return [comparison_table(m, scored.comparisons(m)) for m in compared]


def _benchmark_reasons(scored: BenchmarkScores) -> TextTable | None:
    reasons = [
        (name, *what, number)
        for name, scores in scored.scores.items()
        if scores.samples
        for what, number in scores.samples.reasons.items()
    ]
    reasons.sort(key=lambda reason: -reason[-1])
    rows: list[Row] = [
        (Label(run), [name, why, count(number)]) for run, name, why, number in reasons[:_MOST_REASONS]
    ]
    heads = ("Run", "Metric", "Reason", "Attempts")
    return TextTable("Most frequent first", heads, rows, words=True, numbers=1) if rows else None


def coverage(runs: Sequence[ScoredRun], layout: Layout) -> Section:
    """Return what went wrong or could not be measured: counts first, then reasons, then drift."""
    heads = (
        *("Run", "Attempts made", "Failed attempts", "Refused attempts"),
        *("Samples with something unscored", "Outputs with drift"),
    )
    counts: list[Row] = []
    failures, unscored, drifts = [], [], []
    for at, run in enumerate(runs):
        without = {
            state: sum(number for (one, _), number in run.failures.items() if one == state)
            for state in ("failed", "refused")
        }
        samples = run.scores[layout.name].samples if layout.leads and layout.name in run.scores else None
        cells = [count(run.edits), *(count(n, of=run.edits) for n in without.values()), NONE, NONE]
        failures += [
            (label(runs, at), _WITHOUT_OUTPUT[state], reason, number)
            for (state, reason), number in run.failures.most_common(_MOST_REASONS)
        ]
        if samples is not None:
            cells[3] = count(samples.unscored, of=len(samples.table.ids))
            cells[4] = count(len(samples.drifted), of=samples.drift_checked)
            for (name, reason), number in samples.reasons.most_common(_MOST_REASONS):
                about = metric_of_reason(name)
                what = metric(about).label if about else "every metric"
                unscored.append((label(runs, at), what, reason, number))
            worst = sorted(
                samples.drifted,
                key=lambda d: (-max(abs(d.dx), abs(d.dy), 100 * abs(d.scale - 1)), d.sample_id),
            )
            drifts += [(label(runs, at), drift) for drift in worst[:_MOST_REASONS]]
        counts.append((label(runs, at), [*cells]))
    reasons: list[Row] = [
        (row, [what, reason, count(number)]) for row, what, reason, number in failures + unscored
    ]
    moved: list[Row] = [
        (
            row,
            [
                [Code("", d.sample_id, f" attempt {d.attempt}")],
                f"{d.dx:+.1f}, {d.dy:+.1f}".replace("-", "−"),
                f"{d.scale:.3f}",
            ],
        )
        for row, d in drifts
    ]
    content = {
        "counts": TextTable("Counts", heads, counts, words=True, numbers=5),
        "reasons": TextTable(
            "Most frequent first", ("Run", "What", "Reason", "Attempts"), reasons, words=True, numbers=1
        ),
        "drift": TextTable(
            "Largest first", ("Run", "Sample", "Shift x, y (px)", "Scale"), moved, words=True, numbers=2
        ),
        "computed": layout.leads,
    }
    title = "Coverage, failures and drift"
    return Section("coverage", title, "Coverage", "coverage.html", content)


def configuration(runs: Sequence[ScoredRun]) -> Section:
    folds = [
        (label(runs, at), json.dumps(run.info, indent=2, ensure_ascii=False)) for at, run in enumerate(runs)
    ]
    return Section("configuration", "Configuration", "Configuration", "configuration.html", {"folds": folds})


def files(names: Sequence[str]) -> Section:
    return Section("files", "Files", "Files", "files.html", {"names": names})
