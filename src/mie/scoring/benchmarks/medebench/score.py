"""The MedEBench protocol over a run: CP from pixels, EA and VQ from a judge.

Variants. `paper` (default): CP is the mean SSIM over windows outside the region; a judge's reply must hold
both scores, once, in range. `as_released`: CP zeroes the region in both images and measures the whole;
replies are read as the public script reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.errors import ImageError
from mie.judges import JudgeOptions
from mie.records import Pixels
from mie.scoring import metrics
from mie.scoring.benchmarks.medebench import judge as judging
from mie.scoring.benchmarks.medebench.judge import COLUMNS, at_size, mask_of, organ_of, task_of
from mie.scoring.chunks import Output, in_colour, read_stored
from mie.scoring.metrics import MetricError
from mie.scoring.score import Context, Line, Method, Row, each_output, line_of, score_by, whole_image

NAME: Final = "medebench"
VERSION: Final = 1
PIXEL_METRICS: Final = ("cp", "psnr", "ssim")
PSNR_CAP: Final = 100.0  # dB, for exact matches, in the variant `paper`
INSIDE: Final = 128  # of a soft mask


def score_run(
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Score every output of a run by MedEBench; see `scoring.score_by`. Without a judge: CP, PSNR, SSIM."""
    return score_by(METHOD, run_folder, variant=variant, workers=workers, progress=progress, judge=judge)


@dataclass(frozen=True, slots=True)
class _Reference:
    image: Pixels  # I
    target: Pixels  # O
    mask: Pixels | None  # (H, W) uint8, 255 inside


def _measure(row: Row, outputs: Sequence[Output], context: Context) -> Line:
    def reference() -> _Reference:
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
    names = ("psnr", "ssim") if whole_image(row) else PIXEL_METRICS
    applies = (*names, *judging.METRICS) if context.judged else names
    attempts = each_output(
        outputs,
        context.variant,
        reference,
        lambda held, made: score_output(held, made, context.variant, names),
    )
    return line_of(row, applies, attempts, organ=organ_of(row), task=task_of(row))


def score_output(
    held: _Reference, output: Pixels, variant: str, names: Sequence[str] = PIXEL_METRICS
) -> dict[str, Any]:
    """CP against the input, where it is among `names`; PSNR and SSIM against the target."""
    entry: dict[str, Any] = {"metrics": {}, "unscored": {}}
    size = held.image.shape[:2]
    if output.shape[:2] != size:
        entry["resized_from"] = list(output.shape[:2])
        output = at_size(output, size)
    if "cp" in names:
        try:
            entry["metrics"]["cp"] = _context(held, output, variant)
        except MetricError as error:
            entry["unscored"]["cp"] = error.reason
    try:
        similarity, decibel = metrics.ssim_psnr(held.target, output)
    except MetricError as error:
        entry["unscored"] |= dict.fromkeys(("psnr", "ssim"), error.reason)
    else:
        entry["metrics"] |= {
            "psnr": min(decibel, PSNR_CAP) if variant == "paper" else decibel,
            "ssim": similarity,
        }
    return entry


def _context(held: _Reference, output: Pixels, variant: str) -> float:
    if held.mask is None:
        raise MetricError("the sample has no region mask")
    if variant == "as_released":
        return metrics.context_as_released(held.image, output, held.mask)
    return metrics.context_preservation(held.image, output, held.mask >= INSIDE)


METHOD: Final = Method(
    name=NAME,
    version=VERSION,
    columns=COLUMNS,
    metrics=("ea", "cp", "vq", "ea_plain", "vq_plain", "psnr", "ssim"),
    judged=judging.METRICS,
    measure=_measure,
    judging=judging.JUDGING,
    groups=("organ",),
    partitions=("organ", "task", "modality", "source"),
    psnr_cap=PSNR_CAP,
)
