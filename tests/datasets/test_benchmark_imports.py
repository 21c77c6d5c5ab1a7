"""Folders as the three benchmarks lay them out, into datasets; outputs are found by the folder editor."""

from __future__ import annotations

import json
import shutil

import cv2
import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.datasets.imports import import_dataset
from mie.editors.run import run_editor
from mie.errors import MieError
from tests.conftest import crop


def png(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels if pixels.ndim == 2 else pixels[..., ::-1])


def samples_of(folder):
    return list(Dataset(folder).samples())


def test_medebench(tmp_path):
    root = tmp_path / "MedEBench"
    soft = cv2.GaussianBlur(np.pad(np.full((10, 12), 255, np.uint8), 15), (9, 9), 3)
    for n in (1, 2):
        png(root / f"editing/previous/{n}.png", crop(n, 40, 42))
        png(root / f"editing/changed/{n}.png", crop(n + 5, 60 if n == 2 else 40, 63 if n == 2 else 42))
        png(root / f"editing/previous_mask/{n}.png", soft)

    def record(n, **changes):
        return {
            "id": n,
            "Organ": "Teeth",
            "Task": "fill the gap",
            "prompt": "Fill the gap.",
            "rephrased_prompt": "Fi",
            "detailed_prompt": "In the photograph, fill the gap.",
            "previous_image": f"editing/previous/{n}.png",
            "changed_image": f"editing/changed/{n}.png",
            "previous_mask": f"editing/previous_mask/{n}.png",
            "url": "https://example.org",
            **changes,
        }

    records = [record(1), record(2), record(3), record(1), record(4, prompt=None)]
    (root / "editing/editing_metadata.json").write_text(json.dumps({"samples": records}))
    result = import_dataset(root, tmp_path / "dataset", "medebench")
    assert len(result.rejections) == 3
    first, second = sorted(samples_of(tmp_path / "dataset"), key=lambda s: s.case_id)
    assert first.params["medebench"] | {"url": None} == {
        "id": 1,
        "organ": "Teeth",
        "task": "fill the gap",
        "url": None,
    }
    assert (first.anatomy, first.description) == ("Teeth", "In the photograph, fill the gap.")
    np.testing.assert_array_equal(first.mask, soft)  # soft as it came
    np.testing.assert_array_equal(first.input, crop(1, 40, 42))
    assert second.target_image.shape == second.input.shape
    assert second.params["target_steps"][-1]["how"] == "BICUBIC"
    inner = import_dataset(root / "editing", tmp_path / "inner", "medebench")
    assert inner.info["counts"]["samples"] == 2
    # The list at the repository's root: the same images are found.
    (root / "editing/editing_metadata.json").rename(root / "editing_metadata.json")
    import_dataset(root, tmp_path / "root", "medebench")
    assert {s.id for s in samples_of(tmp_path / "root")} == {first.id, second.id}
    shutil.rmtree(root / "editing")
    with pytest.raises(MieError, match="no sample was kept") as error:
        import_dataset(root, tmp_path / "none", "medebench")
    assert "× source: file is missing" in error.value.found
    for n in (1, 2):
        png(tmp_path / f"made/{n}_0.png", crop(n, 40, 42))
    assert (
        run_editor(tmp_path / "dataset", f"folder:{tmp_path / 'made'}", tmp_path / "run").info["counts"][
            "done"
        ]
        == 2
    )


