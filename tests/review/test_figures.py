"""Figures against independent references, and questions on several turns."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest, friedmanchisquare, norm
from scipy.stats import t as student
from typer.testing import CliRunner

from mie.cli import app as cli
from mie.cli._show import read_people
from mie.datasets.dataset import Dataset
from mie.datasets.write import write_dataset
from mie.editors.run import run_editor
from mie.errors import MieError
from mie.report.page import write_report
from mie.review import figures as agreement
from mie.review.api import CRITERIA
from mie.review.export import ratings_in, ratings_of
from mie.review.figures import mean_ranks
from mie.review.server import create_app
from mie.review.service import open_review
from mie.scoring.statistics.intervals import wilson
from mie.scoring.statistics.people import read_ratings
from tests.review.conftest import URL, Person, Review
from tests.scoring.benchmarks.imgedit.made import make_run
from tests.scoring.benchmarks.recorded import transcript
from tests.scoring.benchmarks.scoring import imgedit as score_run


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (9, 10), (0, 50), (37, 81), (1000, 1000)])
def test_wilson_is_scipys(k, n):
    reference = binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert wilson(k, n) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_live_figures(review):
    opened = review("inspect", raters=2, stratify=("split",))
    a, b, judge = opened.person("Ada"), opened.person("Bob"), opened.person("Cy", "adjudicator")
    empty = judge.get("/tasks/inspect/figures")
    assert empty["accept_rate"] is None
    assert empty["seconds_left"] is None
    assert empty["answers_done"] == 0
    assert empty["agreement"]["krippendorff_alpha"] is None
    assert empty["agreement"]["reason"] == "no item has two answers yet"
    said = {a: ["accept", "accept", "reject", "flag"], b: ["accept", "reject", "reject"]}
    for person, words in said.items():
        for item, word in zip(person.take("inspect", len(words)), words, strict=True):
            person.answer(item, decision=word, reason="artefact")
    found = judge.get("/tasks/inspect/figures")
    assert (found["items"], found["answers_wanted"], found["answers_done"]) == (24, 48, 7)
    assert (found["items_done"], found["items_disagreeing"], found["remaining"]) == (3, 1, 41)
    # Of three samples 2, 1 and 0 of two answers accept. By hand, the share without each of them is 1/4, 1/2
    # and 3/4: its variance 2/3 (1/16 + 0 + 1/16), with two degrees of freedom.
    effective = 0.25 / (1 / 12 * (student.ppf(0.975, 2) / norm.ppf(0.975)) ** 2)
    rate = found["accept_rate"]
    assert (rate["value"], rate["n"]) == (0.5, 6)
    assert (rate["low"], rate["high"]) == pytest.approx(wilson(0.5 * effective, effective))
    independent = binomtest(3, 6).proportion_ci(0.95, method="wilson")
    assert rate["low"] < independent.low < independent.high < rate["high"]
    assert found["seconds_per_answer"] == 4.0
    assert found["seconds_left"] == 4 * 41
    assert [(r["rater"], r["done"]) for r in found["raters"]] == [("R01", 4), ("R02", 3)]
    assert sum(s["items"] for s in found["strata"]) == 24
    # Three items with two answers, one disagreement: 1 - (6 - 1) 1 / (3 * 3), by hand.
    assert found["agreement"]["n"] == 3
    assert found["agreement"]["krippendorff_alpha"] == pytest.approx(4 / 9)
    assert found["agreement"]["reason"] is None
    listed = judge.get("/tasks/inspect/consensus", only="all", limit=5)
    assert [entry["agree"] for entry in listed["items"]] == [True, False, True, None, None]
    assert (
        len(judge.get("/tasks/inspect/consensus", only="all", after=listed["after"], limit=200)["items"])
        == 19
    )


def test_agreement_hands_on_what_was_said(monkeypatch):
    """Against SciPy's Friedman test (W = chi² / (raters (runs - 1))) and a percentage by hand."""
    groups = {"R01": [[1], [2], [3]], "R02": [[1], [3], [2]], "R03": [[1], [2, 3]]}
    rank = {r: {"kind": "rank", "rankings": dict.fromkeys(CRITERIA, g)} for r, g in groups.items()}
    two = {r: rank[r] for r in ("R01", "R03")}
    monkeypatch.setattr(agreement, "kendall_w", lambda t: friedmanchisquare(*t.T).statistic / len(t) / 2)
    seen = []
    monkeypatch.setattr(agreement, "krippendorff_alpha", lambda t, level: seen.append((t, level)) or 0.5)
    found = agreement.agreement("rank", {1: rank, 2: two})
    tables = [np.array([[1, 2, 3], [1, 3, 2], [1, 2.5, 2.5]]), np.array([[1, 2, 3], [1, 2.5, 2.5]])]
    expected = np.mean([friedmanchisquare(*t.T).statistic / len(t) / 2 for t in tables])
    assert found["kendall_w"] == pytest.approx(expected)
    assert set(found["by"]) == set(CRITERIA)
    table, level = seen[0]
    assert level == "ordinal"
    nan = [np.nan] * 3
    np.testing.assert_array_equal(table, [[1, 2, 3, 1, 2, 3], [1, 3, 2, *nan], [1, 2.5, 2.5, 1, 2.5, 2.5]])
    said = {1: {"R01": "accept", "R02": "reject"}, 2: {"R02": "accept", "R03": "flag"}}
    ratings = {i: {r: {"kind": "inspect", "decision": d} for r, d in by.items()} for i, by in said.items()}
    found = agreement.agreement("inspect", ratings)
    assert (found["krippendorff_alpha"], found["kendall_w"], found["n"]) == (0.5, None, 2)
    table, level = seen[-1]
    assert level == "nominal"
    assert (table[:, 0] == table[:, 0]).tolist() == [True, True, False]  # R03 did not answer the first
    assert table[0, 0] == table[1, 1] != table[1, 0]


