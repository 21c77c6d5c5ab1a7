"""Pairs on disk: what is matched, what is refused at the scan, what a case of a pair carries."""

from __future__ import annotations

from pathlib import Path

import cv2
import nibabel as nib
import numpy as np
import pytest

from mie.errors import MieError
from mie.records import Case, Pairing, Rejection
from mie.sources.catalog import Entry, catalog
from mie.sources.source import open_source
from tests.conftest import crop

BODY = {
    "name": "pairs",
    "title": "Pairs",
    "modality": "CT",
    "anatomy": "abdomen",
    "license": {"name": "CC0-1.0", "use": "open"},
}


def load(entry: Entry, root: Path) -> tuple[list[Case | Rejection], list[Rejection]]:
    source = open_source(entry, root)
    found = list(source.scan())
    units = [u for u in found if not isinstance(u, Rejection)]
    return [c for u in units for c in source.load(u)], [r for r in found if isinstance(r, Rejection)]


def volume(path: Path, data: np.ndarray, spacing=(2.0, 2.0, 3.0), origin=(0.0, 0.0, 0.0)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.diag((*spacing, 1.0))
    affine[:3, 3] = origin
    nib.save(nib.Nifti1Image(data.astype(np.float32), affine), path)


def scan(shape=(40, 48, 6), air=-1000.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    data = np.full(shape, air)
    data[8:32, 10:38] = 50 + rng.normal(0, 20, (24, 28, shape[2]))
    return data


def paired_folder(root: Path) -> Entry:
    for name in ("with", "without"):
        (root / name).mkdir(parents=True)
    for stem in ("1_a", "1_b", "2_a"):
        cv2.imwrite(str(root / f"with/{stem}.png"), crop(1))
    cv2.imwrite(str(root / "without/1.png"), crop(2))
    cv2.imwrite(str(root / "without/3.png"), crop(3))
    layout = {"kind": "paired", "images": "with/{patient}_{metal}.png", "pair": "without/{patient}.png"}
    return Entry(**BODY, layout=layout, pairing={"target": "ct_metal"}, hu_range=(-1000, 400))


def test_several_images_to_one_clean_one_and_halves_that_are_missing(tmp_path) -> None:
    cases, rejections = load(paired_folder(tmp_path), tmp_path)
    assert [c.case_id for c in cases] == ["with/1_a.png", "with/1_b.png"]
    assert cases[0].pairing == Pairing("ct_metal")
    assert cases[0].hu_range == (-1000, 400)
    assert np.array_equal(cases[0].pair, crop(2))
    assert {(r.where, r.reason) for r in rejections} == {
        ("with/2_a.png", "no file matches without/2.png"),
        ("without/3.png", "file matches no image, or has none"),
    }


def test_different_sizes(tmp_path) -> None:
    entry = paired_folder(tmp_path)
    cv2.imwrite(str(tmp_path / "without/1.png"), crop(2)[:-1])
    with pytest.raises(MieError, match="differ in size"):
        load(entry, tmp_path)


def test_a_ct_volume_carries_hounsfield_units_and_square_pixels(tmp_path) -> None:
    volume(tmp_path / "a.nii.gz", scan(), spacing=(2.0, 4.0, 3.0))
    entry = Entry(**BODY, layout={"kind": "volume", "images": "{id}.nii.gz", "slices": 2})
    cases, _ = load(entry, tmp_path)
    assert len(cases) == 2
    for case in cases:
        assert case.units == "HU"
        assert case.values.dtype == np.float32
        assert case.values.shape == case.image.shape[:2] == (96, 40)
        assert case.values.min() == -1000
        assert 0 < np.median(case.values[30:60, 12:28]) < 100


def test_ct_without_air_has_no_units(tmp_path) -> None:
    volume(tmp_path / "a.nii.gz", scan(air=0.0))
    entry = Entry(**BODY, layout={"kind": "volume", "images": "{id}.nii.gz"})
    assert all(c.units is None and c.values is None for c in load(entry, tmp_path)[0])


def test_a_volume_with_one_slice(tmp_path) -> None:
    volume(tmp_path / "a.nii.gz", scan((40, 48, 1)))
    entry = Entry(**BODY, layout={"kind": "volume", "images": "{id}.nii.gz", "slices": 5})
    ((case,), _) = load(entry, tmp_path)
    assert case.case_id == "a.nii.gz#axial-0000"
    assert case.values.shape == (48, 40)


def phases(root: Path, **second) -> Entry:
    volume(root / "sub-1/arterial.nii.gz", scan())
    volume(root / "sub-1/venous.nii.gz", **{"data": scan() + 30, **second})
    volume(root / "sub-2/arterial.nii.gz", scan())
    volume(root / "sub-3/venous.nii.gz", scan())
    layout = {
        "kind": "volume",
        "images": "sub-{patient}/arterial.nii.gz",
        "pair": "sub-{patient}/venous.nii.gz",
    }
    names = {"image": "arterial phase", "pair": "venous phase"}
    return Entry(**BODY, layout=layout, pairing={"target": "ct_phase", "directions": "both", **names})


def test_pairs_of_volumes_share_a_window(tmp_path) -> None:
    cases, rejections = load(phases(tmp_path), tmp_path)
    assert len(cases) == 2
    for case in cases:
        assert case.pairing == Pairing("ct_phase", "arterial phase", "venous phase", None, True)
        # 30 HU in a window of 400 HU are 19 grey levels, where neither is clipped.
        change = case.pair[12:35, 10:30, 0].astype(int) - case.image[12:35, 10:30, 0]
        assert np.median(change) == pytest.approx(30 / 400 * 255, abs=1)
    assert {(r.where, r.reason) for r in rejections} == {
        ("sub-2/arterial.nii.gz", "no file matches sub-2/venous.nii.gz"),
        ("sub-3/venous.nii.gz", "second image without a first"),
    }


def test_a_second_volume_on_another_grid_is_resampled_by_its_header(tmp_path) -> None:
    # One voxel more on every side: the same anatomy at the same place in millimetres.
    wider = np.pad(scan() + 30, 1, constant_values=-970)
    cases, _ = load(phases(tmp_path, data=wider, origin=(-2.0, -2.0, -3.0)), tmp_path)
    (tmp_path / "same").mkdir()
    plain, _ = load(phases(tmp_path / "same"), tmp_path / "same")
    for one, other in zip(cases, plain, strict=True):
        assert np.abs(one.pair.astype(int) - other.pair).max() <= 1
        assert any(step["step"] == "resample" for step in one.pair_steps)


def test_volumes_that_do_not_overlap(tmp_path) -> None:
    with pytest.raises(MieError, match="do not overlap"):
        load(phases(tmp_path, origin=(500.0, 0.0, 0.0)), tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"layout": {"kind": "folder", "images": "{id}.png"}, "pairing": {"target": "ct_mri"}},
            "needs a layout",
        ),
        ({"hu_range": (400, -1000)}, "low < high"),
        ({"pairing": {"target": "ct_mri", "directions": "both"}}, "names its `image`"),
    ],
)
def test_entries_that_make_no_sense(changes, says) -> None:
    layout = {"kind": "paired", "images": "a/{id}.png", "pair": "b/{id}.png"}
    with pytest.raises(ValueError, match=says):
        Entry(**{**BODY, "layout": layout, **changes})


def test_every_pair_of_the_catalogue_leads_to_a_target() -> None:
    from mie.perspectives.transformation.targets import check_pairing

    paired = [e for e in catalog().values() if e.layout.kind == "paired"]
    assert len(paired) >= 9
    for entry in paired:
        assert entry.pairing is not None, entry.name
        check_pairing(entry.pairing.pairing, entry.name)
