"""Volumes edited slice by slice; geometry checked with SimpleITK, nibabel, pydicom and highdicom."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import highdicom as hd
import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from typer.testing import CliRunner

from mie.cli import app
from mie.editors.base import Edited
from mie.editors.volumes import check_formats, edit_volume, is_volume_edit, marked_by, window_from
from mie.errors import ConfigError, ImageError
from mie.images import slabs as slabs_module
from mie.images.dicom_series import open_series, read_seg, read_series
from mie.images.overlay import paint
from mie.images.slabs import open_slabs
from mie.images.volumes import read_volume
from mie.records import Pixels
from tests.images.test_dicom_series import AXIAL, CORONAL, oblique, stack, write_series

RED = "Mark the liver in red."
WINDOW = {"low": -1000.0, "high": 2000.0}


def bright(images: Sequence[Pixels]) -> list[Edited]:
    """Paints what is brighter than the middle of the window in red."""
    return [Edited(paint(i, np.ascontiguousarray(i[..., 0] > 127), "red")) for i in images]


def darker(images: Sequence[Pixels]) -> list[Edited]:
    """Takes 10 grey levels from what is brighter than the middle."""
    return [Edited(np.where(i > 127, i - 10, i).astype(np.uint8)) for i in images]


def volume(shape: tuple[int, int, int] = (14, 12, 9), dtype: Any = np.int16) -> np.ndarray:
    """An asymmetric bright bar in a dark volume, so that no flip can hide."""
    data = np.random.default_rng(2).integers(-900, -300, shape).astype(dtype)
    data[3:9, 2:4, 1:6] = 1500
    data[3:5, 2:9, 5] = 1200
    return data


def turned(codes: str, spacing: Sequence[float] = (1.0, 1.5, 4.0)) -> np.ndarray:
    """An affine whose axes point to `codes`, with an offset."""
    turn = nib.orientations.axcodes2ornt(tuple(codes))
    affine = np.zeros((4, 4))
    for axis, (to, way) in enumerate(turn):
        affine[int(to), axis] = way * spacing[axis]
    affine[:, 3] = (-20.0, 31.0, 7.5, 1.0)
    return affine


def save(path: Path, data: np.ndarray, affine: np.ndarray) -> Path:
    nib.save(nib.Nifti1Image(data, affine), path)
    return path


def edit(source: Any, output: Path, how: Any = bright, plane: str | None = None, **options: Any) -> Any:
    marked = marked_by(RED, "CT") if how is bright else None
    series = None if isinstance(source, Path) else source
    with open_slabs(source, plane) as slabs:
        return edit_volume(slabs, how, output, window=WINDOW, marked=marked, series=series, slab=4, **options)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "LPI", "PSR", "SAL"])
@pytest.mark.parametrize("plane", [None, "axial", "sagittal"])
def test_labels_lie_on_the_voxels_that_were_marked(tmp_path: Path, codes: str, plane: str | None) -> None:
    affine = turned(codes, (1.0, 1.0, 1.0))
    source = save(tmp_path / "a.nii.gz", volume(), affine)
    done = edit(source, tmp_path / "b.nii.gz", plane=plane)
    mine, theirs = (sitk.ReadImage(str(tmp_path / name)) for name in ("b.nii.gz", "a.nii.gz"))
    assert mine.GetOrigin() == theirs.GetOrigin()
    assert mine.GetSpacing() == theirs.GetSpacing()
    assert mine.GetDirection() == theirs.GetDirection()
    np.testing.assert_array_equal(sitk.GetArrayFromImage(mine) > 0, sitk.GetArrayFromImage(theirs) > 1000)
    header = nib.load(tmp_path / "b.nii.gz")
    np.testing.assert_array_equal(header.affine, nib.load(source).affine)
    assert done.voxels == {"liver": int((volume() > 1000).sum())}
    assert b"1=liver" in header.header["descrip"].tobytes()


def test_anisotropic_slices_are_shown_square_and_come_back(tmp_path: Path) -> None:
    source = save(tmp_path / "a.nii.gz", volume(), turned("RAS"))
    sizes = []

    def look(images: Sequence[Pixels]) -> list[Edited]:
        sizes.extend(image.shape[:2] for image in images)
        return bright(images)

    with open_slabs(source) as slabs:
        edit_volume(
            slabs, look, tmp_path / "b.nii.gz", window=WINDOW, marked=marked_by(RED, "CT"), series=None
        )
    assert set(sizes) == {(18, 14)}  # 12 rows of 1.5 mm, 14 columns of 1 mm
    found = np.asarray(nib.load(tmp_path / "b.nii.gz").dataobj)
    np.testing.assert_array_equal(found > 0, volume() > 1000)


def test_changed_values_are_in_the_sources_units(tmp_path: Path) -> None:
    data = volume()
    data[0, 0, 0] = -1024  # below the window: cut off in what the editor sees
    source = save(tmp_path / "a.nii.gz", data, turned("LPS", (1.0, 1.0, 1.0)))
    done = edit(source, tmp_path / "b.nii.gz", darker)
    out = nib.load(tmp_path / "b.nii.gz")
    found = np.asarray(out.dataobj)
    assert out.get_data_dtype() == np.int16
    brighter = data > 1000
    np.testing.assert_array_equal(found[~brighter], data[~brighter])
    np.testing.assert_allclose(found[brighter], data[brighter] - 10 * 3000 / 255, atol=1)
    assert done.changed_voxels == int(brighter.sum())
    assert done.through_plane["measure"] == "change_ratio"


@pytest.mark.parametrize(("value", "shown", "nearly"), [(-1000, 0, 1), (3000, 255, 254)])
def test_what_is_painted_where_the_window_cut_off_shows_in_it(
    tmp_path: Path, value: int, shown: int, nearly: int
) -> None:
    source = save(
        tmp_path / "a.nii.gz", np.full((32, 32, 4), value, np.int16), turned("LPS", (1.0, 1.0, 1.0))
    )
    window = {"step": "window", "low": -160.0, "high": 240.0}

    def paint(images: Sequence[Pixels]) -> list[Edited]:
        for image in images:
            assert (image == shown).all()
            image[:8] = 127  # a lesion in air, or tissue where metal was
            image[8:16] = nearly  # a grey level is no reason to move a value far
        return [Edited(image) for image in images]

    with open_slabs(source, "axial") as slabs:
        edit_volume(slabs, paint, tmp_path / "b.nii.gz", window=window, marked=None)
    found = np.asarray(nib.load(tmp_path / "b.nii.gz").dataobj)
    edge = -160 if value < 0 else 240
    level = (nearly - shown) * 400 / 255
    assert np.unique(found).tolist() == sorted(
        {value, round(-160 + 127 * 400 / 255), round(edge + (value - edge) * 31 / 32 + level)}
    )


def test_same_edit_same_bytes_and_slabs_do_not_matter(tmp_path: Path) -> None:
    source = save(tmp_path / "a.nii.gz", volume(), turned("LPS"))
    marked = marked_by(RED, "CT")
    for name, size in (("b", 1), ("c", 4), ("d", 100)):
        with open_slabs(source) as slabs:
            edit_volume(slabs, bright, tmp_path / f"{name}.nii.gz", window=WINDOW, marked=marked, slab=size)
    assert len({(tmp_path / f"{name}.nii.gz").read_bytes() for name in "bcd"}) == 1


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, oblique(12)])
def test_series_to_seg(tmp_path: Path, directions: Sequence[Sequence[float]]) -> None:
    series = open_series(write_series(tmp_path / "s", stack(), directions=directions))
    done = edit(series, tmp_path / "seg.dcm")
    read = read_series(series.files)
    expected = read.data > 500
    np.testing.assert_array_equal(read_seg(tmp_path / "seg.dcm", read)["liver"], expected)
    # By pydicom and highdicom alone: each frame lies where its source slice does.
    raw = pydicom.dcmread(tmp_path / "seg.dcm")
    sources = {pydicom.dcmread(f).SOPInstanceUID: pydicom.dcmread(f) for f in series.files}
    seg = hd.seg.segread(tmp_path / "seg.dcm")
    assert raw.Modality == "SEG"
    assert raw.FrameOfReferenceUID == read.frame_of_reference
    assert raw.SegmentSequence[0].SegmentLabel == "liver"
    uids = [uid for uid in sources if (sources[uid].pixel_array * 2 - 1024 > 500).any()]
    frames = seg.get_pixels_by_source_instance(uids)
    for uid, frame in zip(uids, frames, strict=True):
        np.testing.assert_array_equal(frame[..., 0] > 0, sources[uid].pixel_array * 2 - 1024 > 500)
    assert done.voxels == {"liver": int(expected.sum())}
    assert [s for s in done.steps if s["step"] == "oblique"] == (
        [{"step": "oblique", "degrees": 12.0}] if directions == oblique(12) else []
    )


def test_series_to_nifti_has_the_same_place_as_simpleitk_says(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", stack(), drift=(0.0, 0.4, 0.0))  # a tilted gantry
    series = open_series(paths)
    edit(series, tmp_path / "b.nii.gz")
    volume_ = read_volume(tmp_path / "b.nii.gz")
    np.testing.assert_allclose(volume_.affine, read_series(paths).affine, atol=1e-4)
    np.testing.assert_array_equal(volume_.data > 0, read_series(paths).data > 500)
    assert any(step["step"] == "gantry tilt" for step in series.steps)


@pytest.mark.parametrize("plane", [None, "sagittal"])
def test_series_to_series(tmp_path: Path, plane: str | None) -> None:
    source = open_series(write_series(tmp_path / "s", stack(), directions=oblique(12)))
    done = edit(source, tmp_path / "out", darker, plane, made_by="SYNTHETIC test", about="a")
    before, after = read_series(source.files), read_series(sorted((tmp_path / "out").iterdir()))
    np.testing.assert_allclose(after.affine, before.affine, atol=1e-6)
    assert after.frame_of_reference == before.frame_of_reference
    # The values of the NIfTI output, up to the step of the stored integers.
    edit(source, tmp_path / "b.nii.gz", darker, plane)
    expected = read_volume(tmp_path / "b.nii.gz").data
    np.testing.assert_array_less(np.abs(after.data - expected), 1.01)
    np.testing.assert_array_equal(after.data[before.data == expected], before.data[before.data == expected])
    assert done.changed_voxels == int((before.data != expected).sum()) > 0
    itk = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(tmp_path / "out")))
    assert itk.GetSize() == source.shape
    one = pydicom.dcmread(tmp_path / "out/00001.dcm")
    first = pydicom.dcmread(source.files[0])
    assert one.SourceImageSequence[0].ReferencedSOPInstanceUID == first.SOPInstanceUID
    assert (one.SeriesInstanceUID != first.SeriesInstanceUID, one.SyntheticData) == (True, "YES")
    edit(source, tmp_path / "again", darker, plane, made_by="SYNTHETIC test", about="a")
    edit(source, tmp_path / "other", darker, plane, made_by="SYNTHETIC test", about="b")
    same, other = (pydicom.dcmread(tmp_path / name / "00001.dcm") for name in ("again", "other"))
    assert same.SOPInstanceUID == one.SOPInstanceUID
    assert other.SeriesInstanceUID != one.SeriesInstanceUID
    with pytest.raises(ConfigError, match="into a new folder"):
        check_formats(source, tmp_path / "out", None)


def test_missing_slice_and_two_series_are_refused(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", stack())
    with pytest.raises(ImageError, match="missing or unevenly spaced"):
        open_series([p for p in paths if p != open_series(paths).files[2]])
    write_series(tmp_path / "s", stack(), prefix="x")
    with pytest.raises(ImageError, match="files of several series"):
        open_series(sorted((tmp_path / "s").iterdir()))


def test_four_axes_and_damage_are_refused(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4, 3), np.int16), np.eye(4)), tmp_path / "t.nii.gz")
    with (
        pytest.raises(ImageError, match="not one volume") as error,
        open_slabs(tmp_path / "t.nii.gz"),
    ):
        pass
    assert "3 volumes" in str(error.value.found)
    whole = save(tmp_path / "a.nii.gz", volume(), np.eye(4)).read_bytes()
    plain = bytearray(gzip.decompress(whole))
    (tmp_path / "cut.nii").write_bytes(plain[: len(plain) // 2])
    (tmp_path / "cut.nii.gz").write_bytes(whole[: len(whole) // 2])
    for name in ("cut.nii", "cut.nii.gz"):
        with pytest.raises(ImageError):
            edit(tmp_path / name, tmp_path / "out.nii.gz")
        assert not (tmp_path / "out.nii.gz").exists()


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    data = volume(dtype=np.float32)
    data[2, 3, 6] = np.nan
    with pytest.raises(ImageError, match="not numbers"):
        edit(save(tmp_path / "a.nii.gz", data, np.eye(4)), tmp_path / "out.nii.gz")


def test_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read covers more than a slab, of the file or of its copy; another plane is refused with a reason."""
    monkeypatch.setattr(slabs_module, "MAX_VOXELS", 500)
    source = save(tmp_path / "a.nii.gz", volume(), turned("LPS"))
    reads = []
    with open_slabs(source) as slabs:
        inner = slabs.stored.read
        monkeypatch.setattr(
            type(slabs.stored), "read", lambda _, a, b: reads.append(b - a) or inner(a, b), raising=True
        )
        edit_volume(slabs, bright, tmp_path / "b.nii.gz", window=WINDOW, marked=marked_by(RED, "CT"), slab=2)
    assert max(reads) == 2
    assert sum(reads) == 9
    np.testing.assert_array_equal(np.asarray(nib.load(tmp_path / "b.nii.gz").dataobj) > 0, volume() > 1000)
    with pytest.raises(ImageError, match="too large to be cut in this plane"), open_slabs(source, "sagittal"):
        pass


