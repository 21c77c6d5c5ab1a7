"""Best and worst: which samples to show, and their pictures at display size.

Only the rows that are shown are read from the dataset, one row group at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from mie.core.files import inside
from mie.core.hashing import file_stem
from mie.datasets.dataset import Dataset
from mie.datasets.schema import sample_from_row
from mie.errors import MieError
from mie.images.read import read_picture
from mie.images.resize import fitted_size, resize_image
from mie.records import Pixels, Sample
from mie.report.scored import ScoredRun

EACH: Final = 6
_SIDE: Final = 360  # pixels of the longer side: what a card shows at 1400 pixels, and on a phone
_DIFFERENCE_FULL: Final = 128  # a difference this large, of 255, is drawn brightest
# Shares hold only 0 and 1: there is no best one to show.
_NOT_SHOWN: Final = frozenset({"p_acc"})


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


@dataclass(slots=True)
class Pictures:
    """What `write_pictures` wrote: by dataset digest and sample, and by run, sample and attempt."""

    samples: dict[tuple[str, str], Shown]
    outputs: dict[tuple[str, str, int], ShownOutput]
    notes: list[str]


def choose(run: ScoredRun, each: int = EACH) -> dict[str, tuple[list[Pick], list[Pick]]]:
    """Per metric the worst and the best samples at pass@1, most extreme first; none is in both."""
    chosen = {}
    for metric in run.values:
        if metric in _NOT_SHOWN:
            continue
        values, attempts = run.first(metric), run.first_attempt(metric)
        scored = np.flatnonzero(~np.isnan(values))
        # Ties (several perfect samples) go by id, so that every report shows the same ones.
        order = sorted(scored.tolist(), key=lambda row: (values[row], run.ids[row]))
        picks = [Pick(run.ids[row], int(attempts[row]), float(values[row])) for row in order]
        worst = picks[: min(each, len(picks) // 2)]
        best = picks[len(worst) :][::-1][:each]
        if picks:
            chosen[metric] = (worst, best)
    return chosen


def rows_by_id(dataset: Dataset, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """The rows with these ids: one pass over the id columns, then only the row groups that hold one."""
    for path in dataset.shards():
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                places = [at for at, name in enumerate(ids) if name in wanted]
                if places:
                    yield from file.read_row_group(group).take(places).to_pylist()


def write_pictures(
    runs: Sequence[ScoredRun],
    picks: Sequence[dict[str, tuple[list[Pick], list[Pick]]]],
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Pictures:
    """Write the pictures of every pick to `folder/images`; a sample that several runs show only once."""
    written = Pictures({}, {}, [])
    (folder / "images").mkdir()
    wanted: dict[str, dict[str, set[tuple[int, int]]]] = {}  # digest -> sample -> (run, attempt)
    for number, (run, chosen) in enumerate(zip(runs, picks, strict=True)):
        for lists in chosen.values():
            for pick in (*lists[0], *lists[1]):
                samples = wanted.setdefault(run.digest, {})
                samples.setdefault(pick.sample_id, set()).add((number, pick.attempt))
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
                written.outputs[runs[number].name, sample.id, attempt] = output
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
    away = cv2.absdiff(output, reference).max(axis=2).astype(np.float64)
    heat = np.minimum(255, away * (255 / _DIFFERENCE_FULL)).astype(np.uint8)
    coloured = cv2.applyColorMap(heat, cv2.COLORMAP_INFERNO)[..., ::-1]
    name = hashlib.sha256(f"{number} {attempt} {sample.id}".encode()).hexdigest()[:16]
    return ShownOutput(
        output=_write(folder, f"images/{name}_output.webp", resize_image(output, size)),
        difference=_write(
            folder, f"images/{name}_difference.webp", resize_image(np.ascontiguousarray(coloured), size)
        ),
        note=note,
    )


def _write(folder: Path, name: str, pixels: Pixels) -> str:
    Image.fromarray(pixels).save(folder / name, format="WEBP", quality=88, method=1)
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
