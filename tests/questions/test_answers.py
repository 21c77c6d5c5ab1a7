"""Answering a set: baselines, models behind a server, programs; paid once, resumed exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mie.errors import ConfigError, MieError
from mie.judges import JudgeOptions
from mie.questions.answers import AnswerRun, answer_questions, estimate_answers
from mie.questions.record import QuestionImage
from mie.questions.store import QuestionSet
from mie.questions.write import write_questions
from tests.judges.server import JudgeServer, Say, images_of, texts_of
from tests.questions.tiny import closed


def shown(body: dict[str, Any]) -> str:
    """The words of a request."""
    return "\n".join(texts_of(body))


def letter_of(body: dict[str, Any], option: str) -> str:
    """The letter that an option has in a request."""
    lines = shown(body).splitlines()
    return next((line[0] for line in lines if line[1:].strip(". ") == option), "A")


def spec(server: JudgeServer) -> str:
    return f"openai:tiny,base_url={server.url}"


def test_a_model_sees_every_image_and_each_order_of_the_options(tiny, tmp_path):
    with JudgeServer(lambda body: letter_of(body, "MRI")) as server:
        run = answer_questions(tiny.split("test"), spec(server), tmp_path / "run", blind=True, orders=1)
    assert run.complete
    lines = list(run.answers())
    by_way = {way: [one for one in lines if one.way == way] for way in ("seen", "blind", "order1")}
    assert [len(found) for found in by_way.values()] == [29, 29, 25]  # rotated: those with options alone
    assert {len(images_of(body)) for body in server.requests} == {0, 1, 2}
    first = by_way["order1"][0]
    assert first.order == (1, 2, 3, 4, 0)
    question = tiny.split("test")[0]
    assert question.options["ABCDE".index(by_way["seen"][0].reply)] == "MRI"
    assert question.options[first.order["ABCDE".index(first.reply)]] == "MRI"
    text = shown(server.requests[0])
    assert "Options:\nA. " in text
    assert "letter from the given choices directly" in text
    # Nobody has accepted what a model wrote: it is not asked.
    assert not any("What happens next?" in shown(body) for body in server.requests)


def test_the_reasoning_form_asks_for_a_box(tiny, tmp_path):
    with JudgeServer(lambda body: "Bright bone. \\boxed{A}") as server:
        answer_questions(tiny.split("test"), spec(server), tmp_path / "run", form="reasoning", limit=2)
    assert '"\\boxed{<letter>}"' in shown(server.requests[0])


def test_what_was_paid_is_not_asked_again_and_other_settings_are_refused(tiny, tmp_path):
    with JudgeServer(lambda body: "A") as server:
        part = tiny.split("test")
        run = answer_questions(part, spec(server), tmp_path / "run", limit=5)
        before, bytes_before = len(server.requests), (run.folder / "answers.jsonl").read_bytes()
        answer_questions(part, spec(server), tmp_path / "run", limit=5)
        assert len(server.requests) == before
        assert (run.folder / "answers.jsonl").read_bytes() == bytes_before
        with pytest.raises(ConfigError, match="another config"):
            answer_questions(part, spec(server), tmp_path / "run", limit=6)


def test_failed_calls_stay_open_and_are_asked_again(tiny, tmp_path):
    part, down = tiny.split("test"), True

    def answer(body: dict[str, Any]) -> Say | str:
        return Say(status=400, body="no") if down else "A"

    with JudgeServer(answer) as server:
        run = answer_questions(part, spec(server), tmp_path / "run", limit=3)
        assert not run.complete
        assert {one.state for one in run.answers()} == {"failed"}
        down = False
        run = answer_questions(part, spec(server), tmp_path / "run", limit=3)
    assert run.complete
    assert {one.reply for one in run.answers()} == {"A"}


SCRIPT = """
import sys
from mie.questions.answers import answer_questions
from mie.questions.store import QuestionSet
answer_questions(QuestionSet(sys.argv[1]).split("test"), sys.argv[2], sys.argv[3], blind=True)
"""


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(tiny, tmp_path):
    counts: dict[str, int] = {}

    def answer(body: dict[str, Any]) -> Say:
        key = json.dumps(body["messages"], sort_keys=True)
        counts[key] = counts.get(key, 0) + 1
        return Say("ABCDE"[len(key) % 5], delay=0.02)

    def start(folder: Path, server: JudgeServer) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SCRIPT, str(tiny.folder), f"{spec(server)},timeout=20", str(folder)]
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})

    with JudgeServer(answer) as server:
        answer_questions(tiny.split("test"), f"{spec(server)},timeout=20", tmp_path / "whole", blind=True)
        asked = len(server.requests)
        counts.clear()
        process = start(tmp_path / "killed", server)
        deadline = time.monotonic() + 60
        while len(server.requests) < asked + 8 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed/answers.jsonl").exists()
        journal = next((tmp_path / "killed/replies").glob("*.jsonl"), None)
        paid = 0 if journal is None else journal.read_bytes().count(b"\n")
        answer_questions(tiny.split("test"), f"{spec(server)},timeout=20", tmp_path / "killed", blind=True)
    whole, killed = ((tmp_path / name / "answers.jsonl").read_bytes() for name in ("whole", "killed"))
    assert whole == killed
    # Replies on disk were not asked for again; what was under way when the process died was.
    assert sum(n > 1 for n in counts.values()) <= 8 + 16 - min(paid, 8)


def test_a_dry_run_counts_calls_and_leaves_nothing(tiny, tmp_path):
    found = estimate_answers(tiny.split("test"), "openai:gpt-4o", tmp_path / "run", blind=True, limit=4)
    assert found["calls"] == 8
    assert found["cost_usd"] > 0
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="costs nothing"):
        estimate_answers(tiny, "prior", tmp_path / "run")


def test_images_do_not_leave_without_consent(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(MieError, match="--allow-remote"):
        answer_questions(tiny, "openai:gpt-4o", tmp_path / "run")
    with pytest.raises(MieError, match="de-identified"):
        answer_questions(tiny, "openai:gpt-4o", tmp_path / "run", options=JudgeOptions("", allow_remote=True))
    # What the set's recipe states is enough. The next thing that is missing is the key.
    copy = shutil.copytree(tiny.folder, tmp_path / "set")
    info = json.loads((copy / "questions.json").read_text())
    assert info["deidentified"] is False
    assert info["deidentification"] == {"tiny": "not stated"}
    (copy / "questions.json").write_text(json.dumps({**info, "deidentified": True}))
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(MieError, match="no key"):
        answer_questions(copy, "openai:gpt-4o", tmp_path / "run", options=JudgeOptions("", allow_remote=True))
    # A set of an older version says nothing: it is read, and its images stay here.
    del info["deidentified"], info["deidentification"]
    (copy / "questions.json").write_text(json.dumps(info))
    with pytest.raises(MieError, match="de-identified"):
        answer_questions(copy, "openai:gpt-4o", tmp_path / "run", options=JudgeOptions("", allow_remote=True))


def test_a_cost_limit_stops_before_it_is_passed(tiny, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("tiny: {input: 1000, output: 1000}\n")
    options = JudgeOptions("", cost_limit=3.0, prices=str(prices), concurrency=1)
    with JudgeServer(lambda body: "A") as server:  # each call costs 1.10 dollars
        run = answer_questions(tiny.split("test"), spec(server), tmp_path / "run", options=options, limit=6)
    states = [one.state for one in run.answers()]
    assert states.count("done") == 2
    assert states.count("over_budget") == 4
    assert not run.complete


def test_baselines_look_at_no_image_and_learn_from_training_alone(tiny, tmp_path):
    part = tiny.split("test")
    constant = list(answer_questions(part, "constant:C", tmp_path / "c", orders=1).answers())
    assert {one.reply for one in constant if one.state == "done"} == {"C"}
    assert {one.state for one in constant if one.id == f"{50:016x}"} == {"skipped"}
    for name in ("prior", "text-only"):
        answers = list(answer_questions(part, name, tmp_path / name, orders=1).answers())
        chosen = {
            (one.id, one.way): part[at].options[(one.order or range(5))["ABCDE".index(one.reply)]]
            for at in range(24)
            for one in answers
            if one.id == part[at].id
        }
        # MRI is right in every second training question, in each task.
        assert set(chosen.values()) == {"MRI"}
    with pytest.raises(ConfigError, match="training split"):
        only_test = tmp_path / "only-test"
        write_questions([closed(1)], only_test, name="t")
        answer_questions(only_test, "prior", tmp_path / "p")


def test_a_program_and_a_function_answer_too(tiny, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\nbody = json.load(open(sys.argv[1]))\nprint('ABCDE'[len(body['images'])], end='')\n"
    )
    part = tiny.split("test")
    run = answer_questions(part, f"command:{sys.executable} {program} {{request}}", tmp_path / "a", limit=2)
    assert {one.reply for one in run.answers()} == {"B"}
    lines = tmp_path / "lines.py"
    lines.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    body = json.loads(line)\n"
        "    print(json.dumps({'id': body['id'], 'output': 'C'}), flush=True)\n"
    )
    run = answer_questions(part, f"command:{sys.executable} {lines},jsonl=true", tmp_path / "b", limit=2)
    assert {one.reply for one in run.answers()} == {"C"}
    run = answer_questions(part, lambda prompt, images: f"{images[0].shape}", tmp_path / "c", limit=1)
    assert next(run.answers()).reply == "(48, 56, 3)"
    broken = answer_questions(part, f"command:{sys.executable} -c 1/0 {{prompt}}", tmp_path / "d", limit=1)
    assert next(broken.answers()).state == "failed"
    with pytest.raises(ConfigError, match="not told the question"):
        answer_questions(part, f"command:{sys.executable}", tmp_path / "e")


def test_a_local_model_of_transformers_answers(tiny, tmp_path):
    pytest.importorskip("transformers", reason="needs the extra `models`")
    from tests.judges.tiny_vlm import write_tiny_vlm

    model = write_tiny_vlm(tmp_path / "model", "Question: Which modality is this? Options: A. B. C.")
    run = answer_questions(
        tiny.split("test"), f"local:{model},max_tokens=4,device=cpu", tmp_path / "run", limit=2
    )
    assert run.complete
    assert all(one.state in ("done", "truncated") and one.reply for one in run.answers())


def test_text_only_withholds_the_images_of_a_model(tiny, tmp_path):
    with JudgeServer(lambda body: "A") as server:
        answer_questions(tiny.split("test"), f"text-only:{spec(server)}", tmp_path / "run", limit=2)
    assert [len(images_of(body)) for body in server.requests] == [0, 0]


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n broken", b""])
def test_an_image_that_is_missing_or_broken_is_an_answer_that_failed(tmp_path, data):
    broken = closed(1, images=(QuestionImage(data),))
    broken.images[0].__dict__["digest"] = "0" * 64
    write_questions([broken, closed(2)], tmp_path / "set", name="broken")
    with JudgeServer(lambda body: "A") as server:
        run = answer_questions(QuestionSet(tmp_path / "set"), spec(server), tmp_path / "run")
    first, second = run.answers()
    assert first.state == "failed"
    assert first.reason
    assert second.state == "done"


def test_the_run_of_an_editor_is_told_apart(tmp_path):
    (tmp_path / "run.json").write_text('{"schema_version": 1, "editor": {}}')
    with pytest.raises(MieError, match="not a run of answers"):
        AnswerRun.open(tmp_path)
