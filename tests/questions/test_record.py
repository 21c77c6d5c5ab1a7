"""What cannot be scored fairly cannot be a question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mie.errors import MieError
from mie.questions.record import PHASES, TASKS, Question, QuestionImage, QuestionMask
from mie.questions.store import QuestionSet, row_of
from mie.questions.write import write_questions
from tests.conftest import crop


def question(**changes: Any) -> Question:
    values: dict[str, Any] = {
        "id": "q1",
        "kind": "closed",
        "text": "Which organ is this?",
        "answer": "liver",
        "options": ("spleen", "liver"),
        "images": (QuestionImage.of(crop(0, 40, 50)),),
        **changes,
    }
    return Question(**values)


def test_fifteen_tasks_lie_in_five_phases() -> None:
    assert len(TASKS) == 15
    assert {task.phase for task in TASKS.values()} == set(PHASES)
    assert question(task="DDR").phase == "DSCR"
    assert question(task="unknown").phase == "unknown"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer": "kidney"}, "not among the options"),
        ({"options": ("liver", " Liver ")}, "two options are equal"),
        ({"options": ("liver",)}, "has options"),
        ({"options": ("liver", " ")}, "an option is empty"),
        ({"images": ()}, "about images"),
        ({"text": "  "}, "a text"),
        ({"kind": "essay"}, "unknown kind"),
        ({"task": "XYZ"}, "unknown task"),
        ({"split": "holdout"}, "unknown split"),
        ({"flags": ("good",)}, "unknown flag"),
        ({"kind": "open"}, "only a closed question has options"),
        ({"kind": "number", "options": (), "answer": "12"}, "needs a tolerance"),
        ({"kind": "number", "options": (), "answer": "nan", "tolerance": 1.0}, "not a number"),
        ({"kind": "point", "options": (), "answer": "[0.5, 1.5]", "tolerance": 0.1}, "not a place"),
        ({"kind": "box", "options": (), "answer": "[0.5, 0.1, 0.2, 0.3]", "tolerance": 0.5}, "not a place"),
        ({"masks": (QuestionMask(1, "liver", QuestionImage(b"")),)}, "belongs to no image"),
    ],
)
def test_unsound_questions_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MieError, match=said):
        question(**changes)


def test_what_a_model_wrote_counts_once_it_is_reviewed() -> None:
    assert question().counts
    assert not question(flags=("written",)).counts
    assert question(flags=("written", "reviewed")).counts


def test_a_stored_question_is_the_same_question(tmp_path: Path) -> None:
    mask = QuestionMask(0, "liver", QuestionImage.of(np.eye(40, 50, dtype=np.uint8) * 255))
    asked = [
        question(id="a", evidence={"template": "none", "n": 1.5}, masks=(mask,), task="ASI", split="train"),
        question(id="b", kind="number", options=(), answer="12.5", tolerance=0.5, unit="mm"),
        question(id="c", kind="point", options=(), answer="[0.5, 0.25]", tolerance=0.1, flags=("blind",)),
    ]
    write_questions([*asked, question(id="a")], tmp_path / "set", name="stored")
    stored = QuestionSet(tmp_path / "set")
    assert len(stored) == 3
    assert stored.info["rejected"] == {"duplicate": 1}
    for one in stored:
        expected = next(other for other in asked if other.id == one.id)
        assert row_of(one) == row_of(expected)
        assert one.digest == expected.digest
    assert stored.filter(id="a")[0].letter == "B"
    assert stored.filter(flags="blind").ids() == ["c"]
    assert len(stored.split("train")) == 1
    np.testing.assert_array_equal(stored[0].images[0].pixels, crop(0, 40, 50))
    assert "3 questions" in stored.card


def test_ten_questions_about_an_image_keep_one_copy_of_it(tmp_path: Path) -> None:
    images = [QuestionImage.of(crop(number, 160, 160)) for number in range(4)]
    asked = [question(id=f"{at}-{n}", images=(image,)) for at, image in enumerate(images) for n in range(10)]
    write_questions(asked, tmp_path / "set", name="stored")
    size = sum(path.stat().st_size for path in (tmp_path / "set" / "data").iterdir())
    assert size < 2 * sum(len(image.data) for image in images)


def test_an_unfinished_folder_is_no_set(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    with pytest.raises(MieError, match="no finished question set"):
        QuestionSet(tmp_path)
    with pytest.raises(MieError, match="kept"):
        write_questions([], tmp_path / "empty", name="empty")


@pytest.mark.slow
def test_hugging_face_opens_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    write_questions([question(images=(QuestionImage.of(crop(1, 40, 50)),) * 2)], tmp_path / "set", name="hf")
    opened = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))
    assert [image.size for image in opened["test"][0]["images"]] == [(50, 40), (50, 40)]
    assert opened["test"][0]["options"] == ["spleen", "liver"]
