"""Building, resuming and proving a set; what a changed file or row does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mie.sources.folder
from mie.datasets.part import part_path
from mie.datasets.rejected import read_rejected
from mie.errors import ConfigError, MieError
from mie.questions import build as building
from mie.questions.build import build_questions
from mie.questions.proof import verify_questions
from mie.questions.record import QuestionImage
from mie.questions.stats import question_stats
from mie.questions.store import QuestionSet, QuestionWriter
from tests.questions.made import disc, recipe, write_pictures

HEALED = {"share": 0.6, "inpainter": "telea", "candidates": 1, "detector": None}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    write_pictures(root)
    return root


@pytest.fixture(scope="module")
def built(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> QuestionSet:
    folder = tmp_path_factory.mktemp("built") / "set"
    return build_questions(recipe(pictures, healed=HEALED), folder, workers=1)


def test_every_key_is_recomputed_from_the_stored_masks(built: QuestionSet) -> None:
    proof = verify_questions(built.folder, workers=1)
    assert proof.ok, proof.problems[:3]
    assert proof.proved == proof.questions == len(built) > 60
    counts = built.info["counts"]
    assert set(counts["by_task"]) == {"ASI", "IMI", "AS", "LFD", "LL", "DDR"}
    assert counts["by_flag"]["counterfactual"] > 3
    assert {"closed", "open", "point", "box"} <= set(counts["by_kind"])


def test_no_patient_is_on_two_sides(built: QuestionSet) -> None:
    columns = built.table(["patient_id", "split"])
    sides: dict[str, set[str]] = {}
    for patient, split in zip(*columns.values(), strict=True):
        sides.setdefault(patient, set()).add(split)
    assert len({split for found in sides.values() for split in found}) == 2
    assert all(len(found) == 1 for found in sides.values())
    assert all(patient.startswith("made/") and "p" not in patient[5:] for patient in sides)


def test_the_funnel_counts_every_step(built: QuestionSet) -> None:
    steps = [step["step"] for step in built.info["funnel"]]
    left = [step["questions"] for step in built.info["funnel"]]
    assert steps[0] == "candidates"
    assert steps[-1] == "blind"
    assert left == sorted(left, reverse=True)
    assert left[-1] == len(built)
    gates = ("leak", "domain", "duplicate", "answers", "options", "cluster", "blind")
    assert left[0] - left[-1] == sum(built.info["rejected"].get(gate, 0) for gate in gates)
    numbers = question_stats(built)
    assert sum(sum(row.values()) for row in numbers["task_by_modality"].values()) == len(built)
    assert numbers["guessing"]["random option"]["right"] < 0.5
    assert built.info["deidentified"] is False
    assert built.info["deidentification"] == {"made": "not stated"}


def test_other_workers_and_a_resumed_build_give_the_same_digest(
    built: QuestionSet, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before it ends, with a part and a shard half written; resumed by another number of workers."""
    monkeypatch.setattr("mie.datasets.plan._PART_WEIGHT", 5)
    monkeypatch.setattr(building, "_BLOCK", 3)
    config = recipe(pictures)
    whole = build_questions(config, tmp_path / "whole", workers=1)
    parts = building.plan_questions(config).parts
    assert len(parts) > 1

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            build_questions(config, tmp_path / "resumed", workers=1)
    index = part_path(tmp_path / "resumed" / "parts", parts[-1].number, "index")
    index.unlink()
    (tmp_path / "resumed" / "parts" / "train-00000.parquet").write_bytes(b"half")
    resumed = build_questions(config, tmp_path / "resumed", workers=2)
    assert resumed.digest == whole.digest
    assert resumed.card == whole.card
    assert build_questions(config, tmp_path / "resumed", workers=1).digest == whole.digest
    with pytest.raises(MieError, match="another question set"):
        build_questions(recipe(pictures, seed=4), tmp_path / "resumed", workers=1)


def test_each_image_is_read_once(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    real = mie.sources.folder.read_picture

    def counted(path: Path, **options: object) -> object:
        reads[Path(path).name] += 1
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mie.sources.folder, "read_picture", counted)
    build_questions(recipe(pictures), tmp_path / "set", workers=1)
    assert len(reads) == 12
    assert set(reads.values()) == {1}


def _changed(built: QuestionSet, folder: Path, template: str, **changes: object) -> list[str]:
    """Problems that verification finds in a copy with one changed question."""
    (folder / "data").mkdir(parents=True)
    done = False
    for path in built.shards():
        with QuestionWriter(folder / "data" / path.name) as writer:
            for row in building.read_rows(path):
                if not done and row["template"] == template and row["kind"] == "closed":
                    done = True
                    row = {**row, **{k: v(row) if callable(v) else v for k, v in changes.items()}}
                writer.write(row)
    assert done
    (folder / "questions.json").write_text(json.dumps(built.info))
    return [problem.reason for problem in verify_questions(folder, workers=1).problems]


def test_a_changed_mask_or_key_is_found(built: QuestionSet, tmp_path: Path) -> None:
    moved = QuestionImage.of(disc(70, 70, 9).astype("uint8") * 255)

    def elsewhere(row: dict[str, object]) -> list[dict[str, object]]:
        masks: list[dict[str, object]] = row["masks"]  # type: ignore[assignment]
        return [{**one, "mask": {"bytes": moved.data, "path": ""}} for one in masks]

    found = _changed(built, tmp_path / "mask", "quadrant", masks=elsewhere)
    assert any("changed after it was written" in reason for reason in found)
    assert any("contradicts the key" in reason for reason in found)
    other = _changed(
        built,
        tmp_path / "key",
        "lesion_class",
        answer=lambda row: next(option for option in row["options"] if option != row["answer"]),
    )
    assert any("contradicts the key" in reason for reason in other)
    gone = _changed(built, tmp_path / "gone", "modality", images=[])
    assert any("about images" in reason for reason in gone)


def test_images_are_compared_as_they_are_shown(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outline may bring an image near to one of another split: what is drawn is compared too."""
    compared: dict[str, Any] = {}
    before = building.leaks_of
    monkeypatch.setattr(building, "leaks_of", lambda images: compared.update(images) or before(images))
    found = build_questions(recipe(pictures), tmp_path / "set", workers=1)
    outlined = [q for q in found if q.template == "outlined_structure"]
    assert outlined
    for question in outlined:
        (key,) = (key for key in compared if key.endswith(question.images[0].digest))
        assert compared[key]["split"] == question.split
        assert key.removesuffix(f"//{question.images[0].digest}") in compared


def test_a_missing_or_damaged_image_is_rejected_with_its_reason(pictures: Path, tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    write_pictures(root, 6)
    (root / "images" / "p0_1.png").write_bytes(b"\x89PNG\r\n\x1a\nhalf")
    (root / "images" / "p1_2.png").unlink()
    found = build_questions(recipe(root), tmp_path / "set", workers=1)
    reasons = [(one.gate, one.reason) for one in read_rejected(found.folder / "rejected.parquet")]
    assert any(gate == "image" for gate, _ in reasons)
    assert any(gate == "source" for gate, _ in reasons)
    assert len(found) > 10


def test_a_recipe_says_what_is_wrong_with_it(pictures: Path) -> None:
    with pytest.raises(ConfigError, match="per_imag"):
        recipe(pictures, per_imag=3)
    with pytest.raises(ConfigError, match="quadrant"):
        recipe(pictures, templates=["quadrnt"])
