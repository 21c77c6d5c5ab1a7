"""Agreement end to end: runs and ratings on disk, numbers worked by hand or by SciPy."""

import json

import numpy as np
import pytest
from scipy import stats

from mie.errors import ConfigError, MieError
from mie.report.agreement import correlation_rows, correlation_table
from mie.scoring.statistics import mean_interval
from mie.scoring.statistics.agreement import agree, agree_on_all
from tests.scoring.statistics.scored import write_ratings, write_scored_run

# Sample -> model -> DICE and LPIPS.
DICE = {
    "p1-a": {"x": 0.9, "y": 0.5, "z": 0.1},
    "p1-b": {"x": 0.2, "y": 0.5, "z": 0.1},
    "p2-a": {"x": 0.7, "y": 0.7, "z": 0.1},
    "p3-a": {"x": 0.3, "y": None, "z": 0.1},
}
RANKS = {
    ("p1-a", "ann"): {"x": 1, "y": 2, "z": 3},
    ("p1-a", "bob"): {"x": 1, "y": 2, "z": 3},
    ("p1-b", "ann"): {"x": 1, "y": 2, "z": 3},
    ("p2-a", "ann"): {"x": 1, "y": 2, "z": 3},
    ("p3-a", "ann"): {"x": 2, "y": 1, "z": 3},
}


def write_runs(folder, **changes):
    for model in "xyz":
        samples = {
            s: {"dice": v[model], "lpips_all": None if v[model] is None else 1 - v[model]}
            for s, v in DICE.items()
        }
        write_scored_run(folder / model, samples, **changes)
    return [folder / model for model in "xyz"]


@pytest.fixture
def runs(tmp_path):
    return write_runs(tmp_path)


def test_correlations_by_hand(runs, tmp_path):
    document = agree(runs, write_ratings(tmp_path / "r.jsonl", RANKS))
    entry = document["metrics"]["dice@1"]
    # 1; ranks 2 1 3 against 1 2 3: .5; ties 1.5 1.5 3: .875; two models in the same order: 1.
    assert entry["spearman_formula"]["mean"] == pytest.approx((1 + 0.5 + 0.875 + 1) / 4)
    tied = stats.spearmanr([0.7, 0.7, 0.1], [-1, -2, -3]).statistic
    assert entry["spearman"]["mean"] == pytest.approx((1 + 0.5 + tied + 1) / 4)
    taus = [
        stats.kendalltau(list(DICE[s].values()), [-1, -2, -3]).statistic for s in ("p1-a", "p1-b", "p2-a")
    ]
    assert entry["kendall_tau_b"]["mean"] == pytest.approx((sum(taus) + 1) / 4)
    assert (entry["spearman_formula"]["n"], entry["spearman_formula"]["unscored"], entry["partial"]) == (
        4,
        0,
        1,
    )
    low, high = entry["spearman_formula"]["ci95"]
    assert low <= entry["spearman_formula"]["mean"] <= high


def test_lower_is_better_for_distances(runs, tmp_path):
    document = agree(runs, write_ratings(tmp_path / "r.jsonl", RANKS))
    dice, lpips = (document["metrics"][key] for key in ("dice@1", "lpips_all@1"))
    assert not lpips["higher_is_better"]
    for name in ("spearman_formula", "spearman", "kendall_tau_b"):
        assert lpips[name]["mean"] == pytest.approx(dice[name]["mean"])


def test_samples_without_a_correlation_are_counted(runs, tmp_path):
    ratings = {
        ("p1-a", "ann"): {"x": 1, "y": 1, "z": 1},  # people tell nothing apart
        ("p1-b", "ann"): {"x": 1, "y": 2},
        ("p1-b", "bob"): {"y": 1, "z": 2},  # nobody placed all three
        ("p3-a", "ann"): {"x": 1, "y": 2},  # y has no number
        ("p9-z", "ann"): {"x": 1, "y": 2},  # not in the scores
    }
    document = agree(runs, write_ratings(tmp_path / "r.jsonl", ratings))
    entry = document["metrics"]["dice@1"]["spearman"]
    assert np.isnan(entry["mean"])
    assert (entry["n"], entry["unscored"]) == (0, 3)
    assert entry["reasons"] == {
        "all models tied": 1,
        "no rater placed all models": 1,
        "fewer than two models with both": 1,
    }
    assert document["metrics"]["dice@1"]["spearman_formula"]["n"] == 1  # the formula answers ties too
    assert document["human"]["not_scored"] == ["p9-z"]


