"""One output against its sample, by the MieDB protocol: I input, O target, M output, R region.

R is read back from O by the same de-blending that reads M, in both variants, so that a perfect output has
DICE 1 exactly. The mask that the dataset stores is not used; it agrees with R to DICE 0.99 at least, which
the gates of `mie build` see to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mie.images.overlay import deblend, deblend_any
from mie.judges import JudgeOptions
from mie.records import Mask, Pixels
from mie.scoring import metrics
from mie.scoring.benchmarks.miedb.rubric import RUBRIC, fill_attempt, rubric_drafts
from mie.scoring.chunks import Output, read_stored
from mie.scoring.judging import Judging
from mie.scoring.metrics import MetricError
from mie.scoring.score import Context, Line, Method, Row, each_output, line_of, score_by
from mie.vocabulary import COLOURS

METRICS: Final = ("dice", "dice_guarded", "class_dice", "p_acc", "b_psnr", "b_ssim", "psnr", "ssim")
P_ACC_DICE: Final = 0.8  # P-ACC is the share of samples above
PSNR_CAP: Final = 100.0  # dB, for exact matches, in the variant `paper`
_REGION: Final = ("dice", "dice_guarded", "p_acc", "b_psnr", "b_ssim")


def metrics_of(perspective: str, task: str) -> tuple[str, ...]:
    """The metrics from pixels that apply. None to modification: its rubric needs a judge."""
    if perspective == "perception":
        return (*_REGION, "class_dice") if task == "holistic" else _REGION
    return ("psnr", "ssim") if perspective == "transformation" else ()


@dataclass(frozen=True, slots=True)
class Reference:
    """What every attempt at a sample is held against."""

    perspective: str
    image: Pixels  # I
    target: Pixels  # O
    colours: tuple[str, ...] = ()
    several: bool = False  # the release's `Multiclasses`: the region is the union over all three colours
    region: Mask | None = None  # R; None where it cannot be known

    @classmethod
    def of(cls, perspective: str, task: str, colour: str | None, image: Pixels, target: Pixels) -> Reference:
        """`colour` as samples store it: "red", or "red,green" for several classes."""
        if perspective != "perception":
            return cls(perspective, image, target)
        colours = tuple(c for c in (colour or "").split(",") if c in COLOURS)
        several = task == "holistic"
        region = None
        if several:
            region = deblend_any(image, target)
        elif colours:
            region = deblend(image, target, colours[0])
        return cls(perspective, image, target, colours, several, region)


def score_output(reference: Reference, output: Pixels, variant: str) -> dict[str, Any]:
    """`{"metrics": {name: value}, "unscored": {name: reason}, "drift": {...}}` for an `(H, W, 3)` output."""
    entry = _Entry(variant)
    size = reference.image.shape[:2]
    if output.shape[:2] != size:
        entry.body["resized_from"] = list(output.shape[:2])
        output = metrics.resize_to(output, size)
    if reference.perspective == "transformation":
        _whole(entry, reference.target, output)
    elif reference.perspective == "modification":
        pass  # its numbers come from a judge
    elif reference.region is None:
        for name in _REGION:
            entry.unscored[name] = "the sample names no overlay colour"
    else:
        _overlay(entry, reference, reference.region, output)
        _background(entry, reference.target, output, reference.region)
    _drift(entry, reference, output)
    return entry.body


class _Entry:
    """The metrics of one attempt as they come in."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.metrics: dict[str, float] = {}
        self.unscored: dict[str, str] = {}
        self.body: dict[str, Any] = {"metrics": self.metrics, "unscored": self.unscored}

    def measure(self, names: tuple[str, ...], compute: Callable[[], tuple[float, ...]]) -> bool:
        """False, and a reason for each name, when the metric is not defined here."""
        try:
            values = compute()
        except MetricError as error:
            self.unscored.update(dict.fromkeys(names, error.reason))
            return False
        for name, value in zip(names, values, strict=True):
            self.unscored.pop(name, None)
            capped = self.variant == "paper" and name.endswith("psnr")
            self.metrics[name] = min(float(value), PSNR_CAP) if capped else float(value)
        return True


