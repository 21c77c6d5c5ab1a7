"""What a judge's session promises: paid once, on disk before it counts, within the limit, nothing leaks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mie.errors import MieError
from mie.judges import Draft, Image, JudgeOptions, Prompt, Question, open_judge
from tests.judges.server import JudgeServer, Say, texts_of
from tests.judges.test_executor import GOOD, OPEN, PARSER, ask, draft, options, picture


def drafts(count: int) -> list[Draft]:
    return [draft(f"{n}_0:x", word=str(n)) for n in range(count)]


def lines_in(folder: Path) -> list[dict]:
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_another_system_prompt_is_another_question(tmp_path):
    """The user's text, the images and the schema are the same."""

    def worded(system: str) -> Draft:
        prompt = Prompt("test", 1, system, "Say {word}.")
        question = Question(prompt, (prompt.fill(word="cheese"), Image(picture())), PARSER)
        return Draft("a_0:x", lambda: question, prompt, sizes=((24, 32),), characters=10)

    with JudgeServer(lambda _: GOOD) as server:
        for system in ("Be a judge.", "Be a strict judge.", "Be a judge."):
            ask(server, tmp_path, [worded(system)])
        assert [texts_of(body)[0] for body in server.requests] == ["Be a judge.", "Be a strict judge."]


@pytest.mark.parametrize("torn", [b'{"content": "half', b"\xff\xfe", b"{}"])
def test_after_a_torn_line_the_journal_is_whole_again(tmp_path, torn):
    """What is appended after a kill must not be glued to what the kill left."""
    with JudgeServer(lambda _: GOOD) as server:
        ask(server, tmp_path, drafts(2), concurrency=1)
        (path,) = tmp_path.glob("*.jsonl")
        path.write_bytes(path.read_bytes() + torn)
        ask(server, tmp_path, drafts(4), concurrency=1)
        assert len(server.requests) == 4
        assert sorted(line["key"] for line in lines_in(tmp_path)) == [f"{n}_0:x" for n in range(4)]
        assert path.read_bytes().endswith(b"\n")
        ask(server, tmp_path, drafts(4), concurrency=1)
        assert len(server.requests) == 4


def test_a_reply_is_synced_before_it_counts(tmp_path, monkeypatch):
    """At the time an answer is told of, the disk has been told to keep everything that the file holds."""
    synced: dict[int, int] = {}  # inode -> bytes
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        status = os.fstat(handle)
        synced[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    told = []

    def progress(done: int) -> None:
        (path,) = tmp_path.glob("*.jsonl")
        safe = path.read_bytes()[: synced.get(path.stat().st_ino, 0)]
        told.append((done, safe.count(b"\n")))

    with (
        JudgeServer(lambda _: GOOD) as server,
        open_judge(options(server, concurrency=1), tmp_path, dataset=OPEN) as judge,
    ):
        judge.ask(drafts(5), progress)
    assert [done for done, _ in told] == [1, 2, 3, 4, 5]
    assert all(safe >= done for done, safe in told), told


def test_an_answer_is_recorded_once(tmp_path):
    """Equal questions at the same time, one after the other, and in another session: one line."""
    with JudgeServer(lambda _: Say(GOOD, delay=0.02)) as server:
        same = [draft(f"{n}_0:x") for n in range(12)]
        with open_judge(options(server), tmp_path, dataset=OPEN) as judge:
            judge.ask(same)
            judge.ask(same)
        ask(server, tmp_path, same)
        assert len(server.requests) == len(lines_in(tmp_path)) == 1


def test_calls_under_way_count_against_the_limit(tmp_path):
    """Eight at a time, a dollar each, a limit of 3.5: no fourth call may start while three are under way."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("tiny: {input: 1000, output: 0}\n")  # a reply of 1000 tokens costs a dollar
    with JudgeServer(lambda _: Say(GOOD, delay=0.3)) as server:
        limits = {"cost_limit": 3.5, "prices": str(prices)}
        ask(server, tmp_path / "j", drafts(1), **limits)  # so that the cost of a call is known
        _, record = ask(server, tmp_path / "j", drafts(12), concurrency=8, **limits)
        assert len(server.requests) == 3
        assert record["cost_usd"] == 3.0
        assert record["states"] == {"done": 3, "over_budget": 9}


@pytest.mark.parametrize(
    "stated", [{}, {"deidentified": None}, {"deidentified": "unknown"}, {"deidentified": 1}]
)
def test_images_stay_here_where_nothing_is_known_about_them(tmp_path, monkeypatch, stated):
    """Only a plain true opens the way; whatever else stands there does not."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    dataset = {"name": "d", **stated}
    with pytest.raises(MieError, match="leave this machine") as caught:
        open_judge(JudgeOptions("openai:m", allow_remote=True), tmp_path, dataset=dataset).__enter__()
    assert "no statement" in str(caught.value)
    vouched = JudgeOptions("openai:m", allow_remote=True, deidentified=True)
    with open_judge(vouched, tmp_path, dataset=dataset):
        pass
