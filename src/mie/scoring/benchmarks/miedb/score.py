"""One output against its sample, by MieDB: I input, O target, M output, R region."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from mie.records import Mask, Pixels
from mie.scoring import metrics
from mie.scoring.attempts import Context, Entry, LineBody, Row, each_output, line_of, read_reference
from mie.scoring.benchmarks.miedb import BENCHMARK
from mie.scoring.chunks import Output
from mie.scoring.metric import Metric
from mie.scoring.metrics.background import B_PSNR, B_SSIM
from mie.scoring.metrics.dice import CLASS_DICE, is_accurate, overlay_dice
from mie.scoring.metrics.psnr import PSNR
from mie.scoring.metrics.ssim import SSIM
from mie.scoring.perspectives import facts_of, metrics_of, paints
from mie.scoring.reference import Reference

PSNR_CAP: Final = 100.0  # dB, for exact matches, in the variant `paper`
_NO_COLOUR: Final = "the sample names no overlay colour"
_OVERLAY: Final = ("dice", "dice_guarded", "p_acc")
_PAINTED: Final = frozenset({"region", "colours"})
_FROM_PIXELS: Final = {
    name: BENCHMARK.metric(name) for name in BENCHMARK.own_metrics if name not in BENCHMARK.judged
}


def applicable(perspective: str, facts: Collection[str], scored: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics of a sample, of those that are scored: its perspective's, then those of other packages.

    `facts` are the needs of metrics that the sample meets. The rubric stands for all of its numbers.
    """
    listed = [
        name
        for listed in metrics_of(perspective)
        for name in (BENCHMARK.judged if listed == "rubric" else (listed,))
    ]
    added = [name for name in scored if name not in BENCHMARK.own_metrics]
    met = {*facts, "judge"}
    return {name: scored[name] for name in (*listed, *added) if name in scored and scored[name].needs <= met}


def score_output(
    reference: Reference, output: Pixels, variant: str, applies: Mapping[str, Metric] | None = None
) -> dict[str, Any]:
    """`{"metrics": {name: value}, "unscored": {name: reason}, "drift": {...}}` for an `(H, W, 3)` output.

    `applies` are the metrics of the sample, by default those of ours that its perspective names.
    """
    if applies is None:
        applies = applicable(reference.perspective, reference.meets, _FROM_PIXELS)
    entry = Entry(PSNR_CAP if variant == "paper" else None)
    if output.shape[:2] != reference.size:
        entry.body["resized_from"] = list(output.shape[:2])
        output = metrics.resize_to(output, reference.size)
    if paints(reference.perspective) and reference.region is None:
        painted = [name for name, metric in applies.items() if metric.needs & _PAINTED]
        entry.unscored.update(dict.fromkeys(painted, _NO_COLOUR))
    names = [name for name in applies if name not in entry.unscored]
    _together(entry, reference, output, variant, names)
    for name in names:
        if name not in (*entry.metrics, *entry.unscored) and applies[name].function is not None:
            entry.compute(applies[name], output, reference)
    _drift(entry, reference, output)
    return entry.body


def _together(entry: Entry, reference: Reference, output: Pixels, variant: str, names: Sequence[str]) -> None:
    """What several metrics share is computed once, and what the variants differ in by the variant."""
    if reference.region is not None and any(name in names for name in _OVERLAY):
        dice, guarded = overlay_dice(reference.image, output, reference.region, reference.painted_in)
        found = {"dice": dice, "dice_guarded": guarded, "p_acc": is_accurate(dice)}
        entry.metrics |= {name: value for name, value in found.items() if name in names}
    if CLASS_DICE.name in names:
        _classes(entry, reference, output)
    if reference.region is not None and any(name in names for name in ("b_psnr", "b_ssim")):
        _background(entry, reference.target, output, reference.region, variant)
    if any(name in names for name in ("psnr", "ssim")):
        _whole(entry, reference.target, output)


def _classes(entry: Entry, reference: Reference, output: Pixels) -> None:
    if not reference.several:
        return
    if not reference.classes:
        entry.unscored[CLASS_DICE.name] = _NO_COLOUR
        return
    classes = metrics.class_dice(reference.image, output, reference.classes)
    entry.metrics[CLASS_DICE.name] = sum(classes.values()) / len(classes)
    entry.body["classes"] = classes


def _background(entry: Entry, target: Pixels, output: Pixels, region: Mask, variant: str) -> None:
    both = (B_SSIM, B_PSNR)
    if variant == "as_released":
        entry.measure(both, lambda: metrics.background_as_released(target, output, region))
    elif not entry.measure(both, lambda: metrics.background_ssim_psnr(target, output, region)):
        # A background too narrow for any window still has pixels.
        entry.measure((B_PSNR,), lambda: [metrics.background_psnr(target, output, region)])


def _whole(entry: Entry, target: Pixels, output: Pixels) -> None:
    if not entry.measure((SSIM, PSNR), lambda: metrics.ssim_psnr(target, output)):
        entry.measure((PSNR,), lambda: [metrics.psnr(target, output)])


def _drift(entry: Entry, reference: Reference, output: Pixels) -> None:
    painted = reference.region if paints(reference.perspective) else None
    found = metrics.drift(reference.image, output, painted)
    if found.response > 0:  # else too small or too flat to tell
        entry.body["drift"] = asdict(found)


def measure(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    """The line of one sample."""
    applies = applicable(row["perspective"], facts_of(row), context.metrics)
    if not applies:
        return line_of(row, (), [])
    attempts = each_output(
        outputs,
        context.variant,
        lambda: read_reference(row, context),
        lambda reference, output: score_output(reference, output, context.variant, applies),
    )
    return line_of(row, list(applies), attempts)
