"""The executor with the real SDK against a server on this machine that behaves in every way they do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mie.core import retry
from mie.errors import ConfigError, ImageError, MieError
from mie.judges import Draft, Image, JudgeOptions, ParseError, Prompt, Question, combine, open_judge
from mie.judges.executor import AdaptiveLimit
from mie.judges.parsers import json_scores
from mie.privacy import PrivacyError
from tests.judges.server import JudgeServer, Say, images_of, texts_of

PROMPT = Prompt("test", 1, "Be a judge.", "Say {word}.")
PARSER = json_scores("score_list", 3, 1, 5, texts=("conclusion",))
GOOD = json.dumps({"conclusion": "ok", "score_list": [1, 3, 5]})
OPEN = {"name": "d", "deidentified": True}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.02)


def picture(number: int = 0) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)


def draft(key: str = "a_0:x", word: str = "cheese", image: int = 0, **changes) -> Draft:
    def make() -> Question:
        return Question(PROMPT, (PROMPT.fill(word=word), Image(picture(image))), PARSER, **changes)

    return Draft(key, make, PROMPT, sizes=((24, 32),), characters=10)


def options(server: JudgeServer, extra: str = "", **changes) -> JudgeOptions:
    return JudgeOptions(f"openai:tiny,base_url={server.url}{extra}", **changes)


def ask(server: JudgeServer, folder: Path, drafts, extra: str = "", **changes):
    with open_judge(options(server, extra, **changes), folder, dataset=OPEN) as judge:
        return judge.ask(drafts), judge.record(["x"])


def one(server: JudgeServer, folder: Path, extra: str = "", **changes):
    (answer,) = ask(server, folder, [draft()], extra, **changes)[0]["a_0:x"]
    return answer


def script(*says: Say | str):
    """Each request the next of these; the last for ever."""
    left = list(says)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def test_what_goes_out_and_what_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with JudgeServer(script(GOOD)) as server:
        answers, record = ask(server, tmp_path, [draft(schema={"type": "object"})])
    (answer,) = answers["a_0:x"]
    assert (answer.state, answer.value, answer.model) == ("done", (1, 3, 5), "tiny-judge-2025-01-01")
    (body,) = server.requests
    assert body["model"] == "tiny"
    assert body["temperature"] == 0
    assert body["max_tokens"] == 2048
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert texts_of(body) == ["Be a judge.", "Say cheese."]
    np.testing.assert_array_equal(images_of(body)[0], picture())
    assert "Bearer sk-very-secret" in server.heads[0]
    assert record["provider"] == "127.0.0.1"
    assert record["model"] == "tiny"
    assert record["answered_by"] == ["tiny-judge-2025-01-01"]
    assert record["prompts"] == {"test@1": PROMPT.sha256}
    assert record["usage"] == {"input": 1000, "output": 100}
    assert record["cost_usd"] is None
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    assert "sk-very-secret" not in kept + json.dumps(record)


@pytest.mark.parametrize("stream", ["", ",stream=true"])
@pytest.mark.parametrize(
    ("say", "state", "reason"),
    [
        (Say("", finish="stop", refusal="I will not."), "refused", "I will not."),
        (Say("I'm sorry, I can't help with medical images."), "refused", "sorry"),
        (Say("", finish="content_filter"), "filtered", "filter"),
        (Say(GOOD, finish="length"), "truncated", "token limit"),
        (Say('{"conclusion": "ok", "score_list": [1, 2'), "unparseable", "no valid JSON"),
        (Say('{"conclusion": "ok", "score_list": [1, 2]}'), "unparseable", "exactly 3"),
        (Say('{"conclusion": "a", "conclusion": "b", "score_list": [1, 2, 3]}'), "unparseable", "twice"),
        (Say('{"conclusion": "ok", "score_list": [1, 2, 6]}'), "unparseable", "outside 1 to 5"),
        (Say("編集は良好です。"), "unparseable", "no valid JSON"),
    ],
)
def test_replies_that_are_no_answer(tmp_path, say, state, reason, stream):
    with JudgeServer(script(say)) as server:
        answer = one(server, tmp_path, stream)
        asked = len(server.requests)
        assert (answer.state, answer.value) == (state, None)
        assert reason in answer.reason
        assert asked == (2 if state == "unparseable" else 1)
        # They were paid for: the second time they come from disk.
        again = one(server, tmp_path, stream)
        assert (again.state, again.reason) == (answer.state, answer.reason)
        assert len(server.requests) == asked


@pytest.mark.parametrize(
    "text",
    [
        f"Gladly!\n\n{GOOD}\n\nI hope this helps.",
        f"```json\n{GOOD}\n```",
        '{"conclusion": "ok", "score_list": ["1/5", "3/5", "5/5"]}',
        '{"conclusion": "良い {編集} です", "score_list": [1, 3, 5]}',
        f"<think>[1, 1, 1] or {{}}?</think>{GOOD}",
    ],
)
@pytest.mark.parametrize("stream", ["", ",stream=true"])
def test_replies_that_leave_no_doubt(tmp_path, text, stream):
    with JudgeServer(script(text)) as server:
        assert one(server, tmp_path, stream).value == (1, 3, 5)


def test_one_repair_with_the_reason_told(tmp_path):
    bad = '{"conclusion": "ok", "score_list": [1, 2]}'
    with JudgeServer(script(bad, GOOD)) as server:
        answers, record = ask(server, tmp_path, [draft()])
    (answer,) = answers["a_0:x"]
    assert (answer.value, answer.repaired) == ((1, 3, 5), True)
    assert record["repaired"] == 1
    assert record["replies"] == 2
    assert record["usage"] == {"input": 2000, "output": 200}
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert server.requests[1]["messages"][2]["content"] == bad
    assert "exactly 3 numbers, not 2" in server.requests[1]["messages"][3]["content"]


@pytest.mark.parametrize(
    ("say", "state"),
    [
        (Say(status=429, body='{"error": {"message": "slow down"}}'), "rate_limited"),
        (Say(status=500, body="oops"), "failed"),
        (Say(status=503, body="{}"), "failed"),
        (Say(GOOD, hang_up=True), "failed"),
        (Say(body="<html>"), "failed"),
        (Say(body='{"choices": []}'), "failed"),
        (Say(GOOD, delay=5), "timed_out"),
    ],
)
def test_trouble_is_tried_again_and_never_kept(tmp_path, say, state):
    quick = ",timeout=0.3" if say.delay else ",timeout=20"
    with JudgeServer(script(say)) as server:
        answer = one(server, tmp_path, f",retries=2{quick}")
        assert (answer.state, answer.value) == (state, None)
        assert len(server.requests) == 3
    with JudgeServer(script(say, say, GOOD)) as server:
        assert one(server, tmp_path, f",retries=2{quick}").done
        assert len(server.requests) == 3


def test_retry_after_holds_everybody_back(tmp_path, monkeypatch):
    import time

    told: list[float] = []
    early: list[float] = []

    def answer(_):
        now = time.monotonic()
        if not told:
            told.append(now)
            return Say(status=429, headers={"Retry-After": "2"}, body="{}")
        if told[0] + 1 < now < told[0] + 1.95:  # a busy machine may hear of it late
            early.append(now - told[0])
        return Say(GOOD, delay=0.01)

    with JudgeServer(answer) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(40)]
        answers, _ = ask(server, tmp_path, drafts, concurrency=2)
    assert all(a.done for given in answers.values() for a in given)
    assert early == []


def test_retry_after_as_a_date_and_patience(tmp_path):
    far = Say(status=429, headers={"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, body="{}")
    with JudgeServer(script(far)) as server:
        answer = one(server, tmp_path)
        assert answer.state == "rate_limited"
        assert "no time left" in answer.reason
        assert len(server.requests) == 1


def test_a_filter_that_answers_400(tmp_path):
    body = '{"error": {"code": "content_filter", "message": "The prompt triggered the content_filter."}}'
    with JudgeServer(script(Say(status=400, body=body))) as server:
        assert one(server, tmp_path).state == "filtered"
        assert len(server.requests) == 1


def test_a_request_that_no_retry_can_help(tmp_path):
    with JudgeServer(script(Say(status=400, body='{"error": {"message": "image too large"}}'))) as server:
        answer = one(server, tmp_path)
        assert answer.state == "failed"
        assert "image too large" in answer.reason
        assert len(server.requests) == 1


def test_an_endpoint_without_schemas_is_asked_in_words(tmp_path):
    def answer(body):
        if "response_format" in body:
            return Say(status=400, body='{"error": {"message": "response_format is not supported"}}')
        return GOOD

    with JudgeServer(answer) as server:
        drafts = [draft(f"{n}_0:x", word=str(n), schema={"type": "object"}) for n in range(5)]
        answers, _ = ask(server, tmp_path, drafts, concurrency=1)
        assert all(a.done for given in answers.values() for a in given)
        assert len(server.requests) == 6


@pytest.mark.parametrize(
    "say",
    [
        Say(status=401, body='{"error": {"message": "Incorrect API key: sk-abcdef"}}'),
        Say(status=404, body='{"error": {"message": "no such model"}}'),
        Say(status=302, headers={"Location": "http://elsewhere.example/"}, body=""),
        Say(status=429, body='{"error": {"code": "insufficient_quota", "message": "no money"}}'),
    ],
)
def test_being_turned_away_stops_the_scoring(tmp_path, monkeypatch, say):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-abcdef")
    with JudgeServer(script(say)) as server:
        with pytest.raises(MieError, match="refuses the request") as caught:
            one(server, tmp_path)
        assert "sk-abcdef" not in str(caught.value)
        assert len(server.requests) <= 2


def test_nothing_is_asked_twice(tmp_path):
    with JudgeServer(script(GOOD)) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(30)]
        first, record = ask(server, tmp_path, drafts)
        assert len(server.requests) == 30
        second, again = ask(server, tmp_path, drafts)
        assert len(server.requests) == 30
        assert (first, record) == (second, again)
        # Another word, other pixels, another temperature, another repeat: other questions.
        ask(server, tmp_path, [draft("0_0:x", word="x"), draft("1_0:x", word="1", image=1)])
        assert len(server.requests) == 32
        ask(server, tmp_path, [draft("0_0:x", word="0")], ",temperature=1")
        assert len(server.requests) == 33
        ask(server, tmp_path, [draft("0_0:x", word="0")], repeats=3)
        assert len(server.requests) == 35


def test_equal_questions_share_a_call_and_equal_images_an_encoding(tmp_path, monkeypatch):
    from mie.judges import openai as images

    made = []
    real = images.data_url
    monkeypatch.setattr(images, "data_url", lambda image: made.append(1) or real(image))
    with JudgeServer(lambda _: Say(GOOD, delay=0.05)) as server:
        same = [draft(f"{n}_0:x") for n in range(10)]
        answers, record = ask(server, tmp_path / "a", same)
        assert (len(answers), len(server.requests), record["replies"]) == (10, 1, 1)
        ask(server, tmp_path / "b", [draft(f"{n}_0:x", word=str(n)) for n in range(10)])
    assert len(made) == 2


def test_grey_goes_out_as_grey_and_colour_as_it_is():
    from mie.judges.openai import data_url

    colour, grey = picture(), np.repeat(picture()[..., :1], 3, axis=2)
    late = grey.copy()
    late[-1, -1, 2] ^= 1  # colour in one pixel alone
    for pixels in (colour, grey, late, grey[..., 0]):
        url = data_url(Image(pixels))
        part = {"type": "image_url", "image_url": {"url": url.decode()}}
        (shown,) = images_of({"messages": [{"content": [part]}]})
        np.testing.assert_array_equal(shown, np.broadcast_to(pixels.reshape(24, 32, -1), (24, 32, 3)))
    assert len(data_url(Image(grey))) == len(data_url(Image(grey[..., 0])))


def test_a_torn_line_is_cut_and_asked_again(tmp_path):
    with JudgeServer(script(GOOD)) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(3)]
        first, _ = ask(server, tmp_path, drafts, concurrency=1)
        (path,) = tmp_path.glob("*.jsonl")
        path.write_bytes(path.read_bytes()[:-10])
        second, _ = ask(server, tmp_path, drafts, concurrency=1)
        assert len(server.requests) == 4
        assert first == second
        assert len(path.read_text().splitlines()) == 3


def test_a_line_that_is_none_of_ours_is_an_error(tmp_path):
    with JudgeServer(script(GOOD)) as server:
        one(server, tmp_path)
        (path,) = tmp_path.glob("*.jsonl")
        path.write_text("{}\n" + path.read_text())
        with pytest.raises(MieError, match="not a line of a judge"):
            one(server, tmp_path)


def test_repeats_are_averaged_and_their_spread_told(tmp_path):
    says = [json.dumps({"conclusion": "", "score_list": [n, 3, 3]}) for n in (1, 2, 5)]
    with JudgeServer(script(*says, "?")) as server:
        answers, record = ask(server, tmp_path, [draft()], repeats=3)
    found = combine(answers["a_0:x"])
    assert found.values == pytest.approx((8 / 3, 3, 3))
    assert found.spread == 4
    assert record["states"] == {"done": 3}
    assert combine([]).values is None


def test_the_cost_limit_holds(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("tiny: {input: 1000, output: 0}\n")  # a dollar for each reply of 1000 tokens
    with JudgeServer(script(GOOD)) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(10)]
        answers, record = ask(
            server, tmp_path / "j", drafts, cost_limit=3.5, prices=str(prices), concurrency=1
        )
        assert record["states"] == {"done": 3, "over_budget": 7}
        assert record["cost_usd"] == 3.0
        assert "cost limit" in next(a for (a,) in answers.values() if not a.done).reason
        # What was spent before counts.
        _, again = ask(server, tmp_path / "j", drafts, cost_limit=3.5, prices=str(prices))
        assert (again["states"], len(server.requests)) == (record["states"], 3)
        with pytest.raises(ConfigError, match="needs a price"):
            ask(server, tmp_path / "k", drafts, cost_limit=1.0)


def test_a_dry_run_counts_and_asks_nothing(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("tiny: {input: 1000000, output: 0}\n")
    with JudgeServer(script(GOOD)) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(10)]
        ask(server, tmp_path / "j", drafts[:4])
        dry = options(server, dry_run=True, prices=str(prices), repeats=2)
        with open_judge(dry, tmp_path / "j", dataset={"deidentified": False}) as judge:
            found = judge.estimate(drafts)
        assert (found["calls"], found["already_answered"]) == (16, 4)
        assert found["input_tokens"] == 16 * (6 + 2)  # 21 characters, 768 pixels
        assert found["cost_usd"] == pytest.approx(found["input_tokens"])
        with open_judge(options(server, dry_run=True), tmp_path / "j", dataset=OPEN) as judge:
            assert judge.estimate(drafts)["cost_usd"] is None
        assert len(server.requests) == 4


def test_images_stay_here_unless_somebody_vouches(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    closed = {"name": "d", "deidentified": False, "deidentification": {"mine": "not stated"}}
    for spec in ("openai:m", "gemini:m,key_env=OPENAI_API_KEY", "openai:m,base_url=http://192.168.1.2/v1"):
        allowed = JudgeOptions(spec, allow_remote=True)
        with pytest.raises(MieError, match="leave this machine") as caught:
            open_judge(allowed, tmp_path, dataset=closed).__enter__()
        assert "mine: not stated" in str(caught.value)
        assert "--deidentified" in str(caught.value)
        with open_judge(replace(allowed, deidentified=True), tmp_path, dataset=closed) as judge:
            assert judge.record([])["deidentified_by_user"] is True
        with open_judge(allowed, tmp_path, dataset=OPEN):
            pass
    for spec in ("openai:m,base_url=http://127.0.0.1:9/v1", "openai:m,base_url=http://[::1]:9/v1"):
        with open_judge(JudgeOptions(spec), tmp_path, dataset=closed):
            pass


@pytest.mark.parametrize(("dataset", "what"), [(OPEN, "images"), (None, "words")])
def test_a_judge_elsewhere_is_not_asked_without_consent(tmp_path, monkeypatch, dataset, what):
    """Images or only words, and however well the images are de-identified: as for an editor."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for options in (JudgeOptions("openai:m"), JudgeOptions("openai:m", deidentified=True, allow_phi=True)):
        with pytest.raises(PrivacyError, match=f"{what} would be sent to another machine") as caught:
            open_judge(options, tmp_path, dataset=dataset).__enter__()
        assert "--allow-remote" in str(caught.value)
        with open_judge(replace(options, dry_run=True), tmp_path, dataset=dataset):
            pass  # sends nothing
    with open_judge(JudgeOptions("openai:m", allow_remote=True), tmp_path, dataset=dataset):
        pass
    with open_judge(JudgeOptions("openai:m,base_url=http://127.0.0.1:9/v1"), tmp_path, dataset=dataset):
        pass  # on this machine


