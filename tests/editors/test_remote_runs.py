"""Runs by remote editors: money, kills, refusals, consent, and what a dry run says."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from mie.api import edit
from mie.core import retry
from mie.editors import RefusedError, Request, StopRunError, Turn, open_editor
from mie.editors.answers import find_image_price
from mie.editors.requests import released
from mie.editors.run import preview_run, run_editor
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.privacy import Policy, PrivacyError
from tests import forked_python
from tests.conftest import crop
from tests.editors.conftest import outputs
from tests.editors.providers import KEY, KEYS, MODELS, REFUSALS, answer, from_url, providers


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    for variable in KEYS.values():
        monkeypatch.setenv(variable, KEY)
    with providers() as running:
        yield running
        assert running.wrong == []


def states(run):
    return [json.loads(line)["state"] for line in (run / "edits.jsonl").read_text().splitlines()]


def paid(run):
    return [json.loads(line) for line in (run / "answers" / "paid.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", list(KEYS))
def test_refused_is_apart_from_failed_and_is_retried_only_when_asked(server, dataset, tmp_path, name):
    status, body = REFUSALS[name]
    refuse = True

    def fault(handler, number, fields):
        if number == 2 and refuse:
            handler.reply(body, status)
        elif number == 3 and refuse:
            handler.reply(b"{}")
        else:
            return False
        return True

    server.fault = fault
    spec, folder = server.spec(name), tmp_path / "run"
    run = run_editor(dataset, spec, folder, limit=5, workers=1)
    assert sorted(states(folder)) == ["done", "done", "done", "failed", "refused"]
    assert run.info["counts"] == {"samples": 5, "edits": 5, "done": 3, "failed": 1, "refused": 1}
    assert "1 failed, 1 refused" in repr(run)
    refused = next(edit for edit in run.edits().values() if edit.state == "refused")
    assert "declined" in refused.reason
    assert not run.output_path(refused.sample_id, 0).exists()
    assert list((folder / "answers").glob("*.answer")) == []  # on record, so no longer needed
    refuse = False
    run_editor(dataset, spec, folder, limit=5)
    assert len(server.seen) == 5
    run_editor(dataset, spec, folder, limit=5, retry_failed=True)
    assert len(server.seen) == 6
    run = run_editor(dataset, spec, folder, limit=5, retry_refused=True)
    assert len(server.seen) == 7
    assert run.info["counts"]["done"] == 5


def test_two_attempts_without_a_seed_are_two_answers(server, dataset, tmp_path):
    """OpenAI takes no seed: both requests are the same bytes."""
    run_editor(dataset, server.spec("openai"), tmp_path / "run", limit=1, attempts=2, workers=1)
    assert len(server.seen) == 2
    assert server.raw[0] == server.raw[1]


PRICED = ",price=0.25"


def test_the_run_stops_before_the_budget_is_exceeded_and_resumes(server, dataset, tmp_path):
    arrived = threading.Barrier(4, timeout=20)

    def fault(handler, number, fields):
        if number <= 4:  # four edits are in progress at the same time
            arrived.wait()
        return False

    server.fault = fault
    folder = tmp_path / "run"
    with pytest.raises(StopRunError, match="budget") as stopped:
        run_editor(dataset, server.spec("fal", f"{PRICED},budget=1.1"), folder, limit=12)
    assert "resumes" in stopped.value.fix
    assert len(server.seen) == 4  # 1.00 USD; a fifth would make 1.25
    info = json.loads((folder / "run.json").read_text())
    assert (info["status"], info["counts"]["done"], info["cost_usd"]) == ("running", 4, 1.0)
    assert states(folder) == ["done"] * 4
    assert sum(line["usd"] for line in paid(folder)) == 1.0
    # What was spent before counts: the same budget buys nothing more.
    with pytest.raises(StopRunError):
        run_editor(dataset, server.spec("fal", f"{PRICED},budget=1.1"), folder, limit=12)
    assert len(server.seen) == 4
    run = run_editor(dataset, server.spec("fal", f"{PRICED},budget=3"), folder, limit=12)
    assert run.info["counts"]["done"] == 12
    assert run.info["cost_usd"] == 3.0
    assert len(server.seen) == 12


def test_a_call_without_an_answer_counts_as_paid(server, dataset, tmp_path):
    """The provider may have made the picture, and charged for it, before the connection broke."""

    def fault(handler, number, fields):
        handler.close_connection = number <= 2
        return number <= 2

    server.fault = fault
    with pytest.raises(StopRunError, match="budget"):
        run_editor(dataset, server.spec("ark", f"{PRICED},budget=0.6"), tmp_path / "run", limit=1)
    assert len(server.seen) == 2
    assert [line.get("lost") for line in paid(tmp_path / "run")] == [True, True]


def test_an_answer_after_a_lost_call_is_paid_for_too(server, dataset, tmp_path):
    """Killed between the answer and its line, with a line of the lost call: both count."""
    folder, spec = tmp_path / "run", server.spec("ark", PRICED)

    def fault(handler, number, fields):
        handler.close_connection = number == 1
        return number == 1

    server.fault = fault
    assert run_editor(dataset, spec, folder, limit=1).info["cost_usd"] == 0.5
    lost, done = paid(folder)
    assert lost["answer"] == done["answer"]
    (folder / "edits.jsonl").unlink()
    (folder / "answers" / "paid.jsonl").write_text(json.dumps(lost) + "\n")
    body = json.dumps(answer("ark", encode_png(crop(3)))).encode()
    (folder / "answers" / f"{done['answer']}.answer").write_bytes(body)
    run = run_editor(dataset, spec, folder, limit=1)
    assert run.info["cost_usd"] == 0.5
    assert len(server.seen) == 2


def test_one_editor_object_makes_two_runs(server, dataset, tmp_path):
    with open_editor(server.spec("fal", f"{PRICED},budget=0.5")) as editor:
        for name in ("a", "b"):
            run = run_editor(dataset, editor, tmp_path / name, limit=2)
            assert run.info["cost_usd"] == 0.5
            assert len(paid(tmp_path / name)) == 2


def test_refusals_by_status_cost_nothing(server, dataset, tmp_path):
    status, body = REFUSALS["openai"]
    server.fault = lambda handler, number, fields: handler.reply(body, status) or True
    run = run_editor(dataset, server.spec("openai", f"{PRICED},budget=0.25"), tmp_path / "run", limit=3)
    assert run.info["counts"]["refused"] == 3
    assert run.info["cost_usd"] == 0


def test_tokens_are_counted_where_the_table_has_prices_for_them(server, dataset, tmp_path):
    table = tmp_path / "prices.yaml"
    table.write_text(
        "gpt-image-1: {noted: 2026-11-16, image: {1024x1024 low: 0.5, any: 0.7}, input: 10, output: 40}\n"
    )
    options = f",size=1024x1024,quality=low,prices={table},budget=1.2"
    run = run_editor(dataset, server.spec("openai", options), tmp_path / "run", limit=2, workers=1)
    cost = 300 * 10e-6 + 272 * 40e-6
    assert run.info["cost_usd"] == pytest.approx(2 * cost, abs=1e-6)
    assert paid(tmp_path / "run")[0]["tokens"] == {"input": 300, "output": 272}
    (first, *_) = run.edits().values()
    assert first.meta["usd"] == pytest.approx(cost)
    assert run.info["editor"]["meta"]["price_noted"] == "2026-11-16"


@pytest.mark.parametrize(
    ("size", "quality", "price"),
    [("1024x1024", "low", 0.1), ("1024x1024", "high", 0.2), ("auto", "low", 0.3), ("auto", None, 0.4)],
)
def test_prices_by_size_and_quality(tmp_path, size, quality, price):
    table = tmp_path / "prices.yaml"
    prices = "{1024x1024 low: 0.1, 1024x1024: 0.2, low: 0.3, any: 0.4}"
    table.write_text(f"m: {{noted: 2026-11-16, image: {prices}}}\n")
    assert find_image_price("m", size, quality, table).image == price
    assert find_image_price("another", size, quality, table) is None


@pytest.mark.parametrize("entry", ["3", "{image: 1}", "{noted: x, image: -1}", "{noted: x, image: .inf}"])
def test_what_is_no_price(tmp_path, entry):
    (tmp_path / "prices.yaml").write_text(f"m: {entry}\n")
    with pytest.raises(ConfigError, match="not a price"):
        find_image_price("m", "auto", None, tmp_path / "prices.yaml")


def test_killed_after_an_answer_nothing_is_paid_twice(server, dataset, tmp_path):
    """kill -9 when answers have arrived, most of their edits are not on record, and two calls are waiting."""
    folder, total = tmp_path / "run", 12
    run_editor(dataset, server.spec("gemini"), tmp_path / "whole", limit=total)
    answered: list[bytes] = []
    lock, allowed, killed = threading.Lock(), 0, threading.Event()

    def fault(handler, number, fields):
        with lock:
            if len(answered) < allowed:
                answered.append(server.raw[number - 1])
                return False
        handler.close_connection = True
        return killed.wait(30)

    server.seen.clear()
    server.raw.clear()
    server.fault = fault
    command = [
        sys.executable,
        "-m",
        "mie",
        "run",
        str(dataset),
        "-e",
        server.spec("gemini"),
        "-o",
        str(folder),
    ]
    command += ["--limit", str(total), "--workers", "2"]
    unrecorded = []
    for allowed in (3, 7, 11):
        killed = threading.Event()
        process = forked_python.Started(command)
        while _answered(folder) < allowed:
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
        unrecorded.append(allowed - len(states(folder)))
        killed.set()
    assert max(unrecorded) > 0
    allowed = total
    done = forked_python.run(command)
    assert done.returncode == 0, done.stderr
    assert len(answered) == len(set(answered)) == total  # every sample has its own seed, so its own bytes
    assert outputs(folder) == outputs(tmp_path / "whole")
    assert states(folder) == ["done"] * total
    assert len({line["answer"] for line in paid(folder)}) == len(paid(folder)) == total
    assert list((folder / "answers").glob("*.answer")) == []


def _answered(folder):
    path = folder / "answers" / "paid.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_an_answer_on_disk_is_read_and_not_asked_for_again(server, dataset, tmp_path):
    """Every answer is there, no edit is on record: the state right after a kill, made by hand."""
    folder, spec = tmp_path / "run", server.spec("fal", PRICED)
    kept = {}

    def fault(handler, number, fields):
        if number == 3:
            kept.update({p.name: p.read_bytes() for p in (folder / "answers").glob("*.answer")})
        return False

    server.fault = fault
    run_editor(dataset, spec, folder, limit=3, workers=1)
    assert len(server.seen) == 3
    whole = outputs(folder)
    (folder / "edits.jsonl").unlink()
    for name, data in kept.items():
        (folder / "answers" / name).write_bytes(data)
    # The last answer's line is lost as well: its cost is counted again from the answer.
    lines = (folder / "answers" / "paid.jsonl").read_text().splitlines(keepends=True)
    (folder / "answers" / "paid.jsonl").write_text("".join(lines[:-1]))
    run = run_editor(dataset, spec, folder, limit=3)
    assert len(kept) >= 1
    assert len(server.seen) == 3 + (3 - len(kept))
    assert outputs(folder) == whole
    assert run.info["cost_usd"] == 0.25 * (2 + 3 - len(kept))


def test_a_wrong_key_ends_the_run_with_nothing_lost(server, dataset, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def fault(handler, number, fields):
        if number == 3:
            handler.reply({"error": {"message": "key was revoked"}}, 401)
            return True
        return False

    server.fault = fault
    with pytest.raises(StopRunError, match="rejects every request"):
        run_editor(dataset, server.spec("ark"), folder, limit=6, workers=1)
    assert states(folder) == ["done", "done"]
    assert len(server.seen) == 3
    run = run_editor(dataset, server.spec("ark"), folder, limit=6)
    assert run.info["counts"]["done"] == 6
    assert len(server.seen) == 7


def test_nothing_leaves_without_consent(dataset, tmp_path):
    spec = "openai:gpt-image-1"
    with pytest.raises(PrivacyError, match="another machine") as refused:
        run_editor(dataset, spec, tmp_path / "run", policy=Policy(deidentified=True))
    assert "--allow-remote" in str(refused.value)
    with pytest.raises(PrivacyError, match="de-identified"):
        run_editor(dataset, spec, tmp_path / "run", policy=Policy(allow_remote=True))
    with pytest.raises(PrivacyError, match="another machine"):
        edit(crop(3), "x", spec, policy=Policy(deidentified=True))
    with pytest.raises(PrivacyError, match="another machine"):
        edit(crop(3), "x", "http:https://example.org/edit", policy=Policy(deidentified=True))
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_missing_key_is_told_before_the_run_begins(dataset, tmp_path, monkeypatch):
    monkeypatch.delenv("FAL_KEY", raising=False)
    policy = Policy(deidentified=True, allow_remote=True, allow_phi=True)
    with pytest.raises(StopRunError, match="no key"):
        run_editor(dataset, "fal:m", tmp_path / "run", limit=1, policy=policy)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_dry_run_says_what_would_be_sent(server, dataset, tmp_path):
    spec = f"openai:{MODELS['openai']},price=0.5,base_url="
    there = preview_run(dataset, f"{spec}https://example.org/v1", tmp_path / "run", limit=3, attempts=2)
    assert not (tmp_path / "run").exists()
    here = preview_run(dataset, f"{spec}{server.url}", tmp_path / "run", limit=3, attempts=2)
    assert (there["destination"], here["destination"]) == ("example.org", None)
    assert (there["edits"], there["images"], there["cost_usd"]) == (6, 6, 3.0)
    assert server.seen == []
    # It is what a run really sends.
    run_editor(dataset, f"{spec}{server.url}", tmp_path / "run", limit=3, attempts=2)
    assert there["bytes"] == sum(map(len, server.raw))
    assert there["instructions"] == len({fields["prompt"] for _, _, fields in server.seen})
    assert preview_run(dataset, f"{spec}{server.url}", tmp_path / "run", limit=3, attempts=2)["edits"] == 0
    assert preview_run(dataset, "otsu", tmp_path / "other")["cost_usd"] == 0
    assert preview_run(dataset, "fal:m", tmp_path / "other")["cost_usd"] is None


def test_references_pass_the_gate_too():
    class Looking:
        def __init__(self):
            self.seen = []

        def release(self, pixels, where):
            self.seen.append(where)
            return 255 - pixels

    gate = Looking()
    request = Request(crop(1), "x", references=[crop(2), crop(3)], origin="an earlier output")
    (sent,) = released(gate, [request])
    assert np.array_equal(sent.image, crop(1))
    assert np.array_equal(sent.references[1], 255 - crop(3))
    assert len(gate.seen) == 2


def test_http_servers_get_earlier_turns_and_references():
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"refused": "not today"}')

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with open_editor(f"http:http://127.0.0.1:{running.server_port}/") as editor:
            request = Request(crop(1), "x", history=[Turn("first", crop(2))], references=[crop(3)])
            with pytest.raises(RefusedError, match="declined"):
                editor.edit_request(request)
            assert editor.sends(request)[0] == 3
    finally:
        running.shutdown()
        running.server_close()
    (body,) = seen
    assert body["history"][0]["instruction"] == "first"
    pictures = [body["history"][0]["image"], *body["references"]]
    for text, wanted in zip(pictures, (2, 3), strict=True):
        assert np.array_equal(from_url("data:image/png;base64," + text), crop(wanted))


def test_a_full_disk_does_not_turn_a_paid_answer_into_a_failed_edit(server, dataset, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mie.editors.answers.atomic_write", full)
    with pytest.raises(StopRunError, match="cannot be stored"):
        run_editor(dataset, server.spec("fal"), tmp_path / "run", limit=2)
    assert not (tmp_path / "run" / "edits.jsonl").read_bytes()


def test_answers_of_other_shapes_are_the_same_in_a_run(server, dataset, tmp_path):
    """A wrong size comes back to the source grid, so that scoring compares like with like."""
    run = run_editor(dataset, server.spec("gemini"), tmp_path / "run", limit=2)
    for made in run.edits().values():
        assert made.size == (128, 128)
        assert made.meta["steps"] == [{"step": "resize", "from": [768, 1024], "to": [128, 128]}]
