"""The report's tables as files: CSV for spreadsheets, Markdown for notes, LaTeX for papers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mie.core.csv_cells import safe_row
from mie.report.layouts import Layout, PublishedRows
from mie.report.people import People, tables
from mie.report.scored import BenchmarkScores, Cell, ScoredRun, Scores
from mie.report.sections import columns, model_words, passes
from mie.report.views import MeanCell, cell_at, interval
from mie.scoring.metric import Metric

_TEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_MEAN: Final = ("mean", "ci95_low", "ci95_high", "n", "unscored")
_PATIENTS: Final = ("patients", "images_without_patient")


def write_tables(runs: Sequence[ScoredRun], layout: Layout, folder: Path) -> list[str]:
    """Write `leaderboard`, `published`, `groups`, `unscored`, `failures` and `drift`.

    Returns the names of the files that a reader looks for first.
    """
    folder.mkdir()
    scored = {run.name: run.scores[layout.name] for run in runs if layout.leads and layout.name in run.scores}
    names = _write_leaderboard(runs, scored, layout, folder) if scored else []
    samples = {name: scores.samples for name, scores in scored.items() if scores.samples}
    write_csv(
        folder / "unscored.csv",
        ("run", "metric", "reason", "attempts"),
        ((name, *what, count) for name, s in samples.items() for what, count in s.reasons.most_common()),
    )
    write_csv(
        folder / "failures.csv",
        ("run", "state", "reason", "attempts"),
        ((run.name, *what, count) for run in runs for what, count in run.failures.most_common()),
    )
    write_csv(
        folder / "drift.csv",
        ("run", "sample_id", "attempt", "dx", "dy", "scale"),
        (
            (name, d.sample_id, d.attempt, d.dx, d.dy, d.scale)
            for name, found in samples.items()
            for d in found.drifted
        ),
    )
    return names


def _write_leaderboard(
    runs: Sequence[ScoredRun], scored: Mapping[str, Scores], layout: Layout, folder: Path
) -> list[str]:
    numbers, variant = ("metric", "k", *_MEAN, "capped", "missing", *_PATIENTS), runs[0].variant
    write_csv(
        folder / "leaderboard.csv",
        ("run", "variant", *numbers),
        (
            (name, variant, *key.split("@"), *_numbers(cell))
            for name, scores in scored.items()
            for key, cell in scores.cells.items()
        ),
    )
    cuts = list(
        dict.fromkeys(cut for scores in scored.values() for group, _ in scores.groups for cut in group)
    )
    write_csv(
        folder / "groups.csv",
        ("run", "variant", *cuts, *numbers),
        (
            (name, variant, *(group.get(cut, "") for cut in cuts), *key.split("@"), *_numbers(cell))
            for name, scores in scored.items()
            for group, cells in scores.groups
            for key, cell in cells.items()
        ),
    )
    (folder / "leaderboard.md").write_text(_markdown(runs, layout), encoding="utf-8")
    (folder / "leaderboard.tex").write_text(_latex(runs, layout), encoding="utf-8")
    names = ["leaderboard.csv", "leaderboard.md", "leaderboard.tex"]
    if layout.published:
        _write_published(layout.published, folder / "published.csv")
        names.append("published.csv")
    return [*names, "groups.csv"]


def _write_published(published: PublishedRows, path: Path) -> None:
    heads = (
        f"{m.name} ({published.variant})" if m.name in published.marked else m.name for m in published.columns
    )
    write_csv(path, ("model", *heads), ((model, *values) for model, values in published.rows))


def _numbers(cell: Cell) -> tuple[float | str, ...]:
    return (*_mean(cell), cell.capped, cell.missing, *_patients(cell))


def _mean(cell: Cell) -> tuple[float, ...]:
    return cell.mean, cell.low, cell.high, cell.n, cell.unscored


def _patients(cell: Cell) -> tuple[int | str, int | str]:
    return (cell.support.patients, cell.support.images) if cell.support else ("", "")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(safe_row(header))
        writer.writerows(map(safe_row, rows))


def _markdown(runs: Sequence[ScoredRun], layout: Layout) -> str:
    parts = []
    for k, shown, rows in _leaderboards(runs, layout):
        lines = [
            (name, *(_plain(m, cell) for m, cell in zip(shown, cells, strict=True))) for name, cells in rows
        ]
        parts.append(
            f"Variant `{runs[0].variant}`, pass@{k}: mean [95% interval] scored/applies, patients scored\n"
        )
        parts.append(markdown_table(["Run", *(m.title for m in shown)], lines))
    if layout.published:
        parts.append(f"Published ({layout.published.short_note})\n")
        heads = ["Model", *(m.title for m in layout.published.columns)]
        parts.append(markdown_table(heads, _published_rows(layout.published)))
    return "\n".join(parts)


def _leaderboards(
    runs: Sequence[ScoredRun], layout: Layout
) -> Iterator[tuple[int, list[Metric], list[tuple[str, list[Cell | None]]]]]:
    """For each k: the columns, and each run's name and cells."""
    found = {run.name: run.scores[layout.name].cells if layout.name in run.scores else {} for run in runs}
    for k in passes(runs, layout):
        shown = columns(found.values(), k)
        yield k, shown, [(name, [cell_at(cells, m, k) for m in shown]) for name, cells in found.items()]