@pytest.mark.parametrize(("patients", "known"), [(2, False), (4, True)])
def test_intervals_are_over_patients(tmp_path, patients, known):
    """Patients who disagree, five samples each: wide for four of them, and none for two."""
    samples = {f"p{p}-{n}": p % 2 for p in range(patients) for n in range(5)}
    for model, value in (("x", 1.0), ("y", 0.0)):
        write_scored_run(
            tmp_path / model, {s: {"dice": value if p == 1 else 1 - value} for s, p in samples.items()}
        )
    ratings = {(s, "ann"): {"x": 1, "y": 2} for s in samples}
    document = agree([tmp_path / "x", tmp_path / "y"], write_ratings(tmp_path / "r.jsonl", ratings))
    entry = document["metrics"]["dice@1"]["spearman_formula"]
    assert entry["mean"] == 0
    assert entry["patients"] == patients
    if known:
        expected = mean_interval([1, 1, -1, -1], bounds=(-1, 1))
        assert entry["ci95"] == pytest.approx([expected.low, expected.high])
        assert entry["ci95"][1] > 0.8
    else:
        assert np.isnan(entry["ci95"]).all()
        assert entry["no_interval"] == "2 patients: an interval needs at least 3"


def test_scores_calibrate_and_align(tmp_path):
    """A judge on people's scale, one step too kind half of the time."""
    rng = np.random.default_rng(0)
    samples = [f"p{n}-0" for n in range(40)]
    people = {s: {m: int(rng.integers(1, 5)) for m in "xy"} for s in samples}
    judged = {s: {m: people[s][m] + (n % 2) for m in "xy"} for n, s in enumerate(samples)}
    for model in "xy":
        scores = {s: {"imgedit": judged[s][model], "odd": 0.5} for s in samples}
        write_scored_run(tmp_path / model, scores, protocol="imgedit")
    ratings = {(s, rater): people[s] for s in samples for rater in ("ann", "bob")}
    path = write_ratings(tmp_path / "r.jsonl", ratings, "score")
    document = agree([tmp_path / "x", tmp_path / "y"], path)
    entry = document["metrics"]["imgedit@1"]
    assert entry["within_one"]["mean"] == 1
    given = [(judged[s][m], people[s][m]) for s in samples for m in "xy"]
    a, b = np.array(given, float).T
    chance = ((a[:, None] - b[None]) ** 2).mean()
    assert entry["quadratic_kappa"]["value"] == pytest.approx(1 - ((a - b) ** 2).mean() / chance)
    calibration = entry["calibration"]
    assert calibration["mae"] < 0.7 < calibration["mae_of_mean"]
    assert (calibration["n"], calibration["folds"]) == (80, 5)
    assert np.all(np.diff(calibration["knots"][1]) >= 0)
    # A metric on a scale of its own is calibrated, but not asked whether it is within one step.
    odd = document["metrics"]["odd@1"]
    assert "within_one" not in odd
    assert odd["calibration"]["mae"] == pytest.approx(odd["calibration"]["mae_of_mean"])
    named = agree([tmp_path / "x", tmp_path / "y"], path, same_scale=["odd@1"], metrics=["odd@1"])
    assert list(named["metrics"]) == ["odd@1"]
    assert "within_one" in named["metrics"]["odd@1"]
    # Two raters who always agree.
    raters = document["raters"]
    assert raters["rated"] == "score"
    assert raters["krippendorff_alpha"] == pytest.approx({"nominal": 1, "ordinal": 1, "interval": 1})
    assert raters["pairs"] == [{"raters": ["ann", "bob"], "n": 80, "quadratic_kappa": 1.0, "within_one": 1.0}]


