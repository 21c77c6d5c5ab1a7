"""Texture of a region, against calculations by hand."""

import numpy as np
import pytest
from scipy import ndimage, stats

from mie.images.texture import compare, luma, texture
from mie.scoring.metrics import MetricError
from tests.conftest import crop, ellipse


def noise(seed=0, sigma=12.0, blur=0.0, size=160, mean=128):
    plane = np.random.default_rng(seed).normal(0, 1, (size, size))
    if blur:
        plane = ndimage.gaussian_filter(plane, blur)
    plane = plane / plane.std() * sigma + mean
    return np.repeat(np.clip(plane.round(), 0, 255).astype(np.uint8)[..., None], 3, 2)


WHOLE = np.ones((160, 160), bool)


def test_white_noise_has_its_own_variance_and_a_flat_spectrum():
    found = texture(noise(sigma=12), WHOLE)
    assert found.pixels == 160 * 160
    assert found.mean == pytest.approx((128, 128, 128), abs=0.5)
    assert found.variance == pytest.approx(144, rel=0.05)
    assert found.spectra[16] == pytest.approx(np.full(8, 144), rel=0.2)
    assert found.spectra[8] == pytest.approx(np.full(4, 144), rel=0.2)


def test_a_slow_change_of_brightness_is_no_texture():
    ramp = np.repeat(np.tile(np.linspace(60, 180, 160).round().astype(np.uint8), (160, 1))[..., None], 3, 2)
    assert texture(ramp, WHOLE).variance < 2
    both = ramp.astype(int) + noise().astype(int) - 128
    assert texture(both.astype(np.uint8), WHOLE).variance == pytest.approx(144, rel=0.1)


def test_two_samples_of_one_noise_are_alike():
    found = compare(texture(noise(0), ellipse(1)), texture(noise(1), ellipse(2)))
    assert found["variance_ratio"] == pytest.approx(1, abs=0.2)
    assert found["mean_shift"] < 2
    assert found["gradient_distance"] < 0.1
    assert found["spectrum_distance"] < 0.2


def test_blurred_noise_of_equal_variance_differs_in_spectrum_and_gradients():
    sharp, blurred = texture(noise(0), WHOLE), texture(noise(1, blur=1.2), WHOLE)
    found = compare(blurred, sharp)
    assert found["spectrum_distance"] > 1
    assert found["gradient_distance"] > 0.2
    assert blurred.spectra[16][-1] < 0.1 * sharp.spectra[16][-1]
    assert blurred.spectra[16][0] > sharp.spectra[16][0]


def test_smoothed_image_has_a_low_variance_ratio_and_the_way_back_is_its_inverse():
    sharp = noise(0)
    smooth = ndimage.gaussian_filter(sharp, (1.5, 1.5, 0))
    a, b = texture(smooth, WHOLE), texture(sharp, WHOLE)
    there, back = compare(a, b), compare(b, a)
    assert there["variance_ratio"] < 0.1
    assert back["variance_ratio"] == pytest.approx(1 / there["variance_ratio"])
    for name in ("mean_shift", "gradient_distance", "spectrum_distance"):
        assert there[name] == pytest.approx(back[name])


def test_flat_regions_are_equal_and_finite():
    flat = texture(np.full((64, 64, 3), 7, np.uint8), np.ones((64, 64), bool))
    assert compare(flat, flat) == {
        "mean_shift": 0,
        "variance_ratio": 1,
        "gradient_distance": 0,
        "spectrum_distance": 0,
    }
    assert np.isfinite(list(compare(flat, texture(noise(), WHOLE)).values())).all()


def test_gradient_distance_is_scipys_kolmogorov_smirnov():
    a, b = noise(0, sigma=9), noise(1, sigma=14)

    def lengths(image):
        grey = image[..., 0].astype(float)
        return np.hypot(*np.gradient(grey))[1:-1, 1:-1].ravel()

    expected = stats.ks_2samp(lengths(a), lengths(b)).statistic
    assert compare(texture(a, WHOLE), texture(b, WHOLE))["gradient_distance"] == pytest.approx(
        expected, abs=0.01
    )


def test_spectrum_by_hand():
    """One 16x16 patch, its Fourier sums written out."""
    image = crop(0, 40, 40)
    mask = np.zeros((40, 40), bool)
    mask[5:21, 9:25] = True
    patch = (image[5:21, 9:25] @ np.array([0.299, 0.587, 0.114])).astype(float)
    patch -= patch.mean()
    n = np.arange(16)
    hann = np.sin(np.pi * (n + 0.5) / 16) ** 2
    window = hann[:, None] * hann
    waves = np.exp(-2j * np.pi * np.outer(n, n) / 16)
    power = np.abs(waves @ (patch * window) @ waves.T) ** 2 / (window**2).sum()
    radius = np.sqrt(np.minimum(n, 16 - n)[:, None] ** 2 + np.minimum(n, 16 - n) ** 2)
    expected = [power[np.abs(radius - r) < 0.5].mean() for r in range(1, 9)]
    assert texture(image, mask).spectra[16] == pytest.approx(np.array(expected))


def test_variance_by_hand():
    image, mask = crop(3), ellipse(3)
    grey = luma(image)
    weight = ndimage.gaussian_filter(mask.astype(float), 4, mode="constant", truncate=4)
    local = ndimage.gaussian_filter(grey * mask, 4, mode="constant", truncate=4) / np.maximum(weight, 1e-12)
    expected = np.mean((grey - local)[mask] ** 2)
    assert texture(image, mask).variance == pytest.approx(expected, rel=0.02)


def test_pixels_outside_have_no_influence():
    image, mask = crop(1), ellipse(1)
    other = np.where(mask[..., None], image, np.random.default_rng(0).integers(0, 256, image.shape, np.uint8))
    a, b = texture(image, mask), texture(other, mask)
    assert a.variance == b.variance
    assert compare(a, b)["spectrum_distance"] == compare(a, b)["gradient_distance"] == 0


def test_small_and_thin_regions():
    image = crop(0)
    mask = np.zeros((160, 160), bool)
    assert texture(image, mask) is None
    mask[3:9, 3:150] = True  # 6 px high: no 8x8 patch
    assert texture(image, mask) is None
    mask[3:12] = True
    found = texture(image, mask)
    assert set(found.spectra) == {8}
    assert set(compare(found, texture(image, WHOLE))) == {
        "mean_shift",
        "variance_ratio",
        "gradient_distance",
        "spectrum_distance",
    }


def test_colour_shift():
    image = np.full((40, 40, 3), 100, np.uint8)
    other = image + np.array([3, 0, 0], np.uint8)
    everywhere = np.ones((40, 40), bool)
    found = compare(texture(other, everywhere), texture(image, everywhere))
    assert found["mean_shift"] == pytest.approx(np.sqrt(3))


def test_a_mask_of_another_size():
    with pytest.raises(MetricError, match="does not fit"):
        texture(crop(0), np.ones((10, 10), bool))
