"""The volume adapter on small volumes written by the test; masks and slices worked out by hand."""

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ConfigError, ImageError, MieError
from mie.records import Case, Rejection, Target, Unit
from mie.sources.catalog import Entry
from mie.sources.slices import Region, largest_slices, middle_slices
from mie.sources.volumes import VolumeSource

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])
LIVER = {"name": "liver", "kind": "anatomy", "value": 1}
TUMOUR = {"name": "liver tumours", "kind": "lesion", "value": 2, "plural": True}


def entry(
    targets: list[dict[str, Any]] | None = None, layout: dict[str, Any] | None = None, **keys: Any
) -> Entry:
    body: dict[str, Any] = {
        "name": "lits",
        "title": "Livers",
        "modality": "CT",
        "anatomy": "abdomen",
        "license": {"name": "CC0", "use": "open"},
        "targets": [LIVER, TUMOUR] if targets is None else targets,
        "layout": {"kind": "volume", "images": "img/{id}.nii.gz", "masks": "lab/{id}.nii.gz"}
        | (layout or {}),
    }
    return Entry(**(body | keys))


def save(root: Path, name: str, data: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(data, affine), root / name)


def ct() -> np.ndarray:
    return np.random.default_rng(0).integers(-1000, 1000, (20, 16, 12)).astype(np.int16)


def labels() -> np.ndarray:
    """Liver in slices 2 to 9, largest in 4; tumour in 7 (4 voxels) and 8 (2 voxels)."""
    data = np.zeros((20, 16, 12), np.uint8)
    data[10:15, 3:9, 2:10] = 1
    data[15:18, 3:9, 4] = 1
    data[11:13, 4:6, 7] = 2
    data[11:13, 4, 8] = 2
    return data


def load_all(source: VolumeSource) -> list[Case]:
    found: list[Case] = []
    for unit in source.scan():
        assert isinstance(unit, Unit)
        for case in source.load(unit):
            assert isinstance(case, Case)
            found.append(case)
    return found


def test_label_map_to_slices(tmp_path: Path) -> None:
    save(tmp_path, "img/p01.nii.gz", ct())
    save(tmp_path, "lab/p01.nii.gz", labels())
    source = VolumeSource(entry(layout={"slices": 1}, patient=r"p(\d+)"), tmp_path)
    (unit,) = source.scan()
    assert unit == Unit(
        "img/p01.nii.gz",
        {"image": ("img/p01.nii.gz",), "masks": ("lab/p01.nii.gz",)},
        patient_id="lits/01",
        split=None,
    )
    first, second = load_all(source)
    assert [first.case_id, second.case_id] == ["img/p01.nii.gz#axial-0004", "img/p01.nii.gz#axial-0007"]
    assert list(first.masks) == ["liver"]  # no tumour in slice 4
    assert list(second.masks) == ["liver", "liver tumours"]
    assert first.targets["liver tumours"] == Target("liver tumours", "lesion", True)
    assert (first.source, first.modality, first.anatomy, first.license) == ("lits", "CT", "abdomen", "CC0")
    assert first.spacing == (1.0, 1.0)
    # Axial: rows to posterior, columns to the patient's left.
    for case, index in ((first, 4), (second, 7)):
        expected = labels()[:, :, index].T[::-1, ::-1]
        np.testing.assert_array_equal(case.masks["liver"], expected == 1)
        grey = np.clip((ct()[:, :, index].T[::-1, ::-1] + 160) / 400, 0, 1) * 255
        assert case.image.dtype == np.uint8
        np.testing.assert_allclose(case.image[..., 0], grey, atol=0.51)
        np.testing.assert_array_equal(case.image[..., 0], case.image[..., 2])
    np.testing.assert_array_equal(second.masks["liver tumours"], labels()[:, :, 7].T[::-1, ::-1] == 2)