def test_raters(runs, tmp_path):
    ratings = {
        ("p1-a", "ann"): {"x": 1, "y": 2, "z": 3},
        ("p1-a", "bob"): {"x": 1, "y": 2, "z": 3},
        ("p2-a", "ann"): {"x": 1, "y": 2, "z": 3},
        ("p2-a", "bob"): {"x": 3, "y": 2, "z": 1},
        ("p3-a", "ann"): {"x": 1, "y": 2, "z": 3},
    }
    raters = agree(runs, write_ratings(tmp_path / "r.jsonl", ratings))["raters"]
    assert raters["kendall_w"]["mean"] == pytest.approx(0.5)  # 1 and 0
    assert (raters["kendall_w"]["n"], raters["kendall_w"]["unscored"]) == (2, 1)
    assert (raters["rated"], raters["pairs"], raters["units"]) == ("rank", [], 9)


def test_a_model_that_was_added_is_its_own_comparison(tmp_path):
    """x and y were ranked first, z later beside one of them: ranks in different company do not compare."""
    ratings = {}
    for number in range(4):
        for rater in ("ann", "bob"):
            ratings[f"p{number}-a", rater] = {"x": 1, "y": 2}
            beside = "x" if number % 2 else "y"
            ratings[f"p{number}-a", f"{rater}/2"] = {"z": 1, beside: 2}  # x was 1 before
    raters = agree([], write_ratings(tmp_path / "r.jsonl", ratings))["raters"]
    assert raters["kendall_w"]["mean"] == 1
    assert (raters["kendall_w"]["n"], raters["kendall_w"]["unscored"]) == (4, 0)
    assert raters["krippendorff_alpha"]["ordinal"] == 1
    assert raters["units"] == 4 * 4


def test_renaming_raters_changes_nothing(runs, tmp_path):
    names = {"ann": "zed", "bob": "amy"}
    renamed = {(sample, names[rater]): given for (sample, rater), given in RANKS.items()}
    documents = [agree(runs, write_ratings(tmp_path / "r.jsonl", r)) for r in (RANKS, renamed)]
    for document in documents:
        document["raters"].pop("raters")
        for pair in document["raters"]["spearman"]:
            pair.pop("raters")
    np.testing.assert_equal(documents[0], documents[1])


def test_perfect_agreement_is_1(tmp_path):
    samples = [f"p{n}-0" for n in range(4)]
    for model, value in (("x", 3.0), ("y", 2.0), ("z", 1.0)):
        write_scored_run(tmp_path / model, {s: {"judge": value} for s in samples})
    ratings = {(s, r): {"x": 3, "y": 2, "z": 1} for s in samples for r in ("ann", "bob")}
    path = write_ratings(tmp_path / "r.jsonl", ratings, "score")
    document = agree([tmp_path / m for m in "xyz"], path, same_scale=["judge"])
    entry = document["metrics"]["judge@1"]
    values = [entry[n]["mean"] for n in ("spearman_formula", "spearman", "kendall_tau_b", "within_one")]
    assert values == pytest.approx([1, 1, 1, 1])
    assert entry["quadratic_kappa"]["value"] == 1
    assert entry["calibration"]["mae"] == 0
    assert document["raters"]["kendall_w"]["mean"] == 1


def test_models_are_found_by_folder_or_editor(tmp_path):
    runs = [
        write_scored_run(tmp_path / "one", {"s": {"dice": 0.9}}, editor="diffusers:big"),
        write_scored_run(tmp_path / "two", {"s": {"dice": 0.1}}, editor="otsu"),
    ]
    path = write_ratings(tmp_path / "r.jsonl", {("s", "ann"): {"diffusers:big": 1, "two": 2, "gone": 3}})
    document = agree(runs, path)
    assert document["runs"] == {"one": "diffusers:big", "two": "two"}
    assert document["not_among_the_runs"] == ["gone"]
    assert document["metrics"]["dice@1"]["spearman_formula"]["mean"] == 1
    assert {line["model"] for line in document["leaderboard"]["bradley-terry"]} == {
        "diffusers:big",
        "two",
        "gone",
    }
    with pytest.raises(MieError, match="no rated model"):
        agree(runs, write_ratings(tmp_path / "s.jsonl", {("s", "ann"): {"u": 1, "v": 2}}))
    with pytest.raises(MieError, match="several names"):
        agree(runs, write_ratings(tmp_path / "t.jsonl", {("s", "ann"): {"two": 1, "otsu": 2}}))


