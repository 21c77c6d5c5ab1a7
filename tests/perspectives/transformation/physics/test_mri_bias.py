import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import dctn

from mie.perspectives.transformation.physics.mri import BiasField, head_of
from tests.perspectives.transformation.physics.slices import head, real_slice


@given(
    st.floats(1, 160),
    st.integers(1, 4),
    st.sampled_from([31, 64, 97]),
    st.sampled_from([29, 80]),
    st.integers(0, 999),
)
def test_geometric_mean_one_and_stated_contrast_over_the_head(percent, order, height, width, seed):
    inside = head_of(head(height, width))
    field = BiasField(percent, order).field(inside, np.random.default_rng(seed))
    assert field.dtype == np.float32
    logs = np.log(field[inside].astype(np.float64))
    assert logs.mean() == pytest.approx(0, abs=1e-4)
    assert np.exp(np.ptp(logs)) == pytest.approx((1 + percent / 200) / (1 - percent / 200), rel=1e-3)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_field_is_smooth(order):
    # Nothing but the lowest waves: a cosine transform of the log field holds them all.
    inside = head_of(head(96, 80))
    log_field = np.log(BiasField(80, order).field(inside, np.random.default_rng(order)).astype(np.float64))
    waves = dctn(log_field, norm="ortho")
    i, j = np.indices(waves.shape)
    assert np.abs(waves[i + j > order]).max() < 1e-4 * np.abs(waves).max()
    # Hence the gradient is bounded by that of its fastest wave.
    span = np.ptp(log_field)
    steepest = max(np.abs(np.diff(log_field, axis=a)).max() for a in (0, 1))
    assert steepest < np.pi * order * span / 80


def test_it_multiplies():
    image = real_slice()
    shaded = BiasField(60).apply(image, np.random.default_rng(3))
    field = BiasField(60).field(head_of(image), np.random.default_rng(3))
    np.testing.assert_array_equal(shaded, image * field)
    doubled = BiasField(60).apply(2 * image, np.random.default_rng(3))
    np.testing.assert_array_equal(doubled, 2 * shaded)
    assert (shaded[image == 0] == 0).all()
    assert np.abs(shaded - image).mean() > 0.02 * image.mean()


def test_nothing_is_the_identity():
    image = real_slice()
    np.testing.assert_allclose(BiasField(0).apply(image, np.random.default_rng(0)), image, rtol=1e-6)
