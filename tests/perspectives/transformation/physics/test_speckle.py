import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.speckle import Speckle, compress, expand
from tests.conftest import crop


def correlation(pattern, lag, axis):
    n = pattern.shape[axis]
    a, b = (np.take(pattern, range(s, n - lag + s), axis) for s in (0, lag))
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


@pytest.mark.parametrize("looks", [1, 2, 4, 9])
def test_contrast_in_a_uniform_region_and_the_envelopes_mean(looks):
    effect = Speckle(looks, 1.0, 1.5, dynamic_range=60)
    envelope = np.full((601, 499), 0.02, np.float32)
    speckled = envelope * effect.pattern(envelope.shape, np.random.default_rng(looks))
    assert speckled.mean() == pytest.approx(0.02, rel=0.02)
    assert speckled.std() / speckled.mean() == pytest.approx(1 / np.sqrt(looks), rel=0.05)


def test_one_look_is_rayleigh_in_amplitude_and_more_are_gamma_in_power():
    one = Speckle(1, 0.3, 0.3).pattern((300, 300), np.random.default_rng(0))
    assert stats.kstest(np.sqrt(one).ravel()[::9], stats.rayleigh(scale=np.sqrt(0.5)).cdf).pvalue > 1e-3
    five = Speckle(5, 0.3, 0.3).pattern((300, 300), np.random.default_rng(0))
    assert stats.kstest(five.ravel()[::9], stats.gamma(5, scale=1 / 5).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("axial", "lateral"), [(2, 5), (1, 3), (4, 2)])
def test_correlation_falls_to_1_over_e_at_the_stated_lengths(axial, lateral):
    pattern = Speckle(2, axial, lateral).pattern((800, 900), np.random.default_rng(7))
    for axis, length in ((0, axial), (1, lateral)):
        assert correlation(pattern, length, axis) == pytest.approx(np.exp(-1), abs=0.03)
        assert abs(correlation(pattern, 4 * length, axis)) < 0.05


def test_borders_are_like_the_middle():
    effect = Speckle(1, 4, 6)
    rng = np.random.default_rng(1)
    patterns = np.stack([effect.pattern((30, 40), rng) for _ in range(400)])
    rim = np.concatenate([patterns[:, 0], patterns[:, -1]], axis=1)
    assert rim.mean() == pytest.approx(1, abs=0.06)
    assert rim.std() == pytest.approx(1, abs=0.1)


@given(st.floats(30, 100))
def test_compression_is_undone_exactly_for_all_grey_values(dynamic_range):
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    envelope = expand(grey, dynamic_range)
    assert envelope[0, 0] == 0
    assert envelope[-1, -1] == pytest.approx(1, abs=2e-3)
    np.testing.assert_array_equal(compress(envelope, dynamic_range), grey)


def test_ten_decibels_are_a_factor_of_ten():
    # 255 grey levels over 51 dB: 5 levels per decibel. Far above black the floor plays no part.
    low, high = expand(np.array([[150, 200]], np.uint8), 51)[0]
    assert high / low == pytest.approx(10, rel=1e-3)


def test_black_stays_black_and_the_rest_changes():
    image = crop(2)[..., 1].copy()
    image[:, :50] = 0
    out = Speckle(1, 1.5, 3).apply(image, np.random.default_rng(0))
    assert out.dtype == np.uint8
    assert (out[:, :50] == 0).all()
    assert np.abs(out[:, 50:].astype(float) - image[:, 50:]).mean() > 5
    np.testing.assert_array_equal(out, Speckle(1, 1.5, 3).apply(image, np.random.default_rng(0)))


@pytest.mark.parametrize("looks", [1, 3])
def test_what_keeps_its_mean(looks):
    grey = np.full((400, 400), 150, np.uint8)
    shown = Speckle(looks, 0.7, 0.6, 43, "display").apply(grey, np.random.default_rng(0))
    assert shown.mean() == pytest.approx(150, abs=0.6)
    kept = Speckle(looks, 0.7, 0.6, 43, "envelope").apply(grey, np.random.default_rng(0))
    assert expand(kept, 43).mean() == pytest.approx(expand(grey, 43).mean(), rel=0.02)
    assert kept.mean() < 149


@pytest.mark.parametrize("modality", ["ultrasound", "OCT"])
def test_draws_differ_by_modality(modality):
    drawn = [Speckle.draw(np.random.default_rng(s), modality) for s in range(20)]
    assert len(set(drawn)) > 15
    wide = np.mean([d.lateral for d in drawn]) > 1.5
    assert wide == (modality == "ultrasound")


def test_wrong_input_is_refused():
    with pytest.raises(ConfigError, match="no speckle"):
        Speckle.draw(np.random.default_rng(0), "CT")
    for image in (np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.float32), np.zeros((1, 1), np.uint8)):
        with pytest.raises(ImageError, match="8-bit grey"):
            Speckle(1, 1, 1).apply(image, np.random.default_rng(0))


@given(st.sampled_from([2, 3, 7, 31, 97]), st.sampled_from([2, 5, 13, 64]), st.integers(0, 99))
def test_any_size(height, width, seed):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width), dtype=np.uint8)
    assert Speckle.draw(rng).apply(image, rng).shape == image.shape
