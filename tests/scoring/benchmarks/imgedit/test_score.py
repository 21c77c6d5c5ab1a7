"""ImgEdit-Bench from a run's folder to its table, by a transcript and over HTTP."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mie.cli import app
from mie.editors.runs import Run
from mie.judges import JudgeOptions, ParseError
from mie.scoring.benchmarks.imgedit.judge import PARSERS, capped, released_scores
from tests.judges.server import JudgeServer, images_of, texts_of
from tests.scoring.benchmarks.imgedit.made import answer, make_run
from tests.scoring.benchmarks.recorded import transcript
from tests.scoring.benchmarks.runs import lines_of
from tests.scoring.benchmarks.scoring import imgedit as score_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def whole(document):
    return document["groups"][0]["metrics"]


def groups(document, key):
    return {g["group"][key]: g["metrics"] for g in document["groups"] if list(g["group"]) == [key]}


# Capped means by hand: (4,4,3), (2,2,2); (5,4,5); (3,3,3) and (5,5,4); (1,1,1).
PAPER = {"add": (11 / 3 + 2) / 2, "remove": 14 / 3, "compose": (3 + 14 / 3) / 2, "adjust": 1.0}
RELEASED = {
    "add": round((4.0 + 3.0) / 2, 2),
    "remove": 4.67,
    "compose": round((3 + 4.67) / 2, 2),
    "adjust": 3.67,
}


@pytest.mark.parametrize(("variant", "expected"), [("paper", PAPER), ("as_released", RELEASED)])
def test_the_transcript(run, variant, expected):
    document = score_run(run, variant=variant, judge=transcript("imgedit"))
    found = groups(document, "edit_type")
    assert {k: m["imgedit@1"]["mean"] for k, m in found.items() if k in expected} == pytest.approx(expected)
    entry = whole(document)["imgedit@1"]
    assert entry["mean"] == pytest.approx(np.mean(list(expected.values())))
    assert (entry["n"], entry["unscored"], entry["types"]) == (6, 1, 4)
    assert entry["micro"] != pytest.approx(entry["mean"])
    low, high = entry["ci95"]
    assert low <= entry["mean"] <= high
    assert whole(document)["uge@1"]["mean"] == 4
    assert whole(document)["memory@1"]["mean"] == pytest.approx(2 / 3)
    assert (whole(document)["memory@1"]["n"], whole(document)["memory@1"]["unscored"]) == (3, 1)
    assert [whole(document)[f"{n}@1"]["mean"] for n in ("understanding", "backtracking")] == [0, 1]
    # Yes, no, and a reply that cannot be read: two turns of three have an answer.
    memory = document["conversations"]["memory"]
    talks = memory["survival"]["conversations"], memory["turn_slope"]["n"], memory["turn_slope"]["unscored"]
    assert talks == (2, 1, 1)  # the other one has a single turn
    assert memory["turn_slope"]["mean"] == pytest.approx(-1)
    assert [point["survival"] for point in memory["survival"]["curve"]] == [1, 0]
    lines = lines_of(run, variant, "imgedit")
    assert "no rubric for the kind of edit 'teleport'" in lines["x5"]["attempts"][0]["unscored"]["imgedit"]
    assert "unparseable" in lines["t3"]["attempts"][0]["unscored"]["memory"]
    if variant == "paper":  # as given, before the cap
        assert lines["b9"]["attempts"][0]["metrics"] == {
            "imgedit": 1,
            "adherence": 1,
            "quality": 5,
            "preservation": 5,
        }
    assert lines["c10"]["attempts"][0]["judge"]["imgedit"]["prompt"] == "imgedit_compose@2"


def test_over_http(run):
    expected = whole(score_run(run, judge=transcript("imgedit")))
    with JudgeServer(answer) as server:
        options = JudgeOptions(f"openai:tiny,base_url={server.url}")
        assert score_run(run, judge=JudgeOptions(options.spec, dry_run=True))["dry_run"]["calls"] == 11
        assert whole(score_run(run, judge=options)) == expected
        count = len(server.requests)
        score_run(run, variant="as_released", judge=options)
        assert len(server.requests) == count  # the same questions
    talk = max((images_of(body) for body in server.requests), key=len)
    assert len(talk) == 4  # the first image and three results
    third = next(body for body in server.requests if len(images_of(body)) == 4)
    assert "Turn 1: Turn 1 of 7." in " ".join(texts_of(third))


def test_a_turn_whose_past_is_missing(run):
    Run.open(run).output_path("t2", 0).unlink()
    document = score_run(run, judge=transcript("imgedit"))
    lines = lines_of(run, protocol="imgedit")
    assert lines["t3"]["attempts"][0]["unscored"] == {"memory": "an earlier turn has no output"}
    assert lines["t2"]["attempts"][0]["unscored"] == {"*": "output file is gone"}
    assert whole(document)["memory@1"]["n"] == 2


def test_the_command(run):
    command = ["score", str(run), "--protocol", "imgedit"]
    done = CliRunner().invoke(app, [*command, "--judge", transcript("imgedit").spec])
    assert done.exit_code == 3, done.output
    for words in ("overall (mean of kinds)", "2.83 (2/2)", "UGE", "share of yes", "GPT-4o-Image"):
        assert words in done.output
    none = CliRunner().invoke(app, command)
    assert "every metric of imgedit comes from a judge" in str(none.exception)


def released_average(entry):
    """The public script's function, written down once more."""
    scores = []
    for line in entry.splitlines():
        parts = line.strip().split(": ")
        if len(parts) == 2 and parts[1].isdigit():
            scores.append(int(parts[1]))
    return round(sum(scores) / len(scores), 2) if scores else None


PIECES = st.sampled_from(["Quality", "a", ": ", ":", "5", "3", "12", " ", "\n", "**", ".", "/5"])


@given(st.lists(PIECES, max_size=30).map("".join))
def test_replies_are_read_as_released(text):
    expected = released_average(text)
    if expected is None:
        with pytest.raises(ParseError):
            released_scores(text)
    else:
        assert released_scores(text) == (expected,)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_exactly_three_scores_and_the_cap(scores):
    text = "Because.\n" + "\n".join(f"Name {n}: {score}" for n, score in enumerate(scores))
    if len(scores) != 3:
        with pytest.raises(ParseError):
            PARSERS["paper"](text)
        return
    found = capped(PARSERS["paper"](text))
    assert found == (scores[0], min(scores[:2]), min(scores[0], scores[2]))