def test_steps_say_what_was_done(tmp_path: Path) -> None:
    turned = nib.Nifti1Image(ct()[::-1], AFFINE @ np.array(
        [[-1, 0, 0, 19], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))  # fmt: skip
    save(tmp_path, "lab/a.nii.gz", labels())
    (tmp_path / "img").mkdir()
    nib.save(turned, tmp_path / "img/a.nii.gz")
    case = load_all(VolumeSource(entry(layout={"planes": ["coronal"], "slices": 1}), tmp_path))[0]
    orientation, window, cut, square = case.steps
    assert orientation == {"step": "orientation", "found": "LAS", "to": "RAS"}
    assert (window["step"], window["low"], window["high"]) == ("window", -160, 240)
    assert cut == {"step": "slice", "plane": "coronal", "index": 3}
    assert square == {"step": "square pixels", "found": [2.0, 1.0], "to": [1.0, 1.0]}
    assert case.spacing == (1.0, 1.0)
    assert case.image.shape == (24, 20, 3)
    expected = np.repeat(labels()[:, 3, :].T[::-1, ::-1] == 1, 2, axis=0)
    np.testing.assert_array_equal(case.masks["liver"], expected)


def test_all_planes(tmp_path: Path) -> None:
    save(tmp_path, "img/a.nii.gz", ct())
    save(tmp_path, "lab/a.nii.gz", labels())
    layout = {"planes": ["axial", "coronal", "sagittal"], "slices": 2, "gap": 4}
    source = VolumeSource(entry(layout=layout), tmp_path)
    found = [case.case_id.partition("#")[2] for case in load_all(source)]
    # Axial: liver 4, then 2 (30 voxels, 4 mm away); tumour 7, and 8 is only 2 mm from 7.
    assert found[:3] == ["axial-0002", "axial-0004", "axial-0007"]
    # Coronal: liver 3 (43 voxels), then 7 at 4 mm; tumour 4, and 5 is too near.
    assert found[3:6] == ["coronal-0003", "coronal-0004", "coronal-0007"]
    # Sagittal: liver 10 (48 voxels), then 14; tumour 11, and 12 is too near.
    assert found[6:] == ["sagittal-0010", "sagittal-0011", "sagittal-0014"]


def test_own_mask_files_other_formats_and_other_axis_order(tmp_path: Path) -> None:
    save(tmp_path, "s1/ct.nii.gz", ct())
    image = sitk.GetImageFromArray((labels() == 1).astype(np.uint8).T)
    image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
    image.SetSpacing((1, 1, 2))
    (tmp_path / "s1/seg").mkdir()
    sitk.WriteImage(sitk.DICOMOrient(image, "SPL"), str(tmp_path / "s1/seg/liver.nrrd"))
    save(tmp_path, "s1/seg/t1.nii", (labels() == 2) * (np.arange(12) == 7) * np.uint8(255))
    save(tmp_path, "s1/seg/t2.nii", (labels() == 2) * (np.arange(12) == 8) * np.uint8(255))
    targets = [
        {"name": "liver", "kind": "anatomy", "nonzero": True, "masks": "{patient}/seg/liver.nrrd"},
        {"name": "tumour", "kind": "lesion", "above": 127, "masks": "{patient}/seg/t*.nii"},
        {"name": "spleen", "kind": "anatomy", "value": 1, "masks": "{patient}/seg/spleen.nii"},
    ]
    layout = {"images": "{patient}/ct.nii.gz", "masks": None, "slices": 12, "gap": 0}
    source = VolumeSource(entry(targets, layout, cohort="livers"), tmp_path)
    (unit,) = source.scan()
    assert isinstance(unit, Unit)
    assert unit.patient_id == "livers/s1"
    assert unit.files["mask:tumour"] == ("s1/seg/t1.nii", "s1/seg/t2.nii")
    assert "mask:spleen" not in unit.files
    cases = {case.case_id[-4:]: case for case in load_all(source)}
    for index in range(2, 10):
        expected = labels()[:, :, index].T[::-1, ::-1]
        case = cases[f"{index:04d}"]
        np.testing.assert_array_equal(case.masks["liver"], expected == 1)
        np.testing.assert_array_equal(case.masks.get("tumour", np.zeros((16, 20))), expected == 2)


def test_scan_reports_what_fits_nothing(tmp_path: Path) -> None:
    for name in ("img/a.nii.gz", "img/lonely.nii.gz", "lab/a.nii.gz", "lab/orphan.nii.gz"):
        save(tmp_path, name, labels())
    found = list(VolumeSource(entry(), tmp_path).scan())
    assert [getattr(f, "key", None) or f.where for f in found] == [
        "img/a.nii.gz",
        "img/lonely.nii.gz",
        "lab/orphan.nii.gz",
    ]
    lonely, orphan = found[1:]
    assert isinstance(lonely, Rejection)
    assert (lonely.gate, orphan.gate) == ("source", "source")
    assert "without a mask" in lonely.reason
    assert orphan.reason == "mask without an image"


def test_images_and_masks_side_by_side(tmp_path: Path) -> None:
    for name in ("a.nii", "a_seg.nii", "a_b.nii", "a_b_seg.nii", "c.nii"):
        save(tmp_path, name, labels())
    layout = {"images": "{id}.nii", "masks": "{id}_seg.nii"}
    found = list(VolumeSource(entry(layout=layout), tmp_path).scan())
    pairs = {u.key: u.files["masks"] for u in found if isinstance(u, Unit)}
    assert pairs == {"a.nii": ("a_seg.nii",), "a_b.nii": ("a_b_seg.nii",)}
    assert [f.where for f in found if isinstance(f, Rejection)] == ["c.nii"]


def test_mask_names_that_a_pattern_alone_would_cut_elsewhere(tmp_path: Path) -> None:
    for name in ("img/a_b.nii.gz", "lab/a_b_left_part.nii.gz"):
        save(tmp_path, name, labels())
    source = VolumeSource(entry(layout={"masks": "lab/{id}_{part}.nii.gz"}), tmp_path)
    (unit,) = source.scan()
    assert isinstance(unit, Unit)
    assert unit.files["masks"] == ("lab/a_b_left_part.nii.gz",)


def test_splits(tmp_path: Path) -> None:
    for split in ("train", "Ts", "odd"):
        save(tmp_path, f"{split}/img.nii", labels())
        save(tmp_path, f"{split}/lab.nii", labels())
    layout = {"images": "{split}/img.nii", "masks": "{split}/lab.nii"}
    found = list(VolumeSource(entry(layout=layout, splits={"Ts": "test"}, split="val"), tmp_path).scan())
    assert {u.key: u.split for u in found if isinstance(u, Unit)} == {
        "train/img.nii": "train",
        "Ts/img.nii": "test",
    }
    (refused,) = (f for f in found if isinstance(f, Rejection))
    assert "unknown split 'odd'" in refused.reason
    save(tmp_path, "img/x.nii.gz", ct())
    save(tmp_path, "lab/x.nii.gz", labels())
    (unit,) = VolumeSource(entry(split="val"), tmp_path).scan()
    assert isinstance(unit, Unit)
    assert unit.split == "val"


def test_volume_without_masks_gives_its_middle(tmp_path: Path) -> None:
    save(tmp_path, "img/a.nii.gz", ct())
    source = VolumeSource(entry([], {"masks": None, "slices": 3}), tmp_path)
    cases = load_all(source)
    assert [case.case_id[-4:] for case in cases] == ["0004", "0006", "0007"]
    assert all(not case.masks for case in cases)


def test_empty_masks_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "img/a.nii.gz", ct())
    save(tmp_path, "lab/a.nii.gz", np.zeros_like(labels()))
    source = VolumeSource(entry(), tmp_path)
    (unit,) = source.scan()
    assert isinstance(unit, Unit)
    (rejection,) = source.load(unit)
    assert isinstance(rejection, Rejection)
    assert (rejection.where, rejection.gate) == ("img/a.nii.gz", "source")


