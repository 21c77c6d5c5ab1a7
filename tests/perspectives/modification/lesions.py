"""Lesions for tests: dark discs on real retina, and a detector that finds what is nearly black."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from mie.perspectives.modification.detectors import Finding
from mie.records import Case, Mask, Pixels, Target
from tests.conftest import shipped

SIZE = 128
EXUDATES = Target("hard exudates", "lesion", plural=True)
BLEED = Target("retinal haemorrhage", "lesion")
DISC = Target("optic disc", "anatomy")


def tissue(number: int = 0, size: int = SIZE, *, grey: bool = False) -> Pixels:
    """Healthy retina, another piece for each number."""
    y, x = 250 + 37 * (number % 20), 350 + 31 * (number // 20 + number % 7)
    part = np.ascontiguousarray(shipped("retina.jpg")[y : y + size, x : x + size])
    return np.repeat(part[..., 1:2], 3, axis=2) if grey else part


def disc(row: int, column: int, radius: int, size: int = SIZE) -> Mask:
    canvas = np.zeros((size, size), np.uint8)
    cv2.circle(canvas, (column, row), radius, 1, -1)
    return canvas.astype(bool)


def with_lesions(image: Pixels, masks: Sequence[Mask], level: int = 5) -> Pixels:
    ill = image.copy()
    for mask in masks:
        ill[mask] = level
    return ill


def lesion_case(masks: Mapping[str, Mask] | None = None, number: int = 0, **changes: Any) -> Case:
    """A fundus case whose marked lesions are dark."""
    masks = {"retinal haemorrhage": disc(50, 60, 9)} if masks is None else dict(masks)
    targets = {t.name: t for t in (EXUDATES, BLEED, DISC)}
    grey = bool(changes.pop("grey", False))
    dark = [mask for name, mask in masks.items() if targets.get(name, BLEED).kind == "lesion"]
    body: dict[str, Any] = {
        "source": "test",
        "case_id": f"case-{number}",
        "image": with_lesions(tissue(number, grey=grey), dark),
        "modality": "fundus",
        "anatomy": "retina",
        "masks": masks,
        "targets": targets,
        "license": "CC0-1.0",
    }
    return Case(**{**body, **changes})


class DarkFinder:
    """A detector that finds what is nearly black. `quality` is what it claims of itself."""

    name = "dark"
    weights = "0" * 64

    def __init__(self, sensitivity: float | None = 0.9) -> None:
        self.sensitivity = sensitivity
        self.asked = 0

    def find(self, image: Pixels) -> Finding:
        self.asked += 1
        mask = image.max(axis=2) < 12
        return Finding(mask, float(mask.any()))

    def quality(self) -> Mapping[str, Any] | None:
        if self.sensitivity is None:
            return None
        return {
            "sensitivity": self.sensitivity,
            "false_positives_per_image": 0.25,
            "images": 12,
            "healthy": 3,
            "lesions": 14,
            "patients": 10,
            "threshold": 0.5,
        }
