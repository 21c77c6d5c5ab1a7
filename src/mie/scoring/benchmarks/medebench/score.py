"""What MedEBench measures in a run: CP against the input, PSNR and SSIM against the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mie.errors import ImageError, MetricError
from mie.records import Pixels
from mie.scoring import metrics
from mie.scoring.attempts import Context, Entry, LineBody, Row, each_output, line_of
from mie.scoring.benchmarks.medebench import BENCHMARK
from mie.scoring.benchmarks.medebench.judge import METRICS, at_size, mask_of, organ_of, task_of
from mie.scoring.chunks import Output
from mie.scoring.metrics.background import CP
from mie.scoring.metrics.psnr import PSNR
from mie.scoring.metrics.ssim import SSIM
from mie.scoring.perspectives import edits_whole_image
from mie.scoring.pixels import in_colour, read_stored

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
