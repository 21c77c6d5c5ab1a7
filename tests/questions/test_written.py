"""Questions that a model writes: a strict form, two checks, and no score before people accept them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mie.errors import ConfigError, MieError
from mie.judges import JudgeOptions, ParseError
from mie.questions.answers import answer_questions
from mie.questions.store import QuestionSet
from mie.questions.written import Writing, estimate_writing, read_findings, read_written, write_written
from tests.judges.server import JudgeServer, texts_of
from tests.questions.tiny import write_tiny

GOOD = {
    "question": "Which treatment is most likely next for this patient?",
    "options": ["surgery", "radiation", "observation", "steroids", "antibiotics"],
    "answer": "surgery",
    "explanation": "it is large",
}


def test_the_form_of_a_written_question_is_strict():
    assert read_written(json.dumps(GOOD))["answer"] == "surgery"
    assert read_written('{"none": "nothing is known"}') is None
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**GOOD, "answer": "biopsy"}, "one of the options"),  # a key outside the options
        ({**GOOD, "options": ["surgery"] * 5}, "all different"),
        ({**GOOD, "options": ["surgery", "Surgery", "a", "b", "c"]}, "all different"),
        ({**GOOD, "options": GOOD["options"][:4]}, "5 options"),
        ({**GOOD, "question": "By the findings, what is next?"}, "must not mention the findings"),
        ({**GOOD, "question": "Is surgery the treatment?"}, "must not contain its answer"),
        ({**GOOD, "options": ["x" * 90, *GOOD["options"][1:]], "answer": "x" * 90}, "about as long"),
        ({**GOOD, "extra": 1}, "no others"),
        ({**GOOD, "question": 3}, "must be text"),
    ]
    for body, words in wrong:
        with pytest.raises(ParseError, match=words):
            read_written(json.dumps(body))
    with pytest.raises(ParseError):
        read_written("Here is a question: what is next?")


def reply(body: dict[str, Any], *, wrong_for: str = "", orders: bool = True) -> str:
    """Write for every task but PMC; choose the key in checks, but not for the task `wrong_for`."""
    text = texts_of(body)[-1]
    if "Task:" in text:
        if "pathophysiological" in text:
            return '{"none": "nothing is known"}'
        task = re.search(r"Task: (\w+)", text)[1]
        return json.dumps({**GOOD, "question": f"Which step is most likely next after {task}?"})
    if wrong_for and f"after {wrong_for}" in text:
        return "None"
    return next(line[0] for line in text.splitlines() if line[1:] == ". surgery")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("written") / "set", test=2, train=0)


def test_only_what_both_models_agree_on_is_kept_and_it_does_not_count_yet(source, tmp_path):
    with JudgeServer(reply) as first, JudgeServer(lambda body: reply(body, wrong_for="risk")) as second:
        writing = Writing(
            JudgeOptions(f"openai:writer,base_url={first.url}"),
            JudgeOptions(f"openai:other,base_url={second.url}"),
            tasks=("TPS", "PMC", "RS"),
        )
        findings = read_findings(source.folder)[:2]
        assert "Which modality is this?" in findings[0].text
        cost = estimate_writing(findings, writing, tmp_path / "out")
        assert cost["writer"]["calls"] == 2 * 3 * (1 + 2)
        assert cost["second"]["calls"] == 2 * 3
        assert not list(tmp_path.iterdir())
        info = write_written(findings, writing, tmp_path / "out", name="written")
        calls = len(first.requests), len(second.requests)
        assert calls == (2 * 3 + 2 * 2 * 2, 2 * 2)  # writes 6, checks the 4 that are there
    assert info["counts"]["by_task"] == {"TPS": 2}
    assert info["rejected"] == {"second model": 2, "writer": 2}
    assert [step["questions"] for step in info["funnel"]] == [6, 4, 2]
    found = QuestionSet(tmp_path / "out")
    assert all(q.flags == ("written",) and not q.counts for q in found)
    assert found[0].evidence["second_model"] == "other"
    with pytest.raises(ConfigError, match="no question to answer"):
        answer_questions(found, "constant", tmp_path / "run")


def test_a_writer_that_contradicts_itself_is_not_trusted(source, tmp_path):
    def fickle(body: dict[str, Any]) -> str:
        text = texts_of(body)[-1]
        return reply(body) if "Task:" in text else "A"  # always the first letter, whatever stands there

    with JudgeServer(fickle) as first, JudgeServer(reply) as second:
        writing = Writing(
            JudgeOptions(f"openai:writer,base_url={first.url}"),
            JudgeOptions(f"openai:other,base_url={second.url}"),
            tasks=("TPS",),
        )
        with pytest.raises(MieError, match="no question was written"):
            write_written(read_findings(source.folder)[:1], writing, tmp_path / "out", name="written")


def test_findings_are_read_from_lines_beside_their_images(source, tmp_path):
    (tmp_path / "a.png").write_bytes(source[0].images[0].data)
    file = tmp_path / "findings.jsonl"
    file.write_text(
        json.dumps({"findings": "A large tumour.", "images": ["a.png"], "modality": "MRI"}) + "\n"
    )
    (one,) = read_findings(file)
    assert (one.text, one.modality, len(one.images)) == ("A large tumour.", "MRI", 1)
    for bad in (
        {"findings": "", "images": ["a.png"]},
        {"findings": "x", "images": []},
        {"findings": "x", "images": ["a.png"], "name": "J"},
    ):
        file.write_text(json.dumps(bad) + "\n")
        with pytest.raises(ConfigError, match="not a line of findings"):
            read_findings(file)
    file.write_text(json.dumps({"findings": "x", "images": ["../../etc/passwd"]}) + "\n")
    with pytest.raises(MieError, match="leaves its folder"):
        read_findings(file)


def test_the_second_model_is_another_and_tasks_are_those_that_masks_cannot_prove():
    with pytest.raises(ConfigError, match="writer itself"):
        Writing(JudgeOptions("openai:a"), JudgeOptions("openai:a"))
    with pytest.raises(ConfigError, match="task that a model writes for"):
        Writing(JudgeOptions("openai:a"), JudgeOptions("openai:b"), tasks=("LL",))
