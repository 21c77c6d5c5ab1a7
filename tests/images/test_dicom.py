"""The L through DICOM, compared with pydicom's own functions and with the formulas of PS3.3 C.11."""

import json
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import apply_color_lut, apply_voi, apply_windowing
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from mie.errors import ImageError
from mie.images.dicom import dicom_values, read_dicom
from mie.images.limits import Limits
from tests.images.phantom import l_phantom

L = l_phantom()
RGB = np.stack([L, 255 - L, L // 2], axis=-1)
CT = L.astype(np.int16) * 8 - 1000
PATIENT = "Doe^Jane"


def dataset(values, *, bits=None, photometric="MONOCHROME2", frames=None, **tags):
    """A secondary-capture data set around `values`: (H, W), (H, W, 3), or (N, ...) when `frames`."""
    ds = FileDataset("", {}, file_meta=FileMetaDataset(), preamble=b"\0" * 128)
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID = "1.2.826.0.1.3680043.8.498.1"
    ds.PatientName, ds.PatientID = PATIENT, "12345"
    shape = values.shape[1:] if frames else values.shape
    ds.Rows, ds.Columns = shape[:2]
    if frames:
        ds.NumberOfFrames = frames
    ds.SamplesPerPixel = 3 if len(shape) == 3 else 1
    if ds.SamplesPerPixel == 3:
        ds.PlanarConfiguration = 0
    ds.PhotometricInterpretation = photometric
    ds.BitsAllocated = 8 * values.dtype.itemsize
    ds.BitsStored = bits or ds.BitsAllocated
    ds.HighBit = ds.BitsStored - 1
    ds.PixelRepresentation = int(values.dtype.kind == "i")
    ds.PixelData = values.astype(values.dtype.newbyteorder("<")).tobytes()
    ds["PixelData"].VR = "OB" if ds.BitsAllocated == 8 else "OW"
    for keyword, value in tags.items():
        setattr(ds, keyword, value)
    return ds


@pytest.fixture
def save(tmp_path):
    def write(ds, name="a.dcm"):
        path = tmp_path / name
        ds.save_as(path, enforce_file_format=True)
        return path

    return write


def grey(image):
    return np.repeat(image[..., None], 3, axis=-1)


def linear(values, low, high):
    share = np.clip((values.astype(float) - low) / (high - low), 0, 1)
    return np.floor(share * 255 + 0.5).astype(np.uint8)


def step_of(picture, name):
    return next((step for step in picture.steps if step["step"] == name), None)


def shipped(name):
    path = get_testdata_file(name, download=False)
    assert path is not None
    return Path(path)


# Transfer syntaxes


@pytest.mark.parametrize(
    "syntax",
    [
        ExplicitVRLittleEndian,
        ImplicitVRLittleEndian,
        DeflatedExplicitVRLittleEndian,
        RLELossless,
        JPEGLSLossless,
        JPEG2000Lossless,
    ],
)
@pytest.mark.parametrize("values", [L, CT + 1000, CT], ids=["u1", "i2", "i2 negative"])
def test_grey_through_every_lossless_syntax(save, syntax, values):
    values = values if values.dtype == np.uint8 or values.min() < 0 else values.astype(np.uint16)
    ds = dataset(values)
    if syntax.is_compressed and syntax != DeflatedExplicitVRLittleEndian:
        ds.compress(syntax, generate_instance_uid=False)
    else:
        ds.file_meta.TransferSyntaxUID = syntax
    picture = read_dicom(save(ds))
    expected = values if values.dtype == np.uint8 else linear(values, values.min(), values.max())
    assert (picture.pixels == grey(expected)).all()
    assert picture.pixels.flags.c_contiguous
    assert picture.steps[0] == {
        "step": "dicom",
        "transfer_syntax": str(syntax),
        "photometric": "MONOCHROME2",
        "frame": 0,
    }


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless, JPEGLSLossless, JPEG2000Lossless])
@pytest.mark.parametrize("planar", [0, 1])
def test_colour_through_every_lossless_syntax(save, syntax, planar):
    ds = dataset(RGB, photometric="RGB")
    if syntax.is_compressed:
        ds.compress(syntax, generate_instance_uid=False)
    elif planar:
        ds.PlanarConfiguration, ds.PixelData = 1, np.moveaxis(RGB, 2, 0).tobytes()
    picture = read_dicom(save(ds))
    assert (picture.pixels == RGB).all()
    assert len(picture.steps) == 1


