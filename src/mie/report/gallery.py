"""Best and worst: which samples to show, their pictures at display size, and the cards that hold them.

Only the rows that are shown are read from the dataset, one row group at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from PIL import Image

from mie.core.files import inside
from mie.core.hashing import file_stem
from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.datasets.schema import sample_from_row
from mie.editors.runs import read_edits, remarks
from mie.errors import MieError
from mie.images.provenance import copied_xmp
from mie.images.read import read_picture
from mie.images.resize import fitted_size, resize_image
from mie.records import Pixels, Sample
from mie.report.contact_sheet import sample_title
from mie.report.layouts import Layout, in_order, metric
from mie.report.scored import Samples, ScoredRun
from mie.report.views import Label, Section
from mie.scoring.metric import Metric

EACH: Final = 6
_SIDE: Final = 360  # pixels of the longer side: what a card shows at 1400 pixels, and on a phone
_DIFFERENCE_FULL: Final = 128  # a difference this large, of 255, is drawn brightest
_START: Final = 10  # per cent of the input that the slider shows: nearly all of the output is in view


@dataclass(frozen=True, slots=True)
class Pick:
    """One sample of one run's gallery."""

    sample_id: str
    attempt: int
    value: float


@dataclass(frozen=True, slots=True)
class Shown:
    """A sample whose pictures are on disk. File names are relative to the report's folder."""

    sample_id: str
    prompt: str
    modality: str
    target: str
    task: str
    size: tuple[int, int]  # (height, width) of the pictures
    input: str
    reference: str
    outline: str | None


@dataclass(frozen=True, slots=True)
class ShownOutput:
    """A run's output on disk, or why it could not be shown."""

    output: str | None
    difference: str | None
    note: str | None = None
    remarks: tuple[str, ...] = ()  # what the editor said about it


@dataclass(slots=True)
class Pictures:
    """What `write_pictures` wrote: by dataset digest and sample, and by run, sample and attempt."""

    samples: dict[tuple[str, str], Shown]
    outputs: dict[tuple[str, str, int], ShownOutput]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Card:
    """One sample on the page."""

    about: str  # what it shows
    value: str
    others: str  # the attempt's other numbers
    pick: Pick
    sample: Shown
    output: ShownOutput
    drifted: bool


Picks = dict[str, tuple[list[Pick], list[Pick]]]  # metric -> worst, best


