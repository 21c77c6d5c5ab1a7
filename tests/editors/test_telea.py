import numpy as np
import pytest

from mie.editors import EditError, open_editor
from mie.editors.telea import white_hole
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
