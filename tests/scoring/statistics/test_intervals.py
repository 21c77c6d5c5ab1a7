"""Intervals against SciPy, against leaving patients out by hand, and against what 95% should mean."""

import numpy as np
import pytest
from scipy import stats

from mie.errors import MieError
from mie.scoring.clusters import clusters_of
from mie.scoring.statistics import MIN_PATIENTS, macro_interval, mean_interval, ratio_interval, wilson


def uneven(rng, patients):
    """The patient of each row; some have most of them."""
    return np.repeat(np.arange(patients), 1 + np.floor(np.exp(rng.normal(1.2, 0.9, patients))).astype(int))


def leaving_out(statistic, rows):
    """(se, df) of a statistic of row numbers: the jackknife by refitting, the df from the whole matrix."""
    names, sizes = np.unique(rows, return_counts=True)
    count, total = len(names), len(rows)
    without = np.array([statistic(np.flatnonzero(rows != name)) for name in names])
    se = np.sqrt((count - 1) / count * ((without - statistic(np.arange(total))) ** 2).sum())
    # What leaving each patient out moves the mean by, as a linear map of independent values.
    moves = np.stack([(rows != name) / (rows != name).sum() - 1 / total for name in names])
    covariance = moves @ moves.T
    assert sizes.sum() == total
    return se, np.trace(covariance) ** 2 / np.trace(covariance @ covariance)


def test_equally_many_values_are_a_t_test_of_the_patients_means():
    values = np.random.default_rng(0).beta(4, 1, (6, 5))
    found = mean_interval(values.ravel(), np.repeat(np.arange(6), 5))
    test = stats.ttest_1samp(values.mean(axis=1), 0.7)
    assert [found.low, found.high] == pytest.approx(list(test.confidence_interval()), abs=1e-12)
    assert found.df == pytest.approx(5)
    assert found.p_value(0.7) == pytest.approx(test.pvalue, rel=1e-9)
    assert (found.value, found.patients, found.unknown) == (pytest.approx(values.mean()), 6, 0)