def test_formats_and_windows(tmp_path: Path) -> None:
    marked = marked_by(RED, "CT")
    for output, asked in (("a.png", marked), ("a.dcm", None), ("a.dcm", marked)):
        with pytest.raises(ConfigError):
            check_formats(tmp_path / "a.nii.gz", tmp_path / output, asked)
    assert window_from("lung") == {"step": "window", "low": -1350.0, "high": 150.0, "from": "lung"}
    assert window_from("-160,240")["high"] == 240
    with pytest.raises(ConfigError, match="no such window"):
        window_from("lungs")
    assert marked_by("Denoise this CT.", "CT") is None
    both = marked_by("Paint the spleen in green and the liver in red.", "CT")
    assert both is not None
    assert both.colours == ("green", "red")
    assert [name.label for name in both.names] == ["spleen", "liver"]
    assert is_volume_edit(tmp_path, tmp_path / "seg.dcm")
    assert not is_volume_edit(tmp_path, tmp_path / "out")


def test_command(tmp_path: Path) -> None:
    source = save(tmp_path / "a.nii.gz", volume((40, 36, 9)), turned("LPS", (1.0, 1.0, 3.0)))
    words = ["edit", str(source), RED, "-e", "otsu", "-o", str(tmp_path / "b.nii.gz")]
    result = CliRunner().invoke(app, [*words, "--window", "-1000,1500", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["labels"] == {"liver": 1}
    assert document["slices"] == 9
    assert document["slice_mm"] == 3
    assert document["through_plane"]["measure"] == "neighbour_dice"
    again = CliRunner().invoke(app, words)
    assert "exists already" in str(again.exception)
    both = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "c.nii.gz"), "--plane", "diagonal"])
    assert "no such plane" in str(both.exception)
