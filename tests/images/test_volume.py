"""Volumes against nibabel's and SimpleITK's own reorientation, with a phantom in which no flip can hide."""

import gzip
import itertools
import struct
import tracemalloc
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mie.core import scratch
from mie.errors import ImageError
from mie.images.volumes import (
    Volume,
    canonical,
    read_volume,
    same_geometry,
    slice_of,
    slice_spacing,
    square_pixels,
)

SPACING = (0.8, 1.5, 2.5)
AFFINE = np.array([[0.8, 0, 0, -11], [0, 1.5, 0, 23], [0, 0, 2.5, -47], [0, 0, 0, 1.0]])
ORIENTATIONS = [
    "".join(pair[way] for pair, way in zip(axes, ways, strict=True))
    for axes in itertools.permutations(("RL", "AP", "SI"))
    for ways in itertools.product((0, 1), repeat=3)
]


def phantom() -> np.ndarray:
    """A 3-D L in a cube: three arms of different length and value from one corner, RAS+."""
    data = np.zeros((9, 9, 9), np.int16)
    data[1:8, 1, 1] = 100
    data[1, 2:6, 1] = 200
    data[1, 1, 2:4] = 300
    return data


def nifti(path: Path, data: np.ndarray, affine: np.ndarray = AFFINE, **header: object) -> Path:
    image = nib.Nifti1Image(data, affine)
    for key, value in header.items():
        image.header[key] = value
    nib.save(image, path)
    return path


def itk(path: Path, code: str = "RAS", *, compress: bool = False) -> Path:
    """The phantom written by SimpleITK, its axes turned to `code` by SimpleITK."""
    image = sitk.GetImageFromArray(phantom().T)
    image.SetSpacing(SPACING)
    image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
    image.SetOrigin((11, -23, -47))
    turned = sitk.DICOMOrient(image, code)
    sitk.WriteImage(turned, str(path), compress)
    return path


def assert_phantom(volume: Volume) -> None:
    np.testing.assert_array_equal(volume.data, phantom())
    np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-4)
    np.testing.assert_allclose(volume.spacing, SPACING, rtol=1e-5)


def test_no_flip_or_permutation_of_the_phantom_looks_like_another() -> None:
    seen = set()
    for axes in itertools.permutations(range(3)):
        for flips in itertools.product((1, -1), repeat=3):
            turned = phantom().transpose(axes)[tuple(slice(None, None, f) for f in flips)]
            seen.add(turned.tobytes())
    assert len(ORIENTATIONS) == len(set(ORIENTATIONS)) == len(seen) == 48


@pytest.mark.parametrize("code", ORIENTATIONS)
def test_every_orientation_comes_out_alike(tmp_path: Path, code: str) -> None:
    image = nib.Nifti1Image(phantom(), AFFINE)
    turn = nib.orientations.ornt_transform(nib.io_orientation(AFFINE), nib.orientations.axcodes2ornt(code))
    path = tmp_path / "turned.nii"
    nib.save(image.as_reoriented(turn), path)
    volume = read_volume(path)
    assert_phantom(volume)
    assert {"step": "orientation", "found": code, "to": "RAS"} in volume.steps
    # SimpleITK reads the same file with code of its own.
    other = sitk.DICOMOrient(sitk.ReadImage(str(path)), "RAS")
    np.testing.assert_array_equal(volume.data, sitk.GetArrayFromImage(other).T)
    assert_phantom(read_volume(itk(tmp_path / "turned.nrrd", code)))
    assert_phantom(read_volume(itk(tmp_path / "turned.mha", code)))


@pytest.mark.parametrize("name", ["a.nrrd", "a.nhdr", "a.mha", "a.mhd", "A.NII.GZ", "a.nii"])
@pytest.mark.parametrize("compress", [False, True])
def test_every_format(tmp_path: Path, name: str, compress: bool) -> None:
    assert_phantom(
        read_volume(itk(tmp_path / name.lower(), "PIR", compress=compress).rename(tmp_path / name))
    )


