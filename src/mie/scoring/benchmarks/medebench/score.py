"""What MedEBench measures in a run (CP against the input, PSNR and SSIM against the target), and its tables.

The published CP comes from the released script: compare it with the variant `as_released` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mie.errors import ImageError, MetricError
from mie.records import Pixels
from mie.scoring import metrics
from mie.scoring.attempts import Context, Entry, LineBody, Output, Row, each_output, line_of
from mie.scoring.benchmarks import Document, PublishedRows, Table, by_group, first_attempts, published
from mie.scoring.benchmarks.medebench import BENCHMARK
from mie.scoring.benchmarks.medebench.judge import METRICS, at_size, mask_of, organ_of, task_of
from mie.scoring.metrics.background import CP
from mie.scoring.metrics.psnr import PSNR
from mie.scoring.metrics.ssim import SSIM
from mie.scoring.reference import edits_whole_image, in_colour, read_stored

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
    applies = (*names, *METRICS) if context.judged else names
    attempts = each_output(
        outputs,
        context.variant,
        read_reference,
        lambda reference, output: score_output(reference, output, context.variant, names),
    )
    return line_of(row, applies, attempts, organ=organ_of(row), task=task_of(row))


def score_output(
    reference: _Reference, output: Pixels, variant: str, names: Sequence[str] = PIXEL_METRICS
) -> dict[str, Any]:
    """CP against the input, where it is among `names`; PSNR and SSIM against the target."""
    entry = Entry(BENCHMARK.psnr_cap if variant == "paper" else None)
    size = reference.image.shape[:2]
    if output.shape[:2] != size:
        entry.body["resized_from"] = list(output.shape[:2])
        output = at_size(output, size)
    if "cp" in names:
        entry.measure([CP], lambda: [_context(reference, output, variant)])
    entry.measure([PSNR, SSIM], lambda: metrics.ssim_psnr(reference.target, output)[::-1])
    return entry.body


def _context(reference: _Reference, output: Pixels, variant: str) -> float:
    if reference.mask is None:
        raise MetricError("the sample has no region mask")
    if variant == "as_released":
        return metrics.context_as_released(reference.image, output, reference.mask)
    return metrics.context_preservation(reference.image, output, reference.mask >= INSIDE)


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


def tables(document: Document) -> list[Table]:
    columns = first_attempts(BENCHMARK, document, _COLUMNS)
    rows = [(row.model, row.ea, row.cp, row.vq, row.fid) for row in MEDEBENCH]
    return [
        by_group(document, "organ", columns, title="by organ: mean (scored)"),
        by_group(document, "task", columns, title="by task: mean (scored)"),
        published("published, overall (CP as released)", ("model", "EA", "CP", "VQ", "FID"), rows),
    ]