SHIPPED_COLOUR = [
    "SC_ybr_full_422_uncompressed.dcm",  # YBR_FULL_422, native
    "SC_rgb_jpeg_dcmtk.dcm",  # JPEG baseline, YBR_FULL
    "SC_rgb_dcmtk_+eb+cy+np.dcm",  # JPEG baseline, YBR_FULL_422
    "SC_rgb_jpeg_gdcm.dcm",  # JPEG lossless
    "examples_jpeg2k.dcm",  # JPEG 2000, YBR_RCT
    "SC_rgb_rle.dcm",
    "SC_rgb_small_odd_big_endian.dcm",
    "examples_rgb_color.dcm",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SHIPPED_COLOUR)
def test_shipped_colour_files_are_what_pydicom_shows(name):
    expected = pydicom.pixels.pixel_array(shipped(name), index=0)
    assert (read_dicom(shipped(name)).pixels == expected).all()


def test_ybr_native_by_the_formula(save):
    y, cb, cr = (channel.astype(float) for channel in np.moveaxis(RGB, 2, 0))
    cb, cr = cb - 128, cr - 128
    # ITU-R BT.601, as PS3.3 C.7.6.3.1.2 gives it, solved for RGB
    by_hand = np.stack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], axis=-1)
    picture = read_dicom(save(dataset(RGB, photometric="YBR_FULL")))
    assert np.abs(picture.pixels - by_hand.clip(0, 255)).max() <= 1


@pytest.mark.parametrize("kind", ["RLE", "jp2klossless", "jpeg_ls_lossless", "bigendian", "implicit"])
def test_shipped_copies_of_one_slice_are_equal(kind):
    copy = read_dicom(shipped(f"MR_small_{kind}.dcm")).pixels
    assert (copy == read_dicom(shipped("MR_small.dcm")).pixels).all()


def test_jpeg_baseline_shows_the_same_picture_as_the_uncompressed_file():
    lossy = read_dicom(shipped("SC_rgb_jpeg_dcmtk.dcm")).pixels.astype(int)
    exact = read_dicom(shipped("SC_rgb_rle.dcm")).pixels
    assert np.abs(lossy - exact).max() <= 6


# Rescale


def test_ct_in_hounsfield_units():
    ds = pydicom.dcmread(shipped("CT_small.dcm"))
    values = dicom_values(ds)
    assert values.dtype == np.int32
    assert (values == ds.pixel_array.astype(int) - 1024).all()
    picture = read_dicom(shipped("CT_small.dcm"), low=-160, high=240)
    assert (picture.pixels == grey(linear(values, -160, 240))).all()
    assert step_of(picture, "rescale") == {"step": "rescale", "slope": 1.0, "intercept": -1024.0}
    assert step_of(picture, "window") == {"step": "window", "low": -160, "high": 240, "from": "given"}
    assert picture.spacing == (0.661468, 0.661468)


def test_rescale_with_fractions(save):
    path = save(dataset(CT, RescaleSlope="0.25", RescaleIntercept="-3.5"))
    values = dicom_values(pydicom.dcmread(path))
    assert values.dtype == np.float32
    assert np.allclose(values, CT * 0.25 - 3.5)
    assert step_of(read_dicom(path), "rescale")["slope"] == 0.25


