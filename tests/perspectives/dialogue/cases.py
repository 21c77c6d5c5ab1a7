"""Small real crops with drawn regions: three that lie apart, and one inside another."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from mie.perspectives.dialogue.families import FAMILIES
from mie.perspectives.dialogue.samples import Dialogue
from mie.records import Case, Sample, Target
from tests.conftest import crop

SIDE = 64
TARGETS = {
    "optic disc": Target("optic disc", "anatomy"),
    "optic cup": Target("optic cup", "anatomy"),
    "fovea": Target("fovea", "anatomy"),
    "hard exudates": Target("hard exudates", "lesion", plural=True),
    "haemorrhages": Target("haemorrhages", "lesion", plural=True),  # not in these images
}


def disc(centre: tuple[int, int], radius: int) -> np.ndarray:
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    return cv2.circle(canvas, centre, radius, 1, -1) > 0


def masks() -> dict[str, np.ndarray]:
    return {
        "optic disc": disc((20, 22), 15),
        "optic cup": disc((20, 22), 8),
        "hard exudates": disc((46, 44), 11),
        "fovea": disc((48, 14), 6),
    }


def case(number: int, names: tuple[str, ...] = tuple(TARGETS)) -> Case:
    return Case(
        source="drawn",
        case_id=f"case {number}",
        image=crop(number, SIDE, SIDE) // 2 + 40,  # neither black nor white
        modality="fundus",
        anatomy="eye",
        masks={name: mask for name, mask in masks().items() if name in names},
        targets=TARGETS,
        patient_id=f"drawn/{number}",
    )


@lru_cache
def turns(number: int, per_case: int = len(FAMILIES)) -> list[Sample]:
    """The samples of one image, all families."""
    found = list(Dialogue(per_case=per_case, bins=(SIDE,)).samples(case(number), "test", 7))
    assert all(isinstance(one, Sample) for one in found)
    return found


def conversations(number: int) -> list[list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in turns(number):
        groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())
