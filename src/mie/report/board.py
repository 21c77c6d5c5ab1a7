"""`mie board`: one row for each model on a page that opens from disk, with its tables, charts and panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

import mie
from mie.core.documents import plural
from mie.core.files import atomic_write
from mie.report.charts import Chart, radars_for_page
from mie.report.layouts import Radar
from mie.report.page import POLICY, claimed, write_assets
from mie.report.panel import Panels, panel_lines, write_panels
from mie.report.scored import Cell, Support
from mie.report.tables import markdown_table, tex, write_csv
from mie.report.views import (
    Head,
    Label,
    MeanCell,
    Row,
    Section,
    TextTable,
    head,
    mean_cell,
    render,
    value_range,
)
from mie.scoring.board import FIRST, BoardCell, Model, ModelBoard
from mie.scoring.clusters import patients_in_words
from mie.scoring.joint import Joint
from mie.scoring.metric import Metric
from mie.scoring.results import yardstick

_MARKER: Final = ".mie-board"
_RADAR: Final = "modality"
_FEWEST_AXES: Final = 3  # fewer are no radar


@dataclass(frozen=True, slots=True)
class BoardTable:
    """The table at one way of counting attempts: headings over columns, our rows, published rows."""

    caption: str
    headings: list[tuple[str, int]]  # text, columns under it
    heads: list[Head]
    rows: list[tuple[Label, list[MeanCell | None]]]
    published: list[tuple[Label, list[MeanCell | None]]]


def write_board(
    board: ModelBoard,
    out: Path | str,
    *,
    published: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the page, `tables/` (CSV, Markdown, LaTeX), `plots/` and `images/`; returns its `index.html`."""
    folder = Path(out)
    with claimed(folder, _MARKER, "a board"):
        (folder / "tables").mkdir()
        (folder / "plots").mkdir()
        write_assets(folder / "assets")
        panels = write_panels(board, folder, progress)
        files = _write_files(board, panels, folder / "tables", published=published)
        charts = radars(board, folder / "plots")
        index = folder / "index.html"
        atomic_write(index, _page(board, charts, panels, files, published=published))
    return index


def _page(
    board: ModelBoard, charts: list[Chart], panels: Panels, files: Sequence[str], *, published: bool
) -> str:
    tables = [board_table(board, how, published=published) for how in board.passes]
    note = board.published.note if published and board.published is not None else ""
    marked = [metric.label for n, (_, metric) in enumerate(board.columns) if not board.compares(n)]
    sections = [
        Section(
            "board",
            "Board",
            "Board",
            "board.html",
            {"tables": tables, "charts": charts, "note": note, "marked": marked},
        )
    ]
    content: dict[str, Any]
    if panels.panels or panels.notes:
        content = {"panels": panels.panels, "notes": panels.notes, "models": labels(board)}
        sections.append(Section("panel", "Worst, median, best", "Panel", "panel.html", content))
    if board.joint is not None:
        content = {"table": joint_table(board), "joint": board.joint}
        sections.append(Section("joint", "Right for the wrong reason", "Joint", "joint.html", content))
    judges = judge_lines(board)
    if judges:
        content = {"folds": [(label, text) for label, text in judges]}
        sections.append(Section("judges", "Who judged", "Judges", "judges.html", content))
    sections.append(Section("files", "Files", "Files", "files.html", {"names": files}))
    title = f"{board.benchmark.title or board.benchmark.name}: {plural(len(board.models), 'model')}"
    runs = sum(len(model.runs) for model in board.models)
    facts = {
        "Protocol": f"{board.benchmark.name}, variant {board.variant}",
        "Models": len(board.models),
        "Runs": runs,
        "Published rows": len(board.published_values()) if published else 0,
    }
    return render(
        "report.html",
        title=title,
        policy=POLICY,
        facts=facts,
        notices=board.notices,
        sections=sections,
        version=mie.__version__,
    )


def labels(board: ModelBoard) -> list[Label]:
    return [Label(model.name, at) for at, model in enumerate(board.models)]


