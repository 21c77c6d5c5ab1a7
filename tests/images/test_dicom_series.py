"""Series written with pydicom against SimpleITK's GDCM reader; DICOM-SEG objects written with highdicom."""

from collections.abc import Sequence
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from pydicom.data import get_testdata_file
from pydicom.sr.codedict import codes
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from mie.errors import ImageError
from mie.images.dicom_series import read_seg, read_segments, read_series
from mie.images.volumes import Volume

SPACING = (0.7, 0.9)  # between rows, between columns
STEP = 2.5
AXIAL = ((1, 0, 0), (0, 1, 0))
CORONAL = ((1, 0, 0), (0, 0, -1))
SAGITTAL = ((0, 1, 0), (0, 0, -1))


def oblique(degrees: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return (c, s, 0.0), (-s, c, 0.0)


def stack() -> np.ndarray:
    """Stored values (slices, rows, columns): an L that no flip maps to itself, on noise."""
    data = np.random.default_rng(3).integers(0, 50, (6, 8, 10)).astype(np.int16)
    data[1, 1:7, 2] = 1000
    data[1, 6, 2:6] = 1200
    data[1:5, 1, 2] = 1400
    return data


def write_series(
    folder: Path,
    data: np.ndarray,
    *,
    directions: Sequence[Sequence[float]] = AXIAL,
    origin: Sequence[float] = (-30.0, 40.0, -55.0),
    drift: Sequence[float] = (0.0, 0.0, 0.0),
    uid: str | None = None,
    prefix: str = "",
) -> list[Path]:
    """One file per slice, names and instance numbers in an order that has nothing to do with position."""
    folder.mkdir(exist_ok=True)
    across, down = np.array(directions, float)
    normal = np.cross(across, down)
    series, frame, study = uid or generate_uid(), generate_uid(), generate_uid()
    order = np.random.default_rng(1).permutation(len(data))
    paths = []
    for index, pixels in enumerate(data):
        meta = pydicom.dataset.FileMetaDataset()
        meta.MediaStorageSOPClassUID = CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        ds = pydicom.Dataset()
        ds.file_meta = meta
        ds.SOPClassUID, ds.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        ds.PatientID, ds.PatientName, ds.PatientBirthDate, ds.PatientSex = "p1", "Test^P", "", ""
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.FrameOfReferenceUID = study, series, frame
        ds.StudyID, ds.StudyDate, ds.StudyTime, ds.AccessionNumber = "1", "20200101", "000000", ""
        ds.ReferringPhysicianName, ds.PositionReferenceIndicator, ds.Manufacturer = "", "", ""
        ds.Modality, ds.SeriesNumber, ds.InstanceNumber = "CT", 1, int(order[index]) + 1
        ds.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        ds.ImageOrientationPatient = [f"{v:.10g}" for v in (*across, *down)]
        position = np.array(origin) + index * (STEP * normal + np.array(drift))
        ds.ImagePositionPatient = [f"{v:.10g}" for v in position]
        ds.PixelSpacing, ds.SliceThickness = list(SPACING), STEP
        ds.Rows, ds.Columns = pixels.shape
        ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
        ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 16, 15, 1
        ds.RescaleSlope, ds.RescaleIntercept = 2, -1024
        ds.PixelData = np.ascontiguousarray(pixels, np.int16).tobytes()
        paths.append(folder / f"{prefix}{int(order[index]):02d}.dcm")
        ds.save_as(paths[-1], enforce_file_format=True)
    return sorted(paths)


def edit(path: Path, **tags: object) -> None:
    ds = pydicom.dcmread(path)
    for tag, value in tags.items():
        if value is None:
            delattr(ds, tag)
        else:
            setattr(ds, tag, value)
    ds.save_as(path)


def by_position(paths: Sequence[Path]) -> list[Path]:
    def height(path: Path) -> float:
        ds = pydicom.dcmread(path)
        a, b = np.array(ds.ImageOrientationPatient, float).reshape(2, 3)
        return float(np.cross(a, b) @ np.array(ds.ImagePositionPatient, float))

    return sorted(paths, key=height)


def gdcm(folder: Path) -> sitk.Image:
    """SimpleITK's own reading: its own sorting, its own rescale, turned to RAS by ITK."""
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder)))
    return sitk.DICOMOrient(reader.Execute(), "RAS")


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, SAGITTAL, oblique(12), ((-1, 0, 0), (0, -1, 0))])
def test_series_equals_gdcm(tmp_path: Path, directions: Sequence[Sequence[float]]) -> None:
    paths = write_series(tmp_path / "s", stack(), directions=directions)
    volume = read_series(paths)
    other = gdcm(tmp_path / "s")
    np.testing.assert_array_equal(volume.data, sitk.GetArrayFromImage(other).T)
    np.testing.assert_allclose(volume.spacing, other.GetSpacing(), rtol=1e-6)
    np.testing.assert_allclose(volume.affine[:3, 3] * (-1, -1, 1), other.GetOrigin(), atol=1e-4)
    direction = np.array(other.GetDirection()).reshape(3, 3) * np.array([[-1], [-1], [1]])
    np.testing.assert_allclose(volume.affine[:3, :3] / volume.spacing, direction, atol=1e-6)
    assert volume.data.max() == 2 * 1400 - 1024


