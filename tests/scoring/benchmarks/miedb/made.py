"""A run for the MieDB rubric: removals, among them one that a judge cannot and one that it will not grade."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.judges.server import Say, texts_of
from tests.scoring.benchmarks.runs import attempt_at, modification, structure, write_run, write_samples
from tests.scoring.benchmarks.scoring import miedb as score  # noqa: F401 (for the recorder)

SAMPLES = [
    *(replace(modification(f"m{n}", n), prompt=f"Remove lesion {n}.") for n in range(5)),
    structure("s", 9),
]
# Grades; a text that cannot be read, and is not repaired; None where the judge declines.
SAID: dict[str, list[int] | str | None] = {
    "0": [1, 2, 3, 4, 5, 1, 2, 3],
    "1": [5] * 8,
    "2": "The lesion is gone.",
    "3": None,
    "4": [1] * 8,
}


def make_run(folder: Path) -> Path:
    dataset = write_samples(SAMPLES, folder / "dataset")
    outputs = {sample.id: [attempt_at(sample, 20 + n)] for n, sample in enumerate(SAMPLES)}
    return write_run(folder / "run", dataset, outputs)


def answer(body: dict) -> Say:
    instruction = next(text for text in texts_of(body) if text.startswith("Instruction:"))
    number = instruction.removesuffix("</instruction>").rstrip(".")[-1]
    said = SAID[number]
    if said is None:
        return Say("", refusal="No.")
    text = said if isinstance(said, str) else json.dumps({"conclusion": "-", "score_list": said})
    return Say(f"Here you are:\n```json\n{text}\n```")
