"""Rank correlations against SciPy, cases worked by hand, and what must change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mie.errors import MieError
from mie.scoring.statistics.ranks import (
    average_ranks,
    kendall_tau_b,
    kendall_w,
    krippendorff_alpha,
    quadratic_kappa,
    spearman,
    spearman_formula,
    within,
)

orders = st.integers(2, 12).flatmap(
    lambda m: st.tuples(*[st.lists(st.integers(0, 5), min_size=m, max_size=m)] * 2)
)


@given(st.lists(st.floats(allow_nan=False), max_size=20))
def test_ranks_are_scipys(values):
    np.testing.assert_array_equal(average_ranks(values), stats.rankdata(values))


@given(orders)
def test_correlations_are_scipys(pair):
    a, b = pair
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert np.isnan(spearman(a, b))
        assert np.isnan(kendall_tau_b(a, b))
        return
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert kendall_tau_b(a, b) == pytest.approx(stats.kendalltau(a, b).statistic, abs=1e-12)


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_the_formula_is_the_correlation_where_nothing_is_tied(a, b):
    assert spearman_formula(a, b) == pytest.approx(spearman(a, b), abs=1e-12)


def test_the_formula_by_hand():
    # ranks 1, 2, 3, 4 against 2, 1, 4, 3: d^2 = 1 + 1 + 1 + 1, 1 - 24 / 60.
    assert spearman_formula([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    # ranks 1, 2, 3 against 1.5, 1.5, 3: d^2 = .25 + .25, 1 - 3 / 24; the correlation proper is smaller.
    assert spearman_formula([1, 2, 3], [7, 7, 9]) == pytest.approx(0.875)
    assert spearman([1, 2, 3], [7, 7, 9]) == pytest.approx(0.8660254)
    # Against a metric that cannot tell models apart the formula still answers one half.
    assert spearman_formula([1, 2, 3, 4], [5, 5, 5, 5]) == pytest.approx(0.5)
    assert np.isnan(spearman_formula([1], [1]))


@given(orders, st.floats(0.1, 3))
def test_a_monotone_transform_changes_nothing(pair, power):
    a, b = (np.array(side, float) for side in pair)
    for correlate in (spearman_formula, spearman, kendall_tau_b):
        np.testing.assert_equal(correlate(a**power, np.exp(b)), correlate(a, b))


@given(orders, st.randoms())
def test_renaming_the_models_changes_nothing(pair, random):
    a, b = pair
    order = list(range(len(a)))
    random.shuffle(order)
    for correlate in (spearman_formula, spearman, kendall_tau_b):
        shuffled = correlate([a[i] for i in order], [b[i] for i in order])
        np.testing.assert_allclose(shuffled, correlate(a, b), atol=1e-12)


def test_infinities_are_the_largest_and_tie():
    assert kendall_tau_b([1, 2, np.inf], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, np.inf, np.inf], [1, 2, 2]) == pytest.approx(1)


def test_w_is_friedmans():
    """chi^2 of Friedman's test is n (k - 1) W, ties corrected in both."""
    rng = np.random.default_rng(3)
    for ties in (3, 50):
        ratings = rng.integers(0, ties, (6, 5)).astype(float)
        chi2 = stats.friedmanchisquare(*ratings.T).statistic
        assert kendall_w(ratings) == pytest.approx(chi2 / (6 * 4))


def test_w_by_hand():
    # Three judges, sums of ranks 4, 5, 9: S = 14, W = 12 * 14 / (9 * 24).
    assert kendall_w([[1, 2, 3], [1, 2, 3], [2, 1, 3]]) == pytest.approx(12 * 14 / (9 * 24))
    assert kendall_w([[1, 2, 3]] * 4) == pytest.approx(1)
    assert kendall_w([[1, 2, 2]] * 4) == pytest.approx(1)  # with ties too, once corrected
    assert kendall_w([[1, 2, 3], [3, 2, 1]]) == pytest.approx(0)
    for nothing in ([[1, 2, 3]], [[1], [1]], [[2, 2, 2], [1, 1, 1]]):
        assert np.isnan(kendall_w(nothing))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("function", [spearman, spearman_formula, kendall_tau_b, within, quadratic_kappa])
def test_what_is_not_a_number_is_refused_on_either_side(function, place):
    sides = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]
    function(*sides)
    sides[place][1] = np.nan
    with pytest.raises(MieError, match="not a number") as caught:
        function(*sides)
    assert caught.value.found == "1 of 3 are not"


def test_what_is_not_a_number_has_no_rank():
    with pytest.raises(MieError, match="not a number"):
        average_ranks([1.0, np.nan, np.nan])
    with pytest.raises(MieError, match="not a number"):
        kendall_w([[1, 2, 3], [1, np.nan, 3]])


def test_infinities_are_refused_where_their_size_counts():
    for function in (within, quadratic_kappa):
        with pytest.raises(MieError, match="infinite"):
            function([1.0, np.inf], [1.0, 2.0])
    with pytest.raises(MieError, match="infinite"):
        krippendorff_alpha([[1, np.inf], [1, np.nan]])
