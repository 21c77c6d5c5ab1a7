import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.resolution import LowResolution
from tests.conftest import crop
from tests.perspectives.transformation.physics.slices import SIDES, noise, real_slice


def frequencies(shape):
    """Centred frequencies in cycles across the image, as (rows, columns)."""
    down, across = (np.fft.fftshift(np.fft.fftfreq(n, 1 / n)) for n in shape)
    return np.abs(down)[:, None], np.abs(across)


@given(SIDES, SIDES, st.sampled_from([2, 4]), st.integers(0, 1000))
def test_kspace_is_cut_off_and_otherwise_untouched(height, width, factor, seed):
    image = noise(height, width, seed)
    out = LowResolution(factor).apply(image)
    assert out.dtype == np.float32
    assert out.shape == image.shape
    before = np.fft.fftshift(np.fft.fft2(image.astype(np.float64), norm="ortho"))
    after = np.fft.fftshift(np.fft.fft2(out.astype(np.float64), norm="ortho"))
    down, across = frequencies(image.shape)
    kept = (down < height / (2 * factor)) & (across < width / (2 * factor))
    np.testing.assert_allclose(after[kept], before[kept], atol=1e-4)
    np.testing.assert_allclose(after[~kept], 0, atol=1e-5)


def test_four_cuts_more_than_two_and_twice_is_once():
    image = real_slice()
    two, four = (LowResolution(f).apply(image) for f in (2, 4))
    assert np.abs(four - image).mean() > np.abs(two - image).mean() > 0
    np.testing.assert_allclose(LowResolution(2).apply(two), two, atol=1e-3)
    np.testing.assert_allclose(LowResolution(4).apply(two), four, atol=1e-3)


def test_rgb_goes_channel_by_channel_and_stays_8_bit():
    image = crop(0, 61, 84)
    out = LowResolution(2).apply(image)
    assert out.dtype == np.uint8
    for channel in range(3):
        alone = LowResolution(2).apply(image[..., channel].astype(np.float32))
        np.testing.assert_allclose(out[..., channel], np.clip(alone, 0, 255), atol=0.501)
        np.testing.assert_array_equal(out[..., channel], LowResolution(2).apply(image[..., channel]))


@pytest.mark.parametrize("factor", [1, 3, 8, 2.5])
def test_other_factors_are_refused(factor):
    with pytest.raises(ConfigError, match="factor"):
        LowResolution(factor)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((1, 1), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8), np.float64),
        np.full((8, 8), np.nan, np.float32),
    ],
)
def test_what_is_no_picture_is_refused(image):
    with pytest.raises(ImageError):
        LowResolution(2).apply(image)