def _overlay(entry: _Entry, reference: Reference, region: Mask, output: Pixels) -> None:
    image, target = reference.image, reference.target
    if reference.several:
        dice, guarded = metrics.dice_and_guarded_any(image, output, region)
    else:
        dice, guarded = metrics.dice_and_guarded(image, output, region, reference.colours[0])
    entry.metrics |= {"dice": dice, "dice_guarded": guarded, "p_acc": float(dice > P_ACC_DICE)}
    if not reference.several:
        return
    if not reference.colours:
        entry.unscored["class_dice"] = "the sample names no overlay colour"
        return
    classes = metrics.class_dice(image, output, {c: deblend(image, target, c) for c in reference.colours})
    entry.metrics["class_dice"] = sum(classes.values()) / len(classes)
    entry.body["classes"] = classes


def _background(entry: _Entry, target: Pixels, output: Pixels, region: Mask) -> None:
    both = ("b_ssim", "b_psnr")
    if entry.variant == "as_released":
        entry.measure(both, lambda: metrics.background_as_released(target, output, region))
    elif not entry.measure(both, lambda: metrics.background_ssim_psnr(target, output, region)):
        # A background too narrow for any window still has pixels.
        entry.measure(("b_psnr",), lambda: (metrics.background_psnr(target, output, region),))


def _whole(entry: _Entry, target: Pixels, output: Pixels) -> None:
    if not entry.measure(("ssim", "psnr"), lambda: metrics.ssim_psnr(target, output)):
        entry.measure(("psnr",), lambda: (metrics.psnr(target, output),))


def _drift(entry: _Entry, reference: Reference, output: Pixels) -> None:
    found = metrics.drift(reference.image, output, reference.region)
    if found.response > 0:  # else too small or too flat to tell
        entry.body["drift"] = asdict(found)


# The MieDB protocol over a run: perception and transformation from pixels, modification by a judge.
#
# Variants. `paper` (default): what the text promises. `as_released`: what the public script prints, quirks
# included. They differ in B-PSNR and B-SSIM, in what a missing output does, and in exact matches (capped at
# 100 dB and counted, or infinite). Never mix them in one table.

NAME: Final = "miedb"
VERSION: Final = 1


def score_run(
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Score every output of a run; write `scores/` and `summary/` into its folder; return the summary.

    `workers` are processes: all cores by default, none beside this one when there is little to do. `progress`
    is told (done, total) outputs. `judge` grades modification samples, which have no number without one; of
    a dry run only the estimate is returned.
    """
    return score_by(METHOD, run_folder, variant=variant, workers=workers, progress=progress, judge=judge)


def _measure(row: Row, outputs: Sequence[Output], context: Context) -> Line:
    applies = metrics_of(row["perspective"], row["task"])
    if context.judged and row["perspective"] == "modification":
        applies = RUBRIC
    if not applies:
        return line_of(row, (), [])

    def reference() -> Reference:
        image, target = context.inputs.read(row["input"]["bytes"]), read_stored(row["target_image"]["bytes"])
        return Reference.of(row["perspective"], row["task"], row["colour"], image, target)

    attempts = each_output(
        outputs, context.variant, reference, lambda held, made: score_output(held, made, context.variant)
    )
    return line_of(row, applies, attempts)


METHOD: Final = Method(
    name=NAME,
    version=VERSION,
    columns=("input", "target_image", "colour"),
    metrics=(*METRICS, *RUBRIC),
    judged=RUBRIC,
    measure=_measure,
    judging=Judging(RUBRIC, lambda chunks, variant, _: rubric_drafts(chunks, variant), fill_attempt),
    missing_as_zero=True,
    psnr_cap=PSNR_CAP,
)
