"""What MedEBench measures in a run (CP against the input, PSNR and SSIM against the target), and its tables.

The published CP comes from the released script: compare it with the variant `as_released` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.editors.runs import Run
from mie.errors import ImageError, MetricError
from mie.records import Pixels
from mie.scoring import metrics
from mie.scoring.attempts import Context, Entry, LineBody, Output, Row, each_output, line_of
from mie.scoring.benchmarks import (
    Document,
    PublishedRows,
    Table,
    by_group,
    cell,
    first_attempts,
    published,
)
from mie.scoring.benchmarks.medebench import BENCHMARK
from mie.scoring.benchmarks.medebench.judge import METRICS, at_size, mask_of, organ_of, task_of
from mie.scoring.benchmarks.medebench.networks import METRICS as NAMES
from mie.scoring.benchmarks.medebench.networks import Weights, load_networks, measure_networks
from mie.scoring.metrics.background import CP
from mie.scoring.metrics.psnr import PSNR
from mie.scoring.metrics.ssim import SSIM
from mie.scoring.reference import edits_whole_image, in_colour, read_output, read_stored
from mie.scoring.scores import ScoreTable

if TYPE_CHECKING:
    from mie.scoring.metrics.perceptual import Inception

PIXEL_METRICS: Final = ("cp", "psnr", "ssim")
INSIDE: Final = 128  # of a soft mask


@dataclass(frozen=True, slots=True)
class _Reference:
    image: Pixels  # I
    target: Pixels  # O
    mask: Pixels | None  # (H, W) uint8, 255 inside


def measure(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    def read_reference() -> _Reference:
        image = in_colour(context.inputs.read(row["input"]["bytes"]))
        target = in_colour(read_stored(row["target_image"]["bytes"]))
        mask = mask_of(row)
        for what, pixels in (("target", target), ("mask", mask)):
            if pixels is not None and pixels.shape[:2] != image.shape[:2]:
                raise ImageError(
                    f"input and {what} differ in size", expected=image.shape[:2], found=pixels.shape[:2]
                )
        return _Reference(image, target, mask)

    # A transformation changes the whole image: there is no context to preserve.
    names = ("psnr", "ssim") if edits_whole_image(row) else PIXEL_METRICS
    networks = load_networks(context.setup)
    applies = (*names, *networks.there(), *(METRICS if context.judged else ()))
    texts = {"change": row["description"], "instruction": row["prompt"]}

    def score(reference: _Reference, output: Pixels) -> dict[str, Any]:
        entry = score_output(reference, output, context.variant, names)
        fitted = at_size(output, (reference.image.shape[0], reference.image.shape[1]))
        images = {"input": reference.image, "target": reference.target, "output": fitted}
        measure_networks(entry, networks, context.variant, images, texts)
        return entry.body

    attempts = each_output(outputs, context.variant, read_reference, score)
    return line_of(row, applies, attempts, organ=organ_of(row), task=task_of(row))


def score_output(
    reference: _Reference, output: Pixels, variant: str, names: Sequence[str] = PIXEL_METRICS
) -> Entry:
    """CP against the input, where it is among `names`; PSNR and SSIM against the target."""
    entry = Entry(BENCHMARK.psnr_cap if variant == "paper" else None)
    size = reference.image.shape[:2]
    if output.shape[:2] != size:
        entry.body["resized_from"] = list(output.shape[:2])
        output = at_size(output, size)
    if "cp" in names:
        entry.measure([CP], lambda: [_context(reference, output, variant)])
    entry.measure([PSNR, SSIM], lambda: metrics.ssim_psnr(reference.target, output)[::-1])
    return entry


def _context(reference: _Reference, output: Pixels, variant: str) -> float:
    if reference.mask is None:
        raise MetricError("the sample has no region mask")
    if variant == "as_released":
        return metrics.context_as_released(reference.image, output, reference.mask)
    return metrics.context_preservation(reference.image, output, reference.mask >= INSIDE)


def aggregate(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    """FID over the first attempts, and why some metrics were not measured."""
    weights = table.header["weights"]
    document["weights"] = weights
    absent = {name: found["absent"] for name, found in weights.items() if "absent" in found}
    document["not_measured"] = {metric: why for name, why in absent.items() for metric in NAMES[name]}
    state = Weights(**table.header.get("own_weights", {}))
    network = load_networks(state).fid
    if not isinstance(network, str):
        run = Run.open(scores.parents[1])
        document["groups"][0]["metrics"]["fid@1"] = set_distance(network, run, table)


def set_distance(network: Inception, run: Run, table: ScoreTable) -> dict[str, Any]:
    """FID of the outputs against their targets, those samples alone that have a readable output."""
    from mie.scoring.metrics.perceptual import FeatureStatistics, fid
    from mie.scoring.metrics.perceptual.tensors import batched

    made, wanted = FeatureStatistics(), FeatureStatistics()
    dataset, there = run.dataset(), {}
    for row, sample in enumerate(table.ids):
        if not table.absent[row, 0]:
            there[sample] = run.output_path(sample, 0)
    for chunk in batched(_pairs(dataset, there, table.header["variant"]), 16):
        for statistics, images in ((made, [p[0] for p in chunk]), (wanted, [p[1] for p in chunk])):
            for features in network.features(images):
                statistics.add(features)
    entry: dict[str, Any] = {"mean": math.nan, "n": made.n, "unscored": len(table.ids) - made.n, "ci95": None}
    entry["no_interval"] = "a distance of two sets, not a mean over samples"
    try:
        entry["mean"] = fid(made, wanted)
    except MetricError as error:
        entry["no_interval"] = error.reason
    rows = np.array([sample in there for sample in table.ids], np.bool_)
    clusters = table.clusters[rows]
    return {**entry, "patients": clusters.patients, "images_without_patient": clusters.unknown}


def _pairs(dataset: Dataset, there: Mapping[str, Path], variant: str) -> Iterator[tuple[Pixels, Pixels]]:
    """Output and target of each sample, the output at the target's size."""
    for shard in dataset.shards():
        with ShardFile(shard) as file:
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group, columns=["id", "target_image"]).to_pylist():
                    if row["id"] in there:
                        target = in_colour(read_stored(row["target_image"]["bytes"]))
                        output = read_output(there[row["id"]], variant)
                        yield at_size(output, (target.shape[0], target.shape[1])), target