def test_axial_series_by_hand(tmp_path: Path) -> None:
    volume = read_series(write_series(tmp_path / "s", stack()))
    assert volume.data.shape == (10, 8, 6)
    # LPS storage: first column is the patient's right (last x), first row anterior (last y), slices upwards.
    assert volume.data[9 - 2, 7 - 6, 1] == 2 * 1200 - 1024
    assert volume.spacing == pytest.approx((0.9, 0.7, 2.5))
    assert volume.steps[0] == {"step": "series", "files": 6}
    assert "oblique" not in {step["step"] for step in volume.steps}


def test_oblique_and_tilted_series_say_so(tmp_path: Path) -> None:
    volume = read_series(write_series(tmp_path / "a", stack(), directions=oblique(12)))
    assert {"step": "oblique", "degrees": 12.0} in volume.steps
    tilted = read_series(write_series(tmp_path / "b", stack(), drift=(0, STEP * np.tan(np.radians(15)), 0)))
    assert {"step": "gantry tilt", "degrees": 15.0} in tilted.steps


def test_rescale_of_each_slice(tmp_path: Path) -> None:
    paths = by_position(write_series(tmp_path / "s", stack()))
    edit(paths[3], RescaleSlope=1, RescaleIntercept=5)
    volume = read_series(paths)
    np.testing.assert_array_equal(volume.data[::-1, ::-1, 3].T, stack()[3] + 5)
    np.testing.assert_array_equal(volume.data[::-1, ::-1, 2].T, 2 * stack()[2] - 1024)


def test_single_slice(tmp_path: Path) -> None:
    path = Path(str(get_testdata_file("CT_small.dcm")))
    ds = pydicom.dcmread(path)
    volume = read_series([path])
    expected = ds.pixel_array * float(ds.RescaleSlope) + float(ds.RescaleIntercept)
    np.testing.assert_array_equal(volume.data[::-1, ::-1, 0].T, expected)
    assert volume.spacing[2] == float(ds.SliceThickness)


def test_enhanced_multi_frame(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", stack())
    enhanced = hd.legacy.LegacyConvertedEnhancedCTImage(
        legacy_datasets=[pydicom.dcmread(p) for p in paths],
        series_instance_uid=generate_uid(),
        series_number=2,
        sop_instance_uid=generate_uid(),
        instance_number=1,
    )
    enhanced.save_as(tmp_path / "enhanced.dcm")
    one, many = read_series([tmp_path / "enhanced.dcm"]), read_series(paths)
    np.testing.assert_allclose(one.affine, many.affine, atol=1e-5)
    np.testing.assert_array_equal(one.data, many.data)
    assert one.frame_of_reference == many.frame_of_reference


# --- bad input ---------------------------------------------------------------------------------------------


def test_mixed_series_are_named(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", stack(), uid="1.2.3", prefix="a")
    paths += write_series(tmp_path / "s", stack(), uid="1.2.4", prefix="b")
    with pytest.raises(ImageError, match=r"(?s)several series.*1\.2\.3 \(6 files\), 1\.2\.4 \(6 files\)"):
        read_series(paths)


def test_missing_slice(tmp_path: Path) -> None:
    paths = by_position(write_series(tmp_path / "s", stack()))
    with pytest.raises(
        ImageError, match=r"(?s)2\.500 mm between.*1 of 4 distances.*5\.000 mm after -50\.000 mm"
    ):
        read_series(paths[:3] + paths[4:])


def test_doubled_position(tmp_path: Path) -> None:
    paths = by_position(write_series(tmp_path / "s", stack()))
    edit(paths[2], ImagePositionPatient=pydicom.dcmread(paths[1]).ImagePositionPatient)
    with pytest.raises(ImageError, match=r"(?s)share a position.*1 doubled, the first at -52\.500 mm"):
        read_series(paths)


def test_wandering_slice(tmp_path: Path) -> None:
    paths = by_position(write_series(tmp_path / "s", stack()))
    edit(paths[2], ImagePositionPatient=["-29", "40", "-50"])
    with pytest.raises(ImageError, match=r"(?s)behind one another.*1\.000 mm"):
        read_series(paths)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"ImageOrientationPatient": [1, 0, 0, 0, 0, -1]}, "differ in ImageOrientationPatient"),
        ({"PixelSpacing": [1, 1]}, "differ in PixelSpacing"),
        ({"Rows": 7, "PixelData": bytes(140)}, "differ in Rows"),
        ({"ImagePositionPatient": None}, "where it lies"),
        ({"PixelData": None}, "no pixel data"),
        ({"PixelData": bytes(20)}, "cannot decode"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "plain grey"),
    ],
)
def test_slice_that_does_not_fit(tmp_path: Path, tags: dict[str, object], message: str) -> None:
    paths = write_series(tmp_path / "s", stack())
    edit(paths[3], **tags)
    with pytest.raises(ImageError, match=message):
        read_series(paths)


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_text("no DICOM at all")
    with pytest.raises(ImageError, match="cannot read the DICOM file"):
        read_series([tmp_path / "a.dcm"])
    with pytest.raises(ImageError, match="without files"):
        read_series([])
    paths = write_series(tmp_path / "s", stack())
    with pytest.raises(ImageError, match="out of bounds"):
        read_series(paths, max_voxels=100)
    paths[2].write_bytes(paths[2].read_bytes()[:-60])
    with pytest.raises(ImageError) as error:
        read_series(paths)
    assert error.value.where == str(paths[2])


