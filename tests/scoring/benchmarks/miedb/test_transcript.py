"""The MieDB rubric from a transcript to its numbers, and the same over HTTP."""

from __future__ import annotations

import pytest

from mie.judges import JudgeOptions
from tests.judges.server import JudgeServer
from tests.scoring.benchmarks.miedb.made import answer, make_run
from tests.scoring.benchmarks.recorded import transcript
from tests.scoring.benchmarks.runs import lines_of
from tests.scoring.benchmarks.scoring import miedb as score_run

# (mean grade - 1) / 4 * 100 by hand.
EXPECTED = {"m0": (21 / 8 - 1) / 4 * 100, "m1": 100.0, "m4": 0.0}


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


@pytest.mark.parametrize("variant", ["paper", "as_released"])
def test_the_transcript(run, variant):
    document = score_run(run, variant=variant, judge=transcript("miedb"))
    whole = document["groups"][0]["metrics"]
    assert whole["rubric@1"]["mean"] == pytest.approx(sum(EXPECTED.values()) / 3)
    assert (whole["rubric@1"]["n"], whole["rubric@1"]["unscored"]) == (3, 2)
    grades = [(1, 2, 3, 4, 5, 1, 2, 3)[n] for n in range(8)]
    for number, grade in enumerate(grades, start=1):
        assert whole[f"rubric_{number}@1"]["mean"] == pytest.approx((grade + 5 + 1) / 3)
    lines = lines_of(run, variant)
    found = {name: lines[name]["attempts"][0] for name in ("m0", "m1", "m2", "m3", "m4")}
    assert {n: a["metrics"]["rubric"] for n, a in found.items() if a["metrics"]} == pytest.approx(EXPECTED)
    assert "unparseable" in found["m2"]["unscored"]["rubric"]
    assert found["m3"]["unscored"]["rubric"] == "judge refused: No."
    assert document["judge"]["states"] == {"done": 3, "refused": 1, "unparseable": 1}


def test_the_transcript_is_what_the_loopback_judge_says(run):
    expected = score_run(run, judge=transcript("miedb"))["groups"]
    with JudgeServer(answer) as server:
        assert score_run(run, judge=JudgeOptions(f"openai:tiny,base_url={server.url}"))["groups"] == expected
        assert len(server.requests) == 6  # one of them a repair