def lut(table, first, bits, kind="SS"):
    item = Dataset()
    item.add_new("LUTDescriptor", kind, [len(table), first, bits])
    item.add_new("LUTData", "OW", np.asarray(table, "<u2").tobytes())
    return item


def test_modality_lut(save):
    table = np.arange(256)[::-1] * 7
    ds = dataset(L, ModalityLUTSequence=[lut(table, 0, 16, "US")])
    path = save(ds)
    assert (dicom_values(pydicom.dcmread(path)) == table[L]).all()
    picture = read_dicom(path)
    assert (picture.pixels == grey(linear(table[L], table[L].min(), table[L].max()))).all()
    assert step_of(picture, "rescale") == {"step": "rescale", "function": "table"}


def test_bits_above_those_stored_are_ignored(save):
    values = L.astype(np.uint16) * 16
    dirty = values | np.uint16(0xF000)  # old files keep overlays there
    assert (dicom_values(pydicom.dcmread(save(dataset(dirty, bits=12)))) == values).all()


# Window


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_window_is_that_of_pydicom(save, function):
    tags = {"VOILUTFunction": function} if function else {}
    ds = dataset(CT, WindowCenter=["40", "500"], WindowWidth=["400", "2000"], **tags)
    path = save(ds)
    shown = apply_windowing(CT, ds)  # in -32768..32767
    expected = np.floor((shown + 32768) / 65535 * 255 + 0.5)
    picture = read_dicom(path)
    assert (picture.pixels == grey(expected.astype(np.uint8))).all()
    window = step_of(picture, "window")
    assert (window["centre"], window["width"], window["from"]) == (40, 400, "file")
    if function in (None, "LINEAR"):
        assert (window["low"], window["high"]) == (-160, 239)  # 40 - 0.5 -+ 399 / 2


def test_given_range_and_percentiles_win_over_the_file(save):
    path = save(dataset(CT, WindowCenter="40", WindowWidth="400"))
    picture = read_dicom(path, low=-1000, high=1000)
    assert (picture.pixels == grey(linear(CT, -1000, 1000))).all()
    assert step_of(read_dicom(path, percentiles=(1, 99)), "window")["from"] == "percentiles"


def test_window_of_width_one_is_a_threshold(save):
    picture = read_dicom(save(dataset(CT, WindowCenter="-500", WindowWidth="1")))
    assert (picture.pixels == grey(np.where(CT > -500.5, 255, 0))).all()


def test_window_without_width_is_no_window(save):
    for width in ("0", None):
        picture = read_dicom(save(dataset(CT, WindowCenter="40", WindowWidth=width)))
        assert step_of(picture, "window")["from"] == "min-max"


def test_unknown_window_function(save):
    with pytest.raises(ImageError, match="VOI LUT function") as caught:
        read_dicom(save(dataset(CT, WindowCenter="40", WindowWidth="4", VOILUTFunction="CUBIC")))
    assert caught.value.where.endswith("a.dcm")


