"""The quick decoder against OpenCV's, and what it must leave to the careful one."""

import os
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ImageError
from mie.images.limits import Limits
from mie.images.png import decode_png, encode_png
from mie.scoring.reference import decode_plain, read_output, read_stored
from tests.conftest import crop


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1), (7, 5, 3), (33, 64), (160, 121, 3)])
def test_our_own_files(shape):
    pixels = crop(1, *shape[:2])
    pixels = np.ascontiguousarray(pixels if len(shape) == 3 else pixels[..., 0])
    found = decode_plain(encode_png(pixels))
    assert found.flags.writeable
    np.testing.assert_array_equal(found, pixels)
    np.testing.assert_array_equal(found, decode_png(encode_png(pixels)))


def test_files_of_other_encoders_are_left_alone_and_read_all_the_same():
    pixels = crop(2)
    data = cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()
    np.testing.assert_array_equal(read_stored(data), pixels)
    assert decode_plain(cv2.imencode(".png", pixels.astype(np.uint16))[1].tobytes()) is None
    assert decode_plain(cv2.imencode(".jpg", pixels)[1].tobytes()) is None


@given(st.data())
def test_damage_never_goes_unseen(data):
    pixels = crop(3, 12, 9)
    whole = encode_png(pixels)
    damaged = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = decode_plain(bytes(damaged))
    except ImageError:  # a size in the header that nobody believes
        found = None
    # Whatever passes has the right pixels: only the chunks' own checksums may be wrong.
    assert found is None or np.array_equal(found.ravel(), pixels.ravel())
    assert decode_plain(whole[:cut]) is None


def test_a_bomb_is_refused(tmp_path):
    small, large = (encode_png(np.zeros((side, side), np.uint8)) for side in (8, 3000))
    bomb = small[:33] + large[33:]  # says 8x8, holds nine million pixels
    assert decode_plain(bomb) is None
    with pytest.raises(ImageError, match="too large"):
        decode_plain(large, Limits(max_pixels=10_000))
    path = tmp_path / "x.png"
    path.write_bytes(large)
    for variant in ("paper", "as_released"):
        with pytest.raises(ImageError, match="too large"):
            read_output(path, variant, limits=Limits(max_bytes=100))


def test_filters_we_do_not_write_go_to_the_other_decoder():
    pixels = crop(4, 6, 5)
    data = encode_png(pixels)
    raw = bytearray(zlib.decompress(data[41:-16]))
    raw[0] = 4
    body = zlib.compress(bytes(raw))
    assert (
        decode_plain(data[:33] + len(body).to_bytes(4, "big") + b"IDAT" + body + bytes(4) + data[-12:])
        is None
    )


def test_outputs(tmp_path):
    path = tmp_path / "x.png"
    pixels = crop(5, 20, 21)
    grey = np.ascontiguousarray(pixels[..., 0])
    for data in (encode_png(grey), cv2.imencode(".png", grey)[1].tobytes()):
        path.write_bytes(data)
        for variant in ("paper", "as_released"):
            np.testing.assert_array_equal(read_output(path, variant), np.dstack([grey] * 3))
    for variant in ("paper", "as_released"):
        with pytest.raises(ImageError):
            read_output(tmp_path / "absent.png", variant)
        path.write_bytes(b"nothing of the kind")
        with pytest.raises(ImageError):
            read_output(path, variant)


@pytest.mark.parametrize("variant", ["paper", "as_released"])
def test_an_output_that_is_a_link_or_a_pipe_is_not_followed(tmp_path, variant):
    (tmp_path / "secret.png").write_bytes(encode_png(crop(5, 20, 21)))
    (tmp_path / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("link.png", "pipe.png"):
        with pytest.raises(ImageError, match="output cannot be read"):
            read_output(tmp_path / name, variant)
