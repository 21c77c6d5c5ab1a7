"""Conversations on the page: survival curves, where runs fail first, and film strips.

A strip shows one conversation from left to right: the first image, then for each turn its sentence and the
truth, and below them what each run made of it and where that differs from the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

from mie.datasets.dataset import Dataset, StoredSample
from mie.editors.runs import output_name
from mie.errors import MieError
from mie.images.read import read_picture
from mie.images.resize import fitted_size, resize_image, resize_to
from mie.records import Pixels
from mie.report.charts import turn_chart
from mie.report.contact_sheet import _font, _wrapped
from mie.report.gallery import difference
from mie.report.scored import BenchmarkScores, Cell, ScoredRun
from mie.report.views import Label, Row, Section, TextTable, count
from mie.scoring.metric import SHARE, Metric

STRIPS: Final = 8  # conversations that are shown
_CELL: Final = 128  # pixels of a picture
_ACROSS: Final = 8  # turns beside each other; a longer conversation goes on below
_MARGIN, _GAP = 10, 4
_LABEL: Final = 92  # pixels of the labels on the left
_INK, _GREY, _GOOD, _BAD = (34, 34, 34), (105, 105, 105), (0, 121, 92), (178, 34, 34)
_SURVIVAL: Final = Metric("survival", "All turns so far passed", scale=SHARE)


@dataclass(frozen=True, slots=True)
class Strip:
    """One conversation as a picture on disk."""

    file: str
    caption: str
    alt: str
    width: int
    height: int


def conversations_section(scored: BenchmarkScores, runs: Sequence[ScoredRun], folder: Path) -> Section | None:
    """The section of a benchmark of conversations; None where no run has any."""
    curves = {
        name: {int(p["turn"]): _cell(p) for p in scores.document["survival"]["curve"]}
        for name, scores in scored.scores.items()
        if scores.document.get("survival")
    }
    if not curves:
        return None
    names = [run.name for run in runs]
    caption = "Survival: conversations without a failed turn so far"
    chart = turn_chart(folder / "plots", f"{scored.layout.name}_survival", caption, _SURVIVAL, curves, names)
    content = {
        "charts": [chart] if chart else [],
        "tables": [_conversations_table(scored), *_first_failures(scored)],
        "strips": write_strips([run for run in runs if run.name in scored.scores], scored, folder),
    }
    return Section("conversations", "Conversations", "Conversations", "conversations.html", content)


def _cell(point: Mapping[str, Any]) -> Cell:
    low, high = (np.nan if end is None else float(end) for end in point["ci95"])
    return Cell(float(point["survival"]), low, high, int(point["at_risk"]), 0)


def _conversations_table(scored: BenchmarkScores) -> TextTable:
    rows: list[Row] = []
    for name, scores in scored.scores.items():
        document = scores.document
        curve = document["survival"]
        longest = max((point["turn"] for point in curve["curve"]), default=0)
        half = str(curve["half_life"]) if curve["half_life"] else f"more than {longest}"
        cells = [document["fed"], count(curve["conversations"]), count(curve["whole"]), half]
        rows.append((Label(name, scored.numbers[name]), cells))
    heads = ("Run", "Turns start from", "Conversations", "Whole", "Half-life (turns)")
    return TextTable("Conversations", heads, rows, words=True, numbers=3)


def _first_failures(scored: BenchmarkScores) -> Iterator[TextTable]:
    """By operation and by turn: a column for each, the most frequent first."""
    for key, title in (("operator", "operation"), ("turn", "turn")):
        found = {name: scores.document["first_failures"][key] for name, scores in scored.scores.items()}
        names: Counter[str] = Counter()
        for counts in found.values():
            names.update(counts)
        order = sorted(names) if key == "turn" else [what for what, _ in names.most_common()]
        if order:
            heads = ("Run", *(what.lstrip("0") for what in order))
            rows: list[Row] = [
                (Label(name, scored.numbers[name]), [count(counts.get(what, 0)) for what in order])
                for name, counts in found.items()
            ]
            caption = f"The first turn that failed, by {title}"
            yield TextTable(caption, heads, rows, words=True, numbers=len(order))


def write_strips(runs: Sequence[ScoredRun], scored: BenchmarkScores, folder: Path) -> list[Strip]:
    """Write the film strips of a few conversations, one of each family and modality in turn."""
    try:
        dataset = runs[0].dataset()
    except MieError:
        return []  # gone since; the numbers stand without it
    passed = {run.name: _passed(scored, run.name) for run in runs}
    strips = []
    (folder / "images").mkdir(exist_ok=True)
    for talk in _chosen(dataset, set().union(*(found for found in passed.values()))):
        first = talk[0]
        lines = [(run.name, _outputs(run, talk, passed[run.name])) for run in runs]
        picture = film_strip(talk, lines)
        file = f"images/conversation_{first.group}.png"
        Image.fromarray(picture).save(folder / file, optimize=True)
        said = "; ".join(f"{turn.turn}: {turn.prompt}" for turn in talk)
        caption = f"{first.task}, {first.modality}, {first.source}"
        height, width = picture.shape[:2]
        strips.append(Strip(file, caption, f"Conversation {first.group}. {said}", width, height))
    return strips


def _passed(scored: BenchmarkScores, run: str) -> dict[str, bool | None]:
    """Sample -> whether its turn passed; None without a score."""
    samples = scored.scores[run].samples
    if samples is None:
        return {}
    values, _ = samples.first("passed")
    ids = samples.table.ids
    return {name: None if np.isnan(v) else v > 0.5 for name, v in zip(ids, values, strict=True)}


def _chosen(dataset: Dataset, ids: set[str]) -> list[list[StoredSample]]:
    """Up to `STRIPS` conversations that runs have edited: families in turn, each in another modality."""
    table = dataset.table(["id", "group", "turn", "task", "modality"])
    rows = list(zip(*table.values(), strict=True))
    first = [row for row in rows if row[2] == 1 and row[0] in ids]
    chosen: list[str] = []
    seen: dict[str, int] = {}  # of each family and modality: how often
    while first and len(chosen) < STRIPS:
        best = min(first, key=lambda row: (seen.get(row[3], 0) + seen.get(row[4], 0), row[1]))
        first.remove(best)
        chosen.append(best[1])
        for name in best[3:]:
            seen[name] = seen.get(name, 0) + 1
    places: dict[str, list[int]] = {group: [] for group in chosen}
    for at, row in enumerate(rows):
        if row[1] in places and row[0] in ids:
            places[row[1]].append(at)
    talks = ([dataset[at] for at in found] for found in places.values())
    return [sorted(talk, key=lambda turn: turn.turn or 0) for talk in talks if talk]


# What a run made of each turn: the picture, or None, and whether it passed.
Line = list[tuple[Pixels | None, bool | None]]


def _outputs(run: ScoredRun, talk: Sequence[StoredSample], passed: Mapping[str, bool | None]) -> Line:
    line: Line = []
    for turn in talk:
        path = run.folder / output_name(turn.id, 0)
        try:
            picture = read_picture(path).pixels if path.is_file() else None
        except MieError:
            picture = None
        line.append((picture, passed.get(turn.id)))
    return line


def film_strip(talk: Sequence[StoredSample], lines: Sequence[tuple[str, Line]]) -> Pixels:
    """`(H, W, 3) uint8` on white: the conversation from left to right, a pair of rows for each run.

    Args:
        talk: The turns, in order.
        lines: The name of a run and its outputs, for each run.

    """
    start = {"text": "the first image", "truth": talk[0].input, "runs": [None] * len(lines)}
    cells: list[dict[str, Any]] = [start]
    for at, turn in enumerate(talk):
        made = [line[at] for _, line in lines]
        cells.append({"text": f"{turn.turn}. {turn.prompt}", "truth": turn.target_image, "runs": made})
    bands = [cells[at : at + _ACROSS] for at in range(0, len(cells), _ACROSS)]
    pictures = [_band(band, [name for name, _ in lines]) for band in bands]
    width = max(picture.shape[1] for picture in pictures)
    padded = [np.pad(p, ((0, 0), (0, width - p.shape[1]), (0, 0)), constant_values=255) for p in pictures]
    return np.concatenate(padded)


def _band(cells: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Pixels:
    font, line = _font("DejaVuSans", 11), 14
    texts = [_wrapped(cell["text"], font, _CELL) for cell in cells]
    top = _MARGIN + line * max(map(len, texts)) + _GAP
    tall = max(_fitted(cell["truth"]).shape[0] for cell in cells)
    rows = 1 + 2 * len(names)
    height = top + rows * (tall + _GAP) + _MARGIN
    width = _LABEL + len(cells) * (_CELL + _GAP) + 2 * _MARGIN
    canvas = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(canvas)
    labels = ["truth", *(text for name in names for text in (name, "difference"))]
    for row, label in enumerate(labels):
        for number, words in enumerate(_wrapped(label, font, _LABEL - _GAP)):
            draw.text((_MARGIN, top + row * (tall + _GAP) + number * line), words, _GREY, font)
    for column, (cell, text) in enumerate(zip(cells, texts, strict=True)):
        left = _MARGIN + _LABEL + column * (_CELL + _GAP)
        for number, words in enumerate(text):
            draw.text((left, _MARGIN + number * line), words, _INK, font)
        canvas.paste(Image.fromarray(_fitted(cell["truth"])), (left, top))
        for number, made in enumerate(cell["runs"]):
            y = top + (1 + 2 * number) * (tall + _GAP)
            if made is None:
                continue
            output, passed = made
            if output is None:
                draw.text((left, y), "no output", _GREY, font)
                continue
            truth = cell["truth"]
            output = resize_to(output, (truth.shape[0], truth.shape[1]))
            shown = _fitted(output)
            canvas.paste(Image.fromarray(shown), (left, y))
            canvas.paste(Image.fromarray(_fitted(difference(truth, output))), (left, y + tall + _GAP))
            if passed is not None:
                box = (left, y, left + shown.shape[1] - 1, y + shown.shape[0] - 1)
                draw.rectangle(box, outline=_GOOD if passed else _BAD, width=3)
    return np.asarray(canvas)


def _fitted(image: Pixels) -> Pixels:
    return resize_image(image, fitted_size(image.shape[0], image.shape[1], _CELL))
