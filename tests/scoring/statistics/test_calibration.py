"""Isotonic regression against the least squares it promises, and cross-validation that leaks nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from mie.errors import MieError
from mie.scoring.statistics.agreement import cross_validated, fit_isotonic

points = st.lists(st.tuples(st.integers(0, 9), st.floats(-100, 100)), min_size=1, max_size=40)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40))
def test_without_ties_it_is_scipys(y):
    x = np.arange(len(y))
    np.testing.assert_allclose(fit_isotonic(x, y)(x), isotonic_regression(y).x, atol=1e-9)


@given(points)
def test_ties_count_with_their_number(pairs):
    x, y = np.array(pairs).T
    places = np.unique(x)
    means = [y[x == place].mean() for place in places]
    weights = [(x == place).sum() for place in places]
    expected = isotonic_regression(means, weights=weights).x
    curve = fit_isotonic(x, y)
    np.testing.assert_allclose(curve(places), expected, atol=1e-9)
    assert (np.diff(curve(np.linspace(-1, 10, 200))) >= -1e-9).all()
    assert len(curve.x) <= len(places)


def test_by_hand():
    curve = fit_isotonic([3, 1, 2, 4], [2, 1, 3, 4])
    assert curve([1, 2, 3, 4]).tolist() == [1, 2.5, 2.5, 4]
    assert curve([0, 1.5, 9]).tolist() == [1, 1.75, 4]  # flat beyond the ends, straight between
    falling = fit_isotonic([1, 2, 3, 4, 5], [5, 4, 3, 2, 1])
    assert falling.y.tolist() == [3, 3]
    assert falling.x.tolist() == [1, 5]


def test_a_judge_that_follows_people_is_calibrated():
    rng = np.random.default_rng(0)
    people = rng.uniform(1, 5, 300)
    judge = np.exp(people) + rng.normal(0, 0.1, 300)  # right in order, on a scale of its own
    held = cross_validated(judge, people, np.arange(300))
    assert held.folds == 5
    assert np.abs(held.errors).mean() < 0.1
    assert np.abs(held.errors_of_mean).mean() > 0.9
    deaf = cross_validated(rng.normal(size=300), people, np.arange(300))
    assert np.abs(deaf.errors).mean() > 0.9


def test_a_patient_is_never_on_both_sides():
    """A patient's own value is known by memory alone: exact where it leaks, between its neighbours' else."""
    patients = np.repeat(np.arange(20), 5)
    judge = patients.astype(float)
    people = np.cumsum(np.random.default_rng(1).exponential(size=20))[patients]
    leaking = cross_validated(judge, people, np.arange(100))
    together = cross_validated(judge, people, patients)
    assert np.abs(leaking.errors).max() < 1e-9
    assert (np.abs(together.errors) > 1e-3).all()


def test_few_groups():
    assert cross_validated([1, 2], [1, 2], ["p", "p"]) is None
    held = cross_validated([1, 2, 3], [1, 2, 3], ["p", "q", "q"])
    assert held.folds == 2
    # Held out p: what q taught, which is flat below 2. Held out q: p's 1 alone.
    assert held.errors.tolist() == pytest.approx([1, -1, -2])
    assert held.errors_of_mean.tolist() == pytest.approx([1.5, -1, -2])


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_a_finite_number_is_refused(wrong):
    for x, y in (([1, wrong, 3], [1, 2, 3]), ([1, 2, 3], [1, wrong, 3])):
        with pytest.raises(MieError, match="1 of 3 are not"):
            fit_isotonic(x, y)
        with pytest.raises(MieError, match="1 of 3 are not"):
            cross_validated(x, y, ["p", "q", "r"])


def test_pooling_by_hand():
    """3, 1 and 2 pool to 2, then 1 after them pulls all four down to 7 / 4."""
    assert fit_isotonic([1, 2, 3, 4, 5], [3, 1, 2, 1, 6])([1, 2, 3, 4, 5]).tolist() == [1.75] * 4 + [6]
    # Three values at 1 weigh three times as much as one at 2.
    assert fit_isotonic([1, 1, 1, 2], [4, 5, 6, 1])([1, 2]).tolist() == [4, 4]
