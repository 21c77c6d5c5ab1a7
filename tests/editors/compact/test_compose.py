"""From maps to pixels: what is painted, what is changed, what stays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.editors.compact.compose import modified, overlay, restored
from mie.images.overlay import is_grey
from mie.vocabulary import COLOURS
from tests.conftest import crop, ellipse


@given(st.integers(0, 2**32 - 1))
def test_each_pixel_has_the_colour_of_its_largest_probability(seed):
    draw = np.random.default_rng(seed)
    image = draw.integers(0, 256, (9, 7, 3), dtype=np.uint8)
    chances = draw.random((3, 9, 7), dtype=np.float32)
    composed = overlay(image, iter(chances))
    for y, x in np.ndindex(9, 7):
        best = int(chances[:, y, x].argmax())
        wanted = image[y, x]
        if chances[best, y, x] > np.float32(0.52):
            colour = np.array(list(COLOURS.values())[best])
            wanted = np.floor(0.4 * image[y, x] + 0.6 * colour + 0.5)
        assert np.array_equal(composed.image[y, x], wanted)
        assert composed.changed[y, x] == (chances[best, y, x] > np.float32(0.52))
    if composed.changed.any():
        decided = np.abs(2 * chances.max(0) - 1)[composed.changed].mean()
        assert composed.certainty == pytest.approx(decided, abs=1e-5)


def test_nothing_above_the_bound_is_nothing_painted():
    image = crop(0)
    composed = overlay(image, np.full((3, 160, 160), 0.52, np.float32))
    assert np.array_equal(composed.image, image)
    assert (composed.changed.any(), composed.certainty) == (False, 0.0)


def test_grey_stays_grey_and_colour_is_changed_by_channel():
    residual = np.zeros((3, 160, 160), np.float32)
    residual[0, :80] = 0.3  # a colour cast
    colour = crop(1)
    grey = np.repeat(colour[..., :1], 3, axis=2)
    composed = restored(grey, residual)
    assert is_grey(composed.image)
    expected = np.clip(np.rint(grey[:80].astype(float) + 25.5), 0, 255)
    assert np.abs(composed.image[:80] - expected).max() <= 1  # 25.5 may go either way
    assert np.array_equal(composed.image[80:], grey[80:])
    composed = restored(colour, residual)
    assert np.array_equal(composed.image[..., 1:], colour[..., 1:])
    assert np.array_equal(composed.image[:80, :, 0], np.clip(np.rint(colour[:80, :, 0] + 76.5), 0, 255))
    assert not composed.changed[80:].any()


def test_a_modification_leaves_everything_outside_its_area():
    image, area = crop(0), ellipse(2)
    residual = np.random.default_rng(0).normal(0, 0.5 / 255, (3, 160, 160)).astype(np.float32)
    residual[:, area] += 0.2
    composed = modified(image, residual)
    assert composed.changed[area].mean() > 0.99
    assert composed.changed.sum() < 2 * area.sum()
    assert np.array_equal(composed.image[~composed.changed], image[~composed.changed])
    inside = composed.changed & area
    assert np.array_equal(composed.image[inside], restored(image, residual).image[inside])


def test_a_gate_decides_where_and_the_rest_stays_exactly():
    image, area = crop(0), ellipse(2)
    gate = np.where(area, 0.9, 0.1).astype(np.float32)
    residual = np.full((3, 160, 160), 0.2, np.float32)
    composed = modified(image, residual, gate)
    assert np.array_equal(composed.changed, area)
    assert np.array_equal(composed.image[~area], image[~area])
    assert np.array_equal(composed.image[area], restored(image, residual).image[area])
    assert composed.certainty == pytest.approx(0.8, abs=1e-6)
    closed = modified(image, residual, np.full_like(gate, 0.5))
    assert np.array_equal(closed.image, image)
    assert (closed.changed.any(), closed.certainty) == (False, 0.0)


def test_a_hole_is_filled_to_its_rim_or_not_at_all():
    image = np.minimum(crop(0), 200)
    hole = np.zeros((160, 160), bool)
    hole[20:60, 20:60] = hole[100:120, 100:120] = True
    image[hole] = 255
    gate = np.zeros((160, 160), np.float32)
    gate[24:60, 22:60] = 1  # most of one part
    gate[100:105, 100:120] = 1  # little of the other
    composed = modified(image, np.full((3, 160, 160), -0.5, np.float32), gate, hole)
    assert composed.changed[20:60, 20:60].all()
    assert np.array_equal(composed.changed[100:120, 100:120], gate[100:120, 100:120] > 0)