def test_nifti_pair_and_analyze(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Pair(phantom(), AFFINE), tmp_path / "pair.hdr")
    assert_phantom(read_volume(tmp_path / "pair.hdr"))
    assert_phantom(read_volume(tmp_path / "pair.img"))
    nib.save(nib.AnalyzeImage(phantom(), np.diag([-1, 1, 1, 1])), tmp_path / "old.hdr")
    old = read_volume(tmp_path / "old.hdr")
    assert {"step": "orientation", "found": "missing", "assumed": "LAS"} in old.steps
    np.testing.assert_array_equal(old.data, phantom()[::-1])


def test_nrrd_in_ras_coordinates_written_by_hand(tmp_path: Path) -> None:
    header = (
        "NRRD0004\ntype: short\ndimension: 3\nspace: right-anterior-superior\nsizes: 9 9 9\n"
        "space directions: (0.8,0,0) (0,1.5,0) (0,0,2.5)\nspace origin: (-11,23,-47)\n"
        "kinds: domain domain domain\nendian: little\nencoding: raw\n\n"
    )
    path = tmp_path / "ras.nrrd"
    path.write_bytes(header.encode() + phantom().tobytes(order="F"))
    assert_phantom(read_volume(path))


def test_rescale_is_applied_and_integers_stay_integers(tmp_path: Path) -> None:
    image = nib.Nifti1Image(phantom(), AFFINE)
    image.header.set_slope_inter(2, -1024)
    nib.save(image, tmp_path / "a.nii")
    # nibabel divides the values on writing, so patch them back to what the raw file should hold.
    raw = bytearray((tmp_path / "a.nii").read_bytes())
    raw[352:] = phantom().tobytes(order="F")
    (tmp_path / "a.nii").write_bytes(raw)
    np.testing.assert_allclose(read_volume(tmp_path / "a.nii").data, 2.0 * phantom() - 1024)
    plain = read_volume(nifti(tmp_path / "b.nii", phantom()))
    assert plain.data.dtype.kind == "i"


def test_last_axis_of_one_is_dropped(tmp_path: Path) -> None:
    assert_phantom(read_volume(nifti(tmp_path / "a.nii", phantom()[..., None])))


@pytest.mark.parametrize(("unit", "scale"), [("meter", 1e-3), ("micron", 1e3), ("mm", 1), ("unknown", 1)])
def test_units_other_than_millimetres(tmp_path: Path, unit: str, scale: float) -> None:
    image = nib.Nifti1Image(phantom(), np.diag([scale, scale, scale, 1]) @ AFFINE)
    image.header.set_xyzt_units(unit)
    nib.save(image, tmp_path / "a.nii")
    volume = read_volume(tmp_path / "a.nii")
    assert_phantom(volume)
    assert ("units" in {step["step"] for step in volume.steps}) == (scale != 1)


@pytest.mark.parametrize("degrees", [3.0, 30.0])
def test_oblique_takes_the_nearest_axes_and_says_so(tmp_path: Path, degrees: float) -> None:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    volume = read_volume(
        nifti(tmp_path / "a.nii", phantom()[:, ::-1], turn @ AFFINE @ np.diag([1, -1, 1, 1]))
    )
    np.testing.assert_array_equal(volume.data, phantom())
    (step,) = (step for step in volume.steps if step["step"] == "oblique")
    assert step["degrees"] == pytest.approx(degrees, abs=0.01)
    np.testing.assert_allclose(volume.spacing, SPACING, rtol=1e-5)


def test_straight_volumes_are_not_called_oblique(tmp_path: Path) -> None:
    volume = read_volume(nifti(tmp_path / "a.nii", phantom()))
    assert [step["step"] for step in volume.steps] == ["orientation"]


def test_missing_orientation_is_recorded(tmp_path: Path) -> None:
    image = nib.Nifti1Image(phantom(), None)
    image.header.set_zooms(SPACING)
    nib.save(image, tmp_path / "a.nii")
    saved = nib.load(tmp_path / "a.nii").header
    assert saved["qform_code"] == saved["sform_code"] == 0
    volume = read_volume(tmp_path / "a.nii")
    assert volume.steps == ({"step": "orientation", "found": "missing", "assumed": "RAS"},)
    np.testing.assert_array_equal(volume.data, phantom())
    np.testing.assert_allclose(volume.spacing, SPACING, rtol=1e-5)
    bare = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n\n"
    (tmp_path / "bare.nrrd").write_bytes(bare.encode() + bytes(24))
    assert read_volume(tmp_path / "bare.nrrd").steps[0] == {
        "step": "orientation",
        "found": "missing",
        "assumed": "LPS",
    }


