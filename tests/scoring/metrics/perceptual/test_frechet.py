"""FID against SciPy's matrix root and against distances that can be worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm

from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual import FeatureStatistics, fid


def statistics(features, size=7):
    made = FeatureStatistics()
    for start in range(0, len(features), size):
        made.add(features[start : start + size])
    return made


def draw(seed, n=200, d=12, shift=0.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + shift


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(-1e6, 1e6))
def test_streaming_is_numpy_mean_and_cov(sizes, shift):
    features = draw(1, sum(sizes) + 1, 3, shift)
    made = FeatureStatistics()
    for part in np.split(features, np.cumsum(sizes)):
        made.add(part)
    assert made.n == len(features)
    np.testing.assert_allclose(made.mean, features.mean(0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(made.covariance, np.cov(features, rowvar=False), rtol=1e-6, atol=1e-6)


def test_against_a_matrix_root():
    a, b = draw(1), draw(2, shift=0.5)
    root = sqrtm(np.cov(a, rowvar=False) @ np.cov(b, rowvar=False)).real
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum()
    expected += np.trace(np.cov(a, rowvar=False) + np.cov(b, rowvar=False) - 2 * root)
    assert fid(statistics(a), statistics(b)) == pytest.approx(expected, rel=1e-9)


def test_by_hand():
    """One dimension: (m1 - m2)^2 + (s1 - s2)^2."""
    a, b = np.array([[0.0], [2.0]]), np.array([[1.0], [9.0]])
    s1, s2 = np.sqrt(2), np.sqrt(32)
    assert fid(statistics(a), statistics(b)) == pytest.approx((1 - 5) ** 2 + (s1 - s2) ** 2)


def test_fewer_images_than_features():
    """The covariance has no inverse and its product no sure root; the trace is still there."""
    a, b = draw(3, n=5), draw(4, n=5)
    distance = fid(statistics(a), statistics(b))
    # tr (S_a S_b)^(1/2) is the sum of the singular values of the centred data's product.
    x, y = (f - f.mean(0) for f in (a, b))
    shared = np.linalg.svd(x @ y.T, compute_uv=False).sum() / 4
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + ((x**2).sum() + (y**2).sum()) / 4 - 2 * shared
    assert distance == pytest.approx(expected, rel=1e-7)


def test_equal_sets_are_0_apart_and_the_order_does_not_matter():
    a, b = draw(5), draw(6, shift=1)
    assert fid(statistics(a), statistics(a[::-1])) == pytest.approx(0, abs=1e-8)
    assert fid(statistics(a), statistics(b)) == pytest.approx(fid(statistics(b), statistics(a)))


def test_what_cannot_be_measured_says_why():
    one = statistics(np.zeros((1, 4)))
    with pytest.raises(MetricError, match="too few"):
        fid(one, statistics(draw(1)))
    with pytest.raises(MetricError, match="shape"):
        fid(statistics(draw(1)), statistics(draw(1, d=3)))
    with pytest.raises(MetricError, match="shape"):
        statistics(draw(1)).add(np.zeros((2, 5)))
    with pytest.raises(MetricError, match="finite"):
        FeatureStatistics().add([[np.nan]])
    empty = FeatureStatistics()
    empty.add(np.zeros((0, 4)))
    assert empty.n == 0
