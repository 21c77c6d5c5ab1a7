"""The DICOM adapter on a series written with pydicom, with DICOM-SEG objects and label volumes as masks."""

from pathlib import Path
from typing import Any

import highdicom as hd
import nibabel as nib
import numpy as np
import pydicom
import pytest
from pydicom.sr.codedict import codes
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from mie.errors import MieError
from mie.records import Case, Rejection, Unit
from mie.sources.catalog import Entry
from mie.sources.volumes import DicomSource

TUMOUR = {"name": "tumour", "kind": "lesion", "value": 1}
LIVER = {"name": "liver", "kind": "anatomy", "value": 2}


def entry(targets: list[dict[str, Any]], masks: str | None = None, **keys: Any) -> Entry:
    layout = {"kind": "dicom", "series": "{patient}/{series}/{instance}.dcm", "masks": masks, "slices": 1}
    body: dict[str, Any] = {
        "name": "d",
        "title": "D",
        "modality": "CT",
        "anatomy": "abdomen",
        "license": {"name": "CC0", "use": "open"},
        "targets": targets,
        "layout": layout | keys.pop("layout", {}),
    }
    return Entry(**(body | keys))


def stack() -> np.ndarray:
    """(slices, rows, columns), LPS: air with a block of liver and a smaller bright tumour."""
    data = np.full((6, 9, 12), -1000, np.int16)
    data[1:5, 2:7, 3:9] = 60
    data[3, 3:5, 4:7] = 150
    data[4, 3, 4:6] = 150
    return data


def write_series(folder: Path) -> list[pydicom.Dataset]:
    """The series, file names against the order of positions; datasets come back from low to high."""
    folder.mkdir(parents=True)
    series, frame, study = generate_uid(), generate_uid(), generate_uid()
    written = []
    for index, pixels in enumerate(stack()):
        ds = pydicom.Dataset()
        ds.file_meta = pydicom.dataset.FileMetaDataset()
        ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        ds.SOPClassUID, ds.SOPInstanceUID = CTImageStorage, generate_uid()
        ds.PatientID, ds.PatientName, ds.PatientBirthDate, ds.PatientSex = "p", "Test^P", "", ""
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.FrameOfReferenceUID = study, series, frame
        ds.StudyID, ds.StudyDate, ds.StudyTime, ds.AccessionNumber = "1", "20200101", "000000", ""
        ds.ReferringPhysicianName, ds.PositionReferenceIndicator, ds.Manufacturer = "", "", ""
        ds.Modality, ds.SeriesNumber, ds.InstanceNumber = "CT", 1, 6 - index
        ds.ImageOrientationPatient, ds.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [-5, 10, 3 * index]
        ds.PixelSpacing, ds.SliceThickness = [1.5, 1.5], 3
        ds.Rows, ds.Columns = pixels.shape
        ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
        ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 16, 15, 1
        ds.RescaleSlope, ds.RescaleIntercept = 1, 0
        ds.PixelData = pixels.tobytes()
        ds.save_as(folder / f"{9 - index}.dcm", enforce_file_format=True)
        written.append(ds)
    return written


