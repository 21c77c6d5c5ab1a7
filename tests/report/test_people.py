"""What people said, on the page and in the tables, against scipy and by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import typer
from scipy.stats import binomtest, spearmanr
from typer.testing import CliRunner

from mie.cli.report import report as verb
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.report.layouts import layout_of
from mie.report.page import write_report
from mie.report.people import people_in, read_people
from mie.report.scored import read_runs
from mie.scoring.statistics.people import Rating
from tests.report.conftest import make_run
from tests.report.test_page import Reader

CRITERIA = ("accuracy", "preservation", "quality")


@pytest.fixture(scope="module")
def runs(scored_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("people")
    skills = {"fair": 0.8, "good": 0.97, "bad": 0.4}
    return [
        make_run(scored_dataset, root / name, f"{name} & co", skill, attempts=1)
        for name, skill in skills.items()
    ]


@pytest.fixture(scope="module")
def ratings(scored_dataset: Dataset) -> list[Rating]:
    """Two raters put good before fair before bad; the second turns it round on every third sample."""
    found = []
    for at, sample in enumerate(s.id for s in scored_dataset.samples()):
        for rater in ("R01", "R02"):
            turned = rater == "R02" and at % 3 == 0
            order = ("bad", "fair", "good") if turned else ("good", "fair", "bad")
            found += [
                Rating(sample, rater, model, place, None, criterion)
                for criterion in CRITERIA
                for place, model in enumerate(order, start=1)
            ]
            found.append(Rating(sample, rater, "reference", None, float(at % 4 != 0), "accept"))
            found.append(Rating(sample, rater, "reference", None, 1.0 + (at + turned) % 5, "quality"))
    return found


@pytest.fixture(scope="module")
def folder(runs, ratings, tmp_path_factory) -> Path:
    return write_report(runs, tmp_path_factory.mktemp("out") / "report", ratings=ratings).parent


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "tables" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_has_the_section_with_its_coverage(folder, scored_dataset):
    page = Reader((folder / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    text = " ".join(page.text)
    assert "What people said" in page.text
    n = len(scored_dataset)
    for criterion in CRITERIA:
        assert f"Preference, {criterion}: {2 * n} rankings" in text
    assert f"{n} samples, 6 patients, 2 raters" in text
    assert f"n {2 * n} answers, {n} samples, 6 patients, 2 raters" in text
    sources = [image["src"] for image in page.all("img") if "people" in image["src"]]
    assert sources == [
        "plots/people_0.svg",
        "plots/people_1.svg",
        "plots/people_2.svg",
        "plots/people_shares.svg",
    ]
    assert all((folder / source).is_file() for source in sources)
    linked = {link["href"] for link in page.all("a")}
    for name in ("people.md", "people.tex", "people_preference.csv", "people_scores.csv"):
        assert f"tables/{name}" in linked
        assert (folder / "tables" / name).stat().st_size


def test_preference_is_ranked_and_mean_ranks_are_right(folder, scored_dataset):
    found = [r for r in rows(folder, "people_preference.csv") if r["criterion"] == "accuracy"]
    assert {r["method"] for r in found} == {"bradley-terry", "plackett-luce"}
    n = len(scored_dataset)
    turned = math.ceil(n / 3)
    expected = {"good": (2 * n - turned + 3 * turned) / (2 * n), "fair": 2.0}
    expected["bad"] = 6 - sum(expected.values())
    for row in found:
        assert float(row["mean_rank"]) == pytest.approx(expected[row["model"].removesuffix(" & co")])
        assert float(row["ci95_low"]) - 1e-3 <= float(row["strength"]) <= float(row["ci95_high"]) + 1e-3
        assert (int(row["rankings"]), int(row["samples"]), int(row["raters"])) == (2 * n, n, 2)
    assert [r["model"] for r in found[:3]] == ["good & co", "fair & co", "bad & co"]


def test_shares_and_alphas_are_there(folder, scored_dataset):
    n = len(scored_dataset)
    yes = 2 * (n - math.ceil(n / 4))
    (accept,) = (r for r in rows(folder, "people_scores.csv") if r["criterion"] == "accept")
    assert float(accept["value"]) == yes / (2 * n)
    assert 0 < float(accept["ci95_low"]) < float(accept["value"]) < float(accept["ci95_high"]) < 1
    agreed = {(r["criterion"], r["rated"]): r for r in rows(folder, "people_raters.csv")}
    assert float(agreed["accept", "score"]["krippendorff_alpha"]) == 1
    # Two raters with opposite orders: W is 0 there and 1 elsewhere.
    assert float(agreed["accuracy", "rank"]["kendall_w"]) == pytest.approx(1 - math.ceil(n / 3) / n)
    # Ranks and scores of one name are two questions.
    assert {"rank", "score"} == {rated for criterion, rated in agreed if criterion == "quality"}


def test_answers_about_one_patient_count_as_little_as_one(runs, scored_dataset):
    """Six patients, whose answers are all yes or all no, say less than as many independent answers."""
    patients = scored_dataset.table(["id", "patient_id"])
    kinds = dict(zip(patients["id"], patients["patient_id"], strict=True))
    liked = sorted(set(kinds.values()))[::2]
    said = [
        Rating(sample, rater, "reference", None, float(patient in liked), "accept")
        for sample, patient in kinds.items()
        for rater in ("R01", "R02")
    ]
    (question,) = read_people(said, read_runs(runs, "paper"), layout_of("miedb")).questions
    (tally,) = question.tallies
    independent = binomtest(round(tally.value * len(said)), len(said)).proportion_ci(0.95, method="wilson")
    assert len(set(kinds.values())) == 6
    assert tally.low < independent.low - 0.1
    assert tally.high > independent.high + 0.1


def test_metrics_are_compared_with_people(folder, runs, ratings):
    found = {
        (r["criterion"], r["metric"]): r
        for r in rows(folder, "people_metrics.csv")
        if r["coefficient"] == "spearman"
    }
    values = {run.folder.name: run.scores["miedb"].samples for run in read_runs(runs, "paper")}
    ids = values["good"].table.ids
    expected = []
    for at in range(len(ids)):
        dice = [values[name].first("dice")[0][at] for name in ("good", "fair", "bad")]
        turned = at % 3 == 0
        order = [2, 2, 2] if turned else [1, 2, 3]  # the mean of both raters
        if not np.isnan(dice).any() and len(set(order)) > 1 and len(set(dice)) > 1:
            expected.append(spearmanr(-np.array(dice), order).statistic)
    row = found["accuracy", "dice@1"]
    assert float(row["mean"]) == pytest.approx(np.mean(expected))
    assert int(row["n"]) == len(expected)


def test_a_second_ranking_is_the_same_person():
    assert people_in(["R01", "R01/2", "R01/3", "R02"]) == 2
    assert people_in(["a/b", "ward 3/1"]) == 2


def test_another_datasets_review_is_refused(runs, ratings, tmp_path):
    strange = [Rating("feed", "A", "reference", None, 1.0, "accept")]
    with pytest.raises(MieError, match="other samples"):
        write_report(runs, tmp_path / "out", ratings=strange)
    unknown = [Rating(r.sample_id, r.rater, f"not {r.model}", r.rank, r.score, r.criterion) for r in ratings]
    with pytest.raises(MieError, match="no rated model is among the runs"):
        write_report(runs, tmp_path / "out", ratings=unknown)


def test_models_never_compared_have_no_strength_and_the_page_says_so(runs, ratings):
    ids = sorted({r.sample_id for r in ratings})[:2]
    apart = [
        Rating(sample, "A", model, place, None)
        for sample, pair in zip(ids, (("good", "bad"), ("fair", "other")), strict=True)
        for place, model in enumerate(pair, start=1)
    ]
    (question,) = read_people(apart, read_runs(runs, "paper"), layout_of("miedb")).questions
    assert question.name == "overall"
    assert "never compared" in question.found["leaderboard"]["reason"]
    assert question.found["not_among_the_runs"] == ["other"]


def test_the_verb_reads_ratings_from_a_file(runs, ratings, tmp_path):
    app = typer.Typer()
    app.command()(verb)
    with (tmp_path / "rank.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["sample_id", "rater", "run", "criterion", "rank"])
        lines.writerows((r.sample_id, r.rater, r.model, r.criterion, r.rank) for r in ratings if r.rank)
    out = tmp_path / "report"
    places = [*map(str, runs), "-o", str(out), "--review", str(tmp_path / "rank.csv")]
    done = CliRunner().invoke(app, places)
    assert done.exit_code == 0, done.output
    assert len(rows(out, "people_preference.csv")) == 18
    assert rows(out, "people_scores.csv") == []
