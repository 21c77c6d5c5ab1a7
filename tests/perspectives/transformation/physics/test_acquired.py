"""An image that was enlarged comes back to the size it was acquired at, and no other image changes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mie.perspectives.transformation.physics.resolution import acquired_share, at_acquired_size
from tests.conftest import crop, grainy
from tests.perspectives.transformation.physics.slices import zero_filled


def slice_of(height: int, width: int, number: int = 0) -> np.ndarray:
    return grainy(crop(number, height, width)[..., 1], number)


@pytest.mark.parametrize(
    ("size", "stored"), [((160, 160), (320, 320)), ((120, 200), (240, 400)), ((101, 151), (255, 381))]
)
def test_a_zero_filled_image_comes_back(size, stored) -> None:
    image = slice_of(*size)
    found = at_acquired_size(zero_filled(image, *stored))
    assert found.dtype == np.uint8
    # The share is found to a 64th of k-space, and never too small.
    assert all(0 <= a - b <= 1 + c / 64 for a, b, c in zip(found.shape, size, stored, strict=True))
    same = zero_filled(image, *found.shape)
    assert np.sqrt(np.mean((found.astype(float) - same) ** 2)) < 1.2


@pytest.mark.parametrize("how", [cv2.INTER_CUBIC, cv2.INTER_LANCZOS4])
def test_an_enlarged_picture_loses_nothing_that_it_shows(how) -> None:
    image = crop(0, 160, 160)[..., 1]
    stored = cv2.resize(image, (480, 480), interpolation=how)
    found = at_acquired_size(stored)
    assert max(found.shape) < 300
    again = zero_filled(found, *stored.shape)
    assert np.sqrt(np.mean((again.astype(float) - stored) ** 2)) < 1.5


def test_once_is_enough_and_what_fills_its_matrix_stays() -> None:
    image = slice_of(160, 200)
    assert at_acquired_size(image) is image
    found = at_acquired_size(zero_filled(image, 320, 400))
    assert at_acquired_size(found) is found


def test_air_around_a_head_does_not_hide_its_detail() -> None:
    head = np.zeros((512, 512), np.uint8)
    head[200:296, 200:296] = slice_of(96, 96)
    assert at_acquired_size(head) is head


def test_the_share_worked_by_hand() -> None:
    """A wave of frequency 40 among 128: what holds it ends beyond 40 / 64 of either side."""
    wave = 100 + 20 * np.sin(2 * np.pi * 40 * np.arange(128) / 128)
    for image in (np.tile(wave, (128, 1)), np.tile(wave[:, None], (1, 128))):
        assert acquired_share(np.rint(image).astype(np.uint8)) == 40 / 64
    # A wave that makes less than a grey level of difference is not looked at.
    faint = np.tile(100 + 1.2 * np.sin(2 * np.pi * 40 * np.arange(128) / 128), (128, 1))
    assert acquired_share(faint) == 1 / 64


def test_an_image_of_one_colour_keeps_some_pixels() -> None:
    assert at_acquired_size(np.full((256, 100), 80, np.uint8)).shape == (32, 32)
    assert at_acquired_size(np.zeros((20, 300), np.uint8)).shape == (20, 32)
