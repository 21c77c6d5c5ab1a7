"""Patient sides, slice and scale, measured on volumes whose anatomy is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe
from mie.review.service import open_review
from mie.review.views import geometry
from tests.review.conftest import Review

LIVER_MM = 60.0  # from side to side
AFFINE = np.diag([-1.5, -1.5, 3.0, 1.0])  # stored from right to left and front to back, as scanners do


def volume(folder: Path, *, states_orientation: bool) -> dict[str, Any]:
    """A body with a liver on the patient's right, and the recipe's entry for it."""
    image = np.full((160, 120, 8), -1000, np.int16)
    image[20:140, 20:100] = 40
    label = np.zeros(image.shape, np.uint8)
    label[30:70, 40:80, 2:6] = 1  # the first columns are the patient's right, because x runs to the left
    label[30:70, 40:81, 5] = 1  # the largest slice
    image[label == 1] = 110
    for name, data in (("img/p1.nii.gz", image), ("lab/p1.nii.gz", label)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        file = nib.Nifti1Image(data, AFFINE)
        if not states_orientation:
            file.set_sform(None, 0)
            file.set_qform(None, 0)
            file.header.set_zooms((1.5, 1.5, 3.0))
        nib.save(file, folder / name)
    return {
        "name": "livers",
        "root": str(folder),
        "title": "Livers",
        "modality": "CT",
        "anatomy": "abdomen",
        "license": {"name": "CC0-1.0", "use": "open"},
        "layout": {"kind": "volume", "images": "img/{id}.nii.gz", "masks": "lab/{id}.nii.gz", "slices": 1},
        "targets": [{"name": "liver", "kind": "anatomy", "value": 1}],
    }


@pytest.mark.parametrize("test_share", [0.0, 1.0])  # resized to a bin, and kept at its original size
@pytest.mark.parametrize("states_orientation", [True, False])
def test_the_page_is_told_what_the_volume_knows(tmp_path, test_share, states_orientation):
    entry = volume(tmp_path / "livers", states_orientation=states_orientation)
    body = {"name": "livers", "seed": 1, "split": {"test": test_share}, "sources": [entry]}
    build(parse_recipe(body, where="t", base=Path()), tmp_path / "dataset", workers=1)
    (sample,) = Dataset(tmp_path / "dataset").samples()
    service = open_review([tmp_path / "dataset"], kinds=["inspect"], db=str(tmp_path / "r.sqlite"))
    (item,) = Review(service).person("Ada").take("inspect")
    service.database.close()
    found = item["geometry"]
    assert found["slice"] == "axial slice 5"
    columns = np.nonzero(sample.mask.any(axis=0))[0]
    width = columns[-1] + 1 - columns[0]
    assert width * found["mm_per_pixel"] == pytest.approx(LIVER_MM, abs=2 * found["mm_per_pixel"])
    if states_orientation:  # the liver lies on the patient's right
        is_left = columns.mean() < sample.mask.shape[1] / 2
        assert found["left" if is_left else "right"] == "R"
        assert found["right" if is_left else "left"] == "L"
    else:  # assumed, so nothing is claimed
        assert (found["left"], found["right"]) == (None, None)


ORIENTED = {"step": "orientation", "found": "LPS", "to": "RAS"}


@pytest.mark.parametrize(
    ("plane", "sides"), [("axial", ("R", "L")), ("coronal", ("R", "L")), ("sagittal", ("A", "P"))]
)
def test_sides_of_each_plane(plane, sides):
    steps = [ORIENTED, {"step": "slice", "plane": plane, "index": 0}]
    found = geometry({"image_steps": steps}, 256)
    assert (found["left"], found["right"]) == sides
    assert found["slice"] == f"{plane} slice 0"
    assert found["mm_per_pixel"] is None


def test_the_scale_is_that_of_the_stored_size():
    params = {"spacing": [2.0, 0.5], "original_size": [100, 400]}
    assert geometry(params, 400)["mm_per_pixel"] == 0.5
    assert geometry(params, 100)["mm_per_pixel"] == 2.0
    # The spacing of an MR image that was reduced to its acquired size is that of the reduced one.
    acquired = {**params, "image_steps": [{"step": "acquired size", "height": 50, "width": 200}]}
    assert geometry(acquired, 400)["mm_per_pixel"] == 0.25


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"spacing": None, "original_size": [4, 4], "image_steps": []},
        {"image_steps": [{"step": "orientation", "exif": 6}]},  # a camera's, not a patient's
        {"spacing": "?", "original_size": 3, "image_steps": ["x"]},  # another program's
        {"spacing": [1, float("nan")], "original_size": [4, 4]},
    ],
)
def test_nothing_is_shown_where_nothing_is_known(params):
    assert geometry(params, 4) is None