def _published_rows(published: PublishedRows) -> list[tuple[str, ...]]:
    return [
        (model, *(m.show(value) for m, value in zip(published.columns, values, strict=True)))
        for model, values in published.rows
    ]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join("| " + " | ".join(_markdown_text(text) for text in line) + " |\n" for line in lines)


def _markdown_text(text: str) -> str:
    # A name is text: neither a link, nor HTML, nor the end of a cell.
    return (
        re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split())) if not text.startswith("---") else text
    )


def _plain(m: Metric, cell: Cell | None) -> str:
    if cell is None:
        return "–"
    values = (m.show(cell.mean), interval(m, cell.low, cell.high), cell.coverage)
    return ", ".join([" ".join(filter(None, values)), *cell.notes])


def _latex(runs: Sequence[ScoredRun], layout: Layout) -> str:
    """Tables for `booktabs`; interval, coverage and patients in small type under each mean."""
    parts = []
    for k, shown, rows in _leaderboards(runs, layout):
        body = []
        for name, cells in rows:
            pairs = list(zip(shown, cells, strict=True))
            body.append([tex(name), *("--" if c is None else tex(m.show(c.mean)) for m, c in pairs)])
            below = (
                [c and interval(m, c.low, c.high) for m, c in pairs],
                [c and c.coverage for c in cells],
                [c and c.n and c.support and str(c.support) for c in cells],
            )
            body += [["", *map(_tiny, texts)] for texts in below if any(texts)]
        note = f"variant {runs[0].variant}, pass@{k}; 95% intervals; scored/applies; patients scored"
        parts.append(_latex_table(note, ["Run", *(m.title for m in shown)], body))
    if layout.published:
        values = [[tex(text) for text in row] for row in _published_rows(layout.published)]
        heads = ["Model", *(m.label for m in layout.published.columns)]
        parts.append(_latex_table(layout.published.source, heads, values))
    return "\n".join(parts)


def _tiny(text: object) -> str:
    return rf"{{\scriptsize {tex(str(text))}}}" if text else ""


