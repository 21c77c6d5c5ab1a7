"""The report's tables as files: CSV for spreadsheets, Markdown for notes, LaTeX for papers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from mie.report.leaderboard import columns, passes
from mie.report.measures import Measure
from mie.report.published import AS_RELEASED, COLUMNS, PUBLISHED
from mie.report.scored import Cell, ScoredRun

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