def test_mean_ranks_by_hand():
    assert mean_ranks([["a", "b"], ["c"], ["d", "e", "f"]]) == {
        "a": 1.5, "b": 1.5, "c": 3.0, "d": 5.0, "e": 5.0, "f": 5.0,
    }  # fmt: skip


@pytest.fixture
def dialogues(material, tmp_path):
    """A dataset of two dialogues of three turns and one lone sample, with a run on it."""
    dataset = Dataset(material / "dataset")
    samples = list(dataset.samples())[:7]
    turns = [replace(s, group=f"g{n // 3}", turn=2 - n % 3) for n, s in enumerate(samples[:6])]
    write_dataset(
        [*turns, samples[6]],
        tmp_path / "turns",
        name="turns",
        description="",
        recipe={},
        licenses=dataset.info["licenses"],
        deidentified=True,
    )
    run_editor(tmp_path / "turns", "identity", tmp_path / "model-q", workers=1)
    return tmp_path


def test_questions_on_several_turns(dialogues, place):
    service = open_review([dialogues / "model-q"], kinds=["questions"], db=place)
    opened = Review(service)
    rater, admin = opened.person("Ada"), opened.person("Root", "admin")
    given = rater.take("questions", 10)
    assert len(given) == 2
    item = given[0]
    assert [turn["turn"] for turn in item["turns"]] == [0, 1, 2]
    by_id = {s.id: s for s in Dataset(dialogues / "turns").samples()}
    group = by_id[item["sample_id"]].group
    told = sorted((s for s in by_id.values() if s.group == group), key=lambda s: s.turn)
    assert [turn["prompt"] for turn in item["turns"]] == [s.prompt for s in told]
    # A free run: a turn started from the output of the one before.
    assert [turn["input"] for turn in item["turns"][1:]] == [turn["output"] for turn in item["turns"][:-1]]
    for turn in item["turns"]:
        assert rater.http.get(turn["output"]).content
        assert rater.http.get(turn["input"]).headers["content-type"] == "image/png"
        assert rater.http.get(turn["reference"]).status_code == 200
    rater.answer(item, 422, answers={"understanding": "yes"})
    said = {"content_memory": "yes", "understanding": "no", "backtracking": "not_applicable"}
    rater.answer(item, answers=said)
    rows = list(csv.DictReader(admin.http.get("/api/export/questions.csv").text.splitlines()))
    assert [(r["run"], r["criterion"], r["score"]) for r in rows] == [
        ("model-q", "content_memory", "1"),
        ("model-q", "understanding", "0"),
    ]
    line = json.loads(admin.http.get("/api/export/questions.jsonl").text)
    assert line["answer"]["answers"] == said
    assert line["runs"] == ["model-q"]
    service.database.close()