def _latex_table(note: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [rf"% {note}", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
    lines += [" & ".join(tex(text) for text in head) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


def write_judged_table(benchmarks: Sequence[BenchmarkScores], folder: Path) -> list[str]:
    """Write `judged.csv`: every mean of the benchmarks' sections, with its coverage and its judge."""
    if not benchmarks:
        return []
    write_csv(
        folder / "judged.csv",
        (
            *("protocol", "variant", "run", "group", "value", "metric", *_MEAN),
            *("judge_model", "judge_provider", "prompts", "states", *_PATIENTS),
        ),
        (row for scored in benchmarks for row in _judged_rows(scored)),
    )
    return ["judged.csv"]


def _judged_rows(scored: BenchmarkScores) -> Iterator[tuple[object, ...]]:
    for name, scores in scored.scores.items():
        who: tuple[str, ...] = ("", "", "", "")
        if judge := scores.judge:
            prompts = " ".join(f"{prompt}:{sha256}" for prompt, sha256 in judge["prompts"].items())
            states = " ".join(f"{state}:{number}" for state, number in judge["states"].items())
            who = (model_words(judge), judge["provider"], prompts, states)
        variant = scores.document["variant"]
        for group, cells in scores.groups:
            cut = next(iter(group.items()), ("", ""))
            for key, cell in cells.items():
                yield (scored.layout.name, variant, name, *cut, key, *_mean(cell), *who, *_patients(cell))


PEOPLE_FILES: Final = (
    *("people.md", "people.tex", "people_preference.csv", "people_raters.csv", "people_metrics.csv"),
    "people_scores.csv",
)


def write_people_tables(people: People, folder: Path) -> None:
    """Write what people said: everything in Markdown and LaTeX, and one CSV a kind of number, unrounded."""
    markdown, latex = [], []
    for table in tables(people):
        note = f"{table.caption}; 95% intervals"
        cells = [
            (row.name, [cell for cell in line if isinstance(cell, MeanCell)]) for row, line in table.rows
        ]
        markdown.append(f"{note}\n")
        markdown.append(markdown_table(table.heads, [(name, *map(_line, line)) for name, line in cells]))
        latex.append(
            _latex_table(tex(note), table.heads, [[tex(name), *map(_small, line)] for name, line in cells])
        )
    (folder / "people.md").write_text("\n".join(markdown), encoding="utf-8")
    (folder / "people.tex").write_text("\n".join(latex), encoding="utf-8")
    _write_people_csv(people, folder)


def _line(cell: MeanCell) -> str:
    return " ".join(part for part in (cell.mean, cell.interval, cell.coverage) if part)


def _small(cell: MeanCell) -> str:
    rest = tex(" ".join(part for part in (cell.interval, cell.coverage) if part))
    return tex(cell.mean) + (rf" {{\scriptsize {rest}}}" if rest else "")


def _write_people_csv(people: People, folder: Path) -> None:
    counts, ends = ("samples", "raters", *_PATIENTS), ("ci95_low", "ci95_high")
    write_csv(
        folder / "people_preference.csv",
        ("criterion", "model", "method", "strength", *ends, "mean_rank", "n_mean_rank", "rankings", *counts),
        (
            (
                *(q.name, people.name_of(one["model"]), kind, one["strength"], *one["ci95"]),
                *(one["mean_rank"], one["n"], q.found["leaderboard"]["rankings"]),
                *(q.samples, q.raters, q.support.patients, q.support.images),
            )
            for q in people.compared
            for kind in ("bradley-terry", "plackett-luce")
            for one in q.found["leaderboard"].get(kind, ())
        ),
    )
    write_csv(
        folder / "people_raters.csv",
        ("criterion", "rated", "kendall_w", *ends, "n_w", "krippendorff_alpha", "n_alpha", "level", *counts),
        (
            (
                *(q.name, q.rated, w["mean"], *w["ci95"], w["n"], q.alpha[1], q.shared, q.alpha[0]),
                *(q.samples, q.raters, q.support.patients, q.support.images),
            )
            for q in people.questions
            for w in [q.found["raters"]["kendall_w"]]
        ),
    )
    write_csv(
        folder / "people_metrics.csv",
        ("criterion", "metric", "coefficient", "mean", *ends, "n", "unscored", "raters"),
        (
            (q.name, key, name, e["mean"], *e["ci95"], e["n"], e["unscored"], q.raters)
            for q in people.compared
            for key, entry in q.found["metrics"].items()
            for name in ("spearman_formula", "spearman", "kendall_tau_b")
            for e in [entry[name]]
        ),
    )
    write_csv(
        folder / "people_scores.csv",
        ("criterion", "model", "what", "value", *ends, "answers", *counts),
        (
            (
                *(q.name, people.name_of(t.model), "share" if q.yes_no else "mean", t.value, t.low, t.high),
                *(t.answers, t.samples, t.raters, t.support.patients, t.support.images),
            )
            for q in people.scored
            for t in q.tallies
        ),
    )