def board_table(board: ModelBoard, how: str, *, published: bool = True) -> BoardTable:
    """The table of pass@1, pass@k or mean@k; the published rows stand beside pass@1."""
    rows: list[tuple[Label, list[MeanCell | None]]] = [(label, []) for label in labels(board)]
    others: list[tuple[Label, list[MeanCell | None]]] = []
    beside = board.published_values() if published and how == FIRST else []
    others = [(Label(name, badge="published"), []) for name, _ in beside]
    for number, (_, metric) in enumerate(board.columns):
        cells = [_cell(metric, model.cells.get((how, number))) for model in board.models]
        scale = value_range(metric, [cell for cell in cells if cell is not None])
        means = [cell.mean for cell in cells if cell is not None and cell.n]
        best = (max if metric.higher_is_better else min)(means) if len(means) > 1 else math.nan
        for (_, line), cell in zip(rows, cells, strict=True):
            line.append(None if cell is None else mean_cell(metric, cell, scale, best=cell.mean == best))
        for (_, line), model in zip(rows, board.models, strict=True):
            spread = _spread(metric, model.cells.get((how, number)))
            if spread and line[-1] is not None:
                line[-1] = replace(line[-1], mean=f"{line[-1].mean} {spread}")
        for (_, line), (_, values) in zip(others, beside, strict=True):
            value = values[number]
            line.append(None if value is None else MeanCell(metric.show(value)))
    heads = [Head("Model")]
    for number, (_, metric) in enumerate(board.columns):
        heads.append(head(metric, "" if board.compares(number) or not beside else "†"))
    return BoardTable(f"{title_of(how)}, variant {board.variant}", headings(board), heads, rows, others)


def title_of(how: str) -> str:
    """`Best of 3 attempts (pass@3)`."""
    kind, k = how.split("@")
    if how == FIRST:
        return "First attempt (pass@1)"
    if kind == "pass":
        return f"Best of {k} attempts (pass@{k})"
    return f"Mean of {k} attempts (mean@{k}), ± its standard deviation over the attempts"


def headings(board: ModelBoard) -> list[tuple[str, int]]:
    """The headings over neighbouring columns; none where no column has one."""
    names = [board.heading(number) for number in range(len(board.columns))]
    if not any(names):
        return []
    return [(name.capitalize(), len(list(columns))) for name, columns in groupby(names)]


def _cell(metric: Metric, found: BoardCell | None) -> Cell | None:
    if found is None:
        return None
    mean = found.mean
    support = None if mean.patients is None else Support(mean.patients, mean.images or 0)
    numbers = (mean.mean, mean.low, mean.high, mean.n, mean.unscored, mean.capped, mean.missing)
    return Cell(*numbers, support, "too few patients" if math.isnan(mean.low) else "")


def _spread(metric: Metric, found: BoardCell | None) -> str:
    return "" if found is None or math.isnan(found.spread) else f"± {metric.show(found.spread)}"


def radars(board: ModelBoard, plots: Path) -> list[Chart]:
    """A radar chart by modality for each column that has samples of three modalities or more."""
    names = [model.name for model in board.models]
    charts: list[Chart] = []
    for number, (column, metric) in enumerate(board.columns):
        documents = {}
        for model in board.models:
            results = model.source(column)
            if results is None or not results.has_samples or column.metric not in results.table.values:
                continue
            table, chosen = results.table, results.table.select(column.metric, 1)
            inside = table.rows_of(column.where) & chosen.scored
            groups = []
            for value in np.unique(table.groups[_RADAR][inside].astype(str)):
                values = chosen.values[inside & table.rows_of({_RADAR: str(value)})]
                entry = {"mean": float(values.mean()), "n": len(values)}
                groups.append({"group": {_RADAR: str(value)}, "metrics": {f"{column.metric}@1": entry}})
            documents[model.name] = {"groups": groups}
        axes = {str(item["group"]) for found in documents.values() for item in found["groups"]}
        if len(axes) >= _FEWEST_AXES:
            radar = Radar(_RADAR, {column.metric: metric.label})
            charts += radars_for_page(documents, radar, plots, f"radar_{number}", names)
    return charts


def joint_table(board: ModelBoard) -> TextTable | None:
    joint = board.joint
    if joint is None or not joint.counts:
        return None
    names = [model.name for model in board.models]
    rows: list[Row] = []
    for count in sorted(joint.counts, key=lambda count: names.index(count.model)):
        shares = (count.both, count.first_only, count.second_only, count.neither)
        support = patients_in_words(count.patients, count.images)
        rows.append(
            (
                Label(count.model, names.index(count.model)),
                [
                    *(_count(number, count.lesions) for number in shares),
                    _percent(count.given_first),
                    _percent(count.given_not_first),
                    MeanCell(
                        f"{count.lesions:,}", coverage=f"{support}; {count.unpaired:,} without a partner"
                    ),
                ],
            )
        )
    return TextTable("Both tasks on the same lesion, first attempt", joint_heads(joint), rows, numbers=7)


