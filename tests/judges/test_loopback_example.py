"""`examples/loopback_judge.py` answers every prompt of ours in the form that its parser reads."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mie.judges import Prompt, load_prompt
from mie.judges.parsers import yes_no
from mie.scoring.benchmarks.imgedit.judge import PARSERS as IMGEDIT
from mie.scoring.benchmarks.imgedit.judge import PROMPT as TURNS
from mie.scoring.benchmarks.imgedit.judge import PROMPTS, UGE, UGE_PARSERS
from mie.scoring.benchmarks.medebench.judge import DESCRIBE, EDIT, description_text
from mie.scoring.benchmarks.medebench.judge import PARSERS as MEDEBENCH
from mie.scoring.benchmarks.miedb.rubric import _PARSER as RUBRIC
from mie.scoring.benchmarks.omni_iie.qa import CHECK, WRITE, verdicts, written_questions

EXAMPLE = Path(__file__).parents[2] / "examples/loopback_judge.py"
ASKED = "1. Is it red? Right answer: yes\n2. Is it whole? Right answer: no"
CASES = [
    (load_prompt("miedb_rubric", 2), "Instruction: x", RUBRIC),
    (EDIT, "Instruction: x", MEDEBENCH["paper"]),
    (EDIT, "Instruction: x", MEDEBENCH["as_released"]),
    (DESCRIBE, "Instruction: x", description_text),
    *((prompt, "Instruction: x", IMGEDIT["paper"]) for prompt in PROMPTS.values()),
    (UGE, "Instruction: x", UGE_PARSERS["paper"]),
    (TURNS, "Turn 1: x\n\nQuestions: memory, understanding", yes_no(2)),
    (WRITE, "Instruction: x", written_questions),
    (CHECK, ASKED, verdicts(2)),
]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("loopback_judge", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body_of(prompt: Prompt, text: str, salt: int) -> dict:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": f"data:{salt}"}}]
    return {"messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": parts}]}


@pytest.mark.parametrize(("prompt", "text", "parser"), CASES, ids=[case[0].name for case in CASES])
def test_replies_have_the_form_that_is_asked_for(example, prompt, text, parser):
    replies = [example.reply_to(body_of(prompt, text, salt), 0.0) for salt in range(50)]
    assert all((finish, refusal) == ("stop", None) for _, finish, refusal in replies)
    found = [parser(said) for said, _, _ in replies]
    assert found == [parser(said) for said, _, _ in replies]
    assert len({said for said, _, _ in replies}) == 50  # each names its request
    again = example.reply_to(body_of(prompt, text, 7), 0.0)
    assert again == replies[7]


def test_trouble_is_a_share_of_its_own(example):
    prompt, text, _ = CASES[0]
    replies = [example.reply_to(body_of(prompt, text, salt), 0.25) for salt in range(400)]
    ends = [finish if refusal is None else "refused" for _, finish, refusal in replies]
    assert {"stop", "refused", "content_filter", "length"} == set(ends)
    assert 20 < sum(end != "stop" for end in ends) < 140