def test_what_people_say_of_conversations_stands_beside_the_judge(tmp_path):
    run = make_run(tmp_path)  # a conversation of three turns, and more
    place = str(tmp_path / "q.sqlite")
    service = open_review([run], kinds=["questions"], db=place, raters=2)
    opened = Review(service)
    for name, memory in (("Ada", "yes"), ("Bo", "no")):
        rater = opened.person(name)
        (item,) = rater.take("questions", 10)
        assert [turn["reference"] for turn in item["turns"]] == [None] * 3  # ImgEdit knows no truth
        said = {"content_memory": memory, "understanding": "yes", "backtracking": "not_applicable"}
        rater.answer(item, answers=said)
    service.database.close()
    score_run(run, judge=transcript("imgedit"))
    page = write_report([run], tmp_path / "report", ratings=ratings_of(place)).read_text()
    table = page[page.index("Criteria, hard suite, conversations") :]
    columns = re.findall(r"(Memory|Understanding|Backtracking)</", table[: table.index("</thead>")])
    assert columns == ["Memory", "Understanding", "Backtracking"]
    rows = re.findall(r"<tr>.*?</tr>", table[: table.index("</table>")], re.S)
    (judged,) = (row for row in rows if "tiny-judge" in row)
    (people,) = (row for row in rows if ">people<" in row)
    assert "2 raters, 1 conversation" in people
    # Memory, understanding, backtracking; nobody has answered the last one.
    assert re.findall(r"\b[01]\.\d\d\b", re.sub(r"\[.*?\]", "", people))[:2] == ["0.50", "1.00"]
    assert {"0.67", "0.00", "1.00"} <= set(re.findall(r"\b[01]\.\d\d\b", judged))


def test_a_second_link_lets_the_same_person_in_again(review):
    opened = review("inspect")
    first = opened.person("Ada")
    again = Person(opened.service, create_app(opened.service, url=URL), "Ada")
    assert again.me["user"] == first.me["user"]


def test_the_database_says_what_its_exports_say(review, place, tmp_path):
    opened = review("inspect", "rank", raters=2)
    for name in ("Ada", "Bob"):
        person = opened.person(name)
        for item in person.take("rank", 3):
            person.answer(item, rankings={c: [["B"], ["A"]] for c in CRITERIA})
        for item, word in zip(person.take("inspect", 3), ("accept", "flag", "reject"), strict=True):
            person.answer(item, decision=word, reason="artefact", scores={"quality": 4})
    admin = opened.person("Root", "admin")
    told = []
    for kind in ("inspect", "rank"):
        path = tmp_path / f"{kind}.csv"
        path.write_text(admin.http.get(f"/api/export/{kind}.csv").text)
        told += read_ratings(path)
        path = tmp_path / f"{kind}.jsonl"
        path.write_text(admin.http.get(f"/api/export/{kind}.jsonl").text)
        assert read_people(str(path)) == ratings_in(path)
    assert (
        ratings_of(place)
        == told
        == [r for k in ("inspect", "rank") for r in read_people(str(tmp_path / f"{k}.jsonl"))]
    )
    assert read_people(str(tmp_path / "rank.csv")) == read_people(str(tmp_path / "rank.jsonl"))
    done = CliRunner().invoke(cli, ["agree", "--human", place, "--criterion", "quality", "--json"])
    assert json.loads(done.stdout)["leaderboard"]["rankings"] == 6  # the scores of inspections are not in it
    assert len(told) == 2 * (3 * 2 * len(CRITERIA) + 2 + 3)  # a flag is no number


def test_a_review_that_is_not_there_or_empty_says_so(review, place, tmp_path):
    with pytest.raises(MieError, match="no review database here"):
        ratings_of(str(tmp_path / "absent.sqlite"))
    review("inspect")
    with pytest.raises(MieError, match="has no answers yet"):
        ratings_of(place)
