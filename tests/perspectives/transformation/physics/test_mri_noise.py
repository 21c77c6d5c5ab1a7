import numpy as np
import pytest
from scipy import stats

from mie.errors import ImageError
from mie.perspectives.transformation.physics.mri import RicianNoise, rician, signal_level
from tests.perspectives.transformation.physics.slices import real_slice

SHAPE = (509, 401)  # primes: 204,109 draws, standard error of a mean about 0.2 % of sigma


def test_mean_at_zero_signal():
    out = rician(np.zeros(SHAPE, np.float32), 7.0, np.random.default_rng(0))
    assert out.dtype == np.float32
    assert out.mean() == pytest.approx(7.0 * np.sqrt(np.pi / 2), rel=0.005)
    assert out.std() == pytest.approx(7.0 * np.sqrt(2 - np.pi / 2), rel=0.01)


@pytest.mark.parametrize("snr", [0.5, 1, 3, 10])
def test_the_distribution_is_rice_at_every_snr(snr):
    sigma = 4.0
    out = rician(np.full(SHAPE, snr * sigma, np.float32), sigma, np.random.default_rng(1))
    expected = stats.rice(snr, scale=sigma)
    assert out.mean() == pytest.approx(expected.mean(), rel=0.005)
    assert out.std() == pytest.approx(expected.std(), rel=0.01)
    assert stats.kstest(out.ravel()[::10], expected.cdf).pvalue > 1e-3


def test_sigma_is_a_share_of_the_brightest_tissue():
    image = real_slice()
    image[:20] = 0  # cut background counts for nothing
    level = signal_level(image)
    assert level == np.percentile(image[image > 0], 99)
    out = RicianNoise(5).apply(image, np.random.default_rng(2))
    assert out[:20].mean() == pytest.approx(0.05 * level * np.sqrt(np.pi / 2), rel=0.05)
    scaled = RicianNoise(5).apply(image * 64, np.random.default_rng(2))
    np.testing.assert_allclose(scaled, out * 64, rtol=1e-5)


def test_no_noise_is_the_identity():
    image = real_slice()
    np.testing.assert_array_equal(RicianNoise(0).apply(image, np.random.default_rng(0)), image)


def test_a_blank_slice_has_no_level():
    with pytest.raises(ImageError, match="no signal"):
        RicianNoise(5).apply(np.zeros((8, 8), np.float32), np.random.default_rng(0))