def test_no_key_no_call(tmp_path, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="no key"):
        open_judge(JudgeOptions("anthropic:claude", allow_remote=True), tmp_path, dataset=OPEN).__enter__()


def test_a_dry_run_needs_no_key(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    dry = JudgeOptions("openai:gpt-4o-2024-08-06", dry_run=True)
    with open_judge(dry, tmp_path, dataset={}) as judge:
        found = judge.estimate([draft()])
    assert found["cost_usd"] == pytest.approx((8 * 2.5 + 300 * 10) / 1e6)


def test_from_within_an_event_loop(tmp_path):
    async def notebook(server):
        return one(server, tmp_path)

    with JudgeServer(script(GOOD)) as server:
        assert asyncio.run(notebook(server)).value == (1, 3, 5)


def test_an_unreadable_image_is_a_reason(tmp_path):
    def make():
        raise ImageError("output cannot be decoded")

    with JudgeServer(script(GOOD)) as server:
        answers, record = ask(server, tmp_path, [Draft("a", make, PROMPT), draft()])
    assert (answers["a"][0].state, answers["a"][0].reason) == ("failed", "output cannot be decoded")
    assert record["states"] == {"done": 1, "failed": 1}


def test_a_programming_error_is_not_swallowed(tmp_path):
    def make():
        raise ZeroDivisionError

    with JudgeServer(script(GOOD)) as server, pytest.raises(ZeroDivisionError):
        ask(server, tmp_path, [Draft("a", make, PROMPT)])


def test_the_time_limit_for_everything(tmp_path):
    with JudgeServer(lambda _: Say(GOOD, delay=0.1)) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(40)]
        _, record = ask(server, tmp_path, drafts, concurrency=2, time_limit=0.5)
    assert set(record["states"]) == {"done", "timed_out"}
    assert sum(record["states"].values()) == 40


