import cv2
import numpy as np
import pytest

from mie.editors import EditError, open_editor
from mie.editors.baselines import white_hole
from mie.perspectives.modification.inpainters import make_inpainter
from tests.conftest import crop, ellipse


def test_the_hole_is_filled_from_its_surroundings_and_nothing_else_changes():
    clean = np.minimum(crop(0), 250)
    hole = ellipse(3)
    image = clean.copy()
    image[hole] = 255
    image[5:8, 5:8] = 255  # nine pixels: part of the picture
    edited = open_editor("telea").edit(image, "Fill the hole.", seed=0, history=())
    assert np.array_equal(white_hole(image), hole)
    assert np.array_equal(edited.image[~hole], image[~hole])
    assert not (edited.image[hole] == 255).all(1).any()
    error = np.abs(edited.image[hole].astype(int) - clean[hole]).mean()
    assert error < np.abs(255 - clean[hole].astype(int)).mean() / 3
    assert edited.meta["hole"] == pytest.approx(hole.mean(), abs=1e-5)


def test_nearly_white_is_no_hole():
    image = np.minimum(crop(0), 200)
    image[40:80, 40:80] = (255, 255, 254)
    with pytest.raises(EditError, match="no hole to fill"):
        open_editor("telea").edit(image, "Fill the hole.", seed=0, history=())


@pytest.mark.parametrize(
    "at", [(slice(None), slice(20, 32)), (slice(None), slice(0, 12))], ids=["inside", "end"]
)
@pytest.mark.parametrize("turned", [False, True])
def test_an_image_one_pixel_high_or_wide_is_filled_from_itself_alone(at, turned):
    """As the same line twice is filled: OpenCV alone reads beyond it."""
    line = np.minimum(crop(0)[:1, :50], 250)
    line[at] = 255
    image = line.swapaxes(0, 1) if turned else line
    twice = image.repeat(2, 0 if image.shape[0] == 1 else 1)
    hole = white_hole(twice)
    expected = cv2.inpaint(
        np.where(hole[..., None], np.uint8(0), twice), hole.astype(np.uint8), 5, cv2.INPAINT_TELEA
    )
    edited = open_editor("telea").edit(image, "Fill the hole.", seed=0, history=()).image
    assert np.array_equal(edited, expected[: image.shape[0], : image.shape[1]])
    assert not (edited == 255).all(2).any()


def test_the_white_has_no_part_in_the_fill():
    """OpenCV alone starts from the hole's own levels in places, where it meets the border."""
    clean = np.minimum(crop(0), 250)
    image, hole = clean.copy(), np.zeros((160, 160), bool)
    hole[:40, :40] = True
    image[hole] = 255
    edited = open_editor("telea").edit(image, "Fill the hole.", seed=0, history=()).image
    filled = make_inpainter("telea", family="fundus").fill(clean, hole, seed=0)
    assert np.array_equal(edited[hole], filled[hole])


def test_nothing_but_hole():
    with pytest.raises(EditError, match="whole image"):
        open_editor("telea").edit(np.full((40, 40, 3), 255, np.uint8), "Fill it.", seed=0, history=())