def test_labels_must_be_whole_numbers(tmp_path: Path) -> None:
    labels = (phantom() // 100).astype(np.float32)
    whole = read_volume(nifti(tmp_path / "a.nii", labels), labels=True)
    assert whole.data.dtype == np.int32
    np.testing.assert_array_equal(whole.data, phantom() // 100)
    labels[4, 4, 4] = 0.25
    with pytest.raises(ImageError, match=r"(?s)no labels.*1 voxels such as 0.25"):
        read_volume(nifti(tmp_path / "b.nii", labels), labels=True)
    small = read_volume(nifti(tmp_path / "c.nii", phantom().astype(np.uint8)), labels=True)
    assert small.data.dtype == np.uint8


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.nrrd", "a.mha"])
@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.9])
def test_truncated_files(tmp_path: Path, name: str, keep: float) -> None:
    noise = np.random.default_rng(0).integers(0, 1000, (9, 9, 9)).astype(np.int16)
    path = tmp_path / name
    sitk.WriteImage(sitk.GetImageFromArray(noise), str(path), name != "a.nii")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(ImageError) as error:
        read_volume(path)
    assert error.value.where == str(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_flipped_bit_in_a_gzip_stream_never_gives_other_voxels(
    tmp_path: Path, data: st.DataObject
) -> None:
    noise = np.random.default_rng(0).integers(0, 1000, (9, 9, 9)).astype(np.int16)
    raw = bytearray(nifti(tmp_path / "a.nii.gz", noise).read_bytes())
    raw[data.draw(st.integers(10, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "a.nii.gz").write_bytes(raw)
    try:  # a few bits are padding, and change nothing
        np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz").data, noise)
    except ImageError as error:
        assert error.where == str(tmp_path / "a.nii.gz")  # noqa: PT017 (both ways are right)


def test_gzip_checksum_is_looked_at(tmp_path: Path) -> None:
    # Bytes after the voxels keep a reader that stops at the last voxel from ever seeing the checksum.
    trailing = np.random.default_rng(0).bytes(2_000_000)
    whole = bytearray(gzip.compress(nib.Nifti1Image(phantom(), AFFINE).to_bytes() + trailing))
    path = tmp_path / "a.nii.gz"
    path.write_bytes(whole)
    assert_phantom(read_volume(path))
    whole[-6] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ImageError, match="CRC"):
        read_volume(path)
    path.write_bytes(whole[:-8])
    with pytest.raises(ImageError, match="NIfTI file cannot be decoded"):
        read_volume(path)


def test_text_in_disguise(tmp_path: Path) -> None:
    for name in ("a.nii", "a.nii.gz", "a.nrrd", "a.mha", "a.hdr"):
        (tmp_path / name).write_text("this is no volume\n" * 50)
        with pytest.raises(ImageError):
            read_volume(tmp_path / name)
    (tmp_path / "a.txt").write_text("nor is this")
    with pytest.raises(ImageError, match="not a volume file"):
        read_volume(tmp_path / "a.txt")
    with pytest.raises(ImageError, match="no such volume"):
        read_volume(tmp_path / "nothing.nii")


def test_several_volumes_in_one_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"(?s)9 x 9 x 9 x 4, that is 4 volumes"):
        read_volume(nifti(tmp_path / "a.nii", np.zeros((9, 9, 9, 4), np.uint8)))
    with pytest.raises(ImageError, match="not one volume"):
        read_volume(nifti(tmp_path / "flat.nii", np.zeros((9, 9), np.uint8)))
    four = sitk.JoinSeries([sitk.Image(3, 4, 5, sitk.sitkUInt8)] * 2)
    sitk.WriteImage(four, str(tmp_path / "a.mha"))
    with pytest.raises(ImageError, match=r"(?s)3 x 4 x 5 x 2, that is 2 volumes"):
        read_volume(tmp_path / "a.mha")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(tmp_path: Path, bad: float) -> None:
    data = phantom().astype(np.float32)
    data[3, 3, 3:5] = bad
    with pytest.raises(ImageError, match="2 of 729 voxels"):
        read_volume(nifti(tmp_path / "a.nii", data))


def test_colour_and_complex_voxels(tmp_path: Path) -> None:
    sitk.WriteImage(sitk.Image([3, 4, 5], sitk.sitkVectorUInt8, 3), str(tmp_path / "rgb.nrrd"))
    with pytest.raises(ImageError, match=r"(?s)plain numbers.*3 components"):
        read_volume(tmp_path / "rgb.nrrd")
    with pytest.raises(ImageError, match=r"(?s)plain numbers.*complex64"):
        read_volume(nifti(tmp_path / "complex.nii", phantom().astype(np.complex64)))


def test_bomb_is_refused_from_its_header(tmp_path: Path) -> None:
    header = nib.Nifti2Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape((60000, 60000, 60000))
    bomb = header.binaryblock + bytes(4)
    (tmp_path / "a.nii").write_bytes(bomb)
    with gzip.open(tmp_path / "a.nii.gz", "wb") as file:
        file.write(bomb)
    nrrd = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 60000 60000 60000\nencoding: gzip\n\n"
    (tmp_path / "a.nrrd").write_bytes(nrrd.encode() + gzip.compress(bytes(1000)))
    meta = "NDims = 3\nBinaryData = True\nDimSize = 60000 60000 60000\nElementType = MET_UCHAR\n"
    (tmp_path / "a.mha").write_bytes(f"{meta}ElementDataFile = LOCAL\n".encode())
    for name in ("a.nii", "a.nii.gz", "a.nrrd", "a.mha"):
        with pytest.raises(ImageError, match=r"(?s)out of bounds.*60000 x 60000 x 60000"):
            read_volume(tmp_path / name)
    with pytest.raises(ImageError, match=r"1 to 100 voxels"):
        read_volume(nifti(tmp_path / "b.nii", phantom()), max_voxels=100)


@pytest.mark.parametrize("line", ["NDims = -3", "NDims = 33", "DimSize = 9 9", "NDims"])
def test_meta_headers_that_crashed_metaio(tmp_path: Path, line: str) -> None:
    text, _, data = itk(tmp_path / "a.mha", compress=True).read_bytes().partition(b"ElementDataFile")
    key = line.partition(" ")[0]
    kept = [old for old in text.decode().splitlines() if not old.startswith(key)]
    (tmp_path / "a.mha").write_bytes("\n".join([*kept, line, "ElementDataFile"]).encode() + data)
    with pytest.raises(ImageError, match="broken volume header"):
        read_volume(tmp_path / "a.mha")


@pytest.mark.parametrize("name", ["a.mha", "a.mhd"])
def test_damaged_zlib_stream(tmp_path: Path, name: str) -> None:
    path = itk(tmp_path / name, compress=True)
    data = path if name == "a.mha" else tmp_path / "a.zraw"
    raw = data.read_bytes()
    at = raw.index(b"\x78", raw.find(b"LOCAL") + 1)
    for damaged in (raw[: at + 1] + b" " + raw[at + 2 :], raw[:-9] + b"123456789", raw[:-1]):
        data.write_bytes(damaged)
        with pytest.raises(ImageError, match="damaged compressed data"):
            read_volume(path)
    longer = raw[:at] + zlib.compress(bytes(2 * 9**3 + 1))
    data.write_bytes(longer)
    with pytest.raises(ImageError, match="1458 bytes once decompressed"):
        read_volume(path)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.raw",
        "../data/../secret.raw",
        "/etc/hostname",
        "",
        "LIST",
        "LIST 3",
        "list3D",
        "s%03d.raw 1 3 1",
        "gone.raw",
        "..",
        "a\0b",
    ],
)
def test_detached_data_stays_beside_its_header(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.raw").write_bytes(bytes(24))
    folder = tmp_path / "data"
    folder.mkdir()
    if name.upper().startswith("LIST") or "%" in name:  # a file of that name, as a reader might take it
        (folder / name).write_text("../secret.raw\n")
    meta = "ObjectType = Image\nNDims = 3\nBinaryData = True\nDimSize = 2 3 4\nElementType = MET_UCHAR\n"
    (folder / "a.mhd").write_text(f"{meta}ElementDataFile = {name}\n")
    nrrd = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n"
    (folder / "a.nhdr").write_text(f"{nrrd}data file: {name}\n")
    for file in ("a.mhd", "a.nhdr"):
        with pytest.raises(ImageError, match="not beside it"):
            read_volume(folder / file)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, 1e30, 1e-30])