@dataclass(frozen=True, slots=True)
class Published:
    """EA, CP and VQ in 0 to 1, and FID."""

    model: str
    ea: float
    cp: float
    vq: float
    fid: float


MEDEBENCH: Final = (
    Published("imagic", 0.38, 0.55, 0.48, 88.54),
    Published("instruct-pix2pix", 0.50, 0.86, 0.62, 46.50),
    Published("instruct-diffusion", 0.54, 0.67, 0.63, 65.56),
    Published("paint-by-inpaint", 0.37, 0.59, 0.38, 109.61),
    Published("icedit", 0.60, 0.79, 0.72, 46.76),
    Published("seedx", 0.31, 0.78, 0.54, 51.04),
    Published("gemini-2-flash", 0.68, 0.82, 0.72, 43.74),
)
PUBLISHED: Final = PublishedRows(
    caption="MedEBench, measured by its authors",
    columns=tuple(BENCHMARK.metric(name) for name in ("ea", "cp", "vq", "fid")),
    rows=tuple((row.model, (row.ea, row.cp, row.vq, row.fid)) for row in MEDEBENCH),
    marked=frozenset({"cp"}),
    note="CP comes from the released script (variant as_released).",
    source="published by the authors of MedEBench, overall rows",
)
_COLUMNS: Final = ("ea", "cp", "vq", "ea_plain", "vq_plain")
# All of them in one table, as the paper compares them with people.
_ALL: Final = (*BENCHMARK.own_metrics, "fid")


def tables(document: Document) -> list[Table]:
    columns = first_attempts(BENCHMARK, document, _COLUMNS)
    rows = [(row.model, row.ea, row.cp, row.vq, row.fid) for row in MEDEBENCH]
    return [
        by_group(document, "organ", columns, title="by organ: mean (scored)"),
        by_group(document, "task", columns, title="by task: mean (scored)"),
        _every_metric(document),
        published("published, overall (CP as released)", ("model", "EA", "CP", "VQ", "FID"), rows),
    ]


def _every_metric(document: Document) -> Table:
    """A row for each metric that was measured, and why the others were not."""
    means = document["groups"][0]["metrics"]
    rows = [
        (metric.label, cell(means[f"{name}@1"], metric), metric.meaning)
        for name in _ALL
        if f"{name}@1" in means
        for metric in [BENCHMARK.metric(name)]
    ]
    missing = document.get("not_measured", {})
    rows += [(BENCHMARK.metric(name).label, "not measured", reason) for name, reason in missing.items()]
    return Table("every metric: mean (scored)", ("metric", "mean", "what it says"), tuple(rows))
