"""Comparisons against enumeration, textbook corrections and plain counting."""

from itertools import product

import numpy as np
import pytest

from mie.errors import ConfigError
from mie.scoring.statistics import compare_runs, holm, mean_interval
from tests.scoring.statistics.files import write_scores

A = [0.91, 0.85, 0.40, 0.77, 0.66, 0.95, 0.30]
B = [0.80, 0.90, 0.10, 0.70, 0.66, 0.50, 0.12]


def signed_rank_by_enumeration(differences):
    """P(W <= w) over every choice of signs, two-sided, zeros left out."""
    d = np.array([x for x in differences if x])
    ranks = np.argsort(np.argsort(np.abs(d))) + 1
    least = min(ranks[d > 0].sum(), ranks[d < 0].sum())
    sums = [
        sum(r for r, sign in zip(ranks, signs, strict=True) if sign)
        for signs in product((0, 1), repeat=len(d))
    ]
    return min(1.0, 2 * np.mean(np.array(sums) <= least))


def files(tmp_path, **runs):
    return {
        name: write_scores(tmp_path / name / "scores/miedb.paper.jsonl", values)
        for name, values in runs.items()
    }


def named(values):
    return {f"s{n}": [v] for n, v in enumerate(values)}


def test_one_pair(tmp_path):
    (row,) = compare_runs(files(tmp_path, a=named(A), b=named(B)), "dice@1")
    d = np.subtract(A, B)
    assert (row.a, row.b, row.metric, row.n, row.left_out) == ("a", "b", "dice@1", 7, 0)
    assert row.difference == pytest.approx(d.mean(), abs=1e-15)
    assert (row.mean_a, row.mean_b) == pytest.approx((np.mean(A), np.mean(B)), abs=1e-15)
    interval = mean_interval(d)
    assert row.ci95 == pytest.approx((interval.low, interval.high), abs=1e-15)
    assert (row.wins, row.ties, row.losses) == (5, 1, 1)
    assert row.p == row.p_holm
    # SciPy leaves its exact table for the normal approximation when a difference is 0.
    assert 0 < row.p < 0.2


def test_wilcoxon_is_exact_on_few_samples(tmp_path):
    a, b = np.delete(A, 4), np.delete(B, 4)
    (row,) = compare_runs(files(tmp_path, a=named(a), b=named(b)), "dice")
    assert row.p == pytest.approx(signed_rank_by_enumeration(a - b), abs=1e-12)


def test_samples_are_paired_by_id_and_unscored_ones_left_out(tmp_path):
    a = {"x": [0.5], "y": [0.6], "only a": [0.9], "lost": [None]}
    b = {"lost": [0.1], "y": [0.2], "x": [0.4]}
    (row,) = compare_runs(files(tmp_path, a=a, b=b))
    assert row.n == 2
    assert row.left_out == 2
    assert row.difference == pytest.approx(0.25)


def test_equal_runs_and_empty_ones(tmp_path):
    same = named([0.5, 0.7, "inf"])
    (row,) = compare_runs(files(tmp_path, a=same, b=same))
    assert (row.difference, row.p, row.ties) == (0.0, 1.0, 3)
    assert row.ci95 == (0.0, 0.0)
    (row,) = compare_runs(files(tmp_path, c=named([None, 0.1]), d=named([0.5, None])))
    assert row.n == 0
    assert np.isnan([row.p, row.p_holm, row.difference]).all()


def test_infinite_differences_have_a_rank(tmp_path):
    (row,) = compare_runs(files(tmp_path, a=named(["inf", *A[1:]]), b=named(B)))
    assert row.difference == np.inf
    assert 0 < row.p <= 1


def test_three_runs_are_ranked_with_a_corrected_p(tmp_path):
    draw = np.random.default_rng(0)
    hard = draw.random(60)
    runs = {
        name: named(np.clip(hard * 0.5 + level + 0.05 * draw.normal(size=60), 0, 1).tolist())
        for name, level in (("good", 0.4), ("fair", 0.37), ("poor", 0.1))
    }
    rows = compare_runs(files(tmp_path, **runs))
    assert [(r.a, r.b) for r in rows] == [("good", "fair"), ("good", "poor"), ("fair", "poor")]
    assert all(r.ci95[0] > 0 for r in rows)
    np.testing.assert_allclose([r.p_holm for r in rows], holm([r.p for r in rows]))


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.6, 0.7]), [1.0, 1.0])
    np.testing.assert_allclose(holm([0.02, np.nan, 0.01]), [0.02, np.nan, 0.02])
    assert holm([]).shape == (0,)


def test_what_cannot_be_compared(tmp_path):
    both = files(tmp_path, a=named(A), b=named(B))
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare_runs([both["a"]])
    other = write_scores(tmp_path / "c/scores/x.jsonl", named(A), digest="e" * 64)
    with pytest.raises(ConfigError, match="dataset_digest"):
        compare_runs([both["a"], other])
    other = write_scores(tmp_path / "d/scores/x.jsonl", named(A), variant="as_released")
    with pytest.raises(ConfigError, match="variant"):
        compare_runs({"a": both["a"], "d": other})
    with pytest.raises(ConfigError, match="no metric"):
        compare_runs(both, "dise@1")
    with pytest.raises(ConfigError, match="not a metric"):
        compare_runs(both, "dice@k")


def test_runs_are_named_by_their_folders(tmp_path):
    both = files(tmp_path, a=named(A), b=named(B))
    assert {compare_runs(list(both.values()))[0].a, compare_runs(list(both.values()))[0].b} == {"a", "b"}
