import cv2
import numpy as np
import pytest

from mie.editors import EditError, open_editor
from mie.images.overlay import deblend, dice
from mie.vocabulary import COLOURS


def coloured_disc(size=200):
    """A disc of equal lightness and another hue, which no threshold of grey finds; two shades around it."""
    y, x = np.mgrid[:size, :size]
    mask = (y - 90) ** 2 + (x - 110) ** 2 < 40**2
    lab = np.zeros((size, size, 3), np.float32)
    lab[..., 0] = np.where(x < size // 2, 55, 65)
    lab[..., 1] = np.where(mask, 60, 5)
    lab[..., 2] = 20
    lab += np.random.default_rng(0).normal(0, 1, lab.shape)
    rgb = cv2.cvtColor(lab.astype(np.float32), cv2.COLOR_Lab2RGB)
    return np.clip(np.rint(255 * rgb), 0, 255).astype(np.uint8), mask


@pytest.mark.parametrize("colour", COLOURS)
def test_it_paints_the_colour_that_stands_out(colour):
    image, mask = coloured_disc()
    editor = open_editor("kmeans")
    edited = editor.edit(image, f"Mark the lesion in {colour.upper()}.", seed=0, history=())
    painted = (edited.image != image).any(2)
    assert dice(painted, mask) > 0.97
    if colour == "green":  # nearest in hue to nothing here
        assert dice(deblend(image, edited.image, colour), mask) > 0.97
    again = editor.edit(image, f"Mark the lesion in {colour}.", seed=1, history=())
    assert np.array_equal(again.image, edited.image)


def test_without_a_colour_it_says_so_and_a_single_pixel_is_no_trouble():
    image, _ = coloured_disc()
    with pytest.raises(EditError, match="names no overlay colour"):
        open_editor("kmeans").edit(image, "Remove the lesion.", seed=0, history=())
    open_editor("kmeans").edit(image[:1, :1], "Mark it in red.", seed=0, history=())
