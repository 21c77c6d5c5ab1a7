"""Whole volumes on the page: input, reference and outputs slice by slice, moved through together.

All slices of a volume lie in one picture for each pane, so a script shows another slice without loading
anything, also when the page is opened from disk. Without the script the pictures are sheets of slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from PIL import Image

from mie.datasets.dataset import Dataset, StoredSample
from mie.datasets.volumes import volume_slices
from mie.editors.runs import output_name
from mie.errors import MieError
from mie.images.overlay import deblend, deblend_any
from mie.images.read import read_picture
from mie.images.resize import fitted_size, resize_image, resize_to
from mie.records import Mask, Pixels
from mie.report.scored import BenchmarkScores, ScoredRun
from mie.report.views import Section, asset
from mie.scoring.reference import paints

SHOWN: Final = 3  # volumes: the worst, the one in the middle and the best
_SIDE: Final = 256  # pixels of a slice's longer side
_MOST: Final = 240  # slices of a volume; of a longer one every second, third, ...
_LINE: Final = {"reference": (255, 210, 0), "output": (0, 220, 255)}


@dataclass(frozen=True, slots=True)
class Pane:
    """One image of each slice, in one picture; and the outlines that lie over it."""

    title: str
    file: str
    outline: str | None = None


@dataclass(frozen=True, slots=True)
class ShownVolume:
    """A volume on the page."""

    title: str
    prompt: str
    numbers: Sequence[str]  # a line for each run
    panes: Sequence[Pane]
    slices: int
    across: int  # slices beside each other in a picture
    size: tuple[int, int]  # (height, width) of a slice
    start: int  # the slice that is shown first
    step_mm: float


def volumes_section(scored: BenchmarkScores, runs: Sequence[ScoredRun], folder: Path) -> Section | None:
    """The section of a benchmark of whole volumes; None where the dataset is gone."""
    made = [run for run in runs if run.name in scored.scores]
    try:
        dataset = made[0].dataset()
    except (MieError, IndexError):
        return None
    (folder / "images").mkdir(exist_ok=True)
    chosen = _chosen(scored, made[0].name)
    slices = volume_slices(dataset)
    found = [
        _volume(dataset, [one.position for one in slices[name]], made, scored, folder)
        for name in chosen
        if name in slices
    ]
    if not found:
        return None
    for name in ("volumes.js", "volumes.css"):
        (folder / "assets" / name).write_text(asset(name), encoding="utf-8")
    return Section("volumes", "Volumes", "Volumes", "volumes.html", {"volumes": found})


def _chosen(scored: BenchmarkScores, run: str) -> list[str]:
    """The volumes to show, by id: worst, middle and best of the first run by the benchmark's main metric."""
    samples = scored.scores[run].samples
    if samples is None:
        return []
    table = samples.table
    names = np.asarray(table.groups["volume"]).astype(str)
    for metric in scored.layout.main:
        if metric not in table.values:
            continue
        values, _ = samples.first(metric)
        there = np.flatnonzero(~np.isnan(values))
        if there.size:
            order = there[np.argsort(values[there], kind="stable")]
            picks = np.unique(np.linspace(0, order.size - 1, min(SHOWN, order.size)).round().astype(int))
            return [str(names[order[pick]]) for pick in picks]
    return [str(name) for name in names[:SHOWN]]