def test_the_limit_is_kept_and_adapts(tmp_path):
    with JudgeServer(lambda _: Say(GOOD, delay=0.02)) as server:
        ask(server, tmp_path, [draft(f"{n}_0:x", word=str(n)) for n in range(40)], concurrency=5)
    assert server.most == 5

    async def scenario() -> list[float]:
        pace = AdaptiveLimit(16)
        seen = [pace.limit]
        starts = [await pace.enter() for _ in range(16)]
        for start in starts:  # sixteen cries of the same moment are one
            pace.leave(start, failed=True)
        seen.append(pace.limit)
        for _ in range(8):
            pace.leave(await pace.enter(), failed=False)
        seen.append(pace.limit)
        for _ in range(10):
            pace.leave(await pace.enter(), failed=True)
        seen.append(pace.limit)
        return seen

    first, halved, more, least = asyncio.run(scenario())
    assert (first, halved, least) == (16, 8, 1)
    assert 8.9 < more < 9.1


def test_overload_is_met_with_fewer_calls_at_a_time(tmp_path):
    def answer(_):
        return Say(status=503, body="{}", delay=0.01) if server._now > 3 else Say(GOOD, delay=0.01)

    with JudgeServer(answer) as server:
        drafts = [draft(f"{n}_0:x", word=str(n)) for n in range(60)]
        answers, _ = ask(server, tmp_path, drafts, concurrency=12)
    assert all(a.done for given in answers.values() for a in given)


def test_a_parser_is_the_only_one_to_read(tmp_path):
    def parser(reply: str) -> str:
        if reply != "42":
            raise ParseError("say 42")
        return "the answer"

    def make() -> Question:
        return Question(PROMPT, ("?",), parser)

    with JudgeServer(script("41", "42")) as server:
        answers, _ = ask(server, tmp_path, [Draft("a", make, PROMPT)])
    assert answers["a"][0].value == "the answer"
