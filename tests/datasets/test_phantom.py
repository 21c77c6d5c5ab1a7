"""An L that no flip, turn or transpose maps onto itself, through every kind of source and every export."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import cv2
import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from PIL import Image
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.imports import import_dataset
from mie.datasets.recipe import parse_recipe
from tests.images.phantom import l_phantom

L = l_phantom()
REGION = np.asarray(L == 255)
# Values 0..255, so that a window of 0..255 leaves them as they are.
GREY = np.where(REGION, 200, 40).astype(np.uint8) + np.arange(L.shape[1], dtype=np.uint8)[None] // 2


def volume(plane):
    """(X, Y, Z) RAS+ with the plane as the middle one of three axial slices, as a radiologist sees it."""
    stack = np.zeros((plane.shape[1], plane.shape[0], 3), np.int16)
    stack[:, :, 1] = plane.T[::-1, ::-1]
    return stack


def write_png(root):
    cv2.imwrite(str(root / "images.png"), GREY)
    cv2.imwrite(str(root / "masks.png"), REGION.astype(np.uint8))
    return {"kind": "folder", "images": "images.png", "masks": "masks.png"}


def write_npz(root):
    np.savez(root / "x.npz", test_images=GREY[None], test_label=REGION[None].astype(np.uint8))
    return {"kind": "medsegbench", "files": "x.npz"}


def write_nifti(root):
    affine = np.diag([-1.0, 1.0, 1.0, 1.0])  # stored left to right, as most scanners write it
    for name, data in (("images", GREY), ("masks", REGION)):
        stored = volume(data.astype(np.int16))[::-1]
        nib.save(nib.Nifti1Image(stored, affine), root / f"{name}.nii.gz")
    return {"kind": "volume", "images": "images.nii.gz", "masks": "masks.nii.gz", "slices": 1}


def write_nrrd(root):
    for name, data in (("images", GREY), ("masks", REGION)):
        # ITK arrays run z, y, x in LPS+: x to the left and y to the back are the display's own directions.
        stack = np.zeros((3, *data.shape), np.int16)
        stack[1] = data
        sitk.WriteImage(sitk.GetImageFromArray(stack), str(root / f"{name}.nrrd"))
    return {"kind": "volume", "images": "images.nrrd", "masks": "masks.nrrd", "slices": 1}


def write_dicom(root):
    series = generate_uid()
    for z in range(3):
        meta = pydicom.dataset.FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        slice_ = pydicom.Dataset()
        slice_.file_meta = meta
        slice_.SOPClassUID, slice_.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        slice_.SeriesInstanceUID, slice_.Modality = series, "CT"
        slice_.ImageOrientationPatient, slice_.PixelSpacing = [1, 0, 0, 0, 1, 0], [1, 1]
        slice_.ImagePositionPatient, slice_.SliceThickness = [0, 0, z], 1
        slice_.Rows, slice_.Columns = L.shape
        slice_.SamplesPerPixel, slice_.PhotometricInterpretation = 1, "MONOCHROME2"
        slice_.BitsAllocated, slice_.BitsStored, slice_.HighBit, slice_.PixelRepresentation = 16, 16, 15, 1
        slice_.RescaleSlope, slice_.RescaleIntercept = 1, -1000
        values = GREY.astype(np.int16) if z == 1 else np.zeros(L.shape, np.int16)
        slice_.PixelData = (values + 1000).tobytes()
        slice_.save_as(root / f"{'bac'[z]}.dcm", enforce_file_format=True)
    stack = np.zeros((3, *L.shape), np.uint8)
    stack[1] = REGION
    sitk.WriteImage(sitk.GetImageFromArray(stack), str(root / "masks.mha"))
    return {"kind": "dicom", "series": "{instance}.dcm", "masks": "masks.mha", "slices": 1}


def make(root, layout):
    source = {
        "name": "phantom",
        "root": str(root),
        "title": "An L",
        "modality": "CT",
        "anatomy": "none",
        "license": {"name": "CC0-1.0", "use": "open"},
        "window": {"low": 0, "high": 255},
        "split": "test",
        "layout": layout,
        "targets": [{"name": "letter", "kind": "anatomy", "value": 1}],
    }
    config = parse_recipe({"name": "phantom", "sources": [source]}, where="t", base=Path())
    build(config, root / "dataset", workers=1)
    return Dataset(root / "dataset")


def is_phantom(sample):
    return (
        all(np.array_equal(sample.input[..., c], GREY) for c in range(3))
        and np.array_equal(sample.mask > 0, REGION)
        and np.array_equal((sample.target_image != sample.input).any(axis=2), REGION)
    )


@pytest.mark.parametrize("write", [write_png, write_npz, write_nifti, write_nrrd, write_dicom])
def test_every_source_keeps_it_upright(tmp_path, write):
    (tmp_path / "source").mkdir()
    (sample,) = make(tmp_path / "source", write(tmp_path / "source")).samples()
    assert is_phantom(sample)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantom")
    return make(root, write_png(root))


@pytest.mark.parametrize("format", ["miedb", "folder"])
def test_every_import_gives_it_back(dataset, tmp_path, format):
    export(dataset, tmp_path / "out", format)
    import_dataset(tmp_path / "out", tmp_path / "back", format)
    (sample,) = Dataset(tmp_path / "back").samples()
    assert is_phantom(sample)


def test_every_export_keeps_it_upright(dataset, tmp_path):
    (sample,) = dataset.samples()
    for format in ("omnigen2", "webdataset"):
        export(dataset, tmp_path / format, format)
    (lines,) = (tmp_path / "omnigen2").rglob("*.jsonl")
    record = json.loads(lines.read_text())
    assert np.array_equal(np.asarray(Image.open(record["input_images"][0])), sample.input)
    assert np.array_equal(np.asarray(Image.open(record["output_image"])), sample.target_image)
    (path,) = (tmp_path / "webdataset").glob("*.tar")
    with tarfile.open(path) as tar:
        files = {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar.getmembers()}
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(files["input.png"]))), sample.input)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(files["mask.png"]))) > 0, REGION)


def test_a_dataset_says_whether_it_is_deidentified_and_why(tmp_path):
    layout = write_dicom(tmp_path)
    info = make(tmp_path, layout).info
    assert info["deidentified"] is False
    assert info["deidentification"] == {"phantom": "not every file says PatientIdentityRemoved"}
    for path in tmp_path.glob("*.dcm"):
        header = pydicom.dcmread(path)
        header.PatientIdentityRemoved = "YES"
        header.save_as(path)
    shutil.rmtree(tmp_path / "dataset")
    info = make(tmp_path, layout).info
    assert info["deidentified"] is True