def write_seg(path: Path, sources: list[pydicom.Dataset], **masks: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hd.seg.Segmentation(
        source_images=sources,
        pixel_array=np.stack(list(masks.values()), axis=-1).astype(np.uint8),
        segmentation_type="BINARY",
        segment_descriptions=[
            hd.seg.SegmentDescription(
                segment_number=number,
                segment_label=label,
                segmented_property_category=codes.SCT.Organ,
                segmented_property_type=codes.SCT.Liver,
                algorithm_type="MANUAL",
            )
            for number, label in enumerate(masks, 1)
        ],
        series_instance_uid=generate_uid(),
        series_number=9,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="m",
        manufacturer_model_name="m",
        software_versions="1",
        device_serial_number="1",
    ).save_as(path)


def load(source: DicomSource) -> list[Case]:
    found: list[Case] = []
    for unit in source.scan():
        assert isinstance(unit, Unit)
        for case in source.load(unit):
            assert isinstance(case, Case)
            found.append(case)
    return found


def assert_cases(cases: list[Case]) -> None:
    """One slice for the liver (1, before 3 and 4 lose voxels to the tumour) and one for the tumour."""
    liver, tumour = cases
    assert [liver.case_id, tumour.case_id] == ["p1/s1#axial-0001", "p1/s1#axial-0003"]
    # DICOM axial storage already is the radiological view.
    np.testing.assert_array_equal(liver.masks["liver"], stack()[1] == 60)
    np.testing.assert_array_equal(tumour.masks["liver"], stack()[3] == 60)
    np.testing.assert_array_equal(tumour.masks["tumour"], stack()[3] == 150)
    grey = np.clip((stack()[3] + 160) / 400, 0, 1) * 255
    np.testing.assert_allclose(tumour.image[..., 1], grey, atol=0.51)
    assert list(liver.masks) == ["liver"]
    assert liver.patient_id == "d/p1"
    assert liver.spacing == (1.5, 1.5)
    assert {"step": "series", "files": 6} in liver.steps


def test_segments_by_number_in_the_series_own_folder(tmp_path: Path) -> None:
    written = write_series(tmp_path / "p1/s1")
    write_seg(tmp_path / "p1/s1/seg.dcm", written, T=stack() == 150, L=stack() == 60)
    source = DicomSource(entry([TUMOUR, LIVER], "{patient}/{series}/seg.dcm"), tmp_path)
    (unit,) = source.scan()
    assert isinstance(unit, Unit)
    assert unit.key == "p1/s1"
    assert unit.files["image"] == tuple(f"p1/s1/{n}.dcm" for n in range(4, 10))
    assert unit.files["masks"] == ("p1/s1/seg.dcm",)
    assert_cases(load(source))


def test_segments_by_name(tmp_path: Path) -> None:
    written = write_series(tmp_path / "p1/s1")
    write_seg(tmp_path / "seg/p1.dcm", written, Tumour=stack() == 150, LIVER=stack() == 60)
    targets = [{"name": n, "kind": "lesion", "nonzero": True} for n in ("tumour", "liver")]
    layout = {"series": "{patient:p1}/{series}/{instance}.dcm"}
    assert_cases(load(DicomSource(entry(targets, "seg/{patient}.dcm", layout=layout), tmp_path)))


def test_one_seg_file_for_each_target(tmp_path: Path) -> None:
    written = write_series(tmp_path / "p1/s1")
    write_seg(
        tmp_path / "seg/p1/tumour.dcm", written, a=(stack() == 150) & (np.arange(12) < 5), b=stack() == 150
    )
    write_seg(tmp_path / "seg/p1/liver.dcm", written, c=stack() == 60)
    targets = [
        {"name": n, "kind": "lesion", "nonzero": True, "masks": f"seg/{{patient}}/{n}.dcm"}
        for n in ("tumour", "liver")
    ]
    layout = {"series": "{patient:p1}/{series}/{instance}.dcm"}
    assert_cases(load(DicomSource(entry(targets, layout=layout), tmp_path)))


def test_label_volume(tmp_path: Path) -> None:
    write_series(tmp_path / "p1/s1")
    stored = stack().transpose(2, 1, 0)
    affine = np.array([[-1.5, 0, 0, 5], [0, -1.5, 0, -10], [0, 0, 3, 0], [0, 0, 0, 1]])
    nib.save(
        nib.Nifti1Image((stored == 150) + 2 * (stored == 60).astype(np.uint8), affine), tmp_path / "p1.nii.gz"
    )
    assert_cases(load(DicomSource(entry([TUMOUR, LIVER], "{patient}.nii.gz"), tmp_path)))
    affine[2, 3] = 3
    nib.save(nib.Nifti1Image((stored == 150).astype(np.uint8), affine), tmp_path / "p1.nii.gz")
    with pytest.raises(MieError, match="do not lie on each other"):
        load(DicomSource(entry([TUMOUR, LIVER], "{patient}.nii.gz"), tmp_path))


def test_segments_that_are_no_target(tmp_path: Path) -> None:
    written = write_series(tmp_path / "p1/s1")
    write_seg(tmp_path / "p1/s1/seg.dcm", written, T=stack() == 150, L=stack() == 60, Body=stack() > -500)
    masks = "{patient}/{series}/seg.dcm"
    with pytest.raises(MieError) as error:
        load(DicomSource(entry([TUMOUR, LIVER], masks), tmp_path))
    assert error.value.found == "segment 3 'Body' (120 voxels)"
    assert_cases(load(DicomSource(entry([TUMOUR, LIVER], masks, ignore=(3,)), tmp_path)))


def test_scan_groups_series_and_reports_the_rest(tmp_path: Path) -> None:
    for series in ("p1/s1", "p1/s2", "p2/s1"):
        write_series(tmp_path / series)
    for mask in ("p1.nii", "p9.nii"):
        (tmp_path / mask).touch()
    found = list(DicomSource(entry([TUMOUR], "{patient}.nii"), tmp_path).scan())
    assert [u.key for u in found if isinstance(u, Unit)] == ["p1/s1", "p1/s2"]
    assert [(r.where, r.gate) for r in found if isinstance(r, Rejection)] == [
        ("p2/s1", "source"),
        ("p9.nii", "source"),
    ]


def test_series_without_masks(tmp_path: Path) -> None:
    write_series(tmp_path / "scan")
    layout = {"series": "scan/*.dcm", "planes": ["axial", "sagittal"]}
    cases = load(DicomSource(entry([], layout=layout), tmp_path))
    assert [case.case_id for case in cases] == ["scan#axial-0003", "scan#sagittal-0006"]
    assert cases[1].image.shape == (12, 9, 3)  # 6 slices of 3 mm at 1.5 mm
