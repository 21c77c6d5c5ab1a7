"""NRRD and MetaImage headers: good files against SimpleITK, and the headers that once got past the checks."""

import gzip
import itertools
import zlib
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mie.errors import ImageError
from mie.images.volume_files import LPS_TO_RAS, read_stored
from mie.images.volumes import read_volume

NRRD = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n"
META = "ObjectType = Image\nNDims = 3\nBinaryData = True\nDimSize = 2 3 4\nElementType = MET_UCHAR\n"
VOXELS = bytes(range(24))
NRRD_TYPES = {
    "int8": "i1",
    "unsigned char": "u1",
    "short": "i2",
    "uint16": "u2",
    "signed int": "i4",
    "uint32_t": "u4",
    "long long int": "i8",
    "uint64": "u8",
    "float": "f4",
    "double": "f8",
}
META_TYPES = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",
    "MET_LONG_LONG": "i8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
number = st.floats(-300, 300, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def turns(draw: st.DrawFn) -> np.ndarray:
    """A direction matrix: a permutation of the axes with signs, often a little oblique."""
    axes = draw(st.permutations([0, 1, 2]))
    signs = draw(st.tuples(*[st.sampled_from([-1.0, 1.0])] * 3))
    matrix = np.zeros((3, 3))
    for column, (axis, sign) in enumerate(zip(axes, signs, strict=True)):
        matrix[axis, column] = sign
    angle = draw(st.sampled_from([0.0, 0.05, 0.3]))
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    return turn @ matrix


def equals_itk(path: Path) -> None:
    """What we read is what SimpleITK reads, to the last bit."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.SetImageIO("NrrdImageIO" if path.suffix in (".nrrd", ".nhdr") else "MetaImageIO")
    image = reader.Execute()
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    values = sitk.GetArrayFromImage(image).T
    stored = read_stored(path, 2**20)
    assert stored.data.dtype == values.dtype
    np.testing.assert_array_equal(stored.data, values)
    np.testing.assert_array_equal(stored.affine, LPS_TO_RAS @ affine)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nrrd_as_simpleitk_reads_it(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(NRRD_TYPES)))
    order = data.draw(st.sampled_from(["little", "big"]))
    encoding = data.draw(st.sampled_from(["raw", "gzip", "gz", "ascii", "text", "hex"]))
    sizes = data.draw(st.tuples(*[st.integers(1, 5)] * 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = rng.integers(0, 120, int(np.prod(sizes))).astype(NRRD_TYPES[kind])
    stored = values.astype(values.dtype.newbyteorder("<" if order == "little" else ">")).tobytes()
    lines = [
        data.draw(st.sampled_from(["NRRD0001", "NRRD0004", "NRRD0005"])),
        *(["# a comment"] if data.draw(st.booleans()) else []),
        f"type: {kind}",
        "dimension: 3",
        f"sizes: {' '.join(map(str, sizes))}",
        f"endian: {order}",
        f"encoding: {encoding}",
        *(["Segment0_Name:=liver: left"] if data.draw(st.booleans()) else []),
    ]
    way = data.draw(st.sampled_from(["none", "spacings", "mins", "space"]))
    steps = data.draw(st.tuples(*[st.floats(0.1, 9).map(lambda x: round(x, 3))] * 3))
    if way == "spacings":
        lines.append(f"spacings: {' '.join(map(str, steps))}")
    elif way == "mins":
        lines.append(f"spacings: {' '.join(map(str, steps))}")
        lines.append(f"axis mins: {' '.join(map(str, data.draw(st.tuples(number, number, number))))}")
        lines.append(f"centers: {data.draw(st.sampled_from(['cell', 'node']))} cell node")
    elif way == "space":
        matrix = data.draw(turns()) * np.array(steps)
        space = ["RAS", "left-posterior-superior", "LAS", "Right-Anterior-Superior", "scanner-xyz"]
        lines.append(f"space: {data.draw(st.sampled_from(space))}")
        lines.append("space directions: " + " ".join(f"({a},{b},{c})" for a, b, c in matrix.T.tolist()))
        if data.draw(st.booleans()):
            lines.append(f"space origin: {data.draw(st.tuples(number, number, number))}")
    detached = data.draw(st.booleans())
    if encoding in ("ascii", "text"):
        body = " ".join(repr(v) for v in values.tolist()).encode()
    elif encoding == "hex":
        body = stored.hex().encode()
    else:
        skip = data.draw(st.integers(0, 3))
        lines.append(f"byte skip: {skip}")
        body = bytes(skip) + stored
        body = gzip.compress(body) if encoding != "raw" else body
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    if detached:
        lines.append("data file: a.data")
        (tmp_path / "a.data").write_bytes(body)
        (tmp_path / "a.nhdr").write_bytes((end.join(lines) + end).encode())
    else:
        (tmp_path / "a.nrrd").write_bytes((end.join(lines) + end + end).encode() + body)
    equals_itk(tmp_path / ("a.nhdr" if detached else "a.nrrd"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_metaimage_as_simpleitk_reads_it(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(META_TYPES)))
    big = data.draw(st.booleans())
    sizes = data.draw(st.tuples(*[st.integers(1, 5)] * 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = rng.integers(0, 120, int(np.prod(sizes))).astype(META_TYPES[kind])
    body = values.astype(values.dtype.newbyteorder(">" if big else "<")).tobytes()
    order = data.draw(st.sampled_from(["BinaryDataByteOrderMSB", "ElementByteOrderMSB"]))
    lines = ["ObjectType = Image", "NDims = 3", "BinaryData = True", f"{order} = {big}"]
    compressed = data.draw(st.booleans())
    if compressed:
        body = zlib.compress(body)
        lines += ["CompressedData = True", f"CompressedDataSize = {len(body)}"]
    if data.draw(st.booleans()):
        matrix = data.draw(turns())
        name = data.draw(st.sampled_from(["TransformMatrix", "Rotation", "Orientation"]))
        lines.append(f"{name} = {' '.join(map(repr, matrix.T.ravel().tolist()))}")
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(["Offset", "Position", "Origin"]))
        lines.append(f"{name} = {' '.join(map(str, data.draw(st.tuples(number, number, number))))}")
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(["ElementSpacing", "ElementSize"]))
        steps = data.draw(st.tuples(*[st.floats(0.1, 9).map(lambda x: round(x, 3))] * 3))
        lines.append(f"{name} = {' '.join(map(str, steps))}")
    lines += [
        f"DimSize = {' '.join(map(str, sizes))}",
        "AnatomicalOrientation = RAI",
        f"ElementType = {kind}",
    ]
    detached = data.draw(st.booleans())
    lines.append(f"ElementDataFile = {'a.data' if detached else 'LOCAL'}")
    head = ("\n".join(lines) + "\n").encode()
    if detached:
        (tmp_path / "a.data").write_bytes(body)
        (tmp_path / "a.mhd").write_bytes(head)
    else:
        (tmp_path / "a.mha").write_bytes(head + body)
    equals_itk(tmp_path / ("a.mhd" if detached else "a.mha"))


def test_time_axis_of_length_one_keeps_the_world(tmp_path: Path) -> None:
    # ITK forgets to turn RAS round in a space with time; the standard does not.
    text = (
        "NRRD0004\ntype: uint8\ndimension: 4\nsizes: 2 3 4 1\nencoding: raw\n"
        "space: right-anterior-superior-time\n"
        "space directions: (1,0,0,0) (0,2,0,0) (0,0,3,0) (0,0,0,1)\nspace origin: (1,2,3,0)\n\n"
    )
    (tmp_path / "a.nrrd").write_bytes(text.encode() + VOXELS)
    stored = read_stored(tmp_path / "a.nrrd", 100)
    np.testing.assert_array_equal(stored.affine, [[1, 0, 0, 1], [0, 2, 0, 2], [0, 0, 3, 3], [0, 0, 0, 1]])
    assert stored.data.shape == (2, 3, 4)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of the folder that is read; its bytes must never become voxels."""
    path = tmp_path / "secret.raw"
    path.write_bytes(b"S" * 24)
    (tmp_path / "data").mkdir()
    return path


def refused(path: Path) -> str:
    with pytest.raises(ImageError) as error:
        read_volume(path)
    return str(error.value)


@pytest.mark.parametrize(
    "before",
    ["# a comment\n" * 1000, "#" + "x" * 65_534 + "\n", ":=x\n", "#" * 65_536 + "\n"],
    ids=["1000 comments", "a comment of 65,536 bytes", "an empty key", "a longer comment"],
)
def test_nrrd_data_file_after_what_hid_it(tmp_path: Path, secret: Path, before: str) -> None:
    path = tmp_path / "data" / "a.nhdr"
    path.write_text(f"{NRRD}{before}data file: {secret}\n\n")
    refused(path)


@pytest.mark.parametrize("name", ["LIST", "LIST 3", "LIST3D", "list"])
def test_lists_of_data_files(tmp_path: Path, secret: Path, name: str) -> None:
    folder = secret.parent / "data"
    (folder / name).write_bytes(VOXELS)
    (folder / "a.nhdr").write_text(f"{NRRD}data file: {name}\n\n{secret}\n")
    (folder / "a.mhd").write_text(f"{META}ElementDataFile = {name}\n{secret}\n")
    for file in ("a.nhdr", "a.mhd"):
        assert "not beside it" in refused(folder / file)


@pytest.mark.parametrize("name", ["a.mhd", "a.nhdr", "a.hdr"])
def test_data_file_that_is_a_link_out_of_the_folder(tmp_path: Path, secret: Path, name: str) -> None:
    import nibabel as nib

    folder = tmp_path / "data"
    if name == "a.hdr":
        nib.save(nib.Nifti1Pair(np.zeros((2, 3, 4), np.uint8), np.eye(4)), folder / "a.img")
        (folder / "a.img").unlink()
    (folder / "a.img").symlink_to(secret)
    (folder / "a.mhd").write_text(f"{META}ElementDataFile = a.img\n")
    (folder / "a.nhdr").write_text(f"{NRRD}data file: a.img\n")
    assert "not beside it" in refused(folder / name)


@pytest.mark.parametrize(
    "text",
    [
        "NRRD0004\ntype: " + "A" * 1200 + "\n",
        NRRD.replace("sizes: 2 3 4\n", "sizes: 2 3 4\nsizes: 200 300 400\n") + "\n",
        NRRD.replace("sizes: 2 3 4\n", "sizes: 2 3 4\nsizes: 2 3 4\n") + "\n",
        NRRD + "unknown: field\n\n",
        NRRD + " \n",
        NRRD,
        NRRD.replace("dimension: 3", "dimension: 99999999") + "\n",
        NRRD.replace("sizes: 2 3 4", "sizes: 2 3 -4") + "\n",
        NRRD.replace("uint8", "short") + "\n",
        NRRD + "space: LPS\nspace directions: (1,0,0) (0,1,0)\n\n",
        NRRD + "space: LPS\nspace directions: (0,0,0) (0,1,0) (0,0,1)\n\n",
        NRRD + "byte skip: -2\n\n",
        NRRD + "line skip: 5\n\n",
    ],
)
def test_broken_nrrd_headers(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.nrrd").write_bytes(text.encode() + VOXELS)
    refused(tmp_path / "a.nrrd")


@pytest.mark.parametrize(
    "text",
    [
        META + "NDims = 2\nElementDataFile = LOCAL\n",
        META + "NDims = 3\nElementDataFile = LOCAL\n",
        META + "no sign here\nElementDataFile = LOCAL\n",
        META + "ElementNumberOfChannels = 0\nElementDataFile = LOCAL\n",
        META + "ElementSpacing = 1 2\nElementDataFile = LOCAL\n",
        META + "Offset = 1 2 3\nOrigin = 3 2 1\nElementDataFile = LOCAL\n",
        META + "CompressedData = maybe\nElementDataFile = LOCAL\n",
        META + "HeaderSize = 5\nElementDataFile = LOCAL\n",
        META.replace("MET_UCHAR", "MET_UCHAR_ARRAY") + "ElementDataFile = LOCAL\n",
        META.replace("2 3 4", "2 3 " + "4" * 400) + "ElementDataFile = LOCAL\n",
        META.replace("BinaryData = True", "BinaryData = False") + "ElementDataFile = LOCAL\n",
        META,
    ],
)
def test_broken_metaimage_headers(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.mha").write_bytes(text.encode() + VOXELS)
    refused(tmp_path / "a.mha")


def test_long_values_do_no_harm(tmp_path: Path) -> None:
    """Lines that overran MetaIO's and teem's buffers are plain text here."""
    (tmp_path / "a.mha").write_bytes(f"{META}Name = {'A' * 300}\nElementDataFile = LOCAL\n".encode() + VOXELS)
    (tmp_path / "a.nrrd").write_bytes(f"{NRRD}Segment0_Tags:={'A' * 3000}\n\n".encode() + VOXELS)
    for name in ("a.mha", "a.nrrd"):
        assert sorted(read_volume(tmp_path / name).data.ravel()) == list(range(24))


@pytest.mark.parametrize("cut", [0, 1, 30, 60, 90, 110])
def test_cut_off_anywhere(tmp_path: Path, cut: int) -> None:
    for name, text in (("a.nrrd", NRRD + "\n"), ("a.mha", META + "ElementDataFile = LOCAL\n")):
        whole = text.encode() + VOXELS
        (tmp_path / name).write_bytes(whole[: -1 - cut])
        refused(tmp_path / name)


def test_promises_that_the_bytes_cannot_hold(tmp_path: Path) -> None:
    import nibabel as nib

    header = nib.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape((1000, 1000, 500))
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(header.binaryblock + bytes(4)))
    big = NRRD.replace("2 3 4", "1000 1000 500").replace("raw", "gzip")
    (tmp_path / "a.nrrd").write_bytes(f"{big}\n".encode() + gzip.compress(b""))
    meta = META.replace("2 3 4", "1000 1000 500") + "CompressedData = True\nElementDataFile = LOCAL\n"
    (tmp_path / "a.mha").write_bytes(meta.encode() + zlib.compress(b""))
    for name in ("a.nii.gz", "a.nrrd", "a.mha"):
        assert "too small for what its header promises" in refused(tmp_path / name)


def test_values_too_wide_to_work_on(tmp_path: Path) -> None:
    (tmp_path / "a.nrrd").write_text(
        NRRD.replace("2 3 4", "1000 1000 500").replace("uint8", "double") + "endian: little\n\n"
    )
    assert "voxels of 8 bytes" in refused(tmp_path / "a.nrrd")


def test_extension_without_end_in_a_nifti_header(tmp_path: Path) -> None:
    """nibabel reads an extension of a negative length to the end of the stream, whatever comes there."""
    import nibabel as nib

    image = nib.Nifti1Image(np.zeros((2, 3, 4), np.uint8), np.eye(4))
    raw = bytearray(image.to_bytes())
    raw[108:112] = np.float32(400).tobytes()
    raw[348:352] = b"\1\0\0\0"
    raw[352:360] = np.array([-16, 6], np.int32).tobytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(bytes(raw) + bytes(1000)))
    assert "field of -24 bytes" in refused(tmp_path / "a.nii.gz")


@pytest.mark.parametrize(("name", "axes"), [*itertools.product(["a.nrrd", "a.mha"], [2, 4])])
def test_axes_of_files_that_simpleitk_wrote(tmp_path: Path, name: str, axes: int) -> None:
    image = sitk.Image([3, 4, 5, 1][:axes], sitk.sitkInt16)
    sitk.WriteImage(image, str(tmp_path / name))
    if axes == 2:
        assert "not one volume" in refused(tmp_path / name)
    else:
        assert read_volume(tmp_path / name).data.shape == (3, 4, 5)
