"""Marks of questions that runs got right without the images: who made them, and where they show."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import ConfigError, MieError
from mie.questions.answers import AnswerRun, answer_questions
from mie.questions.blind import mark_blind
from mie.questions.proof import verify_questions
from mie.questions.scoring.score import score_answers
from mie.questions.stats import question_stats
from mie.questions.store import QuestionSet
from mie.report.questions import write_question_report
from tests.questions.tiny import write_tiny


def mri(prompt: str, images) -> str:
    """Knows that the answer is often MRI, and says it at whatever letter it stands."""
    found = re.search(r"([A-E])\. MRI", prompt)
    return found[1] if found else "12"


@pytest.fixture(scope="module")
def marked(tmp_path_factory) -> tuple[QuestionSet, AnswerRun, AnswerRun]:
    folder = tmp_path_factory.mktemp("blind")
    questions = write_tiny(folder / "set")
    part = questions.split("test")
    knows = answer_questions(part, mri, folder / "knows", blind=True, orders=1, name="knows")
    constant = answer_questions(part, "constant:A", folder / "constant", orders=2)
    mark_blind(questions, [knows.folder, constant])
    return questions, knows, constant


def test_right_in_every_blind_pass_is_marked_and_luck_is_told(marked):
    questions, *_ = marked
    asked = [q for q in questions.split("test") if "written" not in q.flags]
    mri_keys = [q.id for q in asked if q.kind == "closed" and q.answer == "MRI"]
    number = [q.id for q in questions if q.kind == "number"]
    by = {one["answerer"]: one for one in questions.blind["runs"]}
    assert by["knows"]["passes"] == ["blind"]
    assert by["knows"]["right"] == len(mri_keys) + len(number) > 10
    # One letter in three orders of five options is never right in all of them, in two orders of two neither.
    assert by["constant:A"]["passes"] == ["seen", "order1", "order2"]
    assert by["constant:A"]["right"] == 0
    assert by["constant:A"]["by_luck"] == pytest.approx(24 / 5**3 + 1 / 2**2, abs=0.06)
    assert set(questions.blind["marks"]) == {*mri_keys, *number}
    assert questions.blind["marks"][mri_keys[0]] == [by["knows"]["run"]]


def test_the_flag_is_seen_everywhere_and_the_set_stays_as_it_was(marked, tmp_path):
    questions, *_ = marked
    again = QuestionSet(questions.folder)
    assert again.digest == questions.digest
    assert verify_questions(questions.folder, workers=1).ok
    flagged = again.filter(flags="blind")
    assert flagged.ids() == [q.id for q in again if "blind" in q.flags]
    assert set(flagged.ids()) == set(again.blind["marks"])
    rest = again.split("test").without("blind")
    assert len(rest) + len(flagged) == len(again.split("test"))
    numbers = question_stats(again)
    assert (
        sum(values["blind"] for values in numbers["blind_by_task"].values()) == len(flagged) - 1
    )  # one is a number
    assert numbers["blind_evidence"]["runs"][0]["answerer"] == "knows"
    # An export leaves them out, and says which it has.
    for option, wanted in (("--without", len(rest)), ("--only", len(flagged))):
        out = tmp_path / option[2:]
        arguments = ["vqa", "export", str(again.folder), "--to", "llava", "--split", "test", "-o", str(out)]
        result = CliRunner().invoke(app, [*arguments, option, "blind", "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.output)["questions"] == wanted
    with pytest.raises(MieError, match="did you mean 'blind'"):
        again.without("blnd")


def test_scores_and_report_tell_the_marked_from_the_rest(marked, tmp_path):
    questions, knows, constant = marked
    results = score_answers(knows)
    groups = {
        one["group"]["marked"]: one["metrics"]
        for one in results.document["groups"]
        if "marked" in one["group"]
    }
    assert groups["blind"]["accuracy@1"]["mean"] == 1.0
    assert groups["not blind"]["accuracy@1"]["mean"] == 0.0
    assert results.document["marks"]["runs"] == questions.blind["runs"]
    result = CliRunner().invoke(app, ["vqa", "score", str(knows.folder), str(constant.folder)])
    assert result.exit_code == 0, result.output
    assert "Not" in result.output
    page = write_question_report([knows, constant], tmp_path / "page").read_text()
    assert "Who marked them" in page
    assert "Marked by task" in page
    assert questions.blind["runs"][0]["run"] in page


def test_votes_and_clearing(marked, tmp_path):
    questions, knows, constant = marked
    copy = tmp_path / "set"
    shutil.copytree(questions.folder, copy)
    assert mark_blind(copy, [knows, constant], votes=2)["marks"] == {}
    assert CliRunner().invoke(app, ["vqa", "blind", str(copy), str(knows.folder)]).exit_code == 0
    assert QuestionSet(copy).blind["marks"] == questions.blind["marks"]
    assert CliRunner().invoke(app, ["vqa", "blind", str(copy), "--clear"]).exit_code == 0
    assert QuestionSet(copy).blind["marks"] == {}
    assert not (copy / "blind.json").exists()
    assert CliRunner().invoke(app, ["vqa", "blind", str(copy)]).exit_code != 0


def test_runs_that_cannot_tell_are_refused(marked, tmp_path):
    questions, knows, _ = marked
    seen = answer_questions(questions.split("test"), mri, tmp_path / "seen", limit=3)
    with pytest.raises(MieError, match="saw the images"):
        mark_blind(questions, [seen])
    with pytest.raises(ConfigError, match="twice"):
        mark_blind(questions, [knows, knows.folder])
    with pytest.raises(ConfigError, match="must agree"):
        mark_blind(questions, [knows], votes=2)
    other = write_tiny(tmp_path / "other", test=4)
    with pytest.raises(MieError, match="another question set"):
        mark_blind(other, [knows])
    shutil.copy(questions.folder / "blind.json", other.folder)
    with pytest.raises(MieError, match="belong to another"):
        QuestionSet(other.folder).table(["flags"])
    half = Path(shutil.copytree(knows.folder, tmp_path / "half"))
    info = json.loads((half / "run.json").read_text())
    (half / "run.json").write_text(json.dumps({**info, "status": "incomplete"}))
    with pytest.raises(MieError, match="not complete"):
        mark_blind(questions, [half])