def test_affine_that_spans_no_space(bad: float) -> None:
    with pytest.raises(ImageError, match="do not span space"):
        canonical(phantom(), np.diag([1.0, bad, 1.0, 1.0]))
    flat = np.eye(4)
    flat[:3, 1] = (1, 1e-4, 0)
    with pytest.raises(ImageError, match="do not span space"):
        canonical(phantom(), flat)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 351), st.integers(0, 255)), min_size=1, max_size=6))
@example([(123, 4)])  # a unit that does not exist
@example([(299, 89)])  # an axis of 2e15 mm
def test_damaged_nifti_header_is_read_or_refused(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(nib.Nifti1Image(phantom(), AFFINE).to_bytes())
    for at, value in damage:
        raw[at] = value
    (tmp_path / "a.nii").write_bytes(raw)
    try:
        assert read_volume(tmp_path / "a.nii", max_voxels=10**6).data.ndim == 3
    except ImageError as error:
        assert error.where == str(tmp_path / "a.nii")  # noqa: PT017 (both ways are right)


# --- slices ------------------------------------------------------------------------------------------------


def test_display_convention_by_hand() -> None:
    data = np.zeros((4, 5, 6), np.uint8)
    data[3, 4, 5] = 9  # the voxel furthest right, anterior and superior
    data[0, 4, 5] = 7  # the same on the patient's left
    axial, coronal, sagittal = (
        slice_of(data, "axial", 5),
        slice_of(data, "coronal", 4),
        slice_of(data, "sagittal", 3),
    )
    assert axial.shape == (5, 4)
    assert coronal.shape == (6, 4)
    assert sagittal.shape == (6, 5)
    # Patient's right on the image's left, anterior and superior on top; sagittal looks to the left.
    assert (axial[0, 0], axial[0, -1]) == (9, 7)
    assert (coronal[0, 0], coronal[0, -1]) == (9, 7)
    assert (sagittal[0, 0], np.count_nonzero(sagittal)) == (9, 1)
    assert np.shares_memory(axial, data)
    with pytest.raises(ValueError, match="axial"):
        slice_of(data, "transverse", 0)


def test_axial_slice_is_what_itk_calls_lps(tmp_path: Path) -> None:
    # Rows of an LPS image's array (z, y, x) run to posterior, columns to the left: the radiological view.
    lps = sitk.GetArrayFromImage(sitk.DICOMOrient(sitk.ReadImage(str(itk(tmp_path / "a.nrrd"))), "LPS"))
    np.testing.assert_array_equal(slice_of(phantom(), "axial", 1), lps[1])
    np.testing.assert_array_equal(slice_of(phantom(), "coronal", 1), lps[::-1, -2])
    np.testing.assert_array_equal(slice_of(phantom(), "sagittal", 1), lps[::-1, :, -2])


def test_slice_spacing_is_row_then_column() -> None:
    assert slice_spacing((1.0, 2.0, 3.0), "axial") == (2.0, 1.0)
    assert slice_spacing((1.0, 2.0, 3.0), "coronal") == (3.0, 1.0)
    assert slice_spacing((1.0, 2.0, 3.0), "sagittal") == (3.0, 2.0)


def test_square_pixels() -> None:
    image = np.zeros((10, 20), np.uint8)
    image[3:6, 4:12] = 255
    assert square_pixels(image, (1.01, 1.0), is_mask=False) is image
    assert square_pixels(image, (3.0, 1.0), is_mask=False).shape == (30, 20)
    assert square_pixels(image, (1.0, 2.5), is_mask=False).shape == (10, 50)
    mask = square_pixels(image > 0, (3.0, 1.0), is_mask=True)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, np.repeat(image > 0, 3, axis=0))
    with pytest.raises(ImageError, match="too far from square"):
        square_pixels(image, (0.001, 1.0), is_mask=False)


