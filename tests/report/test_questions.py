"""The report of answers: every section, blind beside seeing, and what was not scored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import MieError
from mie.questions.answers import answer_questions
from mie.questions.record import TASKS
from mie.questions.scoring.score import score_answers
from mie.questions.store import QuestionSet
from mie.questions.write import write_questions
from mie.report.questions import write_question_report
from tests.questions.tiny import closed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("answers")
    tasks = list(TASKS)
    funnel = [{"step": "made", "questions": 90, "note": ""}, {"step": "kept", "questions": 42, "note": ""}]
    made = [closed(n, task=tasks[n % 15]) for n in range(30)] + [closed(100 + n) for n in range(12)]
    write_questions(made, folder / "set", name="<b>tiny</b>", funnel=funnel)
    part = QuestionSet(folder / "set").split("test")
    found = []
    for name, answerer in (("prior", "prior"), ("a & b", lambda prompt, images: "B" if images else "A or B")):
        run = answer_questions(part, answerer, folder / name, blind=True, orders=1, name=name)
        score_answers(run)
        found.append(run.folder)
    return found


def test_every_section_is_there_and_all_text_is_escaped(runs, tmp_path):
    page = write_question_report(runs, tmp_path / "report")
    text = page.read_text()
    ids = re.findall(r'<h2 id="(\w+)"', text)
    assert ids == [
        "results", "published", "blind", "phases", "tasks", "modalities", "comparisons", "unscored",
        "examples", "funnel", "files",
    ]  # fmt: skip
    assert "&lt;b&gt;tiny&lt;/b&gt;" in text
    assert "<b>tiny" not in text
    assert "several answers" in text
    row = re.search(r"HuatuoGPT-Vision-34B.*?</tr>", text, re.DOTALL)
    assert row is not None
    assert re.findall(r"\.\d{3}", row[0]) == [".636", ".696", ".408"]
    assert re.search(r"GPT-5.*?not found.*?</tr>", text, re.DOTALL)
    for name in re.findall(r'(?:src|href)="((?:images|plots|tables|assets)/[^"]+)"', text):
        assert (page.parent / name).is_file(), name
    table = (page.parent / "tables/scores.csv").read_text()
    assert "macro,task,accuracy" in table
    assert (page.parent / "tables/leaderboard.md").read_text().startswith("| answerer |")
    # Written again into its own folder, and never into another.
    write_question_report(runs, tmp_path / "report")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(MieError):
        write_question_report(runs, tmp_path / "other")


def test_what_is_not_scored_or_of_another_set_is_refused(runs, tmp_path):
    with pytest.raises(MieError, match="not scored"):
        write_question_report(runs, tmp_path / "report", variant="as_released")
    write_questions([closed(1), closed(2)], tmp_path / "set", name="other")
    other = answer_questions(tmp_path / "set", "constant", tmp_path / "run")
    score_answers(other)
    with pytest.raises(MieError, match="different question sets"):
        write_question_report([*runs, other.folder], tmp_path / "report")


def test_the_commands_print_one_table(runs, tmp_path):
    done = CliRunner().invoke(app, ["vqa", "score", *map(str, runs)])
    assert done.exit_code == 0, done.output
    for words in ("prior", "a & b", "Accuracy", "Blind", "Permuted", "["):
        assert words in done.output
    done = CliRunner().invoke(app, ["vqa", "report", *map(str, runs), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "report/index.html").is_file()
    found = str(runs[0].parent / "set")
    again = ["vqa", "run", found, "-a", "constant:C", "-o", str(tmp_path / "c"), "--limit", "3", "--json"]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.output
    assert '"done": 3' in done.stdout
