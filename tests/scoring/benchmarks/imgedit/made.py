"""A run for ImgEdit-Bench: its three suites, and samples as `mie build` makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.judges.server import images_of, texts_of
from tests.scoring.benchmarks.runs import (
    attempt_at,
    holistic,
    modification,
    structure,
    write_run,
    write_samples,
)
from tests.scoring.benchmarks.scoring import imgedit as score  # noqa: F401 (for the recorder)


def edit(name: str, number: int, **own):
    sample = modification(name, number)
    body = {"params": {"imgedit": {"key": name, "reference": False, **own}}, "prompt": f"Edit {name}."}
    return replace(sample, target_image=sample.input, **body)


def turn(name: str, number: int, at: int, **own):
    sample = edit(name, number, suite="multiturn", **own)
    return replace(sample, group=f"talk {number}", turn=at, prompt=f"Turn {at} of {number}.")


SAMPLES = [
    edit("a1", 1, suite="basic", edit_type="add"),
    edit("a2", 2, suite="basic", edit_type="add"),
    edit("r3", 3, suite="basic", edit_type="remove"),
    edit("h4", 4, suite="basic", edit_type="Hybrid"),
    edit("x5", 5, suite="basic", edit_type="teleport"),
    edit("u6", 6, suite="uge"),
    turn("t1", 7, 1, category="memory"),
    turn("t2", 7, 2, category="memory"),
    turn("t3", 7, 3, category="memory"),
    turn("v1", 8, 1),
    structure("b9", 9),  # painting: adjust
    holistic("c10", 10),  # several regions: compose
]
# What the loopback judge says: three scores, one, or yes and no.
SAID = {
    "a1": (4, 5, 3),
    "a2": (2, 2, 5),
    "r3": (5, 4, 5),
    "h4": (3, 3, 3),
    "u6": (4,),
    "t1": (True,),
    "t2": (False,),
    "v1": (True, False, True),
    "b9": (1, 5, 5),
    "c10": (5, 5, 4),
}
NAMES = ("Instruction adherence", "Editing quality", "Detail preservation")


def make_run(folder: Path) -> Path:
    dataset = write_samples(SAMPLES, folder / "dataset")
    outputs = {sample.id: [attempt_at(sample, 20 + n)] for n, sample in enumerate(SAMPLES)}
    return write_run(folder / "run", dataset, outputs)


def answer(body: dict) -> str:
    said = " ".join(texts_of(body)[1:])
    sample = next(s for s in SAMPLES if f"{s.prompt}" in said and np.array_equal(s.input, images_of(body)[0]))
    if "Turn " in said:
        sample = next(s for s in reversed(SAMPLES) if s.prompt in said)
        if sample.id not in SAID:
            return "maybe"
        return "\n".join(
            f"{n}. {'Yes' if yes else 'no'}: so it is" for n, yes in enumerate(SAID[sample.id], 1)
        )
    scores = SAID[sample.id]
    if len(scores) == 1:
        return f"Brief reasoning: fine.\nScore: {scores[0]}"
    return "Brief reasoning: fine.\n" + "\n".join(f"{n}: {s}" for n, s in zip(NAMES, scores, strict=True))