# --- windows -----------------------------------------------------------------------------------------------


def window_of(root: Path, data: np.ndarray, **keys: Any) -> dict[str, Any]:
    save(root, "img/a.nii.gz", data)
    case = load_all(VolumeSource(entry([], {"masks": None, "slices": 1}, **keys), root))[0]
    (step,) = (step for step in case.steps if step["step"] == "window")
    return dict(step)


def test_window_given_by_the_entry(tmp_path: Path) -> None:
    step = window_of(tmp_path, ct(), window={"low": -1000, "high": 400})
    assert (step["low"], step["high"]) == (-1000, 400)
    step = window_of(tmp_path, ct(), window={"percentiles": [10, 80]})
    assert (step["low"], step["high"]) == pytest.approx(tuple(np.percentile(ct(), [10, 80])))


def test_default_windows(tmp_path: Path) -> None:
    step = window_of(tmp_path, ct())
    assert step == {"step": "window", "low": -160, "high": 240, "from": "soft tissue"}
    positive = ct() // 2 + 600  # no air: not Hounsfield units
    step = window_of(tmp_path, positive)
    assert (step["low"], step["high"]) == pytest.approx(tuple(np.percentile(positive, [0.5, 99.5])))
    head = np.maximum(ct(), 0)
    step = window_of(tmp_path, head, modality="MRI")
    assert (step["low"], step["high"]) == pytest.approx(tuple(np.percentile(head[head > 0], [0.5, 99.5])))
    with pytest.raises(ImageError, match="one value only"):
        window_of(tmp_path, np.full((5, 5, 5), 7, np.int16), modality="MRI")


