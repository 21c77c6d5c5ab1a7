"""A small question set of real pixels, made in a moment: what answering, scoring and review are tested on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mie.questions.record import Question, QuestionImage
from mie.questions.store import QuestionSet
from mie.questions.write import write_questions
from tests.conftest import crop

MODALITIES = ("CT", "MRI", "PET", "SPECT", "ultrasound")


def closed(number: int, **fields: object) -> Question:
    """Question `number` of a set: its key is one of five modalities, at a letter that varies."""
    shift = number % 5
    options = MODALITIES[shift:] + MODALITIES[:shift]
    values: dict[str, object] = {
        "id": f"{number:016x}",
        "kind": "closed",
        "text": "Which modality is this?",
        "answer": "MRI" if number % 2 else MODALITIES[number % 5],
        "options": options,
        "images": (QuestionImage.of(crop(number, 48, 56)),),
        "task": ("IMI", "LL", "DDR")[number % 3],
        "modality": ("MRI", "CT")[number % 2],
        "source": "tiny",
        "case_id": f"case {number}",
        "patient_id": f"p{number // 2}",
        "split": "train" if number >= 100 else "test",
    }
    return Question(**{**values, **fields})  # type: ignore[arg-type]


def others() -> Iterator[Question]:
    """One of each other kind, one about two images, and one that a model wrote and nobody has accepted."""
    two = (QuestionImage.of(crop(3, 48, 56)), QuestionImage.of(crop(4, 64, 48)))
    plain = {"options": (), "task": "LFD"}
    yield closed(50, kind="open", text="What is the diagnosis?", answer="a left frontal glioma", **plain)
    yield closed(51, kind="number", text="How wide is it?", answer="12", tolerance=1.0, unit="mm", **plain)
    yield closed(52, kind="point", text="Where is it?", answer="[0.25, 0.5]", tolerance=0.1, **plain)
    yield closed(53, kind="box", text="Where is it?", answer="[0.2, 0.2, 0.6, 0.6]", tolerance=0.5, **plain)
    yield closed(
        54,
        text="Which of these two is larger?",
        answer="the second",
        options=("the first", "the second"),
        images=two,
    )
    yield closed(55, text="What happens next?", task="TPS", flags=("written",))


def write_tiny(folder: Path, *, test: int = 24, train: int = 20) -> QuestionSet:
    questions = [closed(n) for n in range(test)] + list(others()) + [closed(100 + n) for n in range(train)]
    write_questions(questions, folder, name="tiny")
    return QuestionSet(folder)
