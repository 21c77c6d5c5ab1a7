import json

import numpy as np
import pytest
from skimage.transform import iradon, radon

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.ct import attenuation_to_hu, hu_to_attenuation
from mie.perspectives.transformation.physics.ct_dose import VIEWS, SparseView
from tests.perspectives.transformation.physics.ct_slices import REAL_SPACING, inside, real_slice, water_disc


class NoTurn:
    """A generator whose first view is at 0 degrees."""

    def uniform(self, low, high):
        return low


def test_streaks_are_the_difference_of_two_reconstructions():
    disc = water_disc(64, 22)
    disc[20:26, 30:34] = 800
    out = SparseView(30).apply(disc, NoTurn(), spacing=(2, 2))
    attenuation = hu_to_attenuation(disc).astype(np.float64)
    few, all_ = np.arange(30) * 6.0, np.arange(120) * 1.5  # ceil(pi / 2 * 64) = 101, four times 30 holds it
    streaks = iradon(radon(attenuation, few), few) - iradon(radon(attenuation, all_), all_)
    expected = disc + attenuation_to_hu(streaks) + 1000
    assert out == pytest.approx(expected, abs=0.5)


def test_fewer_views_streak_more():
    hu = real_slice()
    errors = [
        np.std(SparseView(v).apply(hu, np.random.default_rng(0), spacing=REAL_SPACING) - hu)
        for v in (24, 48, 120)
    ]
    assert errors[0] > 1.5 * errors[1] > 1.5 * errors[2] > 0


def test_the_middle_of_a_round_thing_has_no_streaks():
    """Views are close enough together near the axis; further out the gaps show."""
    disc = water_disc(96, 20)
    added = SparseView(30).apply(disc, np.random.default_rng(0), spacing=(1, 1)) - disc
    assert np.std(added[inside(96, 8)]) < 0.2 * np.std(added[inside(96, 46) & ~inside(96, 36)])


def test_hounsfield_units_do_not_depend_on_the_pixels_size():
    hu = real_slice()
    small, large = (
        SparseView(40).apply(hu, np.random.default_rng(1), spacing=(side, side)) for side in (0.5, 2.5)
    )
    assert small == pytest.approx(large, abs=0.05)


def test_same_seed_same_pixels_and_the_form_is_kept():
    hu = real_slice()[:100]
    first, again, other = (
        SparseView(40).apply(hu, np.random.default_rng(seed), spacing=REAL_SPACING) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == hu.shape
    assert first.dtype == np.float32


def test_draws_lie_in_the_range():
    drawn = [SparseView.draw(np.random.default_rng(seed)) for seed in range(300)]
    views = {effect.views for effect in drawn}
    assert min(views) == VIEWS[0]
    assert 110 < max(views) <= VIEWS[1]
    fields = json.loads(json.dumps(drawn[0].params()))
    assert fields.pop("effect") == "SparseView"
    assert SparseView(**fields) == drawn[0]
    assert SparseView.draw(np.random.default_rng(0), views=33).views == 33


def test_wrong_use_is_refused():
    for views in (0, 23, 121):
        with pytest.raises(ConfigError) as refused:
            SparseView(views)
        assert refused.value.expected == "a whole number, 24 to 120"
    with pytest.raises(ConfigError, match="kernel"):
        SparseView(30, "soft")
    with pytest.raises(ImageError, match="grey"):
        SparseView(30).apply(np.zeros((32, 32, 3), np.float32), np.random.default_rng(0), spacing=(1, 1))
