import io
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, PngImagePlugin

from mie.errors import ImageError
from mie.images.png import decode_png, encode_png

PIXELS = st.one_of(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40))),
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))),
)


@given(PIXELS)
def test_pillow_reads_back_what_we_write(pixels):
    with Image.open(io.BytesIO(encode_png(pixels))) as picture:
        picture.load()
        assert picture.mode == ("L" if pixels.ndim == 2 else "RGB")
        assert np.array_equal(np.asarray(picture), pixels)


@given(PIXELS)
def test_we_read_back_what_we_write(pixels):
    assert np.array_equal(decode_png(encode_png(pixels)), pixels)


def test_we_read_what_pillow_writes():
    pixels = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    assert np.array_equal(decode_png(buffer.getvalue()), pixels)


def test_views_and_flips_are_written_as_seen():
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)[::-1, ::2]
    assert np.array_equal(decode_png(encode_png(pixels)), pixels)


def test_the_size_stands_in_the_header():
    assert struct.unpack(">II", encode_png(np.zeros((3, 9), np.uint8))[16:24]) == (9, 3)


@pytest.mark.parametrize(
    "bad", [np.zeros((4, 4), np.uint16), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_other_arrays_are_refused(bad):
    with pytest.raises(ImageError):
        encode_png(bad)


def test_noise_is_no_png():
    with pytest.raises(ImageError):
        decode_png(b"not a picture at all")


def test_a_chunk_that_promises_more_than_the_file_has_takes_no_memory():
    """OpenCV takes 4 GiB for the length 0xFFFFFFFF; the same bytes came out of a damaged Parquet shard."""
    data = bytearray(encode_png(np.zeros((24, 20, 3), np.uint8)))
    data[33:37] = b"\xff\xff\xff\xff"
    code = (
        "import resource, sys; from mie.images.png import decode_png\n"
        "from mie.errors import ImageError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: decode_png(sys.stdin.buffer.read())\n"
        "except ImageError as error: print(error.found)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=bytes(data), capture_output=True, check=True)
    said, taken = done.stdout.decode().splitlines()
    assert "truncated" in said
    assert int(taken) < 100_000  # KiB


def test_damaged_pixels_are_refused_and_texts_are_not_read():
    pixels = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3)
    buffer = io.BytesIO()
    extras = PngImagePlugin.PngInfo()
    extras.add_text("Comment", "x" * 2000, zip=True)
    Image.fromarray(pixels).save(buffer, "PNG", pnginfo=extras)
    assert b"zTXt" in buffer.getvalue()
    assert np.array_equal(decode_png(buffer.getvalue()), pixels)
    damaged = bytearray(encode_png(pixels))
    damaged[-14] ^= 1  # of the pixels' checksum
    with pytest.raises(ImageError, match="damaged"):
        decode_png(bytes(damaged))
