import zipfile

import numpy as np
import pytest

from mie.errors import ImageError
from mie.records import Rejection
from mie.sources.catalog import Entry
from mie.sources.medsegbench import MedSegBenchSource, NpzArrays, _open
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
        out += [found] if isinstance(found, Rejection) else list(src.load(found))
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
    (rejection,) = cases(source(tmp_path))
    assert "npz file cannot be decoded" in rejection.reason


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
    (rejection,) = cases(source(tmp_path))
    assert "train_images" in rejection.reason
    assert "pictures" in rejection.reason


def test_one_bad_label_spares_the_others(tmp_path):
    labels = LABELS[:3].copy()
    labels[1, 0, 0] = 9
    np.savez(tmp_path / "set_48.npz", train_images=IMAGES[:3], train_label=labels)
    found = cases(source(tmp_path))
    assert [isinstance(f, Rejection) for f in found] == [False, True, False]
    assert "9 on 1 px" in found[1].reason


def npy(shape, body=b"", kind="|u1"):
    """An array file with any header, and whatever follows it."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n" + body


def archive(path, images, labels, *, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("train_images.npy", images)
        file.writestr("train_label.npy", labels)


@pytest.mark.parametrize(
    ("images", "labels", "word"),
    [
        (npy((10**12, 8, 8)), npy((10**12, 8, 8)), "too large"),
        (npy((10**12, 0, 0)), npy((10**12, 0, 0)), "not a stack"),
        (npy((10**6, 8, 8)), npy((10**6, 8, 8)), "promises"),
        (npy(()), npy(()), "not a stack"),
        (npy((-3, 8, 8)), npy((-3, 8, 8)), "not a stack"),
        (npy((1, 60_000, 60_000)), npy((1, 60_000, 60_000)), "too large to decode"),
        (npy((2, 8, 8), bytes(128)), npy((1, 8, 8), bytes(64)), "2 images and 1 labels"),
        (npy((2, 8, 8), bytes(128), "<U4"), npy((2, 8, 8), bytes(128)), "not a stack"),
        (
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1000),
            npy((1, 8, 8), bytes(64)),
            "damaged array header",
        ),
    ],
)
def test_headers_that_promise_what_is_not_there(tmp_path, images, labels, word):
    archive(tmp_path / "set_1.npz", images, labels)
    (rejection,) = cases(source(tmp_path))
    assert word in rejection.reason


def test_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("mie.sources.medsegbench._UNPACKED", 2**20)
    monkeypatch.setattr("mie.sources.medsegbench.tempfile.TemporaryFile", lambda **_: pytest.fail("unpacked"))
    stack = npy((64, 256, 256), bytes(64 * 256 * 256))
    archive(tmp_path / "set_1.npz", stack, stack)
    (rejection,) = cases(source(tmp_path))
    assert "grows too much" in rejection.reason


def test_an_array_longer_or_shorter_than_its_header_says(tmp_path):
    for body in (bytes(200), bytes(100)):
        archive(tmp_path / "set_1.npz", npy((2, 8, 8), body), npy((2, 8, 8), body))
        with pytest.raises(ImageError, match="not as long"):
            cases(source(tmp_path))
        _open.cache_clear()
    archive(tmp_path / "set_1.npz", npy((9, 9, 9)), npy((9, 9, 9)), compression=zipfile.ZIP_STORED)
    (rejection,) = cases(source(tmp_path))
    assert "cut short" in rejection.reason


def test_an_encrypted_member_is_refused(tmp_path):
    archive(tmp_path / "set_1.npz", npy((1, 8, 8), bytes(64)), npy((1, 8, 8), bytes(64)))
    data = bytearray((tmp_path / "set_1.npz").read_bytes())
    at = -1
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:  # flags in the central directory
        data[at + 8] |= 1
    at = -1
    while (at := data.find(b"PK\x03\x04", at + 1)) >= 0:
        data[at + 6] |= 1
    (tmp_path / "set_1.npz").write_bytes(data)
    (rejection,) = cases(source(tmp_path))
    assert "encrypted" in rejection.reason
