"""KID against its definition, pair by pair."""

from itertools import permutations, product

import numpy as np
import pytest

from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual import kid, squared_mmd, store_features


def draw(seed, n, d=6, shift=0.0):
    return (np.random.default_rng(seed).normal(size=(n, d)) + shift).astype(np.float32)


def pair_by_pair(a, b):
    def k(x, y):
        return (float(np.dot(x, y)) / len(x) + 1) ** 3

    a, b = a.astype(float), b.astype(float)
    within = [np.mean([k(s[i], s[j]) for i, j in permutations(range(len(s)), 2)]) for s in (a, b)]
    return sum(within) - 2 * np.mean([k(x, y) for x, y in product(a, b)])


def test_the_definition():
    a, b = draw(1, 7), draw(2, 5, shift=0.7)
    assert squared_mmd(a, b) == pytest.approx(pair_by_pair(a, b), rel=1e-9)
    # One subset as large as the sets is the whole estimate.
    found = kid(a[:5], b, subsets=3, size=100)
    assert (found.size, found.subsets) == (5, 3)
    assert found.mean == pytest.approx(pair_by_pair(a[:5], b), rel=1e-9)
    assert found.std == pytest.approx(0, abs=1e-12)


def test_the_seed_decides():
    a, b = draw(3, 60), draw(4, 50, shift=0.3)
    assert kid(a, b, size=20, subsets=10) == kid(a, b, size=20, subsets=10)
    assert kid(a, b, size=20, subsets=10) != kid(a, b, size=20, subsets=10, seed=1)


def test_unbiased_and_grows_with_the_difference():
    a = draw(5, 400)
    same, near, far = (kid(a, draw(6, 400, shift=s), size=100, subsets=30).mean for s in (0, 0.3, 1))
    assert abs(same) < 0.05 * far
    assert same < near < far


def test_features_on_disk_are_those_that_were_written(tmp_path):
    features = draw(7, 25)
    mapped = store_features(iter([features[:10], features[10:11], features[11:]]), tmp_path / "f.bin")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, features)
    other = draw(8, 30)
    assert kid(mapped, other, size=10, subsets=5) == kid(features, other, size=10, subsets=5)
    with pytest.raises(MetricError, match="no features"):
        store_features([], tmp_path / "none.bin")


def test_what_cannot_be_measured_says_why():
    with pytest.raises(MetricError, match="too few"):
        kid(draw(1, 1), draw(2, 9))
    with pytest.raises(MetricError, match="shape"):
        kid(draw(1, 9), draw(2, 9, d=3))
