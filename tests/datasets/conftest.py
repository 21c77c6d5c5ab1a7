"""A small dataset of real images, made by the recipe that `mie build` uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

from mie.datasets.dataset import Dataset
from mie.datasets.write import write_dataset
from mie.perspectives.perception.samples import Perception
from mie.records import Case, Mask, Sample, Target

TERMS = {"name": "CC0-1.0", "use": "open", "basis": "stated"}


def _disc(shape: tuple[int, ...], row: int, column: int, radius: int) -> Mask:
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    return np.asarray((rows - row) ** 2 + (columns - column) ** 2 < radius**2)


def _cases() -> Iterator[tuple[Case, str]]:
    retina = np.ascontiguousarray(data.retina()[400:700, 500:840])
    tissue = data.immunohistochemistry()
    cell = cv2.cvtColor(data.cell(), cv2.COLOR_GRAY2RGB)
    dots = cv2.cvtColor(data.microaneurysms(), cv2.COLOR_GRAY2RGB)
    for source, image, modality, split in (
        ("retina", retina, "fundus", "test"),
        ("tissue", tissue, "microscopy", "train"),
        ("cell", cell, "microscopy", "val"),
        ("dots", dots, "fundus", "train"),
    ):
        height, width = image.shape[:2]
        masks = {
            "optic disc": _disc(image.shape, height // 2, width // 3, height // 5),
            "hard exudates": _disc(image.shape, height // 3, 2 * width // 3, height // 7),
            "vessel": _disc(image.shape, 3 * height // 4, width // 2, height // 8),
        }
        if source == "dots":
            del masks["vessel"], masks["optic disc"]
        targets = {
            name: Target(name, "lesion" if "ex" in name else "anatomy", name.endswith("s")) for name in masks
        }
        yield (
            Case(source, f"{source}/1 ä.png", image, modality, "eye", masks, targets, license="CC0-1.0"),
            split,
        )


@pytest.fixture(scope="session")
def triplets() -> list[Sample]:
    """Perception samples with one and with several classes, and one sample without a mask."""
    made = [s for case, split in _cases() for s in Perception().samples(case, split, 7)]
    first = made[0]
    plain = replace(
        first,
        id="00ff",
        perspective="transformation",
        task="denoising",
        prompt='Remove the noise 🩻, "please"\u2028and\tnothing else.',
        mask=None,
        colour=None,
        patient_id="p 1",
        group="g",
        turn=0,
        parents=(first.id,),
        params={"σ": 0.1, "list": [1, 2.5, None, True]},
    )
    return [*made, plain]


@pytest.fixture(scope="session")
def dataset(triplets: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder: Path = tmp_path_factory.mktemp("made") / "eyes"
    write_dataset(
        triplets,
        folder,
        name="eyes",
        description="Four pictures.",
        recipe={"name": "eyes"},
        licenses=dict.fromkeys(("retina", "tissue", "cell", "dots"), TERMS),
        deidentified=True,
    )
    return Dataset(folder)
