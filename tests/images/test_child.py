"""The process that decodes what no header bounds: what it gives back, and what ends it."""

import io
import os
import signal
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import JPEG2000Lossless, JPEGLSLossless

from mie.errors import ImageError
from mie.images import child, dicom_frames, raster
from mie.images.dicom import read_dicom, stored_values
from mie.images.dicom_series import read_series
from mie.images.raster import read_raster, read_raster_labels

# A child with tasks that do harm, in place of the usual ones.
HARMFUL = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mie.images import child
names = ("spin", "end", "hog", "echo", "write")
child.TASKS.update({name: f"tests.images.test_child:{name}" for name in names})
child.serve()
"""


def spin(facts, data):
    while True:
        pass


def end(facts, data):
    os.abort()


def hog(facts, data):
    return {}, [np.ones(facts["bytes"], np.uint8)]


def write(facts, data):
    Path(facts["path"]).write_bytes(data)
    return {}, []


def echo(facts, data):
    print("noise on the way")
    os.write(1, b"more noise")
    return {**facts, "pid": os.getpid()}, [np.frombuffer(data, np.uint8), np.arange(6.0).reshape(2, 3)]


@pytest.fixture
def ask(monkeypatch):
    monkeypatch.setattr(child, "_START", HARMFUL)
    monkeypatch.setattr(child, "_child", None)
    monkeypatch.setattr(child, "SECONDS", 1.0)
    monkeypatch.setattr(child, "_PATIENCE", 100.0)  # a child takes its time to start on a busy machine

    def ask(task, data=b"", pixels=1, **facts):
        return child.decode_limited(task, facts, data, pixels=pixels, kind="TEST", where="a")

    yield ask
    child._end_child()


def test_what_ends_a_child_is_refused_and_the_next_file_is_read(ask):
    said, (data, numbers) = ask("echo", b"abc", word="liver")
    assert (said["word"], bytes(data), numbers.tolist()) == ("liver", b"abc", [[0, 1, 2], [3, 4, 5]])
    assert ask("echo")[0]["pid"] == said["pid"] != os.getpid()  # warm
    with pytest.raises(ImageError, match="cannot be decoded") as error:
        ask("end")
    assert error.value.found == "it ends the decoder's process"
    with pytest.raises(ImageError) as error:
        ask("spin")
    assert error.value.found == "its decoder does not end"
    assert ask("echo")[0]["pid"] != said["pid"]


def test_the_processor_s_time_is_limited_by_the_system_itself(ask, monkeypatch):
    """Not only by our own patience, which ends a child that sleeps."""
    codes = []
    end = child._Child.end
    monkeypatch.setattr(child._Child, "end", lambda self: codes.append(end(self)) or codes[-1])
    with pytest.raises(ImageError, match="cannot be decoded"):
        ask("spin")
    assert codes == [-signal.SIGXCPU]


def test_memory_and_files_are_limited(ask, tmp_path):
    with pytest.raises(ImageError) as error:
        ask("hog", bytes=2 * child.MEMORY)
    assert "memory" in error.value.found
    _, (ones,) = ask("hog", bytes=2**20)
    assert ones.sum() == 2**20
    with pytest.raises(ImageError, match="File too large"):
        ask("write", b"x", path=str(tmp_path / "x"))


def test_a_forked_process_has_a_child_of_its_own(ask):
    mine = ask("echo")[0]["pid"]
    reader, writer = os.pipe()
    child._lock.acquire()  # as while another thread decodes
    if (pid := os.fork()) == 0:
        signal.alarm(40)
        child._end_child()  # as at the end of a process that decoded nothing: not its to kill
        os.write(writer, str(ask("echo")[0]["pid"]).encode())
        child._end_child()
        os._exit(0)
    child._lock.release()
    os.close(writer)
    os.waitpid(pid, 0)
    assert int(os.read(reader, 20)) != mine
    assert ask("echo")[0]["pid"] == mine


@pytest.fixture
def calls(monkeypatch):
    """Which tasks the readers give to the child."""
    made = []

    def spy(task, *values, **options):
        made.append(task)
        return child.decode_limited(task, *values, **options)

    monkeypatch.setattr(raster, "decode_limited", spy)
    monkeypatch.setattr(dicom_frames, "decode_limited", spy)
    return made


def test_compressed_tiff_is_decoded_in_the_child_and_the_same(calls):
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    pictures = {
        "grey": Image.fromarray(grey),
        "deep": Image.fromarray(grey.astype(np.uint16) * 900),
        "palette": Image.fromarray(grey).convert("P"),
        "colour": Image.fromarray(np.stack([grey, grey[::-1], grey * 2], axis=-1)),
    }
    for name, picture in pictures.items():
        files = {}
        for way in (None, "tiff_lzw", "tiff_adobe_deflate"):
            buffer = io.BytesIO()
            picture.save(buffer, "TIFF", compression=way, tiffinfo={274: 6})
            files[way] = buffer.getvalue()
        plain = read_raster(files[None], where=name)
        assert calls == []
        for way in ("tiff_lzw", "tiff_adobe_deflate"):
            packed = read_raster(files[way], where=name)
            assert np.array_equal(packed.pixels, plain.pixels)
            assert packed.steps == plain.steps
            if name == "palette":
                assert np.array_equal(
                    read_raster_labels(files[way], where=name), read_raster_labels(files[None], where=name)
                )
        assert calls
        calls.clear()


@pytest.mark.parametrize(
    "name", ["JPEG2000.dcm", "SC_rgb_jpeg_gdcm.dcm", "SC_rgb_jpeg_dcmtk.dcm", "examples_jpeg2k.dcm"]
)
def test_compressed_frames_are_decoded_in_the_child_and_the_same(calls, name):
    dataset = pydicom.dcmread(get_testdata_file(name))
    values, photometric = stored_values(dataset, 0, where=name)
    assert calls == ["frame"]
    expected, image = get_decoder(dataset.file_meta.TransferSyntaxUID).as_array(dataset, index=0)
    assert values.dtype == expected.dtype
    assert np.array_equal(values, expected)
    assert photometric == image["photometric_interpretation"]


@pytest.mark.parametrize("syntax", [None, JPEGLSLossless, JPEG2000Lossless])
def test_series_and_pictures_of_compressed_slices(calls, tmp_path, syntax):
    dataset = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    plain = read_series([get_testdata_file("CT_small.dcm")])
    if syntax is not None:
        dataset.compress(syntax, generate_instance_uid=False)
    dataset.save_as(tmp_path / "a.dcm")
    assert np.array_equal(read_series([tmp_path / "a.dcm"]).data, plain.data)
    assert read_dicom(tmp_path / "a.dcm").pixels.shape == (128, 128, 3)
    assert calls == ([] if syntax is None else ["frame", "frame"])


def test_a_jpeg_of_many_pixels_has_fewer_scans():
    """225 megapixels in 195 scans took over 20 s; two hundred scans of a small picture do not."""
    buffer = io.BytesIO()
    Image.new("L", (6000, 6000), 90).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    raster.check_header(data, where="a")
    at = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="too many scans"):
        raster.check_header(data[:at] + data[at:-2] * 150 + data[-2:], where="a")