def test_two_runs_of_one_editor_have_only_their_folders(tmp_path):
    runs = [
        write_scored_run(tmp_path / name, {"s": {"dice": v}}, editor="otsu")
        for name, v in (("one", 0.9), ("two", 0))
    ]
    with pytest.raises(MieError, match="no rated model"):
        agree(runs, write_ratings(tmp_path / "r.jsonl", {("s", "ann"): {"otsu": 1, "other": 2}}))


def test_people_alone(tmp_path):
    document = agree([], write_ratings(tmp_path / "r.jsonl", RANKS))
    assert document["metrics"] == {}
    assert document["raters"]["kendall_w"]["n"] == 1
    board = document["leaderboard"]["bradley-terry"]
    assert [line["model"] for line in board] == ["x", "y", "z"]
    assert board[0]["mean_rank"] == pytest.approx(1.2)


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = write_ratings(tmp_path / "r.jsonl", RANKS)
    runs = write_runs(tmp_path / "a")
    with pytest.raises(MieError, match="no scores in common"):
        agree(runs, path, variant="as_released")
    with pytest.raises(MieError, match="not every run has") as caught:
        agree(runs, path, metrics=["dice@3"])
    assert "dice@1" in str(caught.value)
    other = write_scored_run(tmp_path / "b/x", {"p1-a": {"dice": 1.0}}, dataset_digest="e" * 64)
    with pytest.raises(ConfigError, match="dataset_digest"):
        agree([runs[1], other], path)
    record = {"model": "m", "provider": "p", "answered_by": ["m"], "parameters": {}, "prompts": {}}
    judged = write_scored_run(tmp_path / "c/x", {"p1-a": {"dice": 1.0}}, judge=record)
    with pytest.raises(ConfigError, match="judge"):
        agree([runs[1], judged], path)
    same = write_scored_run(tmp_path / "c/y", {"p1-a": {"dice": 0.5}}, judge={**record, "cost_usd": 9.0})
    assert agree([judged, same], path)["metrics"]["dice@1"]  # one judge, whatever it cost
    write_runs(tmp_path / "a", protocol="imgedit")
    with pytest.raises(ConfigError, match="several benchmarks"):
        agree(runs, path)
    assert "dice@1" in agree(runs, path, benchmark="imgedit")["metrics"]


def test_whole_models_and_pairs_of_raters_against_scipy(runs, tmp_path):
    document = agree(runs, write_ratings(tmp_path / "r.jsonl", RANKS))
    # p3-a has no number for y: the models' means are over the other three samples.
    rows = ["p1-a", "p1-b", "p2-a"]
    means = [np.mean([DICE[s][m] for s in rows]) for m in "xyz"]
    system = document["metrics"]["dice@1"]["system"]
    assert (system["models"], system["samples"]) == (3, 3)
    assert system["spearman"] == pytest.approx(stats.spearmanr(means, [-1, -2, -3]).statistic)
    assert system["kendall_tau_b"] == pytest.approx(stats.kendalltau(means, [-1, -2, -3]).statistic)
    assert document["metrics"]["lpips_all@1"]["system"]["spearman"] == pytest.approx(system["spearman"])
    (pair,) = document["raters"]["spearman"]
    assert (pair["raters"], pair["mean"], pair["n"], pair["unscored"]) == (["ann", "bob"], 1.0, 1, 0)


def test_every_criterion_against_every_metric_on_disk(runs, tmp_path):
    rows = [
        {"sample_id": s, "rater": r, "run": m, "rank": rank if c == "EA" else 4 - rank, "criterion": c}
        for (s, r), given in RANKS.items()
        for m, rank in given.items()
        for c in ("EA", "VQ")
    ]
    path = tmp_path / "ratings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = agree_on_all(runs, path)
    first, second = (document["criteria"][c]["metrics"]["dice@1"]["spearman"]["mean"] for c in ("EA", "VQ"))
    assert first == pytest.approx(-second)
    heads, body = correlation_table(document)
    assert heads == ["Metric", "EA", "EA (models)", "VQ", "VQ (models)"]
    assert [row[0] for row in body] == ["dice", "lpips_all"]
    assert body[0][1] == "0.84 (4/4)"
    assert len(correlation_rows(document)) == 4
