import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ConfigError
from mie.perspectives.transformation.physics import kspace
from mie.perspectives.transformation.physics.mri import Undersampling
from tests.perspectives.transformation.physics.slices import SIDES, noise, real_slice


@given(st.integers(2, 400), st.floats(0.1, 1), st.floats(0, 1), st.floats(0, 6), st.integers(0, 1000))
def test_exactly_the_stated_lines_are_kept(lines, fraction, share, decay, seed):
    effect = Undersampling(fraction, share * fraction, decay)
    mask = effect.mask(lines, np.random.default_rng(seed))
    assert mask.shape == (lines,)
    assert mask.sum() == max(1, round(fraction * lines))
    block = max(1, round(share * fraction * lines))
    first = lines // 2 - block // 2
    assert mask[first : first + block].all()
    assert mask[lines // 2]


def test_density_falls_from_the_centre():
    effect = Undersampling(0.3, 0.02, 2)
    rng = np.random.default_rng(0)
    often = np.mean([effect.mask(200, rng) for _ in range(500)], axis=0)
    inner, outer = often[55:95].mean(), often[:40].mean()
    assert inner > 2.5 * outer
    flat = Undersampling(0.3, 0.02, 0)
    often = np.mean([flat.mask(200, rng) for _ in range(500)], axis=0)
    assert often[55:95].mean() == pytest.approx(often[:40].mean(), abs=0.02)


@given(SIDES, SIDES, st.integers(0, 1), st.integers(0, 1000))
def test_all_lines_give_the_image_back(height, width, axis, seed):
    image = noise(height, width, seed)
    out = Undersampling(1.0, phase_axis=axis).apply(image, np.random.default_rng(seed))
    np.testing.assert_allclose(out, image, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_image_is_the_zero_filled_one(axis):
    image = real_slice()
    effect = Undersampling(0.4, phase_axis=axis)
    out = effect.apply(image, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    phase = kspace.smooth_phase(image.shape, rng).astype(np.complex128)
    mask = effect.mask(64, rng)
    space = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image * phase)))
    space = space * (mask[:, None] if axis == 0 else mask)
    expected = np.abs(np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(space))))
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 * image.max())
    assert np.abs(out - image).mean() > 0.01 * image.max()


def test_a_centre_larger_than_what_is_kept_is_refused():
    with pytest.raises(ConfigError, match="centre holds more lines"):
        Undersampling(0.2, 0.3)
