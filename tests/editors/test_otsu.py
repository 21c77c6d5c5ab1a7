import numpy as np
import pytest

from mie.editors import EditError, open_editor
from mie.images.overlay import deblend, dice
from mie.vocabulary import COLOURS


def bright_disc(size=96):
    y, x = np.mgrid[:size, :size]
    mask = (y - 40) ** 2 + (x - 60) ** 2 < 20**2
    noise = np.random.default_rng(0).normal(0, 6, (size, size))
    grey = np.clip(np.where(mask, 190, 60) + noise, 0, 255).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2), mask


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("invert", [False, True])
def test_it_paints_what_stands_out_in_the_named_colour(colour, invert):
    image, mask = bright_disc()
    image = 255 - image if invert else image
    edited = open_editor("otsu").edit(image, f"Mark the lesion in {colour.upper()}.", seed=0, history=())
    assert dice(deblend(image, edited.image, colour), mask) > 0.97
    assert np.array_equal(edited.image[:5], image[:5])


def test_without_a_colour_it_says_so():
    image, _ = bright_disc()
    with pytest.raises(EditError, match="names no overlay colour"):
        open_editor("otsu").edit(image, "Remove the hundred shredded lesions.", seed=0, history=())
