"""A run for Omni IIE Bench: shared-context pairs, a conversation, and a sample as `mie build` makes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.conftest import ellipse
from tests.judges.server import images_of, texts_of
from tests.scoring.benchmarks.runs import (
    attempt_at,
    modification,
    structure,
    transformation,
    write_run,
    write_samples,
)
from tests.scoring.benchmarks.scoring import omni_iie as score  # noqa: F401 (for the recorder)


def pair(name: str, number: int, level: str, **changes):
    own = {"dataset": "d", "sample_id": name[:-1], "level": level}
    pairs = [{"question": f"Is {name} done?", "correct_answer": "yes"}]
    body = {
        "params": {"omni-iie": {**own, "qa_pairs": pairs}},
        "mask": ellipse(number, 40, 48).astype(np.uint8) * 255,
        "group": f"d/{name[:-1]}",
        "prompt": f"Edit {name}.",
        "patient_id": f"p{number // 2}",
    }
    return replace(modification(name, number), **{**body, **changes})


def turn(at: int, kind: str):
    own = {"dataset": "d", "sample_id": "talk", "level": at, "edit_type": kind}
    body = {"params": {"omni-iie": own}, "group": "d/talk", "turn": at, "patient_id": "p9"}
    return pair(f"t{at}", 20 + at, "", **body)


SAMPLES = [
    pair("al", 0, "low"),
    pair("ah", 1, "high"),
    pair("bl", 2, "low"),
    pair("bh", 3, "high"),
    pair("cl", 4, "low"),
    pair("ch", 5, "high"),
    pair("dl", 6, "low"),
    turn(1, "attribute"),
    turn(2, "entity"),
    turn(3, "entity"),
    turn(4, "attribute"),
    structure("s", 30),
    replace(transformation("n", 31), perspective="modification", prompt="Remove the noise."),
]
# One verdict for each question.
SAID = {
    "al": ["yes"],
    "ah": ["no"],
    "bl": ["yes"],
    "bh": ["yes"],
    "cl": ["unclear"],
    "ch": ["yes"],
    "dl": ["no"],
    "t1": ["yes", "yes"],
    "t2": ["yes", "no"],
    "t3": ["unclear", "no"],
    "t4": ["yes", "yes"],
    "s": ["yes", "yes"],
    "n": ["yes", "yes"],
}
WRITTEN = (
    '[{"question": "What is seen in %s?", "answer": "it"}, {"question": "Is it whole?", "answer": "yes"}]'
)


def make_run(folder: Path) -> Path:
    dataset = write_samples(SAMPLES, folder / "dataset")
    outputs = {sample.id: [attempt_at(sample, 40 + n)] for n, sample in enumerate(SAMPLES)}
    return write_run(folder / "run", dataset, outputs)


def answer(body: dict) -> str:
    """Finds the sample by its input, or by the question it asked about it before."""
    said = " ".join(texts_of(body)[1:])
    if "Right answer:" not in said:
        sample = next(s for s in SAMPLES if np.array_equal(s.input, images_of(body)[0]))
        return f"```json\n{WRITTEN % sample.id}\n```"
    sample = next(s for s in SAMPLES if f"seen in {s.id}?" in said or f"Is {s.id} done?" in said)
    return "\n".join(f"{n}. {word}, it seems" for n, word in enumerate(SAID[sample.id], 1))
