import cv2
import numpy as np
import pytest

from mie.scoring.metrics import resize_to
from tests.conftest import crop


@pytest.mark.parametrize("size", [(80, 200), (333, 161), (1, 1)])
def test_is_the_released_scripts_bilinear(size):
    image = crop(0)
    expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    found = resize_to(image, size)
    assert found.shape == (*size, 3)
    assert np.array_equal(found, expected)


def test_an_output_of_the_right_size_is_untouched():
    image = crop(0)
    assert resize_to(image, (160, 160)) is image
