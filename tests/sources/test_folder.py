import cv2
import numpy as np
import pytest

from mie.errors import MieError
from mie.records import Rejection
from mie.sources.catalog import Entry
from mie.sources.folder import FolderSource
from tests.conftest import crop, ellipse, folder_source, write_folder


def source(root, **changes):
    body = {k: v for k, v in folder_source(root, **changes).items() if k != "root"}
    return FolderSource(Entry(**body), root)


def units(src):
    found = list(src.scan())
    return [u for u in found if not isinstance(u, Rejection)], [u for u in found if isinstance(u, Rejection)]


def test_images_find_their_masks(folder_data):
    src = source(folder_data)
    found, refused = units(src)
    assert len(found) == 12
    assert not refused
    assert found[0].patient_id == "discs/p00"
    (case,) = src.load(found[0])
    assert np.array_equal(case.image, crop(0))
    assert np.array_equal(case.masks["optic disc"], ellipse(0))


def test_masks_that_are_stored_upside_down(folder_data):
    src = source(folder_data, upside_down=True)
    (case,) = src.load(units(src)[0][0])
    assert np.array_equal(case.image, crop(0))
    assert np.array_equal(case.masks["optic disc"], np.flipud(ellipse(0)))


def test_suffixes_on_both_sides(tmp_path):
    for folder, name, data in (
        ("images", "21_training.png", crop(0)),
        ("masks", "21_manual1.png", ellipse(0).astype(np.uint8) * 255),
    ):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / name), data)
    layout = {"kind": "folder", "images": "images/{id}_training.png", "masks": "masks/{id}_manual1.png"}
    found, refused = units(source(tmp_path, layout=layout))
    assert [u.files["masks"] for u in found] == [("masks/21_manual1.png",)]
    assert not refused


def test_several_masks_of_one_image_are_united(tmp_path):
    write_folder(tmp_path, 1)
    second = np.zeros((160, 160), np.uint8)
    second[150:, 150:] = 255
    cv2.imwrite(str(tmp_path / "masks" / "p00_0000_mask_1.png"), second)
    layout = {
        "kind": "folder",
        "images": "images/{patient}_{id}.png",
        "masks": "masks/{patient}_{id:[0-9]+}_mask*.png",
    }
    src = source(tmp_path, layout=layout)
    found, refused = units(src)
    assert not refused
    (case,) = src.load(found[0])
    assert np.array_equal(case.masks["optic disc"], ellipse(0) | second.astype(bool))


def test_each_target_may_have_files_of_its_own(tmp_path):
    write_folder(tmp_path, 2)
    cv2.imwrite(str(tmp_path / "masks" / "p01_0001_EX.png"), ellipse(9).astype(np.uint8))
    targets = [
        {"name": "optic disc", "kind": "anatomy", "value": 255, "masks": "masks/{patient}_{id}_mask.png"},
        {
            "name": "exudates",
            "kind": "lesion",
            "plural": True,
            "value": 1,
            "masks": "masks/{patient}_{id}_EX.png",
        },
    ]
    src = source(tmp_path, layout={"kind": "folder", "images": "images/{patient}_{id}.png"}, targets=targets)
    found, _ = units(src)
    cases = [next(iter(src.load(u))) for u in found]
    assert [sorted(c.masks) for c in cases] == [["optic disc"], ["exudates", "optic disc"]]


def test_what_does_not_fit_is_reported(folder_data):
    (folder_data / "masks" / "p00_0000_mask.png").unlink()
    cv2.imwrite(str(folder_data / "masks" / "stray.png"), np.zeros((4, 4), np.uint8))
    found, refused = units(source(folder_data))
    assert len(found) == 11
    assert {(r.where, r.reason) for r in refused} == {
        ("images/p00_0000.png", "no file matches masks/p00_0000_mask.png"),
        ("masks/stray.png", "file matches no image, or has none"),
    }


def test_a_mask_of_another_size_is_refused(folder_data):
    cv2.imwrite(str(folder_data / "masks" / "p00_0000_mask.png"), np.zeros((160, 159), np.uint8))
    src = source(folder_data)
    unit = units(src)[0][0]
    with pytest.raises(MieError, match="differ in size") as caught:
        list(src.load(unit))
    assert caught.value.expected == "160x160"
    assert caught.value.found == "159x160"


def test_unexpected_mask_values_name_the_file(folder_data):
    cv2.imwrite(str(folder_data / "masks" / "p00_0000_mask.png"), np.full((160, 160), 9, np.uint8))
    src = source(folder_data)
    with pytest.raises(MieError) as caught:
        list(src.load(units(src)[0][0]))
    assert caught.value.where == "masks/p00_0000_mask.png"


def test_spaces_and_other_scripts_in_names(tmp_path):
    write_folder(tmp_path, 1)
    for kind, suffix in (("images", ""), ("masks", "_mask")):
        old = tmp_path / kind / f"p00_0000{suffix}.png"
        old.rename(old.with_name(f"женщина (1)_глаз 左{suffix}.png"))
    src = source(tmp_path)
    (unit,), refused = units(src)
    assert not refused
    assert unit.patient_id == "discs/женщина (1)"
    assert len(list(src.load(unit))) == 1


def test_the_split_stands_in_the_path(tmp_path):
    for split in ("training", "test"):
        write_folder(tmp_path / split, 2)
    layout = {"kind": "folder", "images": "{split}/images/{id}.png", "masks": "{split}/masks/{id}_mask.png"}
    found, refused = units(source(tmp_path, layout=layout, splits={"training": "train"}))
    assert not refused
    assert sorted(u.split for u in found) == ["test", "test", "train", "train"]


def test_pairs(tmp_path):
    for kind, offset in (("CT", 0), ("MRI", 50)):
        (tmp_path / kind).mkdir()
        for n in range(2):
            cv2.imwrite(str(tmp_path / kind / f"{n}.png"), crop(n + offset))
    (tmp_path / "MRI" / "1.png").unlink()
    layout = {"kind": "paired", "images": "CT/{id}.png", "pair": "MRI/{id}.png"}
    src = source(tmp_path, layout=layout, targets=[])
    found, refused = units(src)
    (case,) = src.load(found[0])
    assert np.array_equal(case.pair, crop(50)[..., ::-1])
    assert [(r.where, r.reason) for r in refused] == [("CT/1.png", "no file matches MRI/1.png")]
