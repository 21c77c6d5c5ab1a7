"""The report's tables as files: CSV for spreadsheets, Markdown for notes, LaTeX for papers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mie.report.judged import Judged
from mie.report.judged_section import model_words
from mie.report.leaderboard import columns, passes
from mie.report.measures import AS_RELEASED, COLUMNS, PUBLISHED, Measure
from mie.report.people import Figure, People, tables
from mie.report.scored import Cell, ScoredRun, cell_of

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


def write_tables(runs: Sequence[ScoredRun], folder: Path) -> None:
    """`leaderboard`, `published`, `groups`, `unscored`, `failures` and `drift`."""
    folder.mkdir()
    variant = runs[0].summary["variant"]
    write_csv(
        folder / "leaderboard.csv",
        (
            "run",
            "variant",
            "metric",
            "k",
            "mean",
            "ci95_low",
            "ci95_high",
            "n",
            "unscored",
            "capped",
            "missing",
        ),
        (
            (run.name, variant, *key.split("@"), *_numbers(cell))
            for run in runs
            for key, cell in run.cells.items()
        ),
    )
    write_csv(
        folder / "published.csv",
        ("model", *(f"{m.key} (as_released)" if m.key in AS_RELEASED else m.key for m in COLUMNS)),
        ((row.model, *row.values) for row in PUBLISHED),
    )
    keys = list(
        dict.fromkeys(key for run in runs for group in run.summary["groups"] for key in group["group"])
    )
    write_csv(
        folder / "groups.csv",
        (
            "run",
            "variant",
            *keys,
            "metric",
            "k",
            "mean",
            "ci95_low",
            "ci95_high",
            "n",
            "unscored",
            "capped",
            "missing",
        ),
        _group_rows(runs, keys),
    )
    write_csv(
        folder / "unscored.csv",
        ("run", "metric", "reason", "attempts"),
        ((run.name, *what, count) for run in runs for what, count in run.unscored.most_common()),
    )
    write_csv(
        folder / "failures.csv",
        ("run", "reason", "attempts"),
        ((run.name, reason, count) for run in runs for reason, count in run.failures.most_common()),
    )
    write_csv(
        folder / "drift.csv",
        ("run", "sample_id", "attempt", "dx", "dy", "scale"),
        ((run.name, d.sample_id, d.attempt, d.dx, d.dy, d.scale) for run in runs for d in run.drifted),
    )
    (folder / "leaderboard.md").write_text(_markdown(runs), encoding="utf-8")
    (folder / "leaderboard.tex").write_text(_latex(runs), encoding="utf-8")


def _group_rows(runs: Sequence[ScoredRun], keys: Sequence[str]) -> Iterable[Sequence[object]]:
    for run in runs:
        for cut in dict.fromkeys(tuple(group["group"]) for group in run.summary["groups"]):
            for values, cells in run.groups(cut).items():
                named = dict(zip(cut, values, strict=True))
                place = [named.get(key, "") for key in keys]
                for key, cell in cells.items():
                    yield (run.name, run.summary["variant"], *place, *key.split("@"), *_numbers(cell))


def _numbers(cell: Cell) -> tuple[float, ...]:
    return cell.mean, cell.low, cell.high, cell.n, cell.unscored, cell.capped, cell.missing


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _markdown(runs: Sequence[ScoredRun]) -> str:
    parts = []
    for k in passes(runs):
        shown = columns([run.cells for run in runs], k)
        rows = [(run.name, *(_plain(m, run.cells.get(f"{m.key}@{k}")) for m in shown)) for run in runs]
        parts.append(
            f"Variant `{runs[0].summary['variant']}`, pass@{k}: mean [95% interval] scored/applies\n"
        )
        parts.append(markdown_table(["Run", *(m.titled for m in shown)], rows))
    parts.append("Published (B-PSNR and B-SSIM: released script)\n")
    heads = ["Model", *(m.titled for m in COLUMNS)]
    values = [(p.model, *(m.show(v) for m, v in zip(COLUMNS, p.values, strict=True))) for p in PUBLISHED]
    parts.append(markdown_table(heads, values))
    return "\n".join(parts)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join("| " + " | ".join(_markdown_text(text) for text in line) + " |\n" for line in lines)


def _markdown_text(text: str) -> str:
    # A name is text: neither a link, nor HTML, nor the end of a cell.
    return (
        re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split())) if not text.startswith("---") else text
    )


def _plain(m: Measure, cell: Cell | None) -> str:
    if cell is None:
        return "–"
    interval = f"[{m.show(cell.low)}, {m.show(cell.high)}]"
    return ", ".join([f"{m.show(cell.mean)} {interval} {cell.coverage}", *cell.notes])


def _latex(runs: Sequence[ScoredRun]) -> str:
    """Tables for `booktabs`, the interval and coverage in small type under each mean."""
    parts = []
    for k in passes(runs):
        shown = columns([run.cells for run in runs], k)
        body = []
        for run in runs:
            cells = [run.cells.get(f"{m.key}@{k}") for m in shown]
            means = ["--" if c is None else tex(m.show(c.mean)) for m, c in zip(shown, cells, strict=True)]
            small = [
                "" if c is None else rf"{{\scriptsize [{tex(m.show(c.low))}, {tex(m.show(c.high))}]}}"
                for m, c in zip(shown, cells, strict=True)
            ]
            cover = ["" if c is None else rf"{{\scriptsize {c.coverage}}}" for c in cells]
            body += [[tex(run.name), *means], ["", *small], ["", *cover]]
        note = f"variant {runs[0].summary['variant']}, pass@{k}; 95% intervals; scored/applies"
        parts.append(latex_table(note, ["Run", *(m.titled for m in shown)], body))
    values = [
        [tex(p.model), *(tex(m.show(v)) for m, v in zip(COLUMNS, p.values, strict=True))] for p in PUBLISHED
    ]
    parts.append(
        latex_table(
            "published by the authors of MieDB-100k, own test set; B-PSNR, B-SSIM by the released script",
            ["Model", *(m.label for m in COLUMNS)],
            values,
        )
    )
    return "\n".join(parts)


def latex_table(note: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [rf"% {note}", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
    lines += [" & ".join(tex(text) for text in head) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


# `tables/judged.csv`: every mean of the protocols that ask a judge, with its coverage and its judge.

_HEADER: Final = (
    *("protocol", "variant", "run", "group", "value", "metric", "mean", "ci95_low", "ci95_high"),
    *("n", "unscored", "judge_model", "judge_provider", "prompts", "states"),
)


def write_judged_table(found: Sequence[Judged], folder: Path) -> None:
    """Nothing where no protocol asked a judge."""
    if not found:
        return
    with (folder / "judged.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for judged in found:
            writer.writerows(_rows(judged))


def _rows(judged: Judged) -> Iterator[tuple[object, ...]]:
    for name, document in judged.documents.items():
        judge = judged.judges.get(name)
        who: tuple[str, ...] = ("", "", "", "")
        if judge is not None:
            prompts = " ".join(f"{prompt}:{sha256}" for prompt, sha256 in judge["prompts"].items())
            states = " ".join(f"{state}:{number}" for state, number in judge["states"].items())
            who = (model_words(judge), judge["provider"], prompts, states)
        for item in document["groups"]:
            cut = next(iter(item["group"].items()), ("", ""))
            for metric, entry in item["metrics"].items():
                cell = cell_of(entry)
                numbers = (cell.mean, cell.low, cell.high, cell.n, cell.unscored)
                yield (judged.protocol, document["variant"], name, *cut, metric, *numbers, *who)


# What people said, as files: CSV for spreadsheets, Markdown for notes, LaTeX for papers.

FILES: Final = (
    "people.md", "people.tex", "people_preference.csv", "people_raters.csv", "people_metrics.csv",
    "people_scores.csv",
)  # fmt: skip


def write_people_tables(people: People, folder: Path) -> None:
    """Everything in Markdown and LaTeX, and one CSV a kind of number, unrounded."""
    made = tables(people)
    notes = [f"{table.caption}; 95% intervals\n" for table in made]
    plain = [[(name, *(cell.line for cell in cells)) for name, cells in table.rows] for table in made]
    (folder / "people.md").write_text(
        "\n".join(
            part
            for note, table, rows in zip(notes, made, plain, strict=True)
            for part in (note, markdown_table(table.heads, rows))
        ),
        encoding="utf-8",
    )
    latex = []
    for table in made:
        body = [[tex(name), *(_small(cell) for cell in cells)] for name, cells in table.rows]
        latex.append(latex_table(tex(f"{table.caption}; 95% intervals"), table.heads, body))
    (folder / "people.tex").write_text("\n".join(latex), encoding="utf-8")
    _write_csvs(people, folder)


def _small(cell: Figure) -> str:
    rest = tex(" ".join(part for part in (cell.interval, cell.coverage) if part))
    return tex(cell.value) + (rf" {{\scriptsize {rest}}}" if rest else "")


def _write_csvs(people: People, folder: Path) -> None:
    counted = ("samples", "raters")
    write_csv(
        folder / "people_preference.csv",
        (
            "criterion",
            "model",
            "method",
            "strength",
            "ci95_low",
            "ci95_high",
            "mean_rank",
            "n_mean_rank",
            "rankings",
            *counted,
        ),
        (
            (
                q.name,
                people.name_of(one["model"]),
                kind,
                one["strength"],
                *one["ci95"],
                one["mean_rank"],
                one["n"],
                q.found["leaderboard"]["rankings"],
                q.samples,
                q.raters,
            )
            for q in people.compared
            for kind in ("bradley-terry", "plackett-luce")
            for one in q.found["leaderboard"].get(kind, ())
        ),
    )
    write_csv(
        folder / "people_raters.csv",
        (
            "criterion",
            "rated",
            "kendall_w",
            "ci95_low",
            "ci95_high",
            "n_w",
            "krippendorff_alpha",
            "n_alpha",
            "level",
            *counted,
        ),
        (
            (
                q.name,
                q.rated,
                w["mean"],
                *w["ci95"],
                w["n"],
                q.alpha[1],
                q.shared,
                q.alpha[0],
                q.samples,
                q.raters,
            )
            for q in people.questions
            for w in [q.found["raters"]["kendall_w"]]
        ),
    )
    write_csv(
        folder / "people_metrics.csv",
        ("criterion", "metric", "coefficient", "mean", "ci95_low", "ci95_high", "n", "unscored", "raters"),
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
        ("criterion", "model", "what", "value", "ci95_low", "ci95_high", "answers", *counted),
        (
            (
                q.name,
                people.name_of(t.model),
                "share" if q.yes_no else "mean",
                t.value,
                t.low,
                t.high,
                t.answers,
                t.samples,
                t.raters,
            )
            for q in people.scored
            for t in q.tallies
        ),
    )
