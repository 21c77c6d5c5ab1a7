"""The white hole is found among what else is white, or not at all."""

import cv2
import numpy as np
import pytest

from mie.editors.compact.holes import find_hole
from tests.conftest import crop, ellipse


def tissue(number: int, height: int = 160, width: int = 160) -> np.ndarray:
    return np.minimum(crop(number, height, width), 200)


@pytest.mark.parametrize("number", range(6))
def test_a_painted_hole_is_found_exactly(number):
    image, area = tissue(number), ellipse(number)
    image[area] = 255
    assert np.array_equal(find_hole(image), area)


def test_no_white_no_hole():
    image = tissue(0)
    assert not find_hole(image).any()
    image[5, 5] = 255  # a speck
    assert not find_hole(image).any()
    image[20:60, 20:60] = 254
    image[80:120, 20:60, 1] = 255  # green, not white
    assert not find_hole(image).any()


def test_saturated_bone_that_fades_is_not_the_hole():
    """A skull: a larger white area than the hole, but a thin ring whose rim is bright."""
    canvas = np.zeros((256, 256), np.float32)
    cv2.ellipse(canvas, (128, 128), (110, 100), 0, 0, 360, 1.0, 14)
    image = np.minimum(90 + 400 * cv2.GaussianBlur(canvas, (0, 0), 3), 255)
    image = np.repeat(np.rint(image).astype(np.uint8)[..., None], 3, 2)
    bone = (image == 255).all(2)
    area = np.zeros((256, 256), bool)
    area[110:140, 90:130] = True
    image[area] = 255
    assert bone.sum() > 2 * area.sum()
    assert np.array_equal(find_hole(image), area)


def test_a_hole_of_several_parts_and_one_at_the_rim():
    image = tissue(1)
    area = np.zeros((160, 160), bool)
    area[:30, 100:140] = area[80:110, 20:60] = True
    image[area] = 255
    assert np.array_equal(find_hole(image), area)


def test_a_white_image_is_no_hole():
    assert not find_hole(np.full((40, 40, 3), 255, np.uint8)).any()