# --- bad masks ---------------------------------------------------------------------------------------------


def load_one(root: Path, mask: np.ndarray, affine: np.ndarray = AFFINE, **keys: Any) -> list[Case]:
    save(root, "img/a.nii.gz", ct())
    save(root, "lab/a.nii.gz", mask, affine)
    return load_all(VolumeSource(entry(**keys), root))


def test_a_mask_of_the_same_shape_at_another_place_is_refused(tmp_path: Path) -> None:
    shifted = AFFINE.copy()
    shifted[0, 3] = 3
    with pytest.raises(MieError, match=r"(?s)do not lie on each other.*positions differ by up to 3 mm"):
        load_one(tmp_path, labels(), shifted)
    with pytest.raises(MieError, match=r"(?s)do not lie on each other.*spacings differ"):
        load_one(tmp_path, labels(), np.diag([1.0, 1.0, 2.5, 1.0]))


def test_a_mask_on_another_grid_is_resampled_by_its_header(tmp_path: Path) -> None:
    plain = load_one(tmp_path, labels())
    # The same region cut out, with its place in the header; and each voxel split in two along x.
    marked = [np.flatnonzero((labels() > 0).any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    low, high = [int(one[0]) for one in marked], [int(one[-1]) + 1 for one in marked]
    cut = labels()[tuple(map(slice, low, high))]
    moved = AFFINE.copy()
    moved[:3, 3] = (AFFINE @ [*low, 1])[:3]
    fine = moved @ np.diag([0.5, 1, 1, 1])
    fine[:3, 3] -= moved[:3, 0] / 4
    for mask, affine in ((cut, moved), (np.repeat(cut, 2, axis=0), fine)):
        cases = load_one(tmp_path, mask, affine)
        assert [case.case_id for case in cases] == [case.case_id for case in plain]
        for case, other in zip(cases, plain, strict=True):
            assert case.masks.keys() == other.masks.keys()
            assert all((case.masks[name] == other.masks[name]).all() for name in case.masks)
            steps = [step for step in case.steps if step["step"] == "resample mask"]
            assert {step["target"] for step in steps} == case.masks.keys()
            assert all(step["ml"][0] == pytest.approx(step["ml"][1]) for step in steps)
            assert "shapes differ" in steps[0]["reason"]


def test_a_mask_that_lies_elsewhere_or_is_lost_is_refused(tmp_path: Path) -> None:
    away = AFFINE.copy()
    away[0, 3] = 500
    with pytest.raises(MieError, match=r"(?s)do not lie on each other.*100% of '.*' lies outside"):
        load_one(tmp_path, labels()[:, :, :11], away)
    speck = np.zeros((200, 16, 12), np.uint8)
    speck[100, 8, 6] = 1  # a tenth of a voxel wide, between two centres
    fine = AFFINE @ np.diag([0.1, 1, 1, 1])
    fine[:3, 3] -= AFFINE[:3, 0] * 0.45
    with pytest.raises(MieError, match="lost on the image's grid"):
        load_one(tmp_path, speck, fine)


def test_one_volume_of_four_axes(tmp_path: Path) -> None:
    save(tmp_path, "img/a.nii.gz", np.stack([ct() + 40, ct(), ct() - 40], axis=3))
    save(tmp_path, "lab/a.nii.gz", labels())
    with pytest.raises(ImageError, match="not one volume"):
        load_all(VolumeSource(entry(), tmp_path))
    with pytest.raises(ImageError, match="not one volume"):
        load_all(VolumeSource(entry(layout={"channel": 3}), tmp_path))
    chosen = load_all(VolumeSource(entry(layout={"channel": 1}), tmp_path))
    assert {"step": "channel", "found": 3, "to": 1} in chosen[0].steps
    plain = load_one(tmp_path, labels())
    assert all((one.image == other.image).all() for one, other in zip(chosen, plain, strict=True))
    assert "channel" not in entry().layout.model_dump()


def test_unexpected_label_values(tmp_path: Path) -> None:
    strange = labels()
    strange[0, 0, :3] = 7
    strange[0, 1, 0] = 9
    with pytest.raises(MieError) as error:
        load_one(tmp_path, strange)
    assert error.value.found == "7 on 3 px, 9 on 1 px"
    assert error.value.expected == "0, 1, 2"
    assert load_one(tmp_path, strange, ignore=(7, 9))
    wide = strange.astype(np.int32)
    wide[0, 2, 0] = -4
    with pytest.raises(MieError) as error:
        load_one(tmp_path, wide, ignore=(7, 9))
    assert error.value.found == "-4 on 1 px"


def test_fractions_are_no_labels_but_may_be_thresholded(tmp_path: Path) -> None:
    soft = labels().astype(np.float32) * 0.7
    with pytest.raises(ImageError, match="no labels"):
        load_one(tmp_path, soft)
    above = [{"name": "tumour", "kind": "lesion", "above": 1}]
    cases = load_one(tmp_path, soft, targets=above, layout={"slices": 1})
    np.testing.assert_array_equal(cases[0].masks["tumour"], labels()[:, :, 7].T[::-1, ::-1] == 2)
    below = [{"name": "air", "kind": "anatomy", "below": 1}]
    cases = load_one(tmp_path, labels(), targets=below, layout={"slices": 1})
    np.testing.assert_array_equal(cases[0].masks["air"], labels()[:, :, 0].T[::-1, ::-1] == 0)


def test_several_values_of_one_target(tmp_path: Path) -> None:
    both = [{"name": "liver", "kind": "anatomy", "value": (1, 2)}]
    cases = load_one(tmp_path, labels(), targets=both, layout={"slices": 12, "gap": 0})
    seven = next(case for case in cases if case.case_id.endswith("0007"))
    np.testing.assert_array_equal(seven.masks["liver"], labels()[:, :, 7].T[::-1, ::-1] > 0)


def test_colours_make_no_sense_in_a_volume(tmp_path: Path) -> None:
    red = [{"name": "liver", "kind": "anatomy", "colour": (255, 0, 0)}]
    with pytest.raises(ConfigError, match="no colours"):
        load_one(tmp_path, labels(), targets=red)


def test_link_out_of_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    save(root, "lab/a.nii.gz", labels())
    save(tmp_path, "elsewhere.nii.gz", ct())
    (root / "img").mkdir()
    (root / "img/a.nii.gz").symlink_to(tmp_path / "elsewhere.nii.gz")
    with pytest.raises(MieError, match="leaves its data set"):
        load_all(VolumeSource(entry(), root))


# --- slice choice ------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.floats(0.3, 6),
    st.integers(1, 8),
    st.floats(0, 20),
)
def test_largest_slices(areas: list[int], thickness: float, most: int, gap: float) -> None:
    chosen = largest_slices(np.array(areas), thickness, most, gap)
    assert len(chosen) <= most
    assert all(areas[index] > 0 for index in chosen)
    assert (not any(areas)) or areas[chosen[0]] == max(areas)
    apart = [abs(a - b) * thickness for a in chosen for b in chosen if a != b]
    assert all(mm >= gap - 1e-4 for mm in apart)
    # Greedy: what was left out is smaller than the last one chosen, or too near to a larger one.
    for index, area in enumerate(areas):
        if area and index not in chosen and len(chosen) < most:
            assert any(abs(index - c) * thickness < gap and areas[c] >= area for c in chosen)


def test_middle_slices() -> None:
    assert middle_slices(101, 1) == [50]
    assert middle_slices(1, 3) == [0]
    assert middle_slices(40, 3) == [15, 20, 25]


@given(st.integers(0, 2**32 - 1))
def test_region_is_the_mask(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.random((4, 5, 6)) < share for share in (0.05, 0.03))
    ra, rb = Region.of(a), Region.of(b)
    assert (ra is None) == (not a.any())
    if ra is None or rb is None:
        return
    both = ra | rb
    np.testing.assert_array_equal(both.areas("axial"), (a | b).sum(axis=(0, 1)))
    np.testing.assert_array_equal(both.areas("coronal"), (a | b).sum(axis=(0, 2)))
    np.testing.assert_array_equal(both.areas("sagittal"), (a | b).sum(axis=(1, 2)))
    for index in range(6):
        shown = both.slice("axial", index)
        expected = (a | b)[::-1, ::-1, index].T
        assert (shown is None) == (not expected.any())
        if shown is not None:
            np.testing.assert_array_equal(shown, expected)
