"""One output against its sample, by MieDB: I input, O target, M output, R region."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.errors import ConfigError, ImageError
from mie.images.read import read_picture
from mie.records import Mask, Pixels
from mie.scoring import metrics
from mie.scoring.attempts import Context, Entry, LineBody, Output, Row, each_output, line_of, read_reference
from mie.scoring.benchmarks.miedb import BENCHMARK
from mie.scoring.metric import Metric
from mie.scoring.metrics.background import B_PSNR, B_SSIM
from mie.scoring.metrics.dice import CLASS_DICE, is_accurate, overlay_dice
from mie.scoring.metrics.psnr import PSNR
from mie.scoring.metrics.ssim import SSIM
from mie.scoring.reference import Reference, facts_of, metrics_of, paints
from mie.vocabulary import COLOURS, PERSPECTIVES

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


def score_triplet(
    input: Pixels | Path | str,
    instruction: str,
    target: Pixels | Path | str,
    output: Pixels | Path | str,
    mask: Mask | None = None,
    colour: str | None = None,
    perspective: str | None = None,
    variant: str = "paper",
) -> dict[str, Any]:
    """The MieDB metrics of one output: `{"perspective", "instruction", "metrics", "unscored", "drift"}`.

    Images are `(H, W, 3) uint8` arrays or files; `output` may have another size than `input`. `colour` is
    the overlay's ("red"; "red,green" for several classes) and makes it a perception triplet. Without it the
    images are compared whole, as for transformation. `mask`, `(H, W) bool`, is taken for the region instead
    of the one that is read back from `target`. Modification has no metric from pixels.
    """
    BENCHMARK.check_variant(variant)
    perspective = perspective or ("perception" if colour else "transformation")
    _check(perspective, colour)
    image, goal, made = _pixels(input), _pixels(target), _pixels(output)
    if goal.shape != image.shape:
        raise ImageError("input and target differ in size", expected=image.shape[:2], found=goal.shape[:2])
    task = "holistic" if "," in (colour or "") else ""
    reference = Reference.of(perspective, task, colour, image, goal)
    if mask is not None:
        if mask.shape != image.shape[:2]:
            raise ImageError("mask and input differ in size", expected=image.shape[:2], found=mask.shape)
        reference = replace(reference, region=np.asarray(mask, np.bool_))
    scored = {name: metric for name, metric in BENCHMARK.find_metrics().items() if not metric.judged}
    body = score_output(reference, made, variant, applicable(perspective, reference.meets, scored))
    return {"perspective": perspective, "instruction": instruction, **body}


def _check(perspective: str, colour: str | None) -> None:
    if perspective not in PERSPECTIVES:
        raise ConfigError(
            f"no perspective named {perspective!r}", expected=", ".join(PERSPECTIVES), found=perspective
        )
    wrong = [name for name in (colour or "").split(",") if name not in COLOURS]
    if paints(perspective) and wrong:
        raise ConfigError(
            "a perception triplet needs its overlay's colour",
            expected=f"{', '.join(COLOURS)}, or several with commas",
            found=repr(colour),
        )


def _pixels(image: Pixels | Path | str) -> Pixels:
    if isinstance(image, str | Path):
        return read_picture(Path(image)).pixels
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(
            "not an image we score", expected="(H, W, 3) uint8", found=f"{image.shape} {image.dtype}"
        )
    return image