def joint_heads(joint: Joint) -> tuple[str, ...]:
    first, second = (success.perspective for success in joint.successes)
    return (
        "Model",
        "both",
        f"{first} only",
        f"{second} only",
        "neither",
        f"{second} where {first} succeeds",
        f"{second} where it fails",
        "lesions",
    )


def _count(number: int, whole: int) -> str:
    return f"{number:,} ({number / whole:.0%})" if whole else "0"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}"


def judge_lines(board: ModelBoard) -> list[tuple[Label, str]]:
    """Who judged each model, in words."""
    found = []
    for label, model in zip(labels(board), board.models, strict=True):
        words = dict.fromkeys(yardstick(results.judge) for results in model.results if results.judge)
        found += [(label, "\n".join(words))] if words else []
    return found


# Files.

_CSV: Final = (
    *("model", "published", "variant", "at", "heading", "metric", "mean", "ci95_low", "ci95_high"),
    *("spread_over_attempts", "n", "unscored", "capped", "missing", "patients", "images_without_patient"),
)


def _write_files(board: ModelBoard, panels: Panels, folder: Path, *, published: bool) -> list[str]:
    write_csv(folder / "board.csv", _CSV, csv_rows(board, published=published))
    (folder / "board.md").write_text(markdown(board, published=published), encoding="utf-8")
    (folder / "board.tex").write_text(latex(board, published=published), encoding="utf-8")
    names = ["board.csv", "board.md", "board.tex"]
    if panels.panels:
        header: tuple[str, ...] = ("perspective", "metric", "rank", "sample_id", "mean_over_models")
        lines = panel_lines(panels.panels, [model.name for model in board.models])
        write_csv(folder / "panel.csv", (*header, "model", "value", "attempt"), lines)
        names.append("panel.csv")
    if board.joint is not None and board.joint.counts:
        counts = ("both", "first_only", "second_only", "neither", "lesions", "unpaired", "patients", "images")
        write_csv(
            folder / "joint.csv",
            ("model", "first", "second", *counts),
            (
                (one.model, *board.joint.words, *(getattr(one, name) for name in counts))
                for one in board.joint.counts
            ),
        )
        names.append("joint.csv")
    return names


def csv_rows(board: ModelBoard, *, published: bool = True) -> list[tuple[object, ...]]:
    """Every number of the board, unrounded."""
    rows: list[tuple[object, ...]] = []
    for model in board.models:
        for (how, number), cell in sorted(model.cells.items()):
            mean = cell.mean
            numbers = (mean.mean, mean.low, mean.high, cell.spread, mean.n, mean.unscored)
            counts = (mean.capped, mean.missing, mean.patients, mean.images)
            where = (board.heading(number), board.columns[number][1].name)
            rows.append((model.name, "", board.variant, how, *where, *numbers, *counts))
    variant = board.published.variant if board.published is not None else ""
    for name, values in board.published_values() if published else ():
        for number, value in enumerate(values):
            if value is not None:
                where = (board.heading(number), board.columns[number][1].name)
                rows.append((name, "published", variant, "", *where, value, *[""] * 9))
    return rows


def markdown(board: ModelBoard, *, published: bool = True) -> str:
    """The board in Markdown: mean [interval], spread, coverage and patients in each cell."""
    parts = []
    heads = ["Model", *(_markdown_head(board, number) for number in range(len(board.columns)))]
    for how in board.passes:
        rows = [
            (model.name, *(_plain(board, model, how, number) for number in range(len(board.columns))))
            for model in board.models
        ]
        beside = board.published_values() if published and how == FIRST else []
        rows += [
            (f"{name} (published)", *_published_line(board, values, mark=" †")) for name, values in beside
        ]
        parts.append(
            f"{title_of(how)}, variant `{board.variant}`: mean [95% interval] scored/applies, patients\n"
        )
        parts.append(markdown_table(heads, rows))
        if beside and board.published is not None:
            parts.append(f"† {board.published.note}\n")
    return "\n".join(parts)


def _markdown_head(board: ModelBoard, number: int) -> str:
    heading, (_, metric) = board.heading(number), board.columns[number]
    return f"{heading.capitalize()}: {metric.title}" if heading else metric.title


def _published_line(board: ModelBoard, values: Sequence[float | None], *, mark: str) -> list[str]:
    line = []
    for number, value in enumerate(values):
        metric = board.columns[number][1]
        line.append("–" if value is None else metric.show(value) + ("" if board.compares(number) else mark))
    return line


