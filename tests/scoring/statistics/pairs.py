"""Modification pairs for tests: dark discs on real retina, healed or painted, as removal samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mie.records import Pixels, Sample
from tests.perspectives.modification.lesions import disc, tissue, with_lesions
from tests.scoring.benchmarks.runs import BASE


def pair(
    number: int, *, painted: bool, patient: str | None = None, radius: int = 9, case: str = "", **changes
) -> list[Sample]:
    """Both directions of one pair. Healed tissue is flat grey, a painted lesion lighter than a real one."""
    area = disc(50 + number % 20, 60, radius)
    real = tissue(number)
    if painted:
        lesion, healthy = with_lesions(real, [area], level=40), real
    else:
        lesion, healthy = with_lesions(real, [area], level=5), with_lesions(real, [area], level=120)
    body = {
        "perspective": "modification", "recipe": "modification", "target": "retinal haemorrhage",
        "colour": None, "mask": area.astype(np.uint8) * 255, "split": "train",
        "source": "source-of-eyes", "case_id": case or f"case-number-{number}",
        "patient_id": f"patient-{number}" if patient is None else patient,
        "params": {"from_health": True, "synthetic": "lesion"} if painted else {},
        "group": f"9a{number:014x}",
    }  # fmt: skip
    first = replace(BASE, id=f"aa{number:014x}", task="removal", input=lesion, target_image=healthy, **body)
    second = replace(first, id=f"bb{number:014x}", task="addition", input=healthy, target_image=lesion)
    return [replace(one, **changes) for one in (first, second)]


def pairs(healed: range, painted: range, **changes) -> list[Sample]:
    samples = [pair(n, painted=False, radius=6 + n % 7, **changes) for n in healed]
    samples += [pair(n, painted=True, radius=6 + n % 7, **changes) for n in painted]
    return [one for both in samples for one in both]


def is_real(sample: Sample, image: Pixels) -> bool:
    """Known from the pixels alone: real are black discs and untouched tissue."""
    inside = image[sample.mask > 0]
    return bool((inside == 5).all() or not ((inside == 40).all() or (inside == 120).all()))
