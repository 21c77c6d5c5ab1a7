import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.scoring.statistics.ranks import quadratic_kappa, within

scores = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(1, 5), min_size=n, max_size=n)] * 2)
)


def from_the_confusion_matrix(a, b):
    observed = np.zeros((5, 5))
    for x, y in zip(a, b, strict=True):
        observed[x - 1, y - 1] += 1
    expected = np.outer(observed.sum(1), observed.sum(0)) / observed.sum()
    weights = np.subtract.outer(np.arange(5), np.arange(5)) ** 2
    below = (weights * expected).sum()
    return 1 - (weights * observed).sum() / below if below else np.nan


@given(scores)
def test_kappa_is_the_sum_over_the_confusion_matrix(pair):
    np.testing.assert_allclose(quadratic_kappa(*pair), from_the_confusion_matrix(*pair), atol=1e-12)


def test_kappa_by_hand():
    assert quadratic_kappa([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert quadratic_kappa([1, 5], [5, 1]) == pytest.approx(-1)
    # Observed: one step in one of four. By chance: means 2.5 and 2.25, variances 1.25 and .6875.
    assert quadratic_kappa([1, 2, 3, 4], [1, 2, 3, 3]) == pytest.approx(1 - 0.25 / 2.0)
    assert np.isnan(quadratic_kappa([3, 3], [3, 3]))
    assert np.isnan(quadratic_kappa([], []))


def test_within_one():
    assert within([1, 2, 4.0], [2, 4, 4]).tolist() == [True, False, True]
    # A third three times over misses a whole step by a rounding.
    assert within([1 / 3 + 1 / 3 + 1 / 3 + 0.1], [2.1]).tolist() == [True]
    assert within([1], [3], step=2).tolist() == [True]