@settings(max_examples=30, deadline=None)
@given(st.floats(1.05, 7.0))
def test_mask_and_image_stay_on_each_other(ratio: float) -> None:
    image = np.zeros((16, 12), np.uint8)
    image[5:9, 3:8] = 255
    grey = square_pixels(image, (ratio, 1.0), is_mask=False) >= 128
    mask = square_pixels(image > 0, (ratio, 1.0), is_mask=True)
    middle = [np.argwhere(m).mean(axis=0) for m in (grey, mask)]
    np.testing.assert_allclose(middle[0], middle[1], atol=0.5)


def test_same_geometry() -> None:
    a = canonical(phantom(), AFFINE)
    assert same_geometry(a, canonical(phantom(), AFFINE + 1e-4 * np.eye(4)[:, [3, 0, 1, 2]])) is None
    assert same_geometry(a, canonical(phantom()[::-1], AFFINE @ np.array(
        [[-1, 0, 0, 8], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))) is None  # fmt: skip
    cropped = canonical(phantom()[:-1], AFFINE)
    assert same_geometry(a, cropped) == "shapes differ: 9 x 9 x 9 and 8 x 9 x 9 voxels"
    wider = canonical(phantom(), AFFINE @ np.diag([1.0, 1.0, 1.2, 1.0]))
    assert same_geometry(a, wider) == "spacings differ: 0.8 x 1.5 x 2.5 and 0.8 x 1.5 x 3 mm"
    shifted = AFFINE.copy()
    shifted[1, 3] += 1.5
    assert "positions differ by up to 1.5 mm" in str(same_geometry(a, canonical(phantom(), shifted)))


def test_a_nifti_file_shorter_than_its_header_says_takes_no_memory(tmp_path):
    """1,384 bytes that promise two gigabytes, as the fuzz harness made them."""
    path = tmp_path / "short.nii"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4)), path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<4h", data, 40, 3, 1024, 1024, 500)
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match="fewer voxels than the header says"):
            read_volume(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("slab", [1, 3, 7, 100])
@pytest.mark.parametrize(
    "name", ["a.nii", "a.nii.gz", "scaled.nii.gz", "big.nii", "four.nii.gz", "a.nrrd", "a.mha", "raw.nrrd"]
)
def test_slabs_of_any_size_hold_the_same_voxels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, slab: int
) -> None:
    """Read a few slices at a time, with the voxels on the disk, against nibabel's and ITK's whole volumes."""
    monkeypatch.setattr(scratch, "_IN_MEMORY", 0)
    monkeypatch.setattr(scratch, "BLOCK", slab * 9 * 8 * 8)
    values = np.random.default_rng(3).integers(-900, 900, (9, 8, 23)).astype(np.int16)
    path, channel = tmp_path / name, None
    if name.endswith((".nrrd", ".mha")):
        image = sitk.GetImageFromArray(values.T)
        sitk.WriteImage(image, str(path), useCompression=name.startswith("a"))
        expected = sitk.GetArrayFromImage(sitk.ReadImage(str(path))).T[::-1, ::-1]  # LPS to RAS
    else:
        if name.startswith("four"):
            values, channel = np.stack([values, values + 1, values - 1], axis=3), 1
        stored = nib.Nifti1Image(
            values, np.eye(4), nib.Nifti1Header(endianness=">" if "big" in name else "<")
        )
        if name.startswith("scaled"):
            stored = nib.Nifti1Image(values * 0.37, np.eye(4))
            stored.set_data_dtype(np.int16)
        nib.save(stored, path)
        expected = np.asanyarray(nib.load(path).dataobj)
        expected = expected if channel is None else expected[..., channel]
    found = read_volume(path, channel=channel).data
    assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, expected)