def choose(run: ScoredRun, layout: Layout, each: int = EACH) -> Picks:
    """Choose for each metric the worst and the best samples at pass@1, extremes first; none is in both."""
    chosen: Picks = {}
    samples = _samples(run, layout)
    if samples is None:
        return chosen
    ids = samples.table.ids
    for name in samples.table.values:
        if name in layout.shares:
            continue
        values, attempts = samples.first(name)
        there = ~np.isnan(values) & ~samples.table.absent[np.arange(len(ids)), attempts]
        sign = 1 if metric(name).higher_is_better else -1
        # Ties (several perfect samples) go by id, so that every report shows the same ones.
        order = sorted(np.flatnonzero(there).tolist(), key=lambda row: (sign * values[row], ids[row]))
        picks = [Pick(ids[row], int(attempts[row]), float(values[row])) for row in order]
        worst = picks[: min(each, len(picks) // 2)]
        best = picks[len(worst) :][::-1][:each]
        if picks:
            chosen[name] = (worst, best)
    return chosen


def _samples(run: ScoredRun, layout: Layout) -> Samples | None:
    return run.scores[layout.name].samples if layout.name in run.scores else None


def rows_by_id(dataset: Dataset, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """Read the rows with these ids: one pass over the id columns, then only the row groups that hold one."""
    for path in dataset.shards():
        with ShardFile(path) as file:
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                places = [at for at, name in enumerate(ids) if name in wanted]
                if places:
                    yield from file.read_row_group(group).take(places).to_pylist()


def gallery(
    runs: Sequence[ScoredRun],
    layout: Layout,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Section | None:
    """Write the pictures to `folder/images`; None where no run has a score to choose by."""
    picks = [choose(run, layout) for run in runs]
    pictures = write_pictures(runs, picks, folder, progress)
    if not any(picks):
        return None
    shown = []
    for number, (run, chosen) in enumerate(zip(runs, picks, strict=True)):
        samples = _samples(run, layout)
        if samples is not None:
            numbers = in_order(samples.table.values.keys() - layout.shares)
            folds = [
                (m, _cards(run, samples, m, numbers, chosen[m.name], pictures)) for m in in_order(chosen)
            ]
            folds = [(m, lists) for m, lists in folds if any(cards for _, cards in lists)]
            titled = [
                (f"{m.label}: {len(chosen[m.name][0])} worst and {len(chosen[m.name][1])} best", lists)
                for m, lists in folds
            ]
            shown += [(Label(run.name, number), titled)] if titled else []
    content = {"notes": pictures.notes, "runs": shown, "any": bool(pictures.samples), "start": _START}
    return Section("gallery", "Best and worst", "Gallery", "gallery.html", content)


def _cards(
    run: ScoredRun,
    samples: Samples,
    m: Metric,
    numbers: Sequence[Metric],
    picks: tuple[list[Pick], list[Pick]],
    pictures: Pictures,
) -> list[tuple[str, list[Card]]]:
    rows = {sample: at for at, sample in enumerate(samples.table.ids)}
    others = [other for other in numbers if other != m]
    moved = {(drift.sample_id, drift.attempt) for drift in samples.drifted}
    lists = []
    for title, chosen in zip((f"Worst {m.label}", f"Best {m.label}"), picks, strict=True):
        cards = []
        for pick in chosen:
            sample = pictures.samples.get((run.digest, pick.sample_id))
            output = pictures.outputs.get((run.name, pick.sample_id, pick.attempt))
            if sample and output:
                unit = f" {m.unit}" if m.unit else ""
                cards.append(
                    Card(
                        about=sample_title(sample.modality, sample.target),
                        value=f"{m.label} {m.show(pick.value)}{unit}",
                        others=_others(samples, others, rows[pick.sample_id], pick.attempt),
                        pick=pick,
                        sample=sample,
                        output=output,
                        drifted=(pick.sample_id, pick.attempt) in moved,
                    )
                )
        if cards:
            lists.append((title, cards))
    return lists


def _others(samples: Samples, metrics: Iterable[Metric], row: int, attempt: int) -> str:
    """Return an attempt's other numbers, on one line."""
    values = [(other, float(samples.table.values[other.name][row, attempt])) for other in metrics]
    return " · ".join(f"{other.label} {other.show(value)}" for other, value in values if not np.isnan(value))


def write_pictures(
    runs: Sequence[ScoredRun],
    picks: Sequence[Picks],
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Pictures:
    """Write the pictures of every pick to `folder/images`; a sample that several runs show only once."""
    written = Pictures({}, {}, [])
    (folder / "images").mkdir(exist_ok=True)
    wanted: dict[str, dict[str, set[tuple[int, int]]]] = {}  # digest -> sample -> (run, attempt)
    for number, (run, chosen) in enumerate(zip(runs, picks, strict=True)):
        for lists in chosen.values():
            for pick in (*lists[0], *lists[1]):
                samples = wanted.setdefault(run.digest, {})
                samples.setdefault(pick.sample_id, set()).add((number, pick.attempt))
    edits = [
        read_edits(run.folder / "edits.jsonl") if chosen else {}
        for run, chosen in zip(runs, picks, strict=True)
    ]
    done, total = 0, sum(len(samples) for samples in wanted.values())
    for digest, samples in wanted.items():
        try:
            dataset = next(run for run in runs if run.digest == digest).dataset()
        except MieError as error:
            written.notes.append(f"No galleries for dataset {digest[:12]}: {error.reason} ({error.where}).")
            continue
        for row in rows_by_id(dataset, set(samples)):
            sample = sample_from_row(row)
            shown = _write_sample(sample, digest, folder)
            written.samples[digest, sample.id] = shown
            for number, attempt in sorted(samples[sample.id]):
                output = _write_output(runs[number], number, sample, attempt, shown.size, folder)
                edit = edits[number].get((sample.id, attempt))
                said = tuple(remarks(edit.meta)) if edit is not None else ()
                written.outputs[runs[number].name, sample.id, attempt] = replace(output, remarks=said)
            done += 1
            if progress is not None:
                progress(done, total)
    return written


def _write_sample(sample: Sample, digest: str, folder: Path) -> Shown:
    height, width = sample.input.shape[:2]
    longer = min(_SIDE, max(height, width))
    size = fitted_size(height, width, longer)
    # Ids come from the dataset and may hold anything: a file's name is made of their digest.
    name = hashlib.sha256(f"{digest} {sample.id}".encode()).hexdigest()[:16]
    outline = None
    if sample.mask is not None and sample.mask.any():
        outline = f"images/{name}_outline.svg"
        (folder / outline).write_text(_outline(sample.mask), encoding="utf-8")
    return Shown(
        sample_id=sample.id,
        prompt=sample.prompt,
        modality=sample.modality,
        target=sample.target,
        task=sample.task,
        size=size,
        input=_write(folder, f"images/{name}_input.webp", resize_image(sample.input, size)),
        reference=_write(folder, f"images/{name}_reference.webp", resize_image(sample.target_image, size)),
        outline=outline,
    )


def _write_output(
    run: ScoredRun, number: int, sample: Sample, attempt: int, size: tuple[int, int], folder: Path
) -> ShownOutput:
    try:
        path = inside(run.folder, run.folder / "outputs", f"{file_stem(sample.id)}_{attempt}.png")
        output = read_picture(path).pixels
    except MieError as error:
        return ShownOutput(None, None, f"output cannot be shown: {error.reason}")
    note = None
    if output.shape != sample.input.shape:
        note = f"output is {output.shape[1]}×{output.shape[0]}, resized to the input"
        # As it was scored: bilinear, to the size of the input.
        height, width = sample.input.shape[:2]
        output = np.asarray(cv2.resize(output, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
    reference = sample.target_image
    if reference.shape != output.shape:
        reference = resize_image(reference, (output.shape[0], output.shape[1]))
    coloured = difference(reference, output)
    name = hashlib.sha256(f"{number} {attempt} {sample.id}".encode()).hexdigest()[:16]
    return ShownOutput(
        output=_write(folder, f"images/{name}_output.webp", resize_image(output, size), copied_xmp(path)),
        difference=_write(folder, f"images/{name}_difference.webp", resize_image(coloured, size)),
        note=note,
    )


def _write(folder: Path, name: str, pixels: Pixels, xmp: bytes = b"") -> str:
    Image.fromarray(pixels).save(folder / name, format="WEBP", quality=88, method=1, xmp=xmp)
    return name


def _outline(mask: Pixels) -> str:
    """The borders of every class as an SVG drawing over the image: a bright line on a dark one."""
    height, width = mask.shape
    paths = []
    for value in np.unique(mask[mask > 0]):
        found, _ = cv2.findContours((mask == value).astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
        for line in found:
            # Contours run through pixel centres; in the drawing's coordinates those lie at one half.
            points = " ".join(f"{x + 0.5:g},{y + 0.5:g}" for x, y in line[:, 0])
            paths.append(f"M{points}Z")
    drawn = "".join(paths)
    strokes = "".join(
        f'<path d="{drawn}" fill="none" stroke="{colour}" stroke-width="{pixels}" stroke-linejoin="round" '
        'stroke-linecap="round" vector-effect="non-scaling-stroke"/>'
        for colour, pixels in (("#000", 3.5), ("#ffe14d", 1.7))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">{strokes}</svg>\n'
    )


def difference(reference: Pixels, output: Pixels) -> Pixels:
    """How far each pixel is from the reference, `(H, W, 3)` both, from black to yellow."""
    away = cv2.absdiff(output, reference).max(axis=2).astype(np.float64)
    heat = np.minimum(255, away * (255 / _DIFFERENCE_FULL)).astype(np.uint8)
    return np.ascontiguousarray(cv2.applyColorMap(heat, cv2.COLORMAP_INFERNO)[..., ::-1])
