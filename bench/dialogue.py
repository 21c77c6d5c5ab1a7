"""Build and score conversations: what they cost beside the PNG encoding of their images, and beside triplets.

python bench/dialogue.py [--images 24] [--side 256]

Prints processor time, one thread. The images are real crops with drawn regions: nothing is read from disk.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import skimage

from mie.datasets.schema import RowEncoder
from mie.images.png import encode_png
from mie.perspectives.dialogue.samples import Dialogue
from mie.perspectives.perception.samples import Perception
from mie.records import Case, Sample, Target
from mie.scoring.benchmarks.dialogue.score import Turn, score_turn
from mie.scoring.metrics import background_ssim_psnr, dice_and_guarded, drift
from mie.scoring.reference import Reference


def cases(count: int, side: int) -> list[Case]:
    """Crops of skimage's retina, each with three regions that lie apart."""
    retina = skimage.data.retina()
    draw = np.random.default_rng(0)
    found = []
    for number in range(count):
        y, x = (int(draw.integers(0, length - side)) for length in retina.shape[:2])
        image = np.ascontiguousarray(retina[y : y + side, x : x + side]) // 2 + 40
        masks = {}
        for name, (column, row) in {
            "optic disc": (0.3, 0.3),
            "fovea": (0.7, 0.3),
            "drusen": (0.5, 0.7),
        }.items():
            canvas = np.zeros((side, side), np.uint8)
            radius = int(side * draw.uniform(0.08, 0.14))
            cv2.circle(canvas, (int(column * side), int(row * side)), radius, 1, -1)
            masks[name] = canvas > 0
        targets = {name: Target(name, "anatomy") for name in masks}
        found.append(
            Case("bench", str(number), image, "fundus", "eye", masks, targets, patient_id=str(number))
        )
    return found


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def encoded(samples: list[Sample]) -> None:
    encoder = RowEncoder()
    for sample in samples:
        encoder.row(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--side", type=int, default=256)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    images = cases(options.images, options.side)
    recipe = Dialogue(per_case=6, bins=(options.side,))
    list(recipe.samples(images[0], "train", 1))  # warm
    build, samples = timed(lambda: [s for case in images for s in recipe.samples(case, "train", 0)])
    rows, _ = timed(lambda: encoded(samples))
    pictures = [s.target_image for s in samples] + [s.input for s in samples if s.turn == 1]
    png, _ = timed(lambda: [encode_png(picture) for picture in pictures])
    talks = len({s.group for s in samples})
    print(f"{talks} conversations, {len(samples)} turns, mean {len(samples) / talks:.1f}, {options.side} px")
    print(f"made {build:.2f} s + rows {rows:.2f} s = {(build + rows) / png:.2f} x PNG of all ({png:.2f} s)")

    longest = max((s for s in samples), key=lambda s: s.params["turns"])
    talk = [s for s in samples if s.group == longest.group]
    turns = [_turn(s) for s in talk]
    score_turn(turns[0], talk[0].target_image)  # warm
    pairs = [(turn, sample.target_image) for turn, sample in zip(turns, talk, strict=True)] * 10
    cost, _ = timed(lambda: [score_turn(replace(turn), output) for turn, output in pairs])
    triplet = next(s for s in Perception(bins=(options.side,)).samples(images[0], "train", 0))
    _triplet(triplet)
    single, _ = timed(lambda: [_triplet(triplet) for _ in range(10)])
    ratio = cost / single
    print(f"scoring {len(talk)} turns costs {ratio:.1f} x one triplet: {ratio / len(talk):.2f} a turn")
    print(json.dumps({"build_ratio": (build + rows) / png, "score_ratio_per_turn": ratio / len(talk)}))


def _turn(sample: Sample) -> Turn:
    from mie.perspectives.dialogue.state import State, from_labels

    before, after = (State.from_json(sample.params[name]) for name in ("before", "after"))
    masks = from_labels(sample.mask, sample.params)
    return Turn(sample.input, sample.target_image, before, after, masks, False)


def _triplet(sample: Sample) -> None:
    """What the benchmark miedb computes of one output."""
    reference = Reference.of(
        "perception", sample.task, sample.colour, sample.input, sample.target_image, sample.mask
    )
    dice_and_guarded(sample.input, sample.target_image, reference.region, sample.colour)
    background_ssim_psnr(sample.input, sample.target_image, reference.region)
    drift(sample.input, sample.target_image, reference.region)


if __name__ == "__main__":
    main()
