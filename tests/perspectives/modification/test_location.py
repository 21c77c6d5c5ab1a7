"""Places in words, from masks made by hand."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mie.images.volumes import canonical, slice_of
from mie.perspectives.modification.lesions import place_of, plane_of
from tests.perspectives.modification.lesions import disc

SIZE = 120
EVERYWHERE = np.ones((SIZE, SIZE), bool)


def words(mask, *, family="ultrasound", anatomy="breast", plane=None, body=EVERYWHERE):
    return place_of(mask, body, family=family, anatomy=anatomy, plane=plane).location


@given(row=st.integers(8, SIZE - 9), column=st.integers(8, SIZE - 9))
def test_every_quadrant_is_called_by_its_name(row, column):
    down, right = (row + 0.5) / SIZE - 0.5, (column + 0.5) / SIZE - 0.5
    assume(abs(abs(down) - 0.1) > 0.01 and abs(abs(right) - 0.1) > 0.01)
    said = words(disc(row, column, 5, SIZE))
    assert ("upper" in said) == (down < -0.1)
    assert ("lower" in said) == (down > 0.1)
    assert ("left" in said) == (right < -0.1)
    assert ("right" in said) == (right > 0.1)
    assert ("quadrant" in said) == (abs(down) > 0.1 and abs(right) > 0.1)
    assert said.endswith("of the image")


@pytest.mark.parametrize(
    ("row", "column", "said"),
    [
        (60, 60, "in the centre of the view"),
        (15, 60, "at 12 o'clock near the edge of the view"),
        (60, 105, "at 3 o'clock near the edge of the view"),
        (80, 60, "at 6 o'clock in the view"),
        (60, 35, "at 9 o'clock in the view"),
        (25, 80, "at 1 o'clock near the edge of the view"),
        (95, 40, "at 7 o'clock near the edge of the view"),
    ],
)
def test_a_round_view_is_read_like_a_clock(row, column, said):
    assert words(disc(row, column, 4, SIZE), family="fundus", body=disc(60, 60, 55, SIZE)) == said


@given(hour=st.integers(1, 12))
def test_every_hour(hour):
    angle = np.radians(30 * hour)
    mask = disc(round(60 - 25 * np.cos(angle)), round(60 + 25 * np.sin(angle)), 3, SIZE)
    assert words(mask, family="endoscopy").startswith(f"at {hour} o'clock")


@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("far", [False, True])
def test_the_patients_own_sides_follow_from_the_volume(plane, axis, far):
    """A blob in a RAS+ volume: what `slice_of` shows must be named by the patient's own directions."""
    ends = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))
    at = [30, 30, 30]
    at[axis] = 50 if far else 10
    data = np.zeros((60, 60, 60), np.uint8)
    data[tuple(slice(c - 3, c + 3) for c in at)] = 1
    volume = canonical(data, np.diag([1.0, 1.0, 1.0, 1.0]))
    through = {"sagittal": 0, "coronal": 1, "axial": 2}[plane]
    shown = np.ascontiguousarray(slice_of(volume.data, plane, at[through])).astype(bool)
    steps = [*volume.steps, {"step": "slice", "plane": plane, "index": at[through]}]
    said = words(shown, family="mri", anatomy="brain", plane=plane_of(steps), body=np.ones(shown.shape, bool))
    if axis == through:
        assert said == (
            "in the centre of the brain" if plane == "sagittal" else "near the midline of the brain"
        )
    else:
        assert said == f"in the {ends[axis][far]} part of the brain"


def test_without_an_orientation_only_sides_of_the_image_are_named():
    assert plane_of([{"step": "slice", "plane": "axial", "index": 3}]) is None
    assert plane_of([{"step": "orientation", "found": "LPS", "to": "RAS"}]) is None
    said = words(disc(20, 20, 5, SIZE), family="mri", anatomy="brain", plane=None)
    assert said == "in the upper left quadrant of the image"


def test_a_crop_of_one_breast_has_no_midline():
    said = words(disc(20, 20, 5, SIZE), family="mri", anatomy="breast", plane="axial")
    assert said.endswith("of the image")


def test_several_lesions():
    two = disc(20, 20, 6, SIZE) | disc(100, 100, 5, SIZE)
    said = "in the upper left quadrant of the image and in the lower right quadrant of the image"
    assert words(two) == said
    assert words(two | disc(100, 20, 4, SIZE)) == (
        "at three places (the largest in the upper left quadrant of the image)"
    )
    assert words(disc(20, 20, 6, SIZE) | disc(30, 40, 5, SIZE)) == "in the upper left quadrant of the image"
    speck = disc(20, 20, 9, SIZE) | disc(100, 100, 1, SIZE)
    assert words(speck) == "in the upper left quadrant of the image"
    many = np.zeros((SIZE, SIZE), bool)
    many[5::10, 5::10] = True
    assert words(many).startswith("at many places")


def test_sizes_grow_with_the_lesion():
    sizes = [
        place_of(disc(60, 60, r, SIZE), EVERYWHERE, family="ct", anatomy="liver", plane=None).size
        for r in (2, 5, 12, 30)
    ]
    assert sizes == ["tiny", "small", "medium-sized", "large"]
