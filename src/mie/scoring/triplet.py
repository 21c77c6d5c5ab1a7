"""One triplet and one output, scored in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mie.errors import ConfigError, ImageError
from mie.images.read import read_picture
from mie.records import Mask, Pixels
from mie.scoring.benchmarks.miedb import BENCHMARK
from mie.scoring.benchmarks.miedb.score import applicable, score_output
from mie.scoring.perspectives import paints
from mie.scoring.reference import Reference
from mie.vocabulary import COLOURS, PERSPECTIVES


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
