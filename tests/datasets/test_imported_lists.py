"""ImgEdit's and Omni IIE's lists there and back: equal lists, pixels and masks, and the same dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.imports import import_dataset
from mie.editors.run import run_editor
from mie.errors import ConfigError, MieError
from mie.images.read import read_picture
from mie.privacy.gate import Policy
from mie.scoring.score import score
from tests.conftest import crop
from tests.scoring.benchmarks.runs import structure, write_samples

SIZE = (40, 42)


def png(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels if pixels.ndim == 2 else pixels[..., ::-1])


@pytest.fixture(scope="module")
def imgedit(tmp_path_factory) -> Path:
    """Three multi-turn lists and a basic one, with fields and images that the importer does not use."""
    root = tmp_path_factory.mktemp("imgedit") / "lists"
    png(root / "multiturn/1.png", crop(1, *SIZE))
    png(root / "multiturn/eye/2.jpg", crop(2, *SIZE))
    png(root / "3.png", np.dstack([crop(3, *SIZE), np.full(SIZE, 90, np.uint8)]))  # half transparent
    png(root / "4.png", crop(4, *SIZE).max(axis=2))  # grey
    lists = {
        "content_memory.json": {
            "1": {"id": "1.png", "turn1": "Keep it green.", "turn2": "Add a leaf.", "turn3": "And a stem."},
            "b/7": {"id": "eye/2.jpg", "turn1": "Größer, bitte.", "turn2": "Undo.", "note": None, "n": [1.5]},
        },
        "content_understand.json": {"1": {"id": "3.png", "turn1": "Paint it.", "turn2": "Bluer."}},
        "version_backtracking.json": {
            "x": {"id": "4.png", "turn1": "a", "turn2": "b", "turn3": "c", "turn5": "no turn 4 before it"}
        },
        "basic_edit.json": {"9": {"id": "1.png", "prompt": "Make it red.", "edit_type": "adjust", "z": {}}},
    }
    for name, body in lists.items():
        (root / name).write_text(json.dumps(body, ensure_ascii=False))
    return root


KINDS = ("attribute", "entity", "entity", "attribute")


@pytest.fixture(scope="module")
def omni(tmp_path_factory) -> Path:
    """Pairs of two scales, and two conversations of four turns; masks overlap and differ in size."""
    root = tmp_path_factory.mktemp("omni") / "lists"
    region = np.zeros(SIZE, np.uint8)
    region[5:20, 5:20] = 255
    soft = cv2.GaussianBlur(np.roll(region, 6, 1), (9, 9), 3)

    def record(name: Any, level: Any, number: int, **more: Any) -> dict[str, Any]:
        before, after = (f"images/{number}_{which}.png" for which in ("a", "b"))
        png(root / before, crop(number, *SIZE))
        large = (60, 63) if number == 3 else SIZE
        png(root / after, crop(number + 50, *large))
        png(root / f"masks/{number}_s.png", region)
        png(root / f"masks/{number}_t.png", soft if number % 2 else soft[::2, ::2])
        return {
            "sample_id": name,
            "level": level,
            "original_image_path": before,
            "modified_image_path": after,
            "modification_text": f"Edit {number}.",
            "source_mask_path": f"masks/{number}_s.png",
            "target_mask_path": f"masks/{number}_t.png",
            "entities": ["it", "es"],
            "qa_pairs": [{"question": "Is it red?", "correct_answer": "yes"}],
            "source": {"page": number},
            **more,
        }

    pairs = [record(n // 2, ("low", "high")[n % 2], n) for n in range(6)]
    pairs[0]["source_mask_path"] = ""
    talks = [
        record(f"talk{t}", n, 10 * t + n, edit_type=kind) for t in (1, 2) for n, kind in enumerate(KINDS, 1)
    ]
    (root / "coco.json").write_text(json.dumps(pairs))
    (root / "turns.jsonl").write_text("".join(json.dumps(one) + "\n" for one in talks))
    return root


def lists_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in folder.glob("*.json*"):
        if path.suffix == ".jsonl":
            found[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
        elif path.name != "mie.json":
            found[path.name] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("format", ["imgedit", "omni-iie"])
def test_there_and_back(format, request, tmp_path) -> None:
    root = request.getfixturevalue(format.partition("-")[0])
    there = import_dataset(root, tmp_path / "there", format)
    assert there.rejections == ()
    export(Dataset(tmp_path / "there"), tmp_path / "out", format)
    first = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    export(Dataset(tmp_path / "there"), tmp_path / "out", format)  # again: the same bytes
    assert {path: path.read_bytes() for path in first} == first
    assert lists_of(tmp_path / "out") == lists_of(root)
    files = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    written = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {name for name in files if "masks" in str(name)} - written <= {Path("masks/0_s.png")}
    for name in written & files:
        if name.parts[0] == "masks":
            assert (tmp_path / "out" / name).read_bytes() == (root / name).read_bytes()
        elif name.suffix in (".png", ".jpg"):
            before, after = (read_picture(folder / name) for folder in (root, tmp_path / "out"))
            assert np.array_equal(before.pixels, after.pixels), name
            assert before.steps == after.steps
    back = import_dataset(tmp_path / "out", tmp_path / "back", format)
    assert back.info["digest"] == there.info["digest"]


def test_what_was_not_imported_cannot_be_written_as_it_came(imgedit, tmp_path) -> None:
    ours = write_samples([structure("a", 1)], tmp_path / "ours")
    with pytest.raises(MieError, match="was not imported from imgedit"):
        export(ours, tmp_path / "out", "imgedit")
    import_dataset(imgedit, tmp_path / "theirs", "imgedit")
    theirs = Dataset(tmp_path / "theirs")
    with pytest.raises(MieError, match="was not imported from omni-iie") as error:
        export(theirs, tmp_path / "other", "omni-iie")
    assert "it came in by 'imgedit'" in error.value.reason
    with pytest.raises(ConfigError, match="files as they came"):
        export(theirs, tmp_path / "public", "imgedit", public=Policy(deidentified=True))


@pytest.mark.parametrize("name", ["../out.png", "/tmp/out.png", "mie.json"])
def test_a_dataset_of_strangers_writes_nothing_outside_the_folder(name, tmp_path) -> None:
    hostile = {"format": "imgedit", "list": "a.json", "at": "1", "record": {}, "images": {}, "files": {}}
    params = {"imported": {**hostile, "images": {"input": name}}}
    dataset = write_samples([structure("a", 1, params=params)], tmp_path / "ours")
    with pytest.raises(MieError, match=r"path leaves its folder|export's mark"):
        export(dataset, tmp_path / "out", "imgedit")
    assert not (tmp_path / "out.png").exists()


def test_imported_conversations_have_slopes_switches_and_a_scale_gap(omni, tmp_path) -> None:
    import_dataset(omni, tmp_path / "dataset", "omni-iie")
    run = run_editor(tmp_path / "dataset", "identity", tmp_path / "run", turns="forced", workers=1)
    found = score(run, "omni-iie", workers=1)
    document = found.document
    assert (document["regions"]["conversations"], document["regions"]["turns"]) == (2, 8)
    assert document["regions"]["switches"] == {"A→A": 0, "A→E": 2, "E→A": 2, "E→E": 2}
    values = found.values("ssim")
    samples = list(Dataset(tmp_path / "dataset").samples())
    talks = [[s for s in samples if s.group == f"turns/talk{t}"] for t in (1, 2)]
    slopes = [np.polyfit([s.turn for s in talk], [values[s.id] for s in talk], 1)[0] for talk in talks]
    entry = document["turn_slope"]["by_metric"]["ssim"]
    assert (entry["mean"], entry["n"]) == (pytest.approx(np.mean(slopes)), 2)
    assert document["turn_slope"]["n"] == 0  # Overall needs a judge and networks
    assert "qa" not in document["turn_slope"]["by_metric"]
    switch = document["switches_by_metric"]["psnr"]["E→E"]
    psnr = found.values("psnr")
    assert (switch["mean"], switch["n"]) == (pytest.approx(np.mean([psnr[t[2].id] for t in talks])), 2)
    gap = document["scale_gap"]["by_metric"]["ssim"]
    low, high = (
        [values[s.id] for s in samples if s.params["omni-iie"]["level"] == level] for level in ("low", "high")
    )
    assert (gap["mean"], gap["n"]) == (pytest.approx(np.mean(low) - np.mean(high)), 3)
