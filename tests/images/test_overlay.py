import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mie.errors import ImageError
from mie.images.overlay import deblend, deblend_any, dice, paint
from mie.vocabulary import COLOURS

IMAGES = hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))


def slow_deblend(image, output, colour):
    """The published formula, pixel by pixel, in Python floats."""
    target = COLOURS[colour]
    mask = np.zeros(image.shape[:2], bool)
    for y, x in np.ndindex(mask.shape):
        i = [float(v) for v in image[y, x]]
        m = [float(v) for v in output[y, x]]
        dot = sum((m[k] - i[k]) * (target[k] - i[k]) for k in range(3))
        norm = sum((target[k] - i[k]) ** 2 for k in range(3))
        mask[y, x] = min(max(dot / (norm + 1e-6), 0.0), 1.0) > 0.5
    return mask


@given(image=IMAGES, seed=st.integers(0, 2**32 - 1), colour=st.sampled_from(list(COLOURS)))
def test_deblend_is_the_published_formula(image, seed, colour):
    output = np.random.default_rng(seed).integers(0, 256, image.shape, np.uint8)
    assert np.array_equal(deblend(image, output, colour), slow_deblend(image, output, colour))


@given(image=IMAGES, seed=st.integers(0, 2**32 - 1), colour=st.sampled_from(list(COLOURS)))
def test_paint_is_the_published_blend(image, seed, colour):
    mask = np.random.default_rng(seed).random(image.shape[:2]) < 0.5
    painted = paint(image, mask, colour)
    expected = image.astype(int)
    # 0.4 I + 0.6 C as whole fifths: no rounding doubt.
    blend = (4 * expected + 6 * np.array(COLOURS[colour]) + 5) // 10
    expected[mask] = blend[mask]
    assert np.array_equal(painted, expected)
    assert np.array_equal(painted[~mask], image[~mask])


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 12)),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
    colour=st.sampled_from(list(COLOURS)),
)
def test_a_change_is_seen_wherever_it_lies(size, share, seed, colour):
    """Changes in one corner, over several bands of rows, in one channel only, or nowhere."""
    draw = np.random.default_rng(seed)
    image = draw.integers(0, 256, (*size, 3), np.uint8)
    changed = draw.random(image.shape) < share
    output = np.where(changed, draw.integers(0, 256, image.shape, np.uint8), image)
    c = np.array(COLOURS[colour])
    i, m = image.astype(int), output.astype(int)
    expected = 2 * ((m - i) * (c - i)).sum(-1) > ((c - i) ** 2).sum(-1)
    assert np.array_equal(deblend(image, output, colour), expected)
    flipped = deblend(image[::-1, ::-1], output[::-1, ::-1], colour)
    assert np.array_equal(flipped, expected[::-1, ::-1])


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    opacity=st.sampled_from([0.1, 0.5, 0.6, 0.75, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_region_at_any_opacity_is_painted(size, share, opacity, seed):
    draw = np.random.default_rng(seed)
    image = draw.integers(0, 256, (*size, 3), np.uint8)
    before = image.copy()
    mask = draw.random((size[0], 2 * size[1]))[:, ::2] < share
    blend = np.floor((1 - opacity) * image + opacity * np.array(COLOURS["green"]) + 0.5)
    expected = np.where(mask[..., None], blend, image)
    assert np.array_equal(paint(image, mask, "green", opacity), expected)
    assert np.array_equal(paint(image[:, ::-1], mask[:, ::-1], "green", opacity), expected[:, ::-1])
    assert np.array_equal(image, before)


def test_every_grey_level_can_be_read_back_in_every_colour():
    image = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    everywhere = np.ones((1, 256), bool)
    for colour in COLOURS:
        assert deblend(image, paint(image, everywhere, colour), colour).all()
        assert not deblend(image, image, colour).any()
        others = [c for c in COLOURS if c != colour]
        assert not any(deblend(image, paint(image, everywhere, colour), other).any() for other in others)


def test_a_pixel_of_the_pure_colour_cannot_be_read_back():
    image = np.zeros((1, 1, 3), np.uint8)
    image[..., 0] = 255
    assert not deblend(image, paint(image, np.ones((1, 1), bool), "red"), "red").any()


def test_union_of_colours():
    image = np.full((2, 3, 3), 90, np.uint8)
    painted = image
    for column, colour in enumerate(COLOURS):
        mask = np.zeros((2, 3), bool)
        mask[0, column] = True
        painted = paint(painted, mask, colour)
    assert np.array_equal(deblend_any(image, painted), [[True] * 3, [False] * 3])


def test_dice_by_hand():
    a = np.array([True, True, False, False])
    b = np.array([True, False, True, False])
    assert dice(a, b) == pytest.approx(0.5, abs=1e-6)
    assert dice(np.zeros(4, bool), np.zeros(4, bool)) == 1.0
    assert dice(a, np.zeros(4, bool)) == pytest.approx(0, abs=1e-6)


def test_sizes_must_agree():
    image = np.zeros((4, 5, 3), np.uint8)
    with pytest.raises(ImageError, match="differ in size"):
        paint(image, np.zeros((5, 4), bool), "red")
    with pytest.raises(ImageError, match="differ in size"):
        deblend(image, np.zeros((5, 4, 3), np.uint8), "red")
