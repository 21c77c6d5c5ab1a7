"""What people said, as files: CSV for spreadsheets, Markdown for notes, LaTeX for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mie.report.people import People
from mie.report.people_tables import Figure, tables
from mie.report.tables import latex_table, markdown_table, tex, write_csv

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
