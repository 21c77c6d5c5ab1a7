"""Bombs: files whose pixels, pages or passes cost far more than their bytes."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from mie.errors import ImageError
from mie.images.limits import Limits
from mie.images.png import decode_png, encode_png
from mie.images.raster import check_header, read_raster, read_raster_labels

# Reads a palette picture with transparency and prints how many bytes a pixel took at most.
PEAK = """
import resource, sys
from mie.images.raster import read_raster
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pixels = read_raster(data, where="a").pixels
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / (pixels.size / 3))
"""


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(side: int, depth: int, colour: int, row: int, *more: bytes) -> bytes:
    """A black square; `row` is the bytes of one row."""
    header = struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)
    body = zlib.compress(bytes((row + 1) * side), 1)
    chunks = (chunk(b"IHDR", header), *more, chunk(b"IDAT", body), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def palette_png(side: int) -> bytes:
    colours = chunk(b"PLTE", bytes([200, 100, 50, 1, 2, 3]))
    return png(side, 1, 3, (side + 7) // 8, colours, chunk(b"tRNS", b"\x80\xff"))


def test_a_palette_with_transparency_takes_few_bytes_a_pixel() -> None:
    picture = read_raster(palette_png(8), where="a")
    assert picture.pixels.tolist() == [[[100, 50, 25]] * 8] * 8
    assert {"step": "alpha", "background": "black"} in picture.steps
    done = subprocess.run(
        [sys.executable, "-c", PEAK], input=palette_png(3000), capture_output=True, check=True
    )
    assert float(done.stdout) < 16  # it was 33; 3 of them are the picture


def test_transparent_palette_as_label_colours_is_refused() -> None:
    with pytest.raises(ImageError, match="transparent"):
        read_raster_labels(palette_png(8), where="a", as_colour=True)


@pytest.mark.parametrize(
    ("depth", "colour", "row", "width"), [(8, 6, 400, 4), (16, 6, 800, 8), (16, 2, 600, 6), (8, 4, 200, 4)]
)
def test_bytes_of_a_picture_are_counted(depth: int, colour: int, row: int, width: int) -> None:
    data = png(100, depth, colour, row)
    read_raster(data, where="a", limits=Limits(max_decoded=10_000 * width))
    with pytest.raises(ImageError, match=f"10,000 pixels of {width} bytes"):
        read_raster(data, where="a", limits=Limits(max_decoded=10_000 * width - 1))


def test_bytes_of_a_deep_tiff_are_counted() -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((100, 100), np.float32)).save(file, "TIFF")
    with pytest.raises(ImageError, match="10,000 pixels of 4 bytes"):
        read_raster(file.getvalue(), where="a", limits=Limits(max_decoded=39_999))


@pytest.mark.parametrize("loop", [False, True])
def test_a_tiff_with_endless_pages(loop: bool) -> None:
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "TIFF")
    page = file.getvalue()
    page += bytes(len(page) % 2)
    (first,) = struct.unpack_from("<I", page, 4)
    (entries,) = struct.unpack_from("<H", page, first)
    link = first + 2 + 12 * entries
    pages = bytearray(page)
    struct.pack_into("<I", pages, link, first if loop else len(pages))
    for number in range(0 if loop else 20_000):  # empty directories, each naming the next
        pages += struct.pack("<HI", 0, len(page) + 6 * (number + 1))
    with pytest.raises(ImageError, match="too many pages"):
        read_raster(bytes(pages), where="a")


def test_a_jpeg_with_hundreds_of_scans() -> None:
    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    assert read_raster(data, where="a").pixels.shape == (64, 64, 3)
    at = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="too many scans"):
        read_raster(data[:at] + data[at:-2] * 300 + data[-2:], where="a")


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"not a picture at all" * 3, b"\x89PNG\r\n\x1a\n" + bytes(60)]
)
def test_stored_images_that_are_none(data: bytes) -> None:
    with pytest.raises(ImageError):
        decode_png(data)


def test_stored_images_have_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode_png(np.zeros((9, 9, 3), np.uint8))
    np.testing.assert_array_equal(decode_png(good), np.zeros((9, 9, 3), np.uint8))
    monkeypatch.setattr("mie.images.png.cv2.imdecode", lambda *_: pytest.fail("decoded"))
    bomb = bytearray(good)
    bomb[16:24] = struct.pack(">II", 30_000, 30_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    with pytest.raises(ImageError, match="too large to decode safely"):
        decode_png(bytes(bomb))


def test_a_header_is_checked_without_decoding() -> None:
    check_header(palette_png(8), where="a")
    file = io.BytesIO()
    Image.new("RGB", (400, 300)).save(file, "WebP")
    with pytest.raises(ImageError, match="at most 1,000 pixels"):
        check_header(file.getvalue(), where="a", limits=Limits(max_pixels=1000))
    with pytest.raises(ImageError, match="not a picture"):
        check_header(b"text", where="a")
