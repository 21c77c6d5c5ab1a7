"""Picture files that editors write: every mode becomes RGB, and it is said which it was."""

import io

import numpy as np
import pytest
from PIL import Image

from mie.editors import EditError
from mie.editors.outputs import decode_output
from tests.conftest import crop


def packed(image, format="PNG", **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def decoded(data, like=(160, 160)):
    return decode_output(data, like=like, where="t")


def test_eight_bit_rgb_needs_no_word():
    edited = decoded(packed(Image.fromarray(crop(1))))
    assert np.array_equal(edited.image, crop(1))
    assert edited.meta == {}


def test_grey_becomes_rgb():
    grey = crop(1)[..., 0]
    edited = decoded(packed(Image.fromarray(grey)))
    assert np.array_equal(edited.image, np.stack([grey] * 3, -1))
    assert edited.meta == {"mode": "L"}


def test_alpha_is_laid_on_black():
    rgba = np.dstack([crop(1), np.full((160, 160), 128, np.uint8)])
    edited = decoded(packed(Image.fromarray(rgba)))
    assert np.abs(edited.image - crop(1) * (128 / 255)).max() <= 0.5 + 1e-9
    assert edited.meta["mode"] == "RGBA"
    assert edited.meta["steps"] == [{"step": "alpha", "background": "black"}]


def test_an_opaque_alpha_changes_nothing():
    rgba = np.dstack([crop(1), np.full((160, 160), 255, np.uint8)])
    edited = decoded(packed(Image.fromarray(rgba)))
    assert np.array_equal(edited.image, crop(1))
    assert edited.meta == {"mode": "RGBA"}


def test_sixteen_bits_keep_their_brightness():
    """Stretching to minimum and maximum would turn a dark output into a bright one."""
    dark = (crop(1)[..., 1] // 4).astype(np.uint16)
    edited = decoded(packed(Image.fromarray(dark * 257)))
    assert np.array_equal(edited.image[..., 0], dark.astype(np.uint8))
    assert edited.meta["mode"].startswith("I")


def test_deep_tiff_is_refused():
    with pytest.raises(EditError, match="more than 8 bits"):
        decoded(packed(Image.fromarray(crop(1)[..., 0].astype(np.float32)), "TIFF"))


def test_a_huge_picture_is_refused_before_it_is_decoded():
    bomb = packed(Image.new("1", (20_000, 20_000)))
    assert len(bomb) < 100_000
    with pytest.raises(EditError, match="too large"):
        decoded(bomb)
    assert decoded(packed(Image.new("RGB", (1280, 1280)))).image.shape == (1280, 1280, 3)


def test_half_a_picture_is_no_picture():
    data = packed(Image.fromarray(crop(1)))
    for broken in (data[: len(data) // 2], data[:-1], data[:60] + b"\xff" + data[61:]):
        with pytest.raises(EditError, match="cannot be used"):
            decoded(broken)
