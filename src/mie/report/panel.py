"""The qualitative panel: a row of images for each sample, a column for each model, samples chosen by a rule.

For each perspective the worst, the median and the best sample are shown: those whose score, averaged over the
models at pass@1, is lowest, in the middle and highest among the samples that every model has a number and an
output for. Equal scores go by the sample's id. So nobody picks, and every board of the same runs shows the
same images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from mie.images.png import encode_png
from mie.perspectives import PERSPECTIVES
from mie.records import Pixels
from mie.report.contact_sheet import model_sheet, sample_title
from mie.report.gallery import Pick, Picks, Shown, ShownOutput, write_pictures
from mie.report.scored import ScoredRun
from mie.scoring.board import Model, ModelBoard
from mie.scoring.metric import Metric
from mie.scoring.results import Results

_NO_METRIC: Final = "no metric that every model has tells its samples apart"


@dataclass(frozen=True, slots=True)
class PanelRow:
    """One sample: why it was chosen, and the output and the number of each model."""

    rank: str  # worst, median or best
    sample_id: str
    score: float  # the mean over the models
    values: tuple[float, ...]  # of each model
    attempts: tuple[int, ...]
    shown: Shown | None = None
    outputs: tuple[ShownOutput | None, ...] = ()

    @property
    def about(self) -> str:
        return "" if self.shown is None else sample_title(self.shown.modality, self.shown.target)


@dataclass(frozen=True, slots=True)
class Panel:
    """The rows of one perspective."""

    perspective: str
    metric: Metric
    candidates: int  # samples that were chosen from
    rows: tuple[PanelRow, ...]
    file: str = ""  # the whole panel as one picture, relative to the folder


@dataclass(frozen=True, slots=True)
class Panels:
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]


def choose_rows(board: ModelBoard, perspective: str) -> Panel | str:
    """The three rows of a perspective, without pictures, or the reason why there are none."""
    sources = [_source(model, perspective) for model in board.models]
    there = [results for results in sources if results is not None]
    if len(there) < len(board.models):
        return "not every model has samples of it"
    listed = PERSPECTIVES[perspective].metrics if perspective in PERSPECTIVES else ()
    columns = [column.metric for column, _ in board.columns if column.where == {"perspective": perspective}]
    for name in dict.fromkeys((*columns, *listed)):
        if any(name not in results.table.values for results in there):
            continue
        metric = there[0].table.metric(name)
        if metric.binary:
            continue
        rows, candidates = _rows(there, name, metric, perspective)
        if rows:
            return Panel(perspective, metric, candidates, rows)
    return _NO_METRIC


def write_panels(
    board: ModelBoard, folder: Path, progress: Callable[[int, int], None] | None = None
) -> Panels:
    """Choose the rows of each perspective on the board and write their pictures."""
    there = dict.fromkeys(
        str(name)
        for model in board.models
        for results in model.results
        if results.has_samples
        for name in np.unique(results.table.groups["perspective"].astype(str))
    )
    listed = [name for column, _ in board.columns for name in column.where.values() if name in there]
    found, notes = [], []
    for perspective in dict.fromkeys((*listed, *there)):
        panel = choose_rows(board, perspective)
        if isinstance(panel, str):
            notes.append(f"No panel of {perspective}: {panel}.")
        else:
            found.append(panel)
    panels = []
    for panel in found:
        drawn, problems = _with_pictures(board, panel, folder, progress)
        panels.append(drawn)
        notes += problems
    return Panels(tuple(panels), tuple(dict.fromkeys(notes)))


def _source(model: Model, perspective: str) -> Results | None:
    for results in model.results:
        if results.has_samples and perspective in results.table.groups["perspective"]:
            return results
    return None


def _rows(
    sources: Sequence[Results], name: str, metric: Metric, perspective: str
) -> tuple[tuple[PanelRow, ...], int]:
    values: list[dict[str, tuple[float, int]]] = []
    for results in sources:
        table, chosen = results.table, results.table.select(name, 1)
        inside = table.rows_of({"perspective": perspective}) & chosen.scored & ~chosen.missing
        inside &= ~table.absent[np.arange(len(table.ids)), chosen.attempts]
        values.append(
            {
                table.ids[row]: (float(chosen.values[row]), int(chosen.attempts[row]))
                for row in np.flatnonzero(inside)
            }
        )
    shared = [sample for sample in values[0] if all(sample in one for one in values[1:])]
    scores = {
        sample: float(np.mean([min(one[sample][0], 1e6) for one in values])) for sample in shared
    }  # an infinite PSNR is the best there is, not no number
    if not scores:
        return (), 0
    sign = 1 if metric.higher_is_better else -1
    order = sorted(scores, key=lambda sample: (sign * scores[sample], sample))
    picks = {"worst": order[0], "median": order[len(order) // 2], "best": order[-1]}
    rows: list[PanelRow] = []
    for rank, sample in picks.items():
        if sample in {row.sample_id for row in rows}:
            continue
        numbers = tuple(one[sample][0] for one in values)
        attempts = tuple(one[sample][1] for one in values)
        rows.append(PanelRow(rank, sample, float(np.mean(numbers)), numbers, attempts))
    return tuple(rows), len(order)


def _with_pictures(
    board: ModelBoard, panel: Panel, folder: Path, progress: Callable[[int, int], None] | None
) -> tuple[Panel, list[str]]:
    runs: list[ScoredRun] = []
    picks: list[Picks] = []
    for at, model in enumerate(board.models):
        results = _source(model, panel.perspective)
        assert results is not None  # noqa: S101 (the panel has every model)
        run = model.where(results)
        runs.append(ScoredRun(run.folder, model.name, run.info, board.variant, {}, Counter(), 0))
        chosen = [Pick(row.sample_id, row.attempts[at], row.values[at]) for row in panel.rows]
        picks.append({panel.metric.name: (chosen, [])})
    pictures = write_pictures(runs, picks, folder, progress)
    rows = []
    for row in panel.rows:
        shown = pictures.samples.get((runs[0].digest, row.sample_id))
        outputs = tuple(
            pictures.outputs.get((run.name, row.sample_id, attempt))
            for run, attempt in zip(runs, row.attempts, strict=True)
        )
        rows.append(PanelRow(row.rank, row.sample_id, row.score, row.values, row.attempts, shown, outputs))
    file = _write_sheet(board, panel, rows, folder) if any(row.shown for row in rows) else ""
    return Panel(panel.perspective, panel.metric, panel.candidates, tuple(rows), file), pictures.notes


def _write_sheet(board: ModelBoard, panel: Panel, rows: Sequence[PanelRow], folder: Path) -> str:
    """The panel as one PNG, for a paper or a slide."""
    lines = []
    for row in rows:
        if row.shown is None:
            continue
        files = [row.shown.input, row.shown.reference, *(o.output if o else None for o in row.outputs)]
        images = [
            None if file is None else np.asarray(Image.open(folder / file).convert("RGB")) for file in files
        ]
        label = f"{row.rank} by {panel.metric.label}: {row.about}"
        lines.append((label, images, row.shown.prompt))
    heads = ["input", "reference", *(model.name for model in board.models)]
    file = f"plots/panel_{panel.perspective}.png"
    (folder / file).write_bytes(encode_png(model_sheet(heads, lines)))
    return file


def _read(path: Path) -> Pixels:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def panel_lines(panels: Sequence[Panel], names: Sequence[str]) -> list[tuple[object, ...]]:
    """The choice as rows of a table: perspective, metric, rank, sample, mean, and each model's value."""
    lines: list[tuple[object, ...]] = []
    for panel in panels:
        for row in panel.rows:
            about = (panel.perspective, panel.metric.name, row.rank, row.sample_id, row.score)
            lines += [(*about, *one) for one in zip(names, row.values, row.attempts, strict=True)]
    return lines
