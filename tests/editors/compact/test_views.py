"""Sizes the network works at, the way there and back."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.editors.compact.editor import back, look, views
from mie.editors.compact.kinds import EditKind
from tests.conftest import crop


@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from([32, 100, 256, 512]))
def test_the_shape_is_kept_and_sides_are_multiples_of_the_stride(height, width, longer):
    image = np.zeros((height, width, 3), np.uint8)
    view = look(image, longer)
    assert max(view.size) == longer
    assert all(0 <= padded - side < 32 for padded, side in zip(view.pixels.shape, view.size, strict=False))
    assert view.pixels.shape[0] % 32 == view.pixels.shape[1] % 32 == 0
    exact = min(height, width) * longer / max(height, width)
    assert abs(min(view.size) - exact) <= 0.5 or min(view.size) == 1


def test_the_border_repeats_the_edge():
    image = crop(0, 100, 70)
    view = look(image, 100)
    assert view.pixels.shape == (128, 96, 3)
    assert np.array_equal(view.pixels[:100, :70], image)
    assert (view.pixels[100:, :70] == image[-1]).all()
    assert (view.pixels[:100, 70:] == image[:, -1:]).all()


def test_overlays_see_large_images_twice():
    assert views(100, 120, EditKind.OVERLAY) == (256,)
    assert views(383, 10, EditKind.OVERLAY) == (256,)
    assert views(10, 384, EditKind.OVERLAY) == (256, 512)
    assert views(4000, 3000, EditKind.OVERLAY, 320) == (320,)
    for kind in (EditKind.IMAGE, EditKind.AREA):
        assert views(100, 120, kind) == (120,)
        assert views(900, 800, kind) == (900,)
        assert views(1000, 1440, kind) == (1018,)  # 720,000 pixels


@pytest.mark.parametrize("size", [(160, 120), (333, 501), (57, 43)])
def test_there_and_back_lies_where_it_was(size):
    """A blob that the network marks in a view lies at its place in the image."""
    y, x = np.mgrid[: size[0], : size[1]]
    spot = np.exp(-((y / size[0] - 0.6) ** 2 + (x / size[1] - 0.3) ** 2) * 40).astype(np.float32)
    image = np.repeat((255 * spot)[..., None], 3, 2).astype(np.uint8)
    view = look(image, 256)
    values = view.pixels[..., 0].astype(np.float32) / 255
    found = back(values, view.size, size)
    assert found.shape == size
    assert np.abs(cv2.GaussianBlur(found - spot, (0, 0), 1)).max() < 0.03
