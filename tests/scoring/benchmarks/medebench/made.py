"""A run for MedEBench: records of its own kind, and samples as `mie build` makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from tests.judges.server import images_of, texts_of
from tests.scoring.benchmarks.runs import (
    attempt_at,
    modification,
    structure,
    transformation,
    write_run,
    write_samples,
)
from tests.scoring.benchmarks.scoring import medebench as score  # noqa: F401 (for the recorder)


def record(name: str, number: int, organ: str, task: str, **changes):
    """A record of the benchmark: a soft mask, and a description unless it is missing."""
    sample = modification(name, number)
    soft = np.zeros(sample.input.shape[:2], np.uint8)
    cv2.ellipse(soft, (18, 16), (10, 8), 0, 0, 360, 255, -1)
    body = {
        "mask": cv2.GaussianBlur(soft, (7, 7), 2),
        "params": {"medebench": {"id": number, "organ": organ, "task": task}},
        "description": f"In the image, do {task} so that {name} is seen.",
        "prompt": f"Do {task} {number}.",
    }
    return replace(sample, **{**body, **changes})


SAMPLES = [
    record("r1", 1, "Teeth", "fill the gap"),
    record("r2", 2, "Teeth", "whiten", description=""),
    record("r3", 3, "Skin", "remove the mole"),
    replace(structure("b4", 4), description="The optic disc is painted red."),
    replace(transformation("t5", 5), perspective="modification", description="Noise is removed."),
]
# Sample -> (EA, VQ) with the description, with the instruction.
GRADES = {
    "r1": ((8, 6), (7, 6)),
    "r2": ((5.5, 4), (3, 4)),
    "r3": ("refuses", (9, 10)),
    "b4": ((10, 10), (0, 1)),
    "t5": ((2, 3), (4, 5)),
}
WRITTEN = "On this photograph, whiten the front teeth so that they look evenly bright."


def make_run(folder: Path) -> Path:
    dataset = write_samples(SAMPLES, folder / "dataset")
    outputs = {sample.id: [attempt_at(sample, 10 + n)] for n, sample in enumerate(SAMPLES)}
    outputs["r3"] = [cv2.resize(outputs["r3"][0], (96, 80), interpolation=cv2.INTER_CUBIC)]
    return write_run(folder / "run", dataset, outputs)


def answer(body: dict) -> str:
    """The loopback judge: finds the sample by its input and answers by the table, after some prose."""
    said = " ".join(texts_of(body)[1:])
    if "Your reply could not be read" in said:
        return "I would rather not put numbers on this."
    image = images_of(body)[0]
    sample = next(s for s in SAMPLES if np.array_equal(s.input, image))
    if "Change description:" not in said and "graded" not in said:
        assert sample.description == ""
        return WRITTEN
    grades = GRADES[sample.id]["Change description:" not in said]
    if isinstance(grades, str):
        return "The edit is hard to judge."
    ea, vq = grades
    scores = f"**Editing Accuracy:** {ea}/10\n**Visual Quality:** {vq} / 10\n"
    return f"Step 1\n- a change\nStep 2\nIt is so.\n{scores}"
