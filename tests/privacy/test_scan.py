"""`mie privacy` on folders: what it looks at, what it finds, and what it says it has not looked at."""

import json

import nibabel as nib
import numpy as np
import pydicom
import pytest
from PIL import Image, ImageDraw, ImageFont
from pydicom.data import get_testdata_file
from pydicom.uid import generate_uid
from skimage import data
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import MieError
from mie.privacy import Gate, Policy
from mie.privacy.scan import scan_files
from tests.privacy.heads import head


def scanned(folder):
    return scan_files(folder, Gate(Policy(), "nowhere"), lambda *_: None)


def kinds(scan):
    return {(finding.where, finding.kind) for finding in scan.findings}


def invoke(*words):
    return CliRunner().invoke(app, ["privacy", *map(str, words)])


def test_a_folder_is_searched(tmp_path):
    clean = Image.fromarray(data.retina()[400:620, 400:620])
    clean.save(tmp_path / "plain.png")
    ImageDraw.Draw(clean).text((10, 8), "SMITH^JOHN", "white", ImageFont.load_default(20))
    clean.save(tmp_path / "Smith_John.png")
    (tmp_path / "notes.csv").write_text("a,b")
    scan = scanned(tmp_path)
    assert (scan.images, scan.volumes, dict(scan.skipped)) == (2, 0, {".csv": 1})
    assert kinds(scan) == {("Smith_John.png", "name"), ("Smith_John.png", "text")}
    done = invoke(tmp_path)
    assert done.exit_code == 3
    assert "in 2 images" in done.output
    assert "not looked at: 1 .csv" in done.output
    assert json.loads(invoke(tmp_path, "--json").stdout)["not_looked_at"] == {".csv": 1}


@pytest.mark.parametrize("name", ["notes.csv", None])
def test_a_folder_with_nothing_to_look_at_is_an_error(tmp_path, name):
    if name is not None:
        (tmp_path / name).write_text("a,b")
    done = invoke(tmp_path)
    assert done.exit_code not in (0, 3)
    assert isinstance(done.exception, MieError) or "nothing to look at" in done.output
    assert "nothing found" not in done.output


def test_dicom_files_by_content_and_attributes(tmp_path):
    dataset = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    dataset.save_as(tmp_path / "IM0001")  # as scanners name them
    scan = scanned(tmp_path)
    assert scan.images == 1
    reasons = [finding.reason for finding in scan.findings]
    assert "the attribute PatientName has content" in reasons
    assert any("StudyDate" in reason or "AcquisitionDate" in reason for reason in reasons)
    assert kinds(scan) == {("IM0001", "dicom"), ("IM0001", "profile")}


def test_a_series_of_a_head(tmp_path):
    values = head()[::2, ::2, ::4]  # 4 mm, slices of 8 mm
    dataset = pydicom.dcmread(get_testdata_file("MR_small.dcm"))
    for keyword in ("SmallestImagePixelValue", "LargestImagePixelValue"):
        if keyword in dataset:
            delattr(dataset, keyword)
    dataset.Rows, dataset.Columns = values.shape[1], values.shape[0]
    dataset.PixelSpacing, dataset.ImageOrientationPatient = [4, 4], [1, 0, 0, 0, 1, 0]
    dataset.SeriesInstanceUID = generate_uid()
    for index in range(values.shape[2]):
        dataset.SOPInstanceUID = generate_uid()
        dataset.ImagePositionPatient = [0, 0, 8 * index]
        dataset.PixelData = values[::-1, ::-1, index].T.astype(np.int16).tobytes()  # to LPS
        dataset.save_as(tmp_path / f"{index:03}.dcm")
    scan = scanned(tmp_path)
    assert (scan.images, scan.volumes) == (values.shape[2], 1)
    assert (".", "face") in kinds(scan)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.nrrd", b"NRRD0004\ntype: uchar\ndimension: 3\nsizes: 4 4 4\nencoding: raw\n%s\n\n"),
        ("a.mha", b"NDims = 3\n%s\nDimSize = 4 4 4\nElementType = MET_UCHAR\nElementDataFile = LOCAL\n"),
    ],
)
def test_texts_in_volume_headers(tmp_path, name, header):
    line = b"PatientName:=Anybody" if name.endswith("nrrd") else b"PatientName = Anybody"
    plain = b"content: a scan" if name.endswith("nrrd") else b"Modality = MET_MOD_CT"
    voxels = bytes(range(64))
    (tmp_path / name).write_bytes(header % line + voxels)
    assert (name, "header") in kinds(scanned(tmp_path))
    (tmp_path / name).write_bytes(header % plain + voxels)
    assert (name, "header") not in kinds(scanned(tmp_path))


def test_a_copy_of_dicom_attributes_in_a_nifti_file(tmp_path):
    image = nib.Nifti1Image(np.arange(64, dtype=np.int16).reshape(4, 4, 4), np.eye(4))
    nib.save(image, tmp_path / "plain.nii")
    attributes = pydicom.dcmread(get_testdata_file("CT_small.dcm"), stop_before_pixels=True)
    image.header.extensions.append(nib.nifti1.Nifti1DicomExtension(2, attributes))
    nib.save(image, tmp_path / "copy.nii.gz")
    (tmp_path / "broken.nii").write_bytes(b"no volume")
    assert kinds(scanned(tmp_path)) == {("copy.nii.gz", "header"), ("broken.nii", "unread")}
