"""Where an added lesion lies, and how large it is."""

import cv2
import numpy as np
import pytest

from mie.editors.compact.places import lesion_region
from mie.editors.compact.understanding import question

HEIGHT, WIDTH = 200, 260
EXTENTS = (0.05, 0.2)


def picture(body=None):
    """Bright everywhere, or in an ellipse."""
    image = np.full((HEIGHT, WIDTH, 3), 0 if body else 120, np.uint8)
    if body:
        cv2.ellipse(image, (WIDTH // 2, HEIGHT // 2), body, 0, 0, 360, (120, 120, 120), cv2.FILLED)
    return image


def region(instruction, gate=None, seed=0, image=None, family="ultrasound", extents=EXTENTS):
    image = picture() if image is None else image
    body = np.ones((HEIGHT, WIDTH), bool)
    gate = np.zeros((HEIGHT, WIDTH), bool) if gate is None else gate
    return lesion_region(image, body, gate, extents, question(instruction), family, seed)


def centre(mask):
    rows, columns = np.nonzero(mask)
    return rows.mean() / HEIGHT, columns.mean() / WIDTH


def box(rows, columns):
    gate = np.zeros((HEIGHT, WIDTH), bool)
    gate[rows, columns] = True
    return gate


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("place", "family", "upper", "left"),
    [
        ("in the upper left quadrant of the image", "ultrasound", True, True),
        ("in the lower right quadrant of the image", "ct", False, False),
        ("in the upper left part of the liver", "ct", True, False),  # the patient's left
        ("im linken unteren Teil", "ultrasound", False, True),
        ("at 2 o'clock in the view", "endoscopy", True, False),
        ("at 7 o'clock near the edge of the view", "fundus", False, True),
    ],
)
def test_the_words_of_a_place_count_even_against_the_gate(place, family, upper, left, seed):
    wrong = box(slice(20, 60), slice(200, 240)) if left else box(slice(20, 60), slice(20, 60))
    text = f"Füge {place} einen Polypen hinzu." if "Teil" in place else f"Add a polyp {place}."
    for gate in (None, wrong):
        made = region(text, gate, seed, family=family)
        row, column = centre(made)
        assert (row < 0.5) == upper
        assert (column < 0.5) == left


def test_the_gate_says_where_as_far_as_the_words_allow():
    gate = box(slice(30, 90), slice(20, 80)) | box(slice(120, 190), slice(190, 250))
    for seed in range(5):
        row, column = centre(region("Add a polyp in the upper left quadrant of the image.", gate, seed))
        assert 0.15 < row < 0.45
        assert 0.08 < column < 0.31
    without_words = [centre(region("Add a polyp.", gate, seed)) for seed in range(8)]
    assert all((row < 0.5) == (column < 0.5) for row, column in without_words), "in one of its two parts"
    assert len(set(without_words)) == 8


def test_anterior_is_above_only_where_the_gate_says_nothing():
    gate = box(slice(130, 180), slice(100, 160))
    assert centre(region("Add a glioma in the anterior part of the brain.", family="mri"))[0] < 0.45
    assert centre(region("Add a glioma in the anterior part of the brain.", gate, family="mri"))[0] > 0.55


def test_without_words_and_gate_no_place_is_made_up():
    assert region("Add a polyp.") is None


def test_a_size_leads_to_it_but_not_beyond_what_was_learnt():
    def lengths(word, extents=(0.02, 0.6)):
        made = [
            region(f"Add a {word} polyp in the centre.", None, seed, extents=extents) for seed in range(9)
        ]
        return [max(np.ptp(axis) + 1 for axis in np.nonzero(one)) for one in made]

    small, large = lengths("small"), lengths("large")
    assert max(small) < min(large)
    body = np.sqrt(HEIGHT * WIDTH)
    assert 0.04 * body < np.median(small) < 0.2 * body
    assert np.median(large) > 0.25 * body
    assert max(lengths("large", (0.02, 0.05))) < 1.5 * 0.05 * WIDTH


@pytest.mark.parametrize("family", ["mri", "ultrasound"])
def test_a_lesion_lies_wholly_in_tissue(family):
    image = picture((60, 50))
    for seed in range(6):
        made = region("Add a polyp in the centre.", None, seed, image, family, (0.1, 0.3))
        assert made is not None
        assert (image[made] > 0).all()
    assert region("Add a polyp in the upper left quadrant of the image.", None, 0, picture((8, 8))) is None
