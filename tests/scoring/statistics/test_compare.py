"""Comparisons against SciPy's t test, textbook corrections and plain counting."""

import numpy as np
import pytest
from scipy import stats

from mie.errors import ConfigError
from mie.scoring.statistics import compare_runs, holm, mean_interval
from tests.scoring.statistics.files import write_scores

A = [0.91, 0.85, 0.40, 0.77, 0.66, 0.95, 0.30]
B = [0.80, 0.90, 0.10, 0.70, 0.66, 0.50, 0.12]


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
    assert 0 < row.p < 0.2


def test_p_is_that_of_a_t_test_where_every_sample_is_a_patient(tmp_path):
    (row,) = compare_runs(files(tmp_path, a=named(A), b=named(B)), "dice")
    reference = stats.ttest_rel(A, B)
    assert row.p == pytest.approx(reference.pvalue, rel=1e-9)
    assert row.ci95 == pytest.approx(tuple(reference.confidence_interval()), abs=1e-12)
    assert (row.patients, row.unknown) == (0, 7)


def test_samples_of_one_patient_are_one_patient(tmp_path):
    """Seventy-seven samples of four patients, one of whom disagrees: nothing is sure."""
    rng = np.random.default_rng(0)
    patients = [f"p{n % 4}" for n in range(77)]
    shift = np.array([0.12, 0.1, 0.14, -0.02])[np.arange(77) % 4]
    b = rng.uniform(0.3, 0.8, 77)
    both = {
        "a": write_scores(tmp_path / "a/scores/s", named(b + shift), patients=patients),
        "b": write_scores(tmp_path / "b/scores/s", named(b), patients=patients),
    }
    (row,) = compare_runs(both)
    assert (row.n, row.patients, row.unknown) == (77, 4, 0)
    assert stats.wilcoxon(shift).pvalue < 1e-6  # what taking samples for patients would say
    assert row.p > 0.05
    assert row.ci95[0] < 0 < row.ci95[1]
    expected = mean_interval(shift, patients)
    assert row.ci95 == pytest.approx((expected.low, expected.high))
    assert row.p == pytest.approx(2 * stats.t.sf(expected.value / expected.se, expected.df))


def test_interval_and_p_never_contradict_each_other(tmp_path):
    rng = np.random.default_rng(1)
    sure = 0
    for trial in range(40):
        count = int(rng.integers(3, 7))
        patients = [f"p{n}" for n in rng.permutation(np.arange(24) % count)]
        steps = rng.integers(0, 2, 24) if trial % 2 else rng.random(24)
        values = {name: rng.random(24) < level for name, level in (("a", 0.9), ("b", 0.3))}
        values["a"] = np.clip(steps * 0.3 + values["a"], 0, 1) if trial % 3 else values["a"]
        both = {
            name: write_scores(tmp_path / f"{trial}{name}/scores/s", named(v.tolist()), patients=patients)
            for name, v in values.items()
        }
        (row,) = compare_runs(both)
        assert (row.p < 0.05) == (row.ci95[0] > 0 or row.ci95[1] < 0)
        sure += row.p < 0.05
    assert 5 < sure < 35


def test_too_few_patients_are_not_tested(tmp_path):
    patients = ["p", "p", "p", "q", "q", "q", "q"]
    both = {
        name: write_scores(tmp_path / name / "scores/s", named(values), patients=patients)
        for name, values in (("a", A), ("b", B))
    }
    (row,) = compare_runs(both)
    assert np.isnan([row.p, row.p_holm, *row.ci95]).all()
    assert row.difference == pytest.approx(np.mean(A) - np.mean(B))
    assert row.reason == "2 patients: an interval needs at least 3"


def test_a_clean_sweep_is_as_sure_as_there_are_patients(tmp_path):
    """All right against all wrong: the sign test, not a spread of nothing."""
    for count, expected in ((3, 0.25), (6, 2 / 64)):
        (row,) = compare_runs(files(tmp_path, a=named([1.0] * count), b=named([0.0] * count)))
        assert row.p == pytest.approx(expected)
        assert (row.ci95[0] > 0) == (count == 6)
    (row,) = compare_runs(files(tmp_path, a=named([0.75] * 5), b=named([0.5] * 5)))
    assert np.isnan([row.p, *row.ci95]).all()
    assert row.reason == "all differences are equal: their spread is unknown"


@pytest.mark.parametrize(("apart", "outcome"), [(9e-7, (0, 5, 0)), (2e-6, (5, 0, 0)), (-2e-6, (0, 0, 5))])
def test_a_tie_is_within_a_millionth(tmp_path, apart, outcome):
    b = np.linspace(0.1, 0.9, 5)
    (row,) = compare_runs(files(tmp_path, a=named((b + apart).tolist()), b=named(b.tolist())))
    assert (row.wins, row.ties, row.losses) == outcome
    assert row.difference == pytest.approx(apart if outcome[1] == 0 else 0, abs=1e-12)


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


def test_an_infinite_difference_is_not_tested(tmp_path):
    (row,) = compare_runs(files(tmp_path, a=named(["inf", *A[1:]]), b=named(B)))
    assert row.difference == np.inf
    assert np.isnan([row.p, *row.ci95]).all()
    assert (row.wins, row.ties, row.losses) == (5, 1, 1)
    assert row.reason == "some values are infinite"


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


def test_of_a_distance_the_lower_value_wins(tmp_path):
    """The difference stays a - b; only who wins turns round."""
    paths = files(tmp_path, a=named(A), b=named(B))
    for path in paths.values():
        path.write_text(path.read_text().replace('"dice"', '"lpips_all"'))
    (row,) = compare_runs(paths, "lpips_all@1")
    assert (row.wins, row.ties, row.losses) == (1, 1, 5)
    assert row.difference == pytest.approx(np.subtract(A, B).mean(), abs=1e-15)
