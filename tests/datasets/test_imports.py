from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data

from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.imports import import_dataset, miedb
from mie.datasets.rejected import read_rejected
from mie.errors import ConfigError, MieError

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def picture() -> np.ndarray:
    return np.ascontiguousarray(data.immunohistochemistry()[100:148, 60:124])  # (48, 64, 3)


def painted(image: np.ndarray, region: np.ndarray, colour: str) -> np.ndarray:
    """The overlay by its formula, in floating point."""
    out = image.astype(float)
    out[region] = 0.4 * out[region] + 0.6 * np.array(COLOURS[colour])
    return out.round().astype(np.uint8)


def box(top: int, left: int, height: int, width: int) -> np.ndarray:
    region = np.zeros((48, 64), bool)
    region[top : top + height, left : left + width] = True
    return region


def record(idx: Any, output: str = "output/0_red.png", **more: Any) -> dict[str, Any]:
    return {
        "idx": idx,
        "category": "Perception",
        "input_image": "input/0.png",
        "output_image": output,
        "prompt": "Mark it in red.",
        **more,
    }


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A MieDB folder made by hand, with two files that records can name."""
    folder = tmp_path / "MieDB"
    for name in ("input", "output"):
        (folder / name).mkdir(parents=True)
    Image.fromarray(picture()).save(folder / "input" / "0.png")
    Image.fromarray(painted(picture(), box(5, 6, 20, 30), "red")).save(folder / "output" / "0_red.png")
    return folder


def load(folder: Path, records: Any, target: Path | None = None):
    (folder / "metadata.json").write_text(json.dumps(records), "utf-8")
    return import_dataset(folder, target or folder.parent / "set", "miedb")


def test_a_published_record_becomes_an_honest_sample(published: Path) -> None:
    result = load(published, [record("case-17", note="checked")])
    assert result.rejections == ()
    (sample,) = Dataset(published.parent / "set").samples()
    np.testing.assert_array_equal(sample.input, picture())
    np.testing.assert_array_equal(sample.mask == 255, box(5, 6, 20, 30))
    assert set(np.unique(sample.mask)) == {0, 255}
    assert (sample.colour, sample.split, sample.source, sample.perspective) == (
        "red",
        "test",
        "miedb",
        "perception",
    )
    assert sample.modality == sample.anatomy == sample.target == sample.task == "unknown"
    kept = dict(sample.params["miedb"])
    assert json.loads(kept.pop("record")) == record("case-17", note="checked")
    assert kept == {
        "idx": "case-17",
        "input_image": "input/0.png",
        "output_image": "output/0_red.png",
        "note": "checked",
    }
    assert result.info["name"] == "MieDB"
    assert result.info["deidentified"] is False
    assert result.info["licenses"]["miedb"]["use"] == "unknown"


def test_several_classes_are_told_apart_by_colour(published: Path) -> None:
    first, second = box(2, 2, 10, 20), box(30, 30, 12, 25)
    output = painted(painted(picture(), first, "blue"), second, "green")
    Image.fromarray(output).save(published / "output" / "many.png")
    load(published, [record(1, "output/many.png", note="Multiclasses")])
    (sample,) = Dataset(published.parent / "set").samples()
    assert sample.colour == "green,blue"
    assert sample.task == "holistic"
    np.testing.assert_array_equal(sample.mask == 128, second)
    np.testing.assert_array_equal(sample.mask == 255, first)


def test_a_pixel_that_fits_two_colours_goes_to_the_nearer_blend() -> None:
    # Painting this cyan-green red shifts it exactly along its way to green: plain de-blending finds both.
    image = np.full((4, 4, 3), (0, 255, 50), np.uint8)
    output = painted(image, np.ones((4, 4), bool), "red")
    region, found = miedb._region(image, output, tuple(COLOURS))
    assert found == ["red"]
    assert (region == 255).all()


def test_other_perspectives_and_unnamed_colours_have_no_mask(published: Path) -> None:
    for name in ("edit_red.png", "nocolour.png"):
        shutil.copy(published / "output" / "0_red.png", published / "output" / name)
    load(
        published,
        [record(1, "output/edit_red.png", category="Modification"), record(2, "output/nocolour.png")],
    )
    for sample in Dataset(published.parent / "set").samples():
        assert sample.mask is None
        assert sample.colour is None


def test_split_folders(published: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    for split in ("train", "test"):
        shutil.copytree(published, root / split)
        (root / split / "metadata.json").write_text(json.dumps([record(0)]))
    result = import_dataset(root, tmp_path / "set", "miedb", name="both")
    assert result.info["counts"]["by_split"] == {"test": 1, "train": 1}
    assert result.info["name"] == "both"
    assert (
        import_dataset(root.rename(tmp_path / '_my "set"; ä'), tmp_path / "b", "miedb").info["name"]
        == "my-set-"
    )
    with pytest.raises(ConfigError, match="no name"):
        import_dataset(tmp_path, tmp_path / "c", "miedb", name="a b")


def bad_records() -> dict[str, dict[str, Any]]:
    return {
        "parent": record(1, "../secret_red.png"),
        "deep parent": record(1, "output/../../secret_red.png"),
        "absolute": record(1, "/etc/passwd"),
        "drive": record(1, "C:/secret_red.png"),
        "backslash": record(1, "..\\secret_red.png"),
        "nul": record(1, "output/0_red.png\0"),
        "link": record(1, "output/link_red.png"),
        "linked folder": record(1, "out/secret_red.png"),
        "loop": record(1, "output/loop_red.png"),
        "pipe": record(1, "output/pipe_red.png"),
        "a folder": record(1, "output"),
        "missing": record(1, "output/none_red.png"),
        "long": record(1, "output/" + "x" * 5000),
        "empty": record(1, "output/empty_red.png"),
        "text": record(1, "output/text_red.png"),
        "cut": record(1, "output/cut_red.png"),
        "other size": record(1, "output/small_red.png"),
        "no path": record(1, 7),  # type: ignore[arg-type]
        "dots": record(1, "./"),
        "category": record(1, category="Perseption"),
        "category list": record(1, category=["Perception"]),
        "no prompt": {k: v for k, v in record(1).items() if k != "prompt"},
        "null input": record(1, input_image=None),
        "prompt number": record(1, prompt=5),
        "idx list": record([1]),
        "half a character": record(1, prompt="\ud800"),
        "same idx": record(0),
        "no object": ["idx", 1],  # type: ignore[dict-item]
    }


def test_each_bad_record_is_refused_with_a_reason_and_the_rest_imported(published: Path) -> None:
    secret = published.parent / "secret_red.png"
    good = published / "output" / "0_red.png"
    shutil.copy(good, secret)
    output = published / "output"
    (output / "link_red.png").symlink_to(secret)
    (output / "loop_red.png").symlink_to("loop_red.png")
    (published / "out").symlink_to(published.parent)
    os.mkfifo(output / "pipe_red.png")
    (output / "empty_red.png").touch()
    (output / "text_red.png").write_text("not a picture")
    (output / "cut_red.png").write_bytes(good.read_bytes()[:900])
    Image.fromarray(picture()[:-1]).save(output / "small_red.png")
    bad = bad_records()
    seen: list[int] = []
    records = [
        record(0),
        *(
            {**r, "idx": n} if isinstance(r, dict) and r.get("idx") == 1 else r
            for n, r in enumerate(bad.values(), start=100)
        ),
        record("last"),
    ]
    (published / "metadata.json").write_text(json.dumps(records))
    target = published.parent / "set"
    result = import_dataset(published, target, "miedb", progress=lambda done, total: seen.append(done))
    assert result.info["counts"]["samples"] == 2
    assert seen == list(range(1, len(records) + 1))
    assert len(result.rejections) == len(bad), [r.where for r in result.rejections]
    for number, (name, rejection) in enumerate(zip(bad, result.rejections, strict=True), start=1):
        assert rejection.where.startswith(f"metadata.json[{number}]"), name
        assert rejection.gate in ("source", "image"), name
        assert rejection.reason, name
        assert str(published) not in rejection.where, name
    assert tuple(read_rejected(target / "rejected.parquet")) == result.rejections
    reasons = dict(zip(bad, (r.reason for r in result.rejections), strict=True))
    for name in ("parent", "deep parent", "absolute", "drive", "backslash", "link", "linked folder"):
        assert "leaves its folder" in reasons[name]
    assert "differ in size" in reasons["other size"]
    assert "64x48" in reasons["other size"]
    assert "no prompt" in reasons["no prompt"]
    assert "idx" in reasons["same idx"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_FUZZ = st.lists(
    _JSON
    | st.fixed_dictionaries(
        {
            "idx": _JSON,
            "category": st.sampled_from(["Perception", "Modification", "perception"]) | _JSON,
            "input_image": st.just("input/0.png") | _JSON,
            "output_image": st.sampled_from(["output/0_red.png", "./output//0_red.png", "output/.."]) | _JSON,
            "prompt": st.text(max_size=8) | _JSON,
        },
        optional={"note": st.just("Multiclasses") | _JSON, "more": _JSON},
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=_FUZZ)
def test_any_json_is_imported_or_refused_and_what_was_imported_goes_back(
    published: Path, records: Any
) -> None:
    target, out = published.parent / "set", published.parent / "out"
    try:
        try:
            result = load(published, records, target)
        except MieError as error:
            if error.what != "no sample was kept":
                raise
            assert len(read_rejected(target / "rejected.parquet")) == len(records)
            return
        assert result.info["counts"]["samples"] + len(result.rejections) == len(records)
        export(Dataset(target), out, "miedb", split="test")
        back = json.loads((out / "metadata.json").read_text("utf-8"))
        refused = {int(r.where.split("[")[1].split("]")[0]) for r in result.rejections}
        kept = [r for number, r in enumerate(records) if number not in refused]
        assert repr(back) == repr(kept)  # repr: NaN differs from itself
    finally:
        shutil.rmtree(target)
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[{]", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"{}", "not a list"),
        (b"[]", "no record"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_list_is_an_error_and_leaves_nothing(published: Path, content: bytes, message: str) -> None:
    (published / "metadata.json").write_bytes(content)
    with pytest.raises(MieError, match=message):
        import_dataset(published, published.parent / "set", "miedb")
    assert not (published.parent / "set").exists()


def test_wrong_folders(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MieError, match="no MieDB folder"):
        import_dataset(tmp_path / "empty", tmp_path / "set", "miedb")
    with pytest.raises(MieError, match=r"no list of samples here(.|\n)*empty(.|\n)*samples.jsonl"):
        import_dataset(tmp_path / "empty", tmp_path / "set", "folder")
    with pytest.raises(MieError, match="no such folder"):
        import_dataset(tmp_path / "nothing", tmp_path / "set", "miedb")
    with pytest.raises(ConfigError, match="did you mean 'folder'"):
        import_dataset(tmp_path / "empty", tmp_path / "set", "foldre")
    export(dataset, tmp_path / "out", "folder")
    with pytest.raises(ConfigError, match="another format"):
        import_dataset(tmp_path / "out", tmp_path / "set", "miedb")
    marker = tmp_path / "out" / "mie.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "complete": False}))
    with pytest.raises(MieError, match="unfinished export"):
        import_dataset(tmp_path / "out", tmp_path / "set", "folder")


def test_bad_lines_of_a_plain_folder_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(dataset, out, "folder")
    lines = (out / "samples.jsonl").read_bytes().decode().rstrip("\n").split("\n")
    first = json.loads(lines[0])
    cv2.imwrite(str(out / "mask" / "deep.png"), np.zeros((9, 9), np.uint16))
    changes: list[dict[str, Any]] = [
        {"input": "../x.png"},
        {"mask": "mask/none.png"},
        {"mask": "mask/deep.png"},
        {"split": "train,test"},
        {"perspective": "other"},
        {"colour": "mauve"},
        {"seed": 2**63},
        {"bin": True},
        {"turn": 2**31},
        {"parents": [1]},
        {"params": "{}"},
        {"id": ""},
        {"modality": None},
        {"prompt": "\ud800"},
    ]
    bad = [json.dumps({**first, "id": f"{n:x}", **change}) for n, change in enumerate(changes)]
    bad += ["{", "[]", "null", json.dumps(first)]  # the last one: an id that is there already
    (out / "samples.jsonl").write_text("\n".join([*lines, "", *bad]) + "\n", "utf-8")
    result = import_dataset(out, tmp_path / "set", "folder")
    assert result.info["digest"] == dataset.digest
    assert len(result.rejections) == len(bad)
    assert [r.gate for r in result.rejections].count("duplicate") == 1
