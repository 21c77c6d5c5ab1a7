"""Outputs found by name: ours, the benchmarks', and names that mean harm."""

import cv2
import numpy as np
import pytest

from mie.editors import Edited, EditError, Request, SampleRef, open_editor
from mie.editors.folder import output_names
from mie.errors import ConfigError
from tests.conftest import crop


def put(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), crop(number)[..., ::-1])


def look(folder, sample, attempt=0):
    (outcome,) = open_editor(f"folder:{folder}").edit_batch(
        [Request(crop(0), "x", 0, attempt, sample=sample)]
    )
    return outcome


def ref(id="abc", **changes):
    return SampleRef(**{"id": id, "stem": id, **changes})


@pytest.mark.parametrize(
    ("sample", "attempt", "name"),
    [
        (ref(), 2, "abc_2.png"),
        (ref("x/y", stem="77"), 0, "77_0.png"),
        (ref("x/y", stem="77"), 0, "x/y_0.png"),
        (ref(params={"miedb": {"output_image": "output/brain.v2_red.png"}}), 1, "brain.v2_red_1.png"),
        (ref(params={"medebench": {"id": 17}}), 0, "17_0.png"),
        (ref(params={"imgedit": {"key": "1082"}}), 0, "1082.png"),
        (ref(params={"imgedit": {"key": "1082"}}), 1, "1082_1.png"),
        (
            ref(params={"omni-iie": {"dataset": "coco", "sample_id": "12", "level": "low"}}),
            0,
            "coco/12_low.png",
        ),
        (ref(params={"omni-iie": {"dataset": "coco", "sample_id": 12, "level": 3}}), 0, "coco/12_3.png"),
        (ref(colour="red"), 0, "abc_red_0.png"),
        (ref(colour="red,green"), 1, "abc_multi_1.png"),
    ],
)
def test_every_naming_is_found(tmp_path, sample, attempt, name):
    put(tmp_path / name, 5)
    put(tmp_path / "other.png", 6)
    outcome = look(tmp_path, sample, attempt)
    assert np.array_equal(outcome.image, crop(5))
    assert outcome.meta["file"] == name
    missing = look(tmp_path, sample, attempt + 1)
    assert isinstance(missing, EditError)
    assert "no output in the folder" in missing.reason


def test_the_names_of_our_own_export_are_those_that_the_export_writes(tmp_path):
    from mie.datasets.exports.miedb import _record

    for colour in ("blue", "red,green"):
        body = {"colour": colour, "perspective": "perception", "id": "0f", "prompt": "p"}
        stem = _record(body, 0)["output_image"].removeprefix("output/").removesuffix(".png")
        assert f"{stem}_0" in list(output_names(ref("0f", colour=colour), 0))


def test_our_own_naming_wins_and_png_wins_over_other_suffixes(tmp_path):
    sample = ref(params={"miedb": {"output_image": "output/x.png"}})
    put(tmp_path / "x_0.png", 5)
    put(tmp_path / "abc_0.webp", 6)
    assert look(tmp_path, sample).meta["file"] == "abc_0.webp"
    put(tmp_path / "abc_0.png", 7)
    put(tmp_path / "abc_0.bmp", 8)
    assert np.array_equal(look(tmp_path, sample).image, crop(7))


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".webp", ".tif", ".bmp"])
def test_other_suffixes_are_read_and_noted(tmp_path, suffix):
    put(tmp_path / f"abc_0{suffix}", 5)
    outcome = look(tmp_path, ref())
    assert outcome.image.shape == crop(5).shape
    assert outcome.meta["format"] != "PNG"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a\0b", "..", "x" * 5000, "abc_0.png", "\udcff"]
)
def test_a_hostile_name_finds_nothing(tmp_path, name):
    put(tmp_path / "outputs" / "fine_0.png", 5)
    put(tmp_path / "secret_0.png", 6)
    put(tmp_path / "secret.png", 6)
    for sample in (
        ref(name),
        ref(params={"imgedit": {"key": name}}),
        ref(params={"miedb": {"output_image": name}}),
        ref(params={"omni-iie": {"dataset": "..", "sample_id": name, "level": ""}}),
        ref(params={"miedb": {"output_image": ["x"]}, "imgedit": 3}),
    ):
        assert isinstance(look(tmp_path / "outputs", sample), EditError)


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_followed(tmp_path):
    put(tmp_path / "outside.png", 6)
    put(tmp_path / "outputs" / "real.png", 5)
    (tmp_path / "outputs" / "abc_0.png").symlink_to(tmp_path / "outside.png")
    (tmp_path / "outputs" / "abc_1.png").symlink_to("real.png")
    assert "link out" in look(tmp_path / "outputs", ref()).reason
    assert isinstance(look(tmp_path / "outputs", ref(), 1), Edited)


@pytest.mark.parametrize("data", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_file_that_is_no_picture_is_a_failed_edit(tmp_path, data):
    (tmp_path / "abc_0.png").write_bytes(data)
    assert "output" in look(tmp_path, ref()).reason


def test_a_missing_or_empty_folder_is_wrong_use(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="folder"):
            open_editor(f"folder:{folder}")
