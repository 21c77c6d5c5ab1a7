"""A data set of real crops with drawn lesions and organs, as a recipe of `mie vqa build` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mie.questions.recipe import QuestionRecipe, parse_question_recipe
from mie.questions.views import View
from mie.records import Target
from tests.conftest import crop

TARGETS = {
    "glioma": Target("glioma", "lesion"),
    "meningioma": Target("meningioma", "lesion"),
    "pituitary tumour": Target("pituitary tumour", "lesion"),
    "ventricle": Target("ventricle", "anatomy"),
    "cerebellum": Target("cerebellum", "anatomy"),
    "brainstem": Target("brainstem", "anatomy"),
    "pons": Target("pons", "anatomy"),
}
SIZE = 96


def disc(x: int, y: int, radius: int, size: int = SIZE) -> np.ndarray:
    canvas = np.zeros((size, size), np.uint8)
    cv2.circle(canvas, (x, y), radius, 1, cv2.FILLED)
    return canvas.astype(np.bool_)


def view(number: int, masks: dict[str, np.ndarray] | None = None, **fields: Any) -> View:
    """A view of one crop; by default with a glioma in its upper left, and two organs."""
    if masks is None:
        masks = {
            "glioma": disc(24 + number % 5, 26, 5 + 4 * (number % 3)),
            "ventricle": disc(70, 24, 9),
            "cerebellum": disc(70, 76, 12),
            "brainstem": disc(44, 70, 6),
            "pons": disc(20, 76, 5),
        }
    values: dict[str, Any] = {
        "image": crop(number, SIZE, SIZE),
        "masks": masks,
        "targets": TARGETS,
        "modality": "MRI",
        "submodality": "FLAIR",
        "anatomy": "brain",
        "source": "made",
        "case_id": f"case-{number}",
        "patient_id": f"made/p{number // 2}",
        "spacing": 1.5,
        "plane": "axial",
        "oriented": True,
    }
    return View(**{**values, **fields})


def write_pictures(root: Path, count: int = 12) -> None:
    """Images and masks of classes: 1 to 3 a tumour, 4 and 5 organs. Every third image shows no tumour."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for number in range(count):
        labels = np.zeros((SIZE, SIZE), np.uint8)
        labels[disc(70, 24, 9)] = 4
        if number % 2:
            labels[disc(70, 76, 12)] = 5
        if number % 3:
            labels[disc(22 + 3 * (number % 4), 26, 6 + number % 6)] = 1 + number % 3
        name = f"p{number // 2}_{number}.png"
        cv2.imwrite(str(root / "images" / name), crop(number, SIZE, SIZE)[..., ::-1])
        cv2.imwrite(str(root / "masks" / name), labels)


def recipe(root: Path, **changes: Any) -> QuestionRecipe:
    names = ("glioma", "meningioma", "pituitary tumour", "ventricle", "cerebellum")
    body: dict[str, Any] = {
        "name": "made",
        "seed": 3,
        "per_image": 12,
        "split": {"test": 0.5},
        "sources": [
            {
                "name": "made",
                "root": str(root),
                "title": "made of crops",
                "modality": "MRI",
                "submodality": "T2W",
                "anatomy": "brain",
                "targets": [
                    {"name": name, "kind": TARGETS[name].kind, "value": value}
                    for value, name in enumerate(names, start=1)
                ],
                "layout": {
                    "kind": "folder",
                    "images": "images/{patient}_{id}.png",
                    "masks": "masks/{patient}_{id}.png",
                },
                "license": {"name": "CC0", "use": "open"},
            }
        ],
        **changes,
    }
    return parse_question_recipe(body, where="test", base=root)