def test_without_clusters_every_value_stands_alone():
    values = np.random.default_rng(1).gamma(2, 1, 12)
    found = mean_interval(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert (found.patients, found.unknown) == (0, 12)


@pytest.mark.parametrize("patients", [3, 4, 9, 30])
def test_unequally_many_values_by_leaving_patients_out(patients):
    rng = np.random.default_rng(patients)
    rows = uneven(rng, patients)
    values = rng.beta(4, 1, patients)[rows] + 0.1 * rng.normal(size=len(rows))
    se, df = leaving_out(lambda chosen: values[chosen].mean(), rows)
    found = mean_interval(values, rows)
    assert (found.se, found.df) == pytest.approx((se, df), rel=1e-9)
    assert df < patients - 1
    reach = stats.t.ppf(0.975, df) * se
    assert (found.low, found.high) == pytest.approx((values.mean() - reach, values.mean() + reach), rel=1e-9)


def test_the_formula_worked_by_hand():
    # a: .5, .7; b: .9; c: .6. Mean .675; moves -.15 / 2, .225 / 3, -.075 / 3; se^2 = 2 / 3 * .011875.
    found = mean_interval([0.5, 0.7, 0.9, 0.6], ["a", "a", "b", "c"])
    assert found.value == pytest.approx(0.675)
    assert found.se**2 == pytest.approx(2 / 3 * 0.011875)
    # Shares 1/2, 1/4, 1/4 over what is left: 1, 1/3, 1/3. df = (5/3)^2 / (11/9 + (11/9)^2 - 83/81).
    assert found.df == pytest.approx((5 / 3) ** 2 / (11 / 9 + (11 / 9) ** 2 - 83 / 81))


def test_fewer_patients_than_the_least_have_no_interval_and_say_why():
    values = np.linspace(0, 1, 40)
    for count in range(1, MIN_PATIENTS):
        found = mean_interval(values, np.arange(40) % count)
        assert np.isnan([found.low, found.high, found.p_value()]).all()
        assert found.value == pytest.approx(0.5)
        assert str(MIN_PATIENTS) in found.reason
        assert str(count) in found.reason
        assert found.entry["no_interval"] == found.reason
    found = mean_interval(values, np.arange(40) % MIN_PATIENTS)
    assert (found.reason, found.low < 0.5 < found.high) == ("", True)
    assert "no_interval" not in found.entry
    nothing = mean_interval([])
    assert (nothing.reason, nothing.patients) == ("no values", 0)
    assert np.isnan(nothing.value)


def test_images_without_a_patient_are_counted_apart():
    clusters = clusters_of(["p1", "p1", "p2", None, None], ["a", "b", "c", "d", "d"])
    entry = mean_interval([0.1, 0.2, 0.3, 0.4, 0.5], clusters).entry
    assert (entry["patients"], entry["images_without_patient"]) == (2, 1)
    assert np.isfinite(entry["ci95"]).all()  # three that differ, however many of them are known


def test_what_is_not_a_number_is_refused():
    for call in (
        lambda v: mean_interval(v),
        lambda v: macro_interval(v, [0, 0, 1]),
        lambda v: ratio_interval(v, [1, 1, 1]),
        lambda v: ratio_interval([1, 1, 1], v),
    ):
        with pytest.raises(MieError, match="not a number") as caught:
            call([1.0, np.nan, 0.0])
        assert caught.value.found == "1 of 3 are not"
    for one in ((np.nan, 3), (1, np.nan), (1, 0)):
        with pytest.raises(MieError):
            wilson(*one)
    with pytest.raises(MieError, match="differ in number"):
        mean_interval([1.0, 2.0, 3.0], ["a", "b"])


def test_infinite_values_have_a_mean_and_no_interval():
    found = mean_interval([20.0, 30.0, np.inf, 25.0])
    assert (found.value, found.reason) == (np.inf, "some values are infinite")
    assert np.isnan([found.low, found.high, found.p_value()]).all()
    assert ratio_interval([1, 2, np.inf, 3], [1, 2, 3, 4]).reason == "some values are infinite"


def test_an_interval_stays_within_the_range_of_its_values():
    values = [0.9, 0.95, 0.2, 0.99]
    free, held = mean_interval(values), mean_interval(values, bounds=(0, 1))
    assert free.high > 1
    assert (held.low, held.high) == (free.low, 1.0)
    wrong = mean_interval([1.2, 0.9, 0.8], bounds=(0, 1))  # a range that does not hold is no range
    assert wrong == mean_interval([1.2, 0.9, 0.8])


def test_equal_values_have_an_interval_of_no_width_unless_they_lie_on_an_end():
    found = mean_interval([0.25] * 9, bounds=(0, 1))
    assert (found.low, found.high) == pytest.approx((0.25, 0.25))
    assert np.isnan(found.p_value())  # nothing is known of their spread
    assert found.p_value(0.25) == 1
    # Five patients without a failure: a rate of .025^(1/5) would show that as often as once in forty.
    rows = [0, 0, 1, 2, 3, 3, 4]
    full, none = (mean_interval([end] * 7, rows, bounds=(0, 1)) for end in (1.0, 1e-9))
    assert (full.low, full.high) == pytest.approx((0.025**0.2, 1))
    assert (none.low, none.high) == pytest.approx((0, 1 - 0.025**0.2))
    assert full.p_value(0.5) == pytest.approx(stats.binomtest(5, 5).pvalue)
    grades = mean_interval([5] * 7, rows, bounds=(1, 5))
    assert (grades.low, grades.high) == pytest.approx((1 + 4 * 0.025**0.2, 5))


def test_successes_are_wilsons_for_the_number_of_independent_ones():
    """One value a patient: as Wilson's, but for the t quantile; ten equal values each: as one value."""
    values = np.array([1.0] * 30 + [0.0] * 10)
    alone = mean_interval(values, bounds=(0, 1))
    effective = 39 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 39)) ** 2
    assert alone.effective == pytest.approx(effective)
    reference = wilson(0.75 * effective, effective)
    assert (alone.low, alone.high) == pytest.approx(reference)
    tenfold = mean_interval(np.repeat(values, 10), np.repeat(np.arange(40), 10), bounds=(0, 1))
    assert (tenfold.low, tenfold.high) == pytest.approx(reference)


@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_p_is_under_a_twentieth_exactly_where_the_interval_leaves_it_out(bounds):
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        rows = uneven(rng, int(rng.integers(3, 9)))
        values = success(rng, rows) if bounds else dice(rng, rows)
        found = mean_interval(values, rows, bounds=bounds)
        for null in (0.3, 0.5, 0.7, 0.9):
            assert (found.p_value(null) < 0.05) == (not found.low <= null <= found.high)
            inside += found.low <= null <= found.high
            if 0 < found.high < 1:
                assert found.p_value(found.high) == pytest.approx(0.05, abs=1e-9)
    assert 100 < inside < 750


def dice(rng, rows):
    mean = np.clip(rng.beta(4, 1, rows.max() + 1), 0.001, 0.999)[rows]
    return rng.beta(6 * mean, 6 * (1 - mean))


def success(rng, rows):
    return (rng.random(len(rows)) < rng.beta(2.4, 0.6, rows.max() + 1)[rows]).astype(float)


@pytest.mark.parametrize("patients", [3, 5, 10, 40])
@pytest.mark.parametrize("draw", [dice, success])
def test_95_percent_hold_the_truth(draw, patients):
    """Both outcomes are .8 on average, skewed, and differ between patients more than within one."""
    rng = np.random.default_rng(patients)
    held, widths, spread = 0, [], []
    for _ in range(600):
        rows = uneven(rng, patients)
        values = draw(rng, rows)
        found = mean_interval(values, rows, bounds=(0, 1))
        held += found.low <= 0.8 <= found.high
        widths.append(found.high - found.low)
        spread.append(found.value)
    assert held / 600 >= 0.9
    if patients == 40:  # and not because it is too wide: near four standard errors
        assert np.median(widths) < 4.8 * np.std(spread)
        assert held / 600 <= 0.98


