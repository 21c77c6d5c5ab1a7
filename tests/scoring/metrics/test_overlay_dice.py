import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.images.overlay import deblend, dice, paint
from mie.scoring.metrics import MetricError, class_dice, deblend_dice, deblend_dice_any
from mie.scoring.metrics.dice import _count, _count_any
from mie.vocabulary import COLOURS
from tests.conftest import crop, ellipse
from tests.scoring.metrics.pairs import random_pair


def float_mask(image, output, colour):
    """The published formula in float64."""
    i, m = image.astype(np.float64), output.astype(np.float64)
    c = np.array(COLOURS[colour], np.float64) - i
    alpha = ((m - i) * c).sum(-1) / ((c**2).sum(-1) + 1e-6)
    return np.clip(alpha, 0, 1) > 0.5


def float_dice(x, y):
    return (2 * np.logical_and(x, y).sum() + 1e-6) / (x.sum() + y.sum() + 1e-6)


def painted_pixels(image, output, count, *colour):
    """The kernel's mask, read out one pixel at a time."""
    i, m = image.reshape(-1, 3), output.reshape(-1, 3)
    here = np.ones(1, bool)
    return np.array([count(i[k], m[k], here, *colour)[0] for k in range(len(i))], bool)


@pytest.mark.parametrize("colour", COLOURS)
def test_masks_are_identical_to_the_float_formula(colour):
    image, output = random_pair(40, 50)
    # Half-way to the colour, where alpha is 0.5 or a hair beside it.
    for shift in (-1, 0, 1):
        half = (image.astype(int) + np.array(COLOURS[colour])) // 2 + shift
        for other in (output, np.clip(half, 0, 255).astype(np.uint8), image):
            expected = float_mask(image, other, colour)
            found = painted_pixels(image, other, _count, *COLOURS[colour])
            assert np.array_equal(found.reshape(expected.shape), expected)
            assert np.array_equal(deblend(image, other, colour), expected)


def test_the_union_of_colours_is_identical_too():
    image, output = random_pair(30, 31, 5)
    expected = np.any([float_mask(image, output, colour) for colour in COLOURS], axis=0)
    found = painted_pixels(image, output, _count_any)
    assert np.array_equal(found.reshape(expected.shape), expected)
    reference = ellipse(2, 30, 31)
    assert deblend_dice_any(image, output, reference) == pytest.approx(
        float_dice(expected, reference), abs=1e-9
    )


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    colour=st.sampled_from(list(COLOURS)),
)
def test_dice_equals_the_float_version(height, width, seed, share, colour):
    image, output = random_pair(height, width, seed)
    reference = np.random.default_rng(seed + 1).random((height, width)) < share
    expected = float_dice(float_mask(image, output, colour), reference)
    assert deblend_dice(image, output, reference, colour) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("number", range(4))
def test_real_overlays(number):
    image, region, wrong = crop(number), ellipse(number), ellipse(number + 7)
    for colour in COLOURS:
        output = paint(image, wrong, colour)
        expected = dice(deblend(image, output, colour), region)
        assert 0 < expected < 1
        assert deblend_dice(image, output, region, colour) == pytest.approx(expected, abs=1e-9)
        assert deblend_dice(image, paint(image, region, colour), region, colour) > 0.99


def test_empty_masks():
    image = crop(0)
    region, nothing = ellipse(0), np.zeros((160, 160), bool)
    assert deblend_dice(image, image, nothing, "red") == 1.0
    assert deblend_dice_any(image, image, nothing) == 1.0
    assert deblend_dice(image, image, region, "red") == pytest.approx(0, abs=1e-9)
    painted = paint(image, region, "green")
    assert deblend_dice(image, painted, nothing, "green") == pytest.approx(0, abs=1e-9)
    # The formula's own 1e-6, not a rounded 0.
    assert deblend_dice(image, image, region, "red") == 1e-6 / (region.sum() + 1e-6)


def test_one_pixel():
    grey = np.full((1, 1, 3), 90, np.uint8)
    here = np.ones((1, 1), bool)
    assert deblend_dice(grey, paint(grey, here, "blue"), here, "blue") == 1.0


def test_every_class_is_scored_with_its_own_colour():
    image = np.full((30, 30, 3), 120, np.uint8)
    masks = {}
    output = image
    for k, colour in enumerate(COLOURS):
        masks[colour] = np.zeros((30, 30), bool)
        masks[colour][10 * k : 10 * k + 8] = True
        output = paint(output, masks[colour], colour)
    assert class_dice(image, output, masks) == dict.fromkeys(COLOURS, 1.0)
    swapped = {"red": masks["green"], "green": masks["red"]}
    assert max(class_dice(image, output, swapped).values()) < 1e-6
    assert deblend_dice_any(image, output, np.any(list(masks.values()), axis=0)) == 1.0


def test_sizes_must_agree():
    image = crop(0)
    with pytest.raises(MetricError, match="differ in size"):
        deblend_dice(image, image[:-1], ellipse(0), "red")
    with pytest.raises(MetricError, match="does not fit"):
        deblend_dice(image, image, ellipse(0)[:-1], "red")
