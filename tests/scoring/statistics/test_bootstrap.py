"""Intervals against resampling by hand, against SciPy, and against what 95% should mean."""

import numpy as np
import pytest
from scipy import stats

from mie.scoring.statistics import bootstrap_mean, bootstrap_means
from mie.scoring.statistics.bootstrap import bootstrap_macro


def by_hand(values, clusters, n, seed):
    """One replicate at a time: draw clusters, put their values together, take the mean."""
    names = np.unique(clusters)
    members = [np.flatnonzero(clusters == name) for name in names]
    draw = np.random.default_rng(seed)
    means = []
    for _ in range(n):
        chosen = draw.integers(0, len(names), (1, len(names)))[0]
        means.append(np.mean(values[np.concatenate([members[c] for c in chosen])]))
    return np.quantile(means, [0.025, 0.975])


@pytest.mark.parametrize("patients", [40, 9])
def test_equals_resampling_by_hand(patients):
    draw = np.random.default_rng(3)
    values = draw.beta(2, 1, 40)
    clusters = np.arange(40) % patients
    found = bootstrap_mean(values, clusters, n=300, seed=5)
    np.testing.assert_allclose(found, by_hand(values, clusters, 300, 5), rtol=0, atol=1e-12)
    if patients == 40:
        assert found == bootstrap_mean(values, n=300, seed=5)


def test_agrees_with_scipy():
    values = np.random.default_rng(0).gamma(2, 1, 80)
    other = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    found = bootstrap_mean(values, n=20_000)
    width = other.confidence_interval.high - other.confidence_interval.low
    np.testing.assert_allclose(found, other.confidence_interval, atol=0.02 * width)


def test_the_blocks_of_draws_do_not_show(monkeypatch):
    values = np.random.default_rng(1).normal(size=30)
    whole = bootstrap_mean(values)
    monkeypatch.setattr("mie.scoring.statistics.bootstrap._CELLS", 70)
    assert bootstrap_mean(values) == whole


def test_many_columns_at_once_are_the_same_as_one_by_one():
    draw = np.random.default_rng(2)
    columns = [(draw.normal(size=size), draw.integers(0, 12, size)) for size in (5, 30, 30, 0, 1, 200)]
    together = bootstrap_means(columns)
    alone = [bootstrap_mean(values, clusters) for values, clusters in columns]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)


def test_a_seed_gives_the_same_numbers_and_another_gives_others():
    values = np.random.default_rng(0).normal(size=25)
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1)
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)


def test_ends_of_the_scale():
    assert np.isnan(bootstrap_mean([])).all()
    assert np.isnan(bootstrap_mean([0.5])).all()
    assert np.isnan(bootstrap_mean([0.1, 0.9], ["one", "one"])).all()
    assert bootstrap_mean([0.25] * 9) == (0.25, 0.25)


def test_infinite_values():
    inf = np.inf
    assert bootstrap_mean([inf] * 4) == (inf, inf)
    assert bootstrap_mean([-inf, -inf]) == (-inf, -inf)
    low, high = bootstrap_mean([20.0, 30.0, inf])
    assert 20 <= low <= 30
    assert high == inf
    # One sample in three hundred: e^-1 of the replicates do not draw it.
    low, high = bootstrap_mean([*np.linspace(10, 20, 299), inf])
    assert 14 < low < 16
    assert high == inf
    assert np.isnan(bootstrap_mean([inf, -inf] * 20)).all()


def test_95_percent_cover_the_truth_only_when_patients_stay_together():
    """Patients differ more than the samples of one patient do."""
    draw = np.random.default_rng(7)
    clusters = np.repeat(np.arange(40), 5)
    together = apart = 0
    for trial in range(200):
        values = 3 + draw.normal(size=40)[clusters] + 0.5 * draw.normal(size=200)
        low, high = bootstrap_mean(values, clusters, n=400, seed=trial)
        together += low <= 3 <= high
        low, high = bootstrap_mean(values, n=400, seed=trial)
        apart += low <= 3 <= high
    assert 0.88 <= together / 200 <= 0.99
    assert apart / 200 < 0.8


def test_the_interval_of_a_mean_over_strata_is_of_that_mean():
    """One large stratum and many of one cluster each, which draws from all clusters would often miss."""
    values = [0.9 + 0.1 * (n % 2) for n in range(40)] + [0.1] * 4
    strata = ["large"] * 40 + [f"small{n}" for n in range(4)]
    low, high = bootstrap_macro(values, strata, range(44))
    alone = bootstrap_mean(values[:40])
    assert [low, high] == pytest.approx([(bound + 4 * 0.1) / 5 for bound in alone], abs=1e-3)
    # The same clusters in two strata: what they add to both goes up and down together.
    twice = bootstrap_macro(values[:40] * 2, ["a"] * 40 + ["b"] * 40, [*range(40), *range(40)])
    assert twice == pytest.approx(alone, abs=1e-3)
    assert np.isnan(bootstrap_macro(values[40:], strata[40:], range(4))).all()