def test_values_of_one_patient_are_not_as_many_patients():
    rng = np.random.default_rng(7)
    rows = np.repeat(np.arange(40), 5)
    apart = 0
    for _ in range(200):
        values = 3 + rng.normal(size=40)[rows] + 0.5 * rng.normal(size=200)
        found = mean_interval(values)
        apart += found.low <= 3 <= found.high
    assert apart / 200 < 0.8


def test_a_mean_over_strata_is_that_of_its_only_stratum():
    rng = np.random.default_rng(2)
    rows = uneven(rng, 7)
    values = dice(rng, rows)
    one, plain = macro_interval(values, ["a"] * len(rows), rows), mean_interval(values, rows)
    assert (one.value, one.low, one.high) == pytest.approx((plain.value, plain.low, plain.high))
    # The same patients and values in two strata: both go up and down together.
    twice = macro_interval(np.tile(values, 2), np.repeat([0, 1], len(rows)), np.tile(rows, 2))
    assert (twice.value, twice.se, twice.df) == pytest.approx((plain.value, plain.se, plain.df))


def test_patients_of_their_own_in_each_stratum_are_welchs():
    """Two strata of 5 and 8 patients with a value each: the mean of two means, variances added."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(1, 1, 5), rng.normal(4, 1, 8)
    found = macro_interval(np.concatenate([a, b]), [0] * 5 + [1] * 8, np.arange(13))
    assert found.value == pytest.approx((a.mean() + b.mean()) / 2)
    assert found.se == pytest.approx(np.sqrt(a.var(ddof=1) / 5 + b.var(ddof=1) / 8) / 2)
    # Satterthwaite's with equal variances: (1/5 + 1/8)^2 / ((1/5)^2 / 4 + (1/8)^2 / 7).
    assert found.df == pytest.approx((1 / 5 + 1 / 8) ** 2 / ((1 / 5) ** 2 / 4 + (1 / 8) ** 2 / 7))


def test_a_stratum_of_one_patient_has_the_spread_of_the_others():
    a, b = np.array([1.0, 2.0, 4.0]), np.array([5.0, 9.0, 7.0, 6.0])
    values, strata = [*a, *b, 3.0], [0] * 3 + [1] * 4 + [2]
    found = macro_interval(values, strata, np.arange(8))
    between = (a.var(ddof=1) + b.var(ddof=1)) / 2
    expected = (a.var(ddof=1) / 3 + b.var(ddof=1) / 4 + between) / 9
    assert found.se == pytest.approx(np.sqrt(expected))
    alone = macro_interval([1.0, 2.0, 3.0], ["a", "b", "c"], ["p", "q", "r"])
    assert alone.reason == "every group comes from one patient"
    assert alone.value == 2
    assert "needs at least" in macro_interval([1.0, 3.0], ["a", "b"], [0, 1]).reason
    with pytest.raises(MieError, match="strata"):
        macro_interval([1.0, 3.0], ["a"])


def test_means_over_strata_hold_the_truth_where_patients_lie_in_several():
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        rows = uneven(rng, 8)
        found = macro_interval(dice(rng, rows), rng.integers(0, 4, len(rows)), rows)
        held += found.low <= 0.8 <= found.high
    assert held / 400 >= 0.9


def test_a_ratio_by_leaving_patients_out():
    rng = np.random.default_rng(6)
    rows = uneven(rng, 6)
    below = rng.uniform(0.2, 1, len(rows))
    above = below * 0.3 + 0.05 * rng.normal(size=len(rows))
    found = ratio_interval(above, below, rows)
    se, _ = leaving_out(lambda chosen: above[chosen].sum() / below[chosen].sum(), rows)
    assert (found.value, found.se) == pytest.approx((above.sum() / below.sum(), se))
    reach = stats.t.ppf(0.975, found.df) * se
    assert (found.low, found.high) == pytest.approx((found.value - reach, found.value + reach))
    ones = ratio_interval(above, np.ones(len(rows)), rows)
    mean = mean_interval(above, rows)
    assert (ones.low, ones.high) == pytest.approx((mean.low, mean.high))


def test_ratios_without_an_interval():
    assert ratio_interval([], []).reason == "no values"
    assert ratio_interval([1, 2], [2, 4], [0, 1]).value == 0.5
    assert "needs at least" in ratio_interval([1, 2], [2, 4], [0, 1]).reason
    assert "negative" in ratio_interval([1, 2, 3], [2, -4, 1]).reason
    assert "above 0" in ratio_interval([1, 2, 3], [2, 0, 1]).reason
    assert np.isnan(ratio_interval([1, 2, 3], [0, 0, 0]).value)
    with pytest.raises(MieError, match="length"):
        ratio_interval([1, 2, 3], [1, 2])


@pytest.mark.parametrize(("successes", "n"), [(0, 5), (3, 7), (5, 5), (41, 60)])
def test_wilson_is_scipys(successes, n):
    reference = stats.binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson(successes, n) == pytest.approx((reference.low, reference.high), abs=1e-12)
