"""`mie agree`: the tables, the one JSON document, the exit codes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from mie.cli.agree import agree
from tests.scoring.statistics.scored import write_ratings, write_scored_run

app = typer.Typer()
app.command()(agree)


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def runs(tmp_path):
    for model, shift in (("x", 0.2), ("y", 0.1), ("z", 0.0)):
        write_scored_run(
            tmp_path / model, {f"p{n}-0": {"dice": n / 10 + shift, "rubric": n} for n in range(4)}
        )
    return [tmp_path / model for model in "xyz"]


def test_tables(runs, tmp_path):
    ratings = {(f"p{n}-0", r): {"x": 5, "y": 3, "z": 1} for n in range(4) for r in ("ann", "bob")}
    done = invoke(
        *runs, "--human", write_ratings(tmp_path / "r.jsonl", ratings, "score"), "--metric", "dice@1"
    )
    assert done.exit_code == 0
    # Four patients out of four: by Clopper and Pearson the share is .025 ** (1 / 4) at least, of -1 to 1.
    for text in ("dice@1", "1.000 [-0.205, 1.000]", "4/4", "Kendall's W", "Plackett-Luce", "ann and bob"):
        assert text in done.stdout
    assert "rubric" not in done.stdout


def test_one_json_document(runs, tmp_path):
    path = write_ratings(tmp_path / "r.jsonl", {("p1-0", "ann"): {"x": 1, "y": 2, "z": 3}})
    done = invoke(*runs, "--human", path, "--json")
    document = json.loads(done.stdout)
    assert list(document) == [
        "human",
        "runs",
        "not_among_the_runs",
        "variant",
        "raters",
        "metrics",
        "leaderboard",
    ]
    assert document["metrics"]["dice@1"]["spearman_formula"]["mean"] == 1
    assert document["metrics"]["rubric@1"]["spearman"]["mean"] is None  # the same for all models
    assert document["raters"]["kendall_w"]["mean"] is None  # one rater


def test_exit_code_3_where_a_rated_sample_has_no_correlation(runs, tmp_path):
    path = write_ratings(tmp_path / "r.jsonl", {("p1-0", "ann"): {"x": 1, "y": 2}, ("p2-0", "ann"): {"x": 1}})
    done = invoke(*runs, "--human", path)
    assert done.exit_code == 3
    assert "no correlation" in done.stderr
    assert "1/2" in done.stdout


def test_people_alone(tmp_path):
    path = write_ratings(
        tmp_path / "r.jsonl", {("s", "ann"): {"a [1]": 1, "b": 2}, ("t", "ann"): {"a [1]": 1, "b": 2}}
    )
    done = invoke("--human", path)
    assert done.exit_code == 0
    assert "a [1]" in done.stdout
    assert "against people" not in done.stdout


def test_models_that_were_never_compared_have_no_leaderboard(tmp_path):
    ratings = {("s", "ann"): {"a": 1, "b": 2}, ("t", "ann"): {"c": 1, "d": 2}}
    done = invoke("--human", write_ratings(tmp_path / "r.jsonl", ratings))
    assert done.exit_code == 0
    assert "no leaderboard: models that were never compared" in done.stdout


def test_there_is_no_bracket_where_there_is_no_interval(runs, tmp_path):
    ratings = {(f"p{n}-0", r): {"x": 5, "y": 3, "z": 1} for n in range(2) for r in ("ann", "bob")}
    done = invoke(*runs, "--human", write_ratings(tmp_path / "r.jsonl", ratings, "score"))
    assert "1.000" in done.stdout
    assert "[–" not in done.stdout


def test_ratings_of_samples_that_changed_are_named_and_still_count_among_people(runs, tmp_path):
    ratings = {(f"p{n}-0", r): {"x": 5, "y": 3, "z": 1} for n in range(4) for r in ("ann", "bob")}
    ratings |= {(f"old-{n}", "ann"): {"x": 1, "y": 3, "z": 5} for n in range(7)}
    path = write_ratings(tmp_path / "r.jsonl", ratings, "score")
    done = invoke(*runs, "--human", path, "--metric", "dice@1")
    assert done.exit_code == 3
    text = " ".join(done.stdout.split())
    assert (
        "7 rated samples are not among the scored ones, changed or removed since the rating (old-0," in text
    )
    assert "4/4" in text  # the metric is correlated over what both have
    assert "preference: 15 rankings" in text  # and no ranking is lost