# --- DICOM-SEG ---------------------------------------------------------------------------------------------


def write_seg(
    path: Path,
    sources: Sequence[Path],
    masks: np.ndarray,
    labels: Sequence[str],
    kind: str = "BINARY",
    dtype: type = np.uint8,
) -> Path:
    """`masks` is (slices, rows, columns, segments), slices in the order of `sources`."""
    segments = [
        hd.seg.SegmentDescription(
            segment_number=number,
            segment_label=label,
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=codes.SCT.Neoplasm,
            algorithm_type="MANUAL",
        )
        for number, label in enumerate(labels, 1)
    ]
    seg = hd.seg.Segmentation(
        source_images=[pydicom.dcmread(p) for p in sources],
        pixel_array=masks.astype(dtype),
        segmentation_type=kind,
        segment_descriptions=segments,
        series_instance_uid=generate_uid(),
        series_number=9,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="m",
        manufacturer_model_name="m",
        software_versions="1",
        device_serial_number="1",
    )
    seg.save_as(path)
    return path


def masks_of(data: np.ndarray) -> np.ndarray:
    """Overlapping segments that differ from each other and from every flip of themselves."""
    return np.stack([data > 900, data > 1300, (data > 900) & (np.arange(6) < 3)[:, None, None]], axis=-1)


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, SAGITTAL, oblique(12)])
@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_seg_lies_on_the_voxels_it_was_drawn_on(
    tmp_path: Path, directions: Sequence[Sequence[float]], kind: str
) -> None:
    paths = by_position(write_series(tmp_path / "s", stack(), directions=directions))
    series = read_series(paths)
    hounsfield = series.data
    if kind == "LABELMAP":
        labels = np.where(stack() > 1300, 2, (stack() > 900).astype(np.uint8))
        seg = write_seg(tmp_path / "seg.dcm", paths, labels, ["tumour", "core"], kind)
        expected = {"tumour": (hounsfield > 776) & (hounsfield <= 1576), "core": hounsfield > 1576}
    else:
        dtype = np.float32 if kind == "FRACTIONAL" else np.uint8
        seg = write_seg(
            tmp_path / "seg.dcm", paths, masks_of(stack()), ["tumour", "core", "low"], kind, dtype
        )
        expected = {"tumour": hounsfield > 776, "core": hounsfield > 1576}
    found = read_seg(seg, series)
    for label, mask in expected.items():
        assert found[label].dtype == np.bool_
        np.testing.assert_array_equal(found[label], mask)
    if kind != "LABELMAP":
        assert 0 < found["low"].sum() < found["tumour"].sum()


def test_seg_of_few_slices_and_equal_labels(tmp_path: Path) -> None:
    paths = by_position(write_series(tmp_path / "s", stack()))
    series = read_series(paths)
    masks = masks_of(stack())[[1, 4]]
    seg = write_seg(tmp_path / "seg.dcm", [paths[1], paths[4]], masks, ["lesion", "lesion", "lesion"])
    found = read_seg(seg, series)
    expected = series.data > 776
    expected[:, :, [0, 2, 3, 5]] = False
    assert list(found) == ["lesion"]
    np.testing.assert_array_equal(found["lesion"], expected)
    assert [segment.number for segment in read_segments(seg, series)] == [1, 2, 3]


def test_seg_of_another_series(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", stack())
    other = by_position(write_series(tmp_path / "t", stack()))
    seg = write_seg(tmp_path / "seg.dcm", other, masks_of(stack()), ["a", "b", "c"])
    series = read_series(paths)
    with pytest.raises(ImageError, match="different frames of reference") as error:
        read_seg(seg, series)
    assert error.value.expected == series.frame_of_reference


def test_seg_on_another_grid(tmp_path: Path) -> None:
    paths = by_position(write_series(tmp_path / "s", stack()))
    series = read_series(paths)
    seg = write_seg(tmp_path / "seg.dcm", paths, masks_of(stack()), ["a", "b", "c"])
    half = series.affine.copy()
    half[0, 3] += 0.45
    with pytest.raises(ImageError, match=r"(?s)series' voxels.*0\.5 voxels off"):
        read_seg(seg, Volume(series.data, series.spacing, half))
    with pytest.raises(ImageError, match=r"(?s)series' voxels.*pixels outside"):
        read_seg(seg, Volume(series.data[:, :, 4:], series.spacing, series.affine))


def test_seg_that_is_none(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", stack())
    with pytest.raises(ImageError, match="cannot read the DICOM-SEG object"):
        read_seg(paths[0], read_series(paths))