def test_voi_lut_is_that_of_pydicom_and_wins_over_the_window(save):
    table = (np.arange(3000) ** 2 // 2200).clip(0, 4095)
    ds = dataset(CT, VOILUTSequence=[lut(table, -1000, 12)], WindowCenter="40", WindowWidth="400")
    picture = read_dicom(save(ds))
    assert (picture.pixels == grey(linear(apply_voi(CT, ds), 0, 4095))).all()
    assert step_of(picture, "window")["function"] == "table"


def test_voi_lut_of_8_bit_entries_longer_than_256(save):
    table = np.arange(3000) * 255 // 2999
    picture = read_dicom(save(dataset(CT, VOILUTSequence=[lut(table, -1000, 8)])))
    assert (picture.pixels == grey(table[CT + 1000].astype(np.uint8))).all()


def test_monochrome1_is_inverted_after_the_window(save):
    tags = {"WindowCenter": "40", "WindowWidth": "400"}
    white = read_dicom(save(dataset(CT, photometric="MONOCHROME1", **tags)))
    black = read_dicom(save(dataset(CT, **tags), "b.dcm"))
    assert (white.pixels == 255 - black.pixels).all()
    assert [step["step"] for step in white.steps] == ["dicom", "window", "invert"]
    assert step_of(black, "invert") is None


@pytest.mark.parametrize(("padding", "limit"), [(-2000, None), (63536, None), (-2000, -1990)])
def test_padding_does_not_widen_the_range(save, padding, limit):
    values = CT.copy()
    values[:5] = -2000 if limit is None else -1995
    ds = dataset(values)
    ds.add_new("PixelPaddingValue", "US" if padding > 0 else "SS", padding)
    if limit is not None:
        ds.add_new("PixelPaddingRangeLimit", "SS", limit)
    window = step_of(read_dicom(save(ds)), "window")
    assert window == {"step": "window", "low": CT[5:].min(), "high": CT[5:].max(), "from": "min-max"}


def test_an_image_of_nothing_but_padding(save):
    picture = read_dicom(save(dataset(np.full((4, 5), 7, np.uint16), PixelPaddingValue=7)))
    assert not picture.pixels.any()
    assert step_of(picture, "window")["constant"] is True


# Frames and functional groups


def test_frames(save):
    path = save(dataset(np.stack([L, 255 - L, L // 2]), frames=3))
    for frame, expected in enumerate((L, 255 - L, L // 2)):
        picture = read_dicom(path, frame=frame)
        assert (picture.pixels == grey(expected)).all()
        assert picture.steps[0]["frame"] == frame
    for frame in (3, -1):
        with pytest.raises(ImageError, match="no such frame") as caught:
            read_dicom(path, frame=frame)
        assert caught.value.expected == "a frame from 0 to 2"


def test_shipped_frames_are_what_pydicom_shows():
    path = shipped("SC_rgb_rle_2frame.dcm")
    both = pydicom.dcmread(path).pixel_array
    assert (both[0] != both[1]).any()
    for frame in (0, 1):
        assert (read_dicom(path, frame=frame).pixels == both[frame]).all()


def item(keyword, **tags):
    group, inner = Dataset(), Dataset()
    for name, value in tags.items():
        setattr(inner, name, value)
    setattr(group, keyword, [inner])
    return group


def test_enhanced_multi_frame_takes_each_frame_s_own_numbers(save):
    shared = item("PixelMeasuresSequence", PixelSpacing=["0.5", "0.25"])
    frames = []
    for slope, centre in ((1, 40), (2, 80)):
        group = item("PixelValueTransformationSequence", RescaleSlope=slope, RescaleIntercept=-10)
        group.update(item("FrameVOILUTSequence", WindowCenter=centre, WindowWidth=4001))
        frames.append(group)
    path = save(
        dataset(
            np.stack([CT, CT]),
            frames=2,
            SharedFunctionalGroupsSequence=[shared],
            PerFrameFunctionalGroupsSequence=frames,
        )
    )
    picture = read_dicom(path, frame=1)
    assert picture.spacing == (0.5, 0.25)
    assert (picture.pixels == grey(linear(CT.astype(int) * 2 - 10, 79.5 - 2000, 79.5 + 2000))).all()
    assert step_of(read_dicom(path), "rescale")["slope"] == 1


# Colour


def test_palette_colour_is_that_of_pydicom():
    path = shipped("examples_palette.dcm")
    ds = pydicom.dcmread(path)
    expected = apply_color_lut(ds.pixel_array, ds)
    assert expected.dtype == np.uint16
    picture = read_dicom(path)
    assert (picture.pixels == expected >> 8).all()
    assert step_of(picture, "palette") == {"step": "palette"}


def test_16bit_colour_has_one_common_range(save):
    deep = RGB.astype(np.uint16) * 100 + 50
    picture = read_dicom(save(dataset(deep, photometric="RGB")))
    assert (picture.pixels == linear(deep, deep.min(), deep.max())).all()


def test_one_bit_pixels():
    path = shipped("liver_1frame.dcm")
    picture = read_dicom(path)
    assert (picture.pixels == grey(pydicom.dcmread(path).pixel_array * np.uint8(255))).all()


# Spacing and privacy


def test_spacing(save):
    assert read_dicom(save(dataset(L, PixelSpacing=["0.4", "0.7"]))).spacing == (0.4, 0.7)
    assert read_dicom(save(dataset(L, ImagerPixelSpacing=["0.14", "0.15"]))).spacing == (0.14, 0.15)
    both = dataset(L, PixelSpacing=["0.4", "0.7"], ImagerPixelSpacing=["1", "1"])
    assert read_dicom(save(both)).spacing == (0.4, 0.7)
    assert read_dicom(save(dataset(L))).spacing is None
    assert read_dicom(save(dataset(L, PixelSpacing=["0", "0.7"]))).spacing is None


def test_no_patient_text_in_the_steps(save):
    ds = dataset(CT, WindowCenter="40", WindowWidth="400", WindowCenterWidthExplanation=PATIENT)
    text = json.dumps(list(read_dicom(save(ds)).steps))
    assert "Doe" not in text
    assert "12345" not in text


# Bad input


def test_no_pixel_data():
    with pytest.raises(ImageError, match="no pixel data") as caught:
        read_dicom(shipped("rtplan.dcm"))
    assert caught.value.found == "SOP class RT Plan Storage"


def test_size_is_refused_before_anything_is_decoded(save, monkeypatch):
    ds = dataset(L)
    ds.Rows = ds.Columns = 60000
    path = save(ds)
    monkeypatch.setattr("mie.images.dicom.frame_values", None)
    with pytest.raises(ImageError, match="too large"):
        read_dicom(path)
    ds.Rows, ds.Columns, ds.NumberOfFrames = 10000, 10000, 2**31 - 1
    with pytest.raises(ImageError, match="too large together"):
        read_dicom(save(ds))
    ds.Rows = 0
    with pytest.raises(ImageError, match="no pixels"):
        read_dicom(save(ds))


def test_deflated_bomb(save):
    ds = dataset(np.zeros((1000, 1000), np.uint8))
    ds.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    path = save(ds)
    assert path.stat().st_size < 10_000
    assert not read_dicom(path).pixels.any()
    with pytest.raises(ImageError, match="inflate"):
        read_dicom(path, limits=Limits(max_bytes=500_000))


@pytest.mark.parametrize(
    "name", ["MR_small_jpeg_ls_lossless.dcm", "MR_small_jp2klossless.dcm", "SC_rgb_jpeg_dcmtk.dcm"]
)
@pytest.mark.parametrize("change", [{"Rows": 16, "Columns": 16}, {"Rows": 3000}, {"SamplesPerPixel": 2}])
def test_a_stream_that_says_another_size_than_the_header(save, monkeypatch, name, change):
    """A stream of a few hundred bytes may promise 20,000 x 20,000 pixels behind a header of 16 x 16."""
    monkeypatch.setattr("mie.images.dicom.frame_values", lambda *_, **__: pytest.fail("decoded"))
    ds = pydicom.dcmread(shipped(name))
    for keyword, value in change.items():
        setattr(ds, keyword, value)
    with pytest.raises(ImageError, match="not what the DICOM header says"):
        read_dicom(save(ds))


def test_a_compressed_stream_too_short_for_its_pixels(save, monkeypatch):
    monkeypatch.setattr("mie.images.dicom.frame_values", lambda *_, **__: pytest.fail("decoded"))
    ds = pydicom.dcmread(shipped("MR_small_RLE.dcm"))
    ds.Rows = ds.Columns = 3000
    with pytest.raises(ImageError, match="bytes of runs"):
        read_dicom(save(ds))
    ds = pydicom.dcmread(shipped("MR_small_jpeg_ls_lossless.dcm"))
    ds.Rows = ds.Columns = 15_000
    with pytest.raises(ImageError, match="at least 225000 bytes for 225000000 pixels"):
        read_dicom(save(ds))


def test_long_runs_are_counted_before_they_are_decoded(save, monkeypatch):
    monkeypatch.setattr("mie.images.dicom.frame_values", lambda *_, **__: pytest.fail("decoded"))
    monkeypatch.setattr("mie.images.dicom_frames._RLE_PLAIN", 1000)
    ds = pydicom.dcmread(shipped("MR_small_RLE.dcm"))
    header = np.array([2, 64, 2064, *[0] * 13], "<u4").tobytes()
    ds.PixelData = encapsulate([header + b"\x81\0" * 2000])
    with pytest.raises(ImageError, match="longer runs"):
        read_dicom(save(ds))
    monkeypatch.undo()
    monkeypatch.setattr("mie.images.dicom_frames._RLE_PLAIN", 1000)
    assert read_dicom(shipped("MR_small_RLE.dcm")).pixels.any()


def test_bytes_are_counted_not_pixels(save):
    ds = dataset(np.zeros((100, 100), np.uint16))
    assert read_dicom(save(ds), limits=Limits(max_decoded=20_000)).pixels.shape == (100, 100, 3)
    with pytest.raises(ImageError, match="10,000 pixels of 2 bytes"):
        read_dicom(save(ds), limits=Limits(max_decoded=19_999))


def test_a_damaged_deflate_stream_is_an_image_error_everywhere(tmp_path):
    from mie.images.dicom import read_header
    from mie.images.dicom_series import read_series

    data = bytearray(shipped("image_dfl.dcm").read_bytes())
    data[400:500] = b"\xff" * 100
    path = tmp_path / "a.dcm"
    path.write_bytes(data)
    for read in (read_dicom, lambda file: read_header(file, ["Rows"]), lambda file: read_series([file])):
        with pytest.raises(ImageError):
            read(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["MR_small.dcm", "MR_small_jp2klossless.dcm", "SC_rgb_jpeg_dcmtk.dcm", "image_dfl.dcm"]
)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_truncated_file(tmp_path, name, share):
    data = shipped(name).read_bytes()
    path = tmp_path / name
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ImageError) as caught:
        read_dicom(path)
    assert name in caught.value.where


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["MR_small_jpeg_ls_lossless.dcm", "SC_rgb_jpeg_dcmtk.dcm", "SC_rgb_jpeg_gdcm.dcm", "MR_small_RLE.dcm"],
)
def test_truncated_stream_in_a_whole_file(save, name):
    ds = pydicom.dcmread(shipped(name))
    stream = next(generate_frames(ds.PixelData, number_of_frames=1))
    ds.PixelData = encapsulate([stream[: len(stream) * 9 // 20 * 2]])
    with pytest.raises(ImageError, match=r"truncated|cannot be decoded"):
        read_dicom(save(ds))


def test_unknown_transfer_syntax(save):
    ds = dataset(L)
    path = save(ds)
    path.write_bytes(path.read_bytes().replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0"))
    with pytest.raises(ImageError, match="cannot be decoded"):
        read_dicom(path)


def test_big_endian_matches():
    ds = pydicom.dcmread(shipped("MR_small_bigendian.dcm"))
    assert ds.file_meta.TransferSyntaxUID == ExplicitVRBigEndian
    assert (dicom_values(ds) == dicom_values(pydicom.dcmread(shipped("MR_small.dcm")))).all()


def test_values_of_a_colour_image():
    with pytest.raises(ImageError, match="not grey"):
        dicom_values(pydicom.dcmread(shipped("SC_rgb_rle.dcm")))
