"""Strengths against closed forms, against a direct maximisation, and against a known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize

from mie.errors import ConfigError, MieError
from mie.scoring.statistics import MIN_PATIENTS
from mie.scoring.statistics.preference import KINDS, PRIOR, leaderboard, place_model


def strengths(board):
    return {one.model: one.strength for one in board}


def first(*models):
    """A ranking in this order."""
    return {model: place for place, model in enumerate(models, start=1)}


def drawn(truth, count, seed=0, size=None):
    """Rankings drawn by Plackett-Luce: sorted by strength plus Gumbel noise."""
    rng = np.random.default_rng(seed)
    models = sorted(truth)
    out = []
    for _ in range(count):
        some = models if size is None else list(rng.choice(models, size, replace=False))
        noisy = {m: truth[m] + rng.gumbel() for m in some}
        out.append(first(*sorted(some, key=lambda m: -noisy[m])))
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_two_models_in_closed_form(kind):
    """Seven of ten: the odds are 7 to 3."""
    rankings = [first("a", "b")] * 7 + [first("b", "a")] * 3
    found = strengths(leaderboard(rankings, kind=kind, prior=0))
    assert found["a"] - found["b"] == pytest.approx(np.log(7 / 3), abs=1e-6)
    assert sum(found.values()) == pytest.approx(0, abs=1e-9)


def test_a_tie_is_half_a_win():
    rankings = [first("a", "b")] * 2 + [{"a": 1, "b": 1}] * 2
    found = strengths(leaderboard(rankings, prior=0))
    assert found["a"] - found["b"] == pytest.approx(np.log(3 / 1), abs=1e-6)


def likelihood(kind, rankings, models, theta):
    total = 0.0
    for ranking in rankings:
        order = sorted(ranking, key=ranking.get)
        for at, winner in enumerate(order[:-1]):
            rest = order[at:]
            if kind == "plackett-luce":
                total += theta[models[winner]] - np.log(sum(np.exp(theta[models[m]]) for m in rest))
            else:
                for loser in rest[1:]:
                    pair = (theta[models[winner]], theta[models[loser]])
                    total += pair[0] - np.logaddexp(*pair)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_the_maximum_of_the_likelihood(kind):
    rankings = drawn({"a": 0.5, "b": 0.0, "c": -0.3, "d": 0.1}, 40, size=3)
    models = {m: at for at, m in enumerate("abcd")}
    best = minimize(lambda t: -likelihood(kind, rankings, models, t), np.zeros(4), tol=1e-12).x
    found = strengths(leaderboard(rankings, kind=kind, prior=0))
    expected = best - best.mean()
    assert [found[m] for m in "abcd"] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_the_truth(kind):
    truth = {"a": 1.0, "b": 0.3, "c": -0.3, "d": -1.0}
    board = leaderboard(drawn(truth, 400, size=2 if kind == "bradley-terry" else 4), kind=kind)
    assert [one.model for one in board] == list("abcd")
    for one in board:
        low, high = one.ci95
        assert low < one.strength < high
        assert low - 0.1 < truth[one.model] < high + 0.1
        assert high - low < 0.7


def test_mean_ranks_of_whole_rankings():
    board = leaderboard([first("a", "b", "c"), {"a": 2, "b": 1, "c": 2}, first("c", "a")])
    ranks = {one.model: (one.mean_rank, one.n) for one in board}
    assert ranks == {"a": (1.75, 2), "b": (1.5, 2), "c": (2.75, 2)}
    partial = leaderboard([first("a", "b"), first("b", "c")])
    assert all(np.isnan(one.mean_rank) and one.n == 0 for one in partial)


@pytest.mark.parametrize("kind", KINDS)
def test_always_first_and_always_last_stay_finite(kind):
    board = leaderboard([first("a", "b", "c")] * 20, kind=kind)
    assert [one.model for one in board] == list("abc")
    assert np.isfinite([[one.strength, *one.ci95] for one in board]).all()


@settings(max_examples=20)
@given(st.permutations("abcd"), st.sampled_from(KINDS))
def test_renaming_models_changes_nothing(names, kind):
    rankings = drawn({"a": 0.5, "b": 0.0, "c": -0.3, "d": 0.1}, 15, size=3)
    renamed = dict(zip("abcd", names, strict=True))
    plain = strengths(leaderboard(rankings, kind=kind))
    other = strengths(leaderboard([{renamed[m]: p for m, p in r.items()} for r in rankings], kind=kind))
    assert {renamed[m]: s for m, s in plain.items()} == pytest.approx(other, abs=1e-6)


def test_a_patient_is_left_out_whole():
    """Twenty raters who all say the same of one sample are one opinion about samples, not twenty."""
    rankings = drawn({"a": 0.4, "b": 0.0}, 30)
    many = [r for r in rankings for _ in range(20)]
    alone = leaderboard(many)
    grouped = leaderboard(many, np.repeat(np.arange(30), 20))
    width = [high - low for low, high in (board[0].ci95 for board in (alone, grouped))]
    assert width[1] > 3 * width[0]
    assert (grouped[0].patients, grouped[0].unknown, alone[0].unknown) == (30, 0, 600)
    for count in range(1, MIN_PATIENTS):  # too few say nothing about spread
        few = leaderboard(many, np.arange(len(many)) % count)
        assert np.isnan(few[0].ci95).all()
    enough = leaderboard(many, np.arange(len(many)) % MIN_PATIENTS)
    assert np.isfinite(enough[0].ci95).all()


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_by_leaving_patients_out(kind):
    rankings = drawn({"a": 0.4, "b": 0.0, "c": -0.2}, 12)
    patients = np.repeat(np.arange(4), 3)
    board = leaderboard(rankings, patients, kind=kind)
    without = [
        strengths(leaderboard([r for r, p in zip(rankings, patients, strict=True) if p != out], kind=kind))
        for out in range(4)
    ]
    for one in board:
        moves = [fit[one.model] - one.strength for fit in without]
        reach = stats.t.ppf(0.975, 3) * np.sqrt(3 / 4 * np.sum(np.square(moves)))
        assert one.ci95 == pytest.approx((one.strength - reach, one.strength + reach), abs=1e-5)


@pytest.mark.parametrize("patients", [3, 10])
def test_intervals_hold_the_truth_over_patients_who_differ(patients):
    rng = np.random.default_rng(patients)
    held = []
    for _ in range(60):
        rows = np.repeat(np.arange(patients), rng.integers(1, 6, patients))
        # Two models; who is better differs from patient to patient, and on average neither is.
        better = 0.8 * rng.normal(size=patients)[rows] + rng.logistic(size=len(rows)) > 0
        rankings = [first("a", "b") if one else first("b", "a") for one in better]
        low, high = leaderboard(rankings, rows)[0].ci95
        held.append(low <= 0 <= high)
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_the_prior_is_half_a_win_and_half_a_loss_against_an_average_model(kind):
    """a always beats b, so their log strengths are t and -t; each has one draw against a model at 0."""
    found = strengths(leaderboard([first("a", "b")] * 20, kind=kind))

    def log_likelihood(t):
        return 20 * (t - np.logaddexp(t, -t)) + (t - 2 * np.logaddexp(t, 0))

    best = minimize(lambda t: -log_likelihood(t[0]), [0.0], tol=1e-12).x[0]
    assert found["a"] == pytest.approx(best, abs=1e-4)
    weaker = strengths(leaderboard([first("a", "b")] * 20, kind=kind, prior=5))
    assert 0 < weaker["a"] < found["a"]
    assert PRIOR == 0.5


@pytest.mark.parametrize("wins", [1, 10])
def test_a_new_model_that_always_won_has_the_prior_too(wins):
    """Against models at 0 it won n of n, and half of one: (n + 1/2) / (n + 1) of all, odds of 2 n + 1."""
    placed = place_model("new", [first("new", "old")] * wins, {"old": 0.0})
    assert placed == pytest.approx(np.log(2 * wins + 1), abs=1e-6)


def test_a_new_model_needs_only_its_own_comparisons():
    truth = {"a": 0.8, "b": 0.0, "c": -0.8, "new": 0.4}
    old = strengths(leaderboard(drawn({m: truth[m] for m in "abc"}, 400), prior=0))
    own = [r for r in drawn(truth, 1500, seed=1, size=2) if "new" in r]
    placed = place_model("new", own, old, prior=0)
    assert placed == pytest.approx(0.4, abs=0.25)
    # The whole fit over both says nearly the same; comparisons without the new model are not looked at.
    together = strengths(leaderboard(drawn({m: truth[m] for m in "abc"}, 400) + own, prior=0))
    assert placed - old["b"] == pytest.approx(together["new"] - together["b"], abs=0.15)
    assert place_model("new", [*own, first("c", "a")], old, prior=0) == placed
    with pytest.raises(MieError, match="not compared"):
        place_model("new", [first("a", "b")], old)
    with pytest.raises(MieError, match="without a strength"):
        place_model("new", [first("a", "new", "other")], old)


def test_models_without_a_common_scale_are_refused():
    with pytest.raises(MieError, match="never compared"):
        leaderboard([first("a", "b"), first("c", "d")])
    assert leaderboard([]) == []
    with pytest.raises(ConfigError, match="elo"):
        leaderboard([first("a", "b")], kind="elo")


def test_a_place_that_is_not_a_number_is_refused():
    with pytest.raises(MieError, match="not a number"):
        leaderboard([first("a", "b"), {"a": 1, "b": np.nan}])
    with pytest.raises(MieError, match="not a number"):
        place_model("new", [{"new": np.nan, "a": 1}], {"a": 0.0})
    with pytest.raises(MieError, match="not a number"):
        place_model("new", [first("new", "a")], {"a": np.nan})


@pytest.mark.parametrize("kind", KINDS)
def test_ties_all_round_are_no_preference(kind):
    board = leaderboard([{"a": 1, "b": 1, "c": 1}] * 5, kind=kind)
    assert [one.strength for one in board] == pytest.approx([0, 0, 0], abs=1e-6)
    # A tie for first place beats the third; it says nothing between the two.
    found = strengths(leaderboard([{"a": 1, "b": 1, "c": 3}] * 5, kind=kind))
    assert found["a"] == pytest.approx(found["b"], abs=1e-6)
    assert found["a"] > found["c"] + 1


def test_the_share_of_rankings_among_the_first_two_counts_ties_as_equals():
    rankings = [
        {"a": 1, "b": 2, "c": 3, "d": 4},
        {"a": 3, "b": 1, "c": 2, "d": 4},
        {"a": 1, "b": 1, "c": 1, "d": 4},  # nobody is better than any of the three
        {"a": 1, "b": 2},  # does not cover every model
    ]
    shares = {one.model: one.top_two for one in leaderboard(rankings)}
    assert shares == pytest.approx({"a": 2 / 3, "b": 1.0, "c": 2 / 3, "d": 0.0})
