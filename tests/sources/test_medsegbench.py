import numpy as np
import pytest

from mie.errors import ImageError
from mie.records import Refusal
from mie.sources.catalog import Entry
from mie.sources.medsegbench import MedSegBenchSource, NpzArrays
from tests.conftest import crop, ellipse

IMAGES = np.stack([crop(n, 48, 48) for n in range(70)])
LABELS = np.stack([ellipse(n, 48, 48).astype(np.uint8) for n in range(70)])


def source(root, category=None, files="set_{size}.npz"):
    entry = Entry(
        name="set",
        title="set",
        modality="ultrasound",
        anatomy="breast",
        license={"name": "CC0-1.0", "use": "open"},
        layout={"kind": "medsegbench", "files": files, "category": category},
        targets=[{"name": "lesion", "kind": "lesion", "value": 1}],
    )
    return MedSegBenchSource(entry, root)


def cases(src):
    out = []
    for found in src.scan():
        out += [found] if isinstance(found, Refusal) else list(src.load(found))
    return out


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_both_forms_of_npz_follow_their_splits(tmp_path, save):
    save(
        tmp_path / "set_48.npz",
        train_images=IMAGES,
        train_label=LABELS,
        test_images=IMAGES[:2, :, :, 0],
        test_label=LABELS[:2, ..., None],
    )
    found = cases(source(tmp_path))
    assert [c.split for c in found] == ["train"] * 70 + ["test"] * 2
    for n, case in enumerate(found[:70]):
        assert np.array_equal(case.image, IMAGES[n])
        assert np.array_equal(case.masks["lesion"], LABELS[n].astype(bool))
    assert np.array_equal(found[70].image, np.repeat(IMAGES[0, :, :, :1], 3, axis=2))
    assert len({c.case_id for c in found}) == 72


def test_categories_with_and_without_images_of_their_own(tmp_path):
    np.savez(
        tmp_path / "set_48.npz",
        train_images=IMAGES[:3],
        train_label=LABELS[:3],
        train_label_C1=LABELS[3:6],
        test_images_C1=IMAGES[6:8],
        test_label_C1=LABELS[6:8],
    )
    found = cases(source(tmp_path, "C1"))
    assert [c.split for c in found] == ["train"] * 3 + ["test"] * 2
    assert np.array_equal(found[0].masks["lesion"], LABELS[3].astype(bool))
    assert np.array_equal(found[3].image, IMAGES[6])


def test_of_several_sizes_the_largest_is_taken(tmp_path):
    for size in (24, 48):
        np.savez(
            tmp_path / f"set_{size}.npz",
            train_images=IMAGES[:1, :size, :size],
            train_label=LABELS[:1, :size, :size],
        )
    assert [c.image.shape for c in cases(source(tmp_path))] == [(48, 48, 3)]


def test_pickled_arrays_are_never_loaded(tmp_path):
    np.savez(tmp_path / "set_1.npz", train_images=np.array([{"a": 1}], object), train_label=LABELS[:1])
    with pytest.raises(ImageError, match="pickle"):
        NpzArrays(tmp_path / "set_1.npz").shape("train_images")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not really", b"plain text"])
def test_damaged_archives_are_reported(tmp_path, data):
    (tmp_path / "set_1.npz").write_bytes(data)
    (refusal,) = cases(source(tmp_path))
    assert "not a readable .npz" in refusal.reason


def test_a_damaged_member_is_an_image_error(tmp_path):
    path = tmp_path / "set_1.npz"
    np.savez_compressed(path, train_images=IMAGES, train_label=LABELS)
    data = bytearray(path.read_bytes())
    data[2000:2050] = bytes(50)
    path.write_bytes(data)
    with pytest.raises(ImageError):
        NpzArrays(path).rows("train_images", 0, 1)


def test_archives_without_the_arrays_say_what_they_hold(tmp_path):
    np.savez(tmp_path / "set_1.npz", pictures=IMAGES[:1])
    (refusal,) = cases(source(tmp_path))
    assert "train_images" in refusal.reason
    assert "pictures" in refusal.reason


def test_one_bad_label_spares_the_others(tmp_path):
    labels = LABELS[:3].copy()
    labels[1, 0, 0] = 9
    np.savez(tmp_path / "set_48.npz", train_images=IMAGES[:3], train_label=labels)
    found = cases(source(tmp_path))
    assert [isinstance(f, Refusal) for f in found] == [False, True, False]
    assert "9 on 1 px" in found[1].reason
