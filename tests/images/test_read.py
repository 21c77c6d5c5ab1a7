import io
import os
import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom.data import get_testdata_file

from mie.errors import ImageError
from mie.images.limits import Limits
from mie.images.read import read_labels, read_picture
from tests.images.phantom import l_phantom

L = l_phantom()


def shipped(name):
    return Path(get_testdata_file(name, download=False))


def grey(image):
    return np.repeat(image[..., None], 3, axis=-1)


@pytest.mark.parametrize(
    "name", ["a.png", "two words.png", "胸部 X線.png", "снимок.jpg", "no_suffix", "wrong.dcm"]
)
def test_content_counts_and_the_name_does_not(tmp_path, name):
    path = tmp_path / name
    Image.fromarray(L).save(path, "PNG")
    assert (read_picture(path).pixels == grey(L)).all()
    assert (read_labels(path) == L).all()


def test_options_reach_the_reader(tmp_path):
    path = tmp_path / "a.tif"
    pages = [Image.fromarray(L), Image.fromarray(255 - L)]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    assert (read_picture(path, frame=1).pixels == grey(255 - L)).all()
    assert read_picture(path, low=0, high=100).steps[0]["high"] == 100
    assert read_picture(path, percentiles=(5, 90)).steps[0]["from"] == "percentiles"
    with pytest.raises(ImageError, match="too large"):
        read_picture(path, limits=Limits(max_pixels=100))
    frames = shipped("SC_rgb_rle_2frame.dcm")
    assert read_picture(frames, frame=1).steps[0]["frame"] == 1


def test_colour_masks(tmp_path):
    path = tmp_path / "m.png"
    rgb = np.stack([L, 255 - L, L // 2], axis=-1)
    Image.fromarray(rgb).save(path)
    assert (read_labels(path, as_colour=True) == rgb).all()
    with pytest.raises(ImageError, match="coloured"):
        read_labels(path)


def test_dicom_under_a_picture_name(tmp_path):
    path = tmp_path / "ct.png"
    shutil.copy(shipped("CT_small.dcm"), path)
    picture = read_picture(path)
    assert picture.steps[0]["step"] == "dicom"
    assert picture.spacing == (0.661468, 0.661468)


@pytest.mark.parametrize("name", ["CT_small.dcm", "MR_small_implicit.dcm"])
@pytest.mark.filterwarnings("ignore")
def test_dicom_without_preamble(tmp_path, name):
    path = tmp_path / "bare"
    path.write_bytes(shipped(name).read_bytes()[132:])
    assert (read_picture(path).pixels == read_picture(shipped(name)).pixels).all()


@pytest.mark.filterwarnings("ignore")
def test_dicom_without_any_header(tmp_path):
    ds = pydicom.dcmread(shipped("MR_small.dcm"))
    for implicit in (True, False):
        buffer = io.BytesIO()
        bare = pydicom.Dataset(ds)
        pydicom.dcmwrite(buffer, bare, implicit_vr=implicit, little_endian=True)
        path = tmp_path / "bare"
        path.write_bytes(buffer.getvalue())
        assert path.read_bytes()[:2] == b"\x08\x00"
        assert (read_picture(path).pixels == read_picture(shipped("MR_small.dcm")).pixels).all()


def test_dicom_labels_are_the_stored_values():
    path = shipped("CT_small.dcm")  # rescale and padding do not matter here
    labels = read_labels(path)
    assert labels.dtype == np.int16
    assert (labels == pydicom.dcmread(path).pixel_array).all()
    with pytest.raises(ImageError, match="several frames"):
        read_labels(shipped("SC_rgb_rle_2frame.dcm"))
    with pytest.raises(ImageError, match="coloured"):
        read_labels(shipped("SC_rgb_rle.dcm"))
    assert read_labels(shipped("SC_rgb_rle.dcm"), as_colour=True).shape == (100, 100, 3)


def test_missing_empty_folder_and_text(tmp_path):
    with pytest.raises(ImageError, match="does not exist"):
        read_picture(tmp_path / "nowhere.png")
    with pytest.raises(ImageError, match="not a file"):
        read_picture(tmp_path)
    empty = tmp_path / "empty.png"
    empty.touch()
    with pytest.raises(ImageError, match="empty"):
        read_picture(empty)
    text = tmp_path / "text.png"
    text.write_text("patient,age\n1,50\n")
    with pytest.raises(ImageError, match="not a picture file") as caught:
        read_picture(text)
    assert caught.value.where == str(text)
    for reader in (read_picture, read_labels):
        with pytest.raises(ImageError):
            reader(tmp_path / "nul\0name.png")
        with pytest.raises(ImageError):
            reader(tmp_path / ("long" * 200))
        with pytest.raises(ImageError):
            reader(text / "below a file")


def test_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="not a file"):
        read_picture(tmp_path / "pipe.png")


def test_permission(tmp_path, monkeypatch):
    path = tmp_path / "locked.png"
    Image.fromarray(L).save(path)

    def locked(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", locked)  # the super-user may read everything
    with pytest.raises(ImageError, match="may not be read"):
        read_picture(path)


def test_file_size_limit(tmp_path):
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(5 * 2**30)  # sparse: takes no room on disk
    with pytest.raises(ImageError, match="too large to read") as caught:
        read_picture(path)
    assert caught.value.found == "5,368,709,120 bytes"


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([b"", b"\x08\x00", b"\x02\x00\x00\x00UL\x04\x00", bytes(128) + b"DICM", b"BM", b"II*\0"]),
    st.binary(max_size=300),
)
def test_noise_gives_nothing_but_image_errors(tmp_path_factory, head, noise):
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(head + noise)
    with pytest.raises(ImageError):
        read_picture(path)
    with pytest.raises(ImageError):
        read_labels(path)
