"""What a large model is shown of an image with a hole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mie.perspectives.modification.inpainters.holes import neighbourhood
from tests.conftest import crop


def hole_in(height: int, width: int, top: int, left: int, tall: int, wide: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[top : top + tall, left : left + wide] = True
    return mask


sides = st.integers(1, 150)


@given(sides, sides, st.data())
def test_any_size_is_seen_whole_and_put_back(height: int, width: int, data: st.DataObject) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    mask = hole_in(height, width, top, left, data.draw(sides), data.draw(sides))
    near = neighbourhood(mask, size=64, multiple=16)
    white = np.full((height, width, 3), 255, np.uint8)
    white[mask] = 0
    picture, hole = near.picture(white), near.hole(mask)
    assert picture.shape == (*hole.shape, 3)
    assert hole.shape[0] % 16 == hole.shape[1] % 16 == 0
    assert max(hole.shape) <= 64
    assert hole.any()
    assert (picture[~hole] == 255).all(), "what is in the hole leaks out of it"
    back = near.put_back(white, np.full_like(picture, 7))
    assert back.shape == white.shape
    assert (back[mask] == 7).all()


def test_a_small_hole_in_a_large_image_is_seen_in_native_pixels() -> None:
    image = crop(0, 400, 300)
    near = neighbourhood(hole_in(400, 300, 350, 20, 20, 30), size=128, multiple=16)
    assert (near.top, near.left, near.bottom, near.right) == (272, 0, 400, 128)
    assert np.array_equal(near.picture(image), image[272:400, :128])
    assert np.array_equal(near.put_back(image, near.picture(image)), image)


def test_a_large_hole_is_seen_with_half_its_length_around_it() -> None:
    mask = hole_in(1000, 1000, 400, 300, 100, 300)
    near = neighbourhood(mask, size=256, multiple=16)
    assert (near.left, near.right) == (150, 750)
    assert near.bottom - near.top == 256
    assert near.scaled == (109, 256)
    assert near.hole(mask).shape == (112, 256)


def test_the_hole_is_mirrored_with_the_picture() -> None:
    mask = hole_in(20, 16, 14, 0, 6, 16)
    hole = neighbourhood(mask, size=64, multiple=16).hole(mask)
    assert np.flatnonzero(hole.all(1)).tolist() == list(range(14, 26))