def test_imgedit(tmp_path):
    root = tmp_path / "ImgEdit"
    png(root / "singleturn/animal/1.png", crop(1, 40, 42))
    png(root / "2.png", crop(2, 40, 42))
    basic = {
        "1082": {"id": "animal/1.png", "prompt": "Make it red.", "edit_type": "adjust"},
        "7": {"id": "absent.jpg", "prompt": "Remove it.", "edit_type": "remove"},
    }
    (root / "basic_edit.json").write_text(json.dumps(basic))
    alone = import_dataset(root, tmp_path / "alone", "imgedit")
    assert (alone.info["counts"]["samples"], len(alone.rejections)) == (1, 1)
    (sample,) = samples_of(tmp_path / "alone")
    assert sample.params["imgedit"] == {
        "key": "1082",
        "suite": "basic",
        "edit_type": "adjust",
        "reference": False,
    }
    turns = {"1": {"id": "2.png", "turn1": "Keep it green.", "turn2": "Add a leaf.", "turn3": "Undo."}}
    (root / "content_memory.json").write_text(json.dumps(turns))
    (root / "UGE_edit.json").write_text(json.dumps({"3": {"id": "2.png", "prompt": "The one on the left."}}))
    import_dataset(root, tmp_path / "all", "imgedit")
    found = {s.params["imgedit"]["key"]: s for s in samples_of(tmp_path / "all")}
    assert set(found) == {"basic/1082", "uge/3", "multiturn/1_1", "multiturn/1_2", "multiturn/1_3"}
    third = found["multiturn/1_3"]
    assert (third.turn, third.prompt, third.params["imgedit"]["category"]) == (3, "Undo.", "memory")
    assert len({found[f"multiturn/1_{n}"].group for n in (1, 2, 3)}) == 1


def test_omni_iie(tmp_path):
    root = tmp_path / "omni"
    for name in ("a", "b"):
        png(root / f"images/{name}.png", crop(ord(name), 40, 42))
    region = np.zeros((40, 42), np.uint8)
    region[5:15, 5:15] = 255
    png(root / "masks/s.png", region)
    png(root / "masks/t.png", np.roll(region, 10, 1))

    def record(name, level, **changes):
        return {
            "sample_id": name,
            "level": level,
            "original_image_path": "images/a.png",
            "modified_image_path": "images/b.png",
            "modification_text": "Make it red.",
            "source_mask_path": "masks/s.png",
            "target_mask_path": "masks/t.png",
            "entities": ["it"],
            "qa_pairs": [{"question": "Is it red?", "correct_answer": "yes"}],
            **changes,
        }

    records = [record("12", "low"), record("12", "high"), record("12", "middle"), record(12, "low")]
    (root / "coco.json").write_text(json.dumps(records))
    lines = [record("x", 1), record("x", 2, modified_image_path="../a.png")]
    (root / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = import_dataset(root, tmp_path / "dataset", "omni-iie")
    assert len(result.rejections) == 3  # a level that is none, one twice, a path out of the folder
    low, high, turn = samples_of(tmp_path / "dataset")
    assert low.params["omni-iie"]["qa_pairs"][0]["question"] == "Is it red?"
    assert low.group == high.group == "coco/12"
    assert (low.turn, turn.turn, turn.group) == (None, 1, "turns/x")
    np.testing.assert_array_equal(low.mask > 0, (region > 0) | (np.roll(region, 10, 1) > 0))
    for level in ("low", "high"):
        png(tmp_path / f"made/coco/12_{level}.png", crop(9, 40, 42))
    png(tmp_path / "made/turns/x_1.png", crop(9, 40, 42))
    assert (
        run_editor(tmp_path / "dataset", f"folder:{tmp_path / 'made'}", tmp_path / "run").info["counts"][
            "done"
        ]
        == 3
    )


@pytest.mark.parametrize("format", ["medebench", "imgedit", "omni-iie"])
def test_nothing_there(tmp_path, format):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MieError):
        import_dataset(tmp_path / "empty", tmp_path / "dataset", format)


@pytest.mark.parametrize(
    ("format", "expected"), [("medebench", "editing_metadata.json"), ("imgedit", ""), ("omni-iie", "")]
)
def test_a_folder_without_the_benchmark_is_named(format, expected, tmp_path):
    with pytest.raises(MieError) as error:
        import_dataset(tmp_path, tmp_path / "out", format)
    assert str(tmp_path) in str(error.value)
    assert expected in str(error.value)
