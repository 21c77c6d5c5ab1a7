"""Build and score conversations: what they cost beside the PNG encoding of their images, and beside triplets.

python bench/dialogue.py [--conversations 2000] [--side 256]

Prints processor time, one thread. The images are real crops with drawn regions: nothing is read from disk.
Without scale pairs, which have two turns, conversations have five turns on average. Limits: building at most
1.5 x PNG encoding; sixteen turns scored at most as dear as sixteen triplets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
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

FAMILIES = ("memory", "understanding", "backtracking", "no-op", "chain")


def cases(side: int) -> Iterator[Case]:
    """Crops of skimage's retina, each with three regions that lie apart; as many as are asked for."""
    retina = skimage.data.retina()
    draw = np.random.default_rng(0)
    for number in count():
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
        yield Case("bench", str(number), image, "fundus", "eye", masks, targets, patient_id=str(number))


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
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--side", type=int, default=256)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    recipe = Dialogue(FAMILIES, per_case=len(FAMILIES), bins=(options.side,))
    images = cases(options.side)
    first = next(images)
    list(recipe.samples(first, "train", 1))  # warm
    build = rows = png = 0.0
    talks = turns = 0
    longest: list[Sample] = []
    while talks < options.conversations:
        case = next(images)
        seconds, samples = timed(lambda case=case: list(recipe.samples(case, "train", 0)))
        build += seconds
        rows += timed(lambda samples=samples: encoded(samples))[0]
        # Every turn's image, and the one that its conversation begins with; not once for all that are equal.
        pictures = [s.target_image for s in samples] + [s.input for s in samples if s.turn == 1]
        png += timed(lambda pictures=pictures: [encode_png(picture) for picture in pictures])[0]
        groups = {s.group: s.params["turns"] for s in samples}
        talks, turns = talks + len(groups), turns + len(samples)
        name = max(groups, key=lambda group: groups[group])
        if groups[name] > len(longest):
            longest = [s for s in samples if s.group == name]
    print(f"{talks} conversations, {turns} turns, mean {turns / talks:.2f}, {options.side} px")
    print(f"made {build:.1f} s + rows {rows:.1f} s = {(build + rows) / png:.2f} x PNG of all ({png:.1f} s)")

    ready = [(_turn(s), s.target_image) for s in longest]
    score_turn(*ready[0])  # warm
    cost, _ = timed(lambda: [score_turn(replace(turn), output) for turn, output in ready * 10])
    triplets = [next(Perception(bins=(options.side,)).samples(next(images), "train", 0)) for _ in longest]
    _triplet(triplets[0])
    single, _ = timed(lambda: [_triplet(triplet) for triplet in triplets * 10])
    print(f"scoring {len(longest)} turns costs {cost / single:.2f} x {len(longest)} triplets")
    print(json.dumps({"build_ratio": (build + rows) / png, "score_ratio": cost / single}))


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