def _volume(
    dataset: Dataset,
    places: Sequence[int],
    runs: Sequence[ScoredRun],
    scored: BenchmarkScores,
    folder: Path,
) -> ShownVolume:
    every = -(-len(places) // _MOST)
    slices = [dataset[at] for at in places[::every]]
    first = slices[0]
    facts = first.params["volume"]
    size = fitted_size(first.input.shape[0], first.input.shape[1], min(_SIDE, max(first.input.shape[:2])))
    across = max(1, round((len(slices) * size[0] / size[1]) ** 0.5))
    write = _Writer(folder, f"images/volume_{facts['id']}", size, across)
    regions = [_region(s, s.target_image) for s in slices]
    outline = write.outlines("reference", regions, _LINE["reference"])
    panes = [
        Pane("Input", write.sheet("input", [s.input for s in slices]), outline),
        Pane("Reference", write.sheet("reference", [s.target_image for s in slices]), outline),
    ]
    numbers = []
    for number, run in enumerate(runs):
        outputs = [_output(run, s) for s in slices]
        shown = [np.zeros_like(s.input) if o is None else o for s, o in zip(slices, outputs, strict=True)]
        drawn = [None if o is None else _region(s, o) for s, o in zip(slices, outputs, strict=True)]
        own = write.outlines(f"run{number}", drawn, _LINE["output"]) if paints(first.perspective) else outline
        panes.append(Pane(run.name, write.sheet(f"run{number}", shown), own))
        numbers.append(f"{run.name}: {_numbers(scored, run.name, str(facts['id']))}")
    areas = [0 if region is None else int(region.sum()) for region in regions]
    return ShownVolume(
        title=f"{first.target}, {first.modality}, {first.source}, {len(places)} {facts['plane']} slices",
        prompt=first.prompt,
        numbers=numbers,
        panes=panes,
        slices=len(slices),
        across=across,
        size=size,
        start=int(np.argmax(areas)) if any(areas) else len(slices) // 2,
        step_mm=float(facts["spacing"][0]) * every,
    )


def _region(sample: StoredSample, image: Pixels) -> Mask | None:
    """What an image marks, or the area that an edit is about; None where there is none."""
    if not paints(sample.perspective):
        return None if sample.mask is None else np.asarray(sample.mask > 0)
    if sample.task == "holistic" or not sample.colour:
        return deblend_any(sample.input, image)
    return deblend(sample.input, image, sample.colour)


def _output(run: ScoredRun, sample: StoredSample) -> Pixels | None:
    path = run.folder / output_name(sample.id, 0)
    try:
        pixels = read_picture(path).pixels if path.is_file() else None
    except MieError:
        return None
    return None if pixels is None else resize_to(pixels, (sample.input.shape[0], sample.input.shape[1]))


def _numbers(scored: BenchmarkScores, run: str, volume: str) -> str:
    """`3-D DICE .831, HD95 4.2 mm`: the volume's numbers, or that it has none."""
    samples = scored.scores[run].samples
    if samples is None:
        return "no scores of single volumes"
    rows = np.flatnonzero(np.asarray(samples.table.groups["volume"]).astype(str) == volume)
    words = []
    for name in samples.table.values:
        values, _ = samples.first(name)
        for value in values[rows]:
            if not np.isnan(value):
                metric = samples.table.metric(name)
                words.append(f"{metric.label} {metric.show(value)} {metric.unit}".strip())
    return ", ".join(words) or "not scored"


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes all slices of a pane as one picture."""

    folder: Path
    stem: str
    size: tuple[int, int]
    across: int

    def sheet(self, name: str, images: Sequence[Pixels]) -> str:
        """The slices from left to right and top to bottom."""
        return self._write(name, [resize_image(image, self.size) for image in images])

    def outlines(self, name: str, regions: Sequence[Mask | None], colour: tuple[int, int, int]) -> str | None:
        """The regions' outlines on nothing; None where nothing is marked anywhere."""
        if not any(region is not None and region.any() for region in regions):
            return None
        drawn = []
        for region in regions:
            picture = np.zeros((*self.size, 4), np.uint8)
            if region is not None and region.any():
                scaled = cv2.resize(
                    region.astype(np.uint8), self.size[::-1], interpolation=cv2.INTER_NEAREST_EXACT
                )
                lines, _ = cv2.findContours(scaled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
                cv2.drawContours(picture, lines, -1, (*colour, 255), 1)
            drawn.append(picture)
        return self._write(f"{name}_outline", drawn)

    def _write(self, name: str, pictures: Sequence[Any]) -> str:
        height, width = self.size
        rows = -(-len(pictures) // self.across)
        sheet = np.zeros((rows * height, self.across * width, pictures[0].shape[2]), np.uint8)
        for at, picture in enumerate(pictures):
            top, left = at // self.across * height, at % self.across * width
            sheet[top : top + height, left : left + width] = picture
        file = f"{self.stem}_{name}.png"
        Image.fromarray(sheet).save(self.folder / file, optimize=True)
        return file