def _plain(board: ModelBoard, model: Model, how: str, number: int) -> str:
    metric = board.columns[number][1]
    cell = _cell(metric, model.cells.get((how, number)))
    if cell is None:
        return "–"
    ends = f" [{metric.show(cell.low)}, {metric.show(cell.high)}]" if not math.isnan(cell.low) else ""
    spread = _spread(metric, model.cells.get((how, number)))
    mean = f"{metric.show(cell.mean)} {spread}".rstrip()
    return ", ".join([f"{mean}{ends} {cell.coverage}", *cell.notes])


def latex(board: ModelBoard, *, published: bool = True) -> str:
    """The papers' layout for `booktabs`: headings over columns, our rows, then the published ones."""
    return "\n".join(_latex_table(board, how, published=published) for how in board.passes)


def _latex_table(board: ModelBoard, how: str, *, published: bool) -> str:
    count, groups = len(board.columns), headings(board)
    widths = [width for _, width in groups] or [count]
    columns = "l" + "".join(" " + "r" * width for width in widths)
    lines = [
        rf"% {title_of(how)}, variant {board.variant}; scored/applies and patients in small type",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
    ]
    if groups:
        lines.append(
            " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{tex(name)}}}" for name, width in groups)])
            + r" \\"
        )
        at = 2
        for _, width in groups:
            lines.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
            at += width
    arrows = [r"$\uparrow$" if m.higher_is_better else r"$\downarrow$" for _, m in board.columns]
    titles = [
        f"{tex(metric.title)} {arrow}" for (_, metric), arrow in zip(board.columns, arrows, strict=True)
    ]
    lines += [" & ".join(["Model", *titles]) + r" \\", r"\midrule"]
    best = _best(board, how)
    for model in board.models:
        cells = [model.cells.get((how, number)) for number in range(count)]
        lines.append(
            " & ".join([tex(model.name), *(_tex_mean(c, n, best) for n, c in enumerate(cells))]) + r" \\"
        )
        lines.append(" & ".join(["", *map(_tex_small, cells)]) + r" \\")
    beside = board.published_values() if published and how == FIRST else []
    if beside:
        lines += [r"\midrule", rf"\multicolumn{{{count + 1}}}{{l}}{{\emph{{Published by the authors}}}} \\"]
        for name, values in beside:
            shown = [rf"\emph{{{tex(text)}}}" for text in _published_line(board, values, mark="*")]
            lines.append(" & ".join([rf"\emph{{{tex(name)}}}", *shown]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if beside and board.published is not None:
        lines.append(f"% * {board.published.note}")
    return "\n".join([*lines, ""])


def _best(board: ModelBoard, how: str) -> Mapping[int, float]:
    found = {}
    for number, (_, metric) in enumerate(board.columns):
        means = [c.mean.mean for m in board.models if (c := m.cells.get((how, number))) and c.mean.n]
        if len(means) > 1:
            found[number] = (max if metric.higher_is_better else min)(means)
    return found


def _tex_mean(cell: BoardCell | None, number: int, best: Mapping[int, float]) -> str:
    if cell is None:
        return "--"
    text = tex(str(cell.mean))
    if not math.isnan(cell.spread):
        text += rf" {{\scriptsize $\pm$ {tex(cell.mean.metric.show(cell.spread))}}}"
    return rf"\textbf{{{text}}}" if cell.mean.mean == best.get(number) else text


def _tex_small(cell: BoardCell | None) -> str:
    if cell is None:
        return ""
    who = (
        [patients_in_words(cell.mean.patients, cell.mean.images or 0)]
        if cell.mean.patients is not None
        else []
    )
    return rf"{{\scriptsize {tex(', '.join([cell.mean.coverage, *who]))}}}"


def terminal_rows(
    board: ModelBoard, how: str, *, published: bool = True
) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of one way of counting, for a terminal."""
    header = ["model", *(metric.label for _, metric in board.columns)]
    rows = []
    for model in board.models:
        cells = [model.cells.get((how, number)) for number in range(len(board.columns))]
        rows.append([model.name, *("–" if c is None else _short(c) for c in cells)])
    for name, values in board.published_values() if published and how == FIRST else ():
        rows.append([f"{name} (published)", *_published_line(board, values, mark="†")])
    return header, rows


def _short(cell: BoardCell) -> str:
    spread = "" if math.isnan(cell.spread) else f" ±{cell.mean.metric.show(cell.spread)}"
    return f"{cell.mean}{spread} ({cell.mean.coverage})"
