import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft

from mie.errors import ImageError
from mie.perspectives.transformation.physics import kspace
from tests.perspectives.transformation.physics.slices import SIDES, noise, real_slice


@given(SIDES, SIDES, st.integers(0, 1000))
def test_parseval_and_back(height, width, seed):
    rng = np.random.default_rng(seed)
    image = noise(height, width, seed) * kspace.smooth_phase((height, width), rng)
    space = kspace.to_kspace(image)
    assert space.dtype == np.complex64
    energy = np.sum(np.abs(image.astype(np.complex128)) ** 2)
    assert np.sum(np.abs(space.astype(np.complex128)) ** 2) == pytest.approx(energy, rel=1e-5)
    np.testing.assert_allclose(kspace.from_kspace(space), image, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 64), (7, 12), (13, 5)])
def test_agrees_with_numpy_in_double_precision(shape):
    image = noise(*shape, 3)
    expected = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image.astype(np.float64)), norm="ortho"))
    np.testing.assert_allclose(kspace.to_kspace(image), expected, atol=1e-5)


def test_a_constant_image_is_one_point_in_the_middle():
    space = np.abs(kspace.to_kspace(np.ones((6, 9), np.float32)))
    assert np.unravel_index(space.argmax(), space.shape) == (3, 4)
    assert space[3, 4] == pytest.approx(np.sqrt(54), rel=1e-6)


def test_the_input_is_left_alone():
    image = real_slice()
    before = image.copy()
    kspace.to_kspace(image)
    np.testing.assert_array_equal(image, before)


@given(st.integers(2, 400), st.integers(2, 400))
def test_padding_reaches_good_sides_and_cropping_undoes_it(height, width):
    shape = kspace.good_shape((height, width))
    for side, good in zip((height, width), shape, strict=True):
        assert side <= good <= 1.1 * side + 2
        for prime in (2, 3, 5, 7, 11, 13):
            while good % prime == 0:
                good //= prime
        assert good == 1
    image = np.ones((height, width), np.float32)
    padded = kspace.pad_to(image, shape)
    assert padded.shape == shape
    assert padded.sum() == image.sum()
    np.testing.assert_array_equal(kspace.crop_to(padded, image.shape), image)
    # The middle stays where the FFT and turns expect it, to within half a pixel.
    rows = np.flatnonzero(padded.any(axis=1))
    assert abs((rows[0] + rows[-1]) / 2 - (shape[0] - 1) / 2) <= 0.5


def test_the_phase_is_smooth_and_breaks_hermitian_symmetry():
    phase = kspace.smooth_phase((128, 96), np.random.default_rng(1))
    np.testing.assert_allclose(np.abs(phase), 1, atol=1e-6)
    angle = np.unwrap(np.unwrap(np.angle(phase), axis=0), axis=1)
    assert np.ptp(angle) > 1
    assert np.abs(np.diff(angle, axis=0)).max() < 0.25
    assert np.abs(np.diff(angle, axis=1)).max() < 0.25
    image = real_slice()
    space = fft.fft2(image * kspace.smooth_phase(image.shape, np.random.default_rng(1)))
    mirrored = np.conj(np.roll(space[::-1, ::-1], (1, 1), (0, 1)))
    assert np.abs(space - mirrored).max() > 0.1 * np.abs(space).max()


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (np.zeros((8, 8, 3), np.float32), "grey"),
        (np.zeros((1, 1), np.float32), "at least 2 by 2"),
        (np.zeros((8, 8), np.uint8), "float32"),
        (np.full((8, 8), np.nan, np.float32), "64 NaN"),
        (np.full((8, 8), np.inf, np.float32), "64 infinite"),
        (np.full((8, 8), -1, np.float32), "negative"),
    ],
)
def test_what_is_no_magnitude_is_refused(image, says):
    with pytest.raises(ImageError, match=says) as caught:
        kspace.check_magnitude(image)
    assert says in str(caught.value)
