"""A real server on the loopback: good, busy, broken, slow, huge and lying."""

import asyncio
import base64
import gzip
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from mie.core import retry
from mie.editors import Edited, Request, open_editor
from mie.errors import ConfigError
from mie.images.png import decode_png, encode_png
from tests.conftest import crop


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients hang up on purpose here


@pytest.fixture
def server():
    """`server.answer(handler, body)` is called for each request; `server.seen` has (path, headers, body)."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, dict(self.headers), body))
            running.answer(self, body)

        def log_message(self, *_):
            pass

        def reply(self, status=200, data=b"", kind="image/png", **headers):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

    running = _Server(("127.0.0.1", 0), Handler)
    running.seen = seen
    running.url = f"http://127.0.0.1:{running.server_port}/edit"
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)


def one(spec, instruction="mark it"):
    with open_editor(spec) as editor:
        return editor.edit_batch([Request(crop(3), instruction, 42)])[0]


def invert(handler, body):
    handler.reply(data=encode_png(255 - decode_png(base64.b64decode(body["image"]))))


def test_image_bytes_come_back(server):
    server.answer = invert
    outcome = one(f"http:{server.url}?a=1,timeout=30", "Markiere die Leber · 肝")
    assert np.array_equal(outcome.image, 255 - crop(3))
    path, headers, body = server.seen[0]
    assert path == "/edit?a=1"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert body.keys() == {"instruction", "seed", "image"}
    assert (body["instruction"], body["seed"]) == ("Markiere die Leber · 肝", 42)


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_json_comes_back(server, prefix):
    def answer(handler, body):
        handler.reply(data=json.dumps({"image": prefix + body["image"]}).encode(), kind="application/json")

    server.answer = answer
    assert np.array_equal(one(f"http:{server.url}").image, crop(3))


def test_passwords_and_tokens_travel_in_headers_only(server, monkeypatch):
    server.answer = invert
    one("http:" + server.url.replace("//", "//me:p%40ss@"))
    monkeypatch.setenv("EDIT_TOKEN", "s3cret")
    one(f"http:{server.url},token_env=EDIT_TOKEN")
    assert server.seen[0][1]["Authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert server.seen[1][1]["Authorization"] == "Bearer s3cret"
    assert {path for path, _, _ in server.seen} == {"/edit"}
    monkeypatch.delenv("EDIT_TOKEN")
    with pytest.raises(ConfigError, match="EDIT_TOKEN"):
        open_editor(f"http:{server.url},token_env=EDIT_TOKEN")


def test_busy_then_good_after_the_time_it_asked_for(server, no_pause):
    times = []

    def answer(handler, body):
        times.append(time.monotonic())
        headers = [{"Retry_After": "1"}, {"Retry_After": formatdate(time.time() - 5, usegmt=True)}]
        if len(times) <= 2:
            handler.reply(429, b"busy", "text/plain", **headers[len(times) - 1])
        else:
            invert(handler, body)

    server.answer = answer
    assert isinstance(one(f"http:{server.url}"), Edited)
    assert len(times) == 3
    assert times[1] - times[0] >= 1.0


def test_asked_to_wait_too_long(server):
    server.answer = lambda handler, _: handler.reply(503, b"", "text/plain", Retry_After="99999")
    assert "wait too long" in one(f"http:{server.url}").reason
    assert len(server.seen) == 1


def test_broken_then_good(server, no_pause):
    def answer(handler, body):
        if len(server.seen) == 1:
            handler.reply(500, b"oops", "text/plain")
        elif len(server.seen) == 2:
            handler.close_connection = True  # no answer at all
        elif len(server.seen) == 3:
            handler.send_response(200)
            handler.send_header("Content-Length", "100000")
            handler.end_headers()
            handler.wfile.write(b"\x89PNG half of it")
            handler.close_connection = True
        else:
            invert(handler, body)

    server.answer = answer
    assert isinstance(one(f"http:{server.url}"), Edited)
    assert len(server.seen) == 4


def test_always_broken_gives_up_and_says_so(server, no_pause):
    server.answer = lambda handler, _: handler.reply(502, b"no worker", "text/plain")
    outcome = one(f"http:{server.url},retries=2")
    assert "HTTP 502: no worker" in outcome.reason
    assert len(server.seen) == 3


def test_nobody_there(server, no_pause):
    url = server.url
    server.shutdown()
    server.server_close()
    assert "ConnectionRefused" in one(f"http:{url},retries=1").reason


@pytest.mark.parametrize(("status", "word"), [(400, "refused"), (404, "refused"), (302, "redirects")])
def test_a_clear_no_is_not_asked_again_and_nobody_is_followed(server, status, word):
    elsewhere = server.url.replace("/edit", "/stolen")
    server.answer = lambda handler, _: handler.reply(status, b"no", "text/plain", Location=elsewhere)
    outcome = one(f"http:{server.url}")
    assert word in outcome.reason
    assert [path for path, _, _ in server.seen] == ["/edit"]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"<html>hello</html>", "not a picture"),
        (b"", "not a picture"),
        (b'{"image": "%%%"}', "not a picture"),
        (b'{"image": 3}', "not a picture"),
        (b"[1]", "not a picture"),
        (b'{"image": "aGVsbG8="}', "cannot be used"),
        (b'{"error": "the model is ill"}', "the model is ill"),
        (b"\x89PNG\r\n\x1a\nhalf", "cannot be used"),
        (encode_png(np.zeros((1600, 1600), np.uint8)), "too large"),
    ],
)
def test_what_is_no_picture(server, data, word):
    server.answer = lambda handler, _: handler.reply(data=data)
    assert word in one(f"http:{server.url}").reason
    assert len(server.seen) == 1


def test_an_endless_answer_is_cut_off(server):
    def answer(handler, _):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(10_000):
            handler.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    server.answer = answer
    assert "too large" in one(f"http:{server.url},max_mb=1").reason


@pytest.mark.parametrize("declared", [True, False])
def test_a_slow_drip_hits_the_limit(server, declared):
    """Every byte is in time; the whole is not. Cut off, an answer without a length looks complete."""

    def answer(handler, _):
        handler.send_response(200)
        handler.send_header("Content-Length" if declared else "Connection", "100000" if declared else "close")
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)

    server.answer = answer
    # Long enough for a busy machine to send the head in time, far shorter than the ten seconds of the drip.
    outcome = one(f"http:{server.url},timeout=2.5")
    assert "time limit" in outcome.reason
    assert len(server.seen) == 1


def test_a_slow_head_hits_the_limit_too(server):
    """A server that sends its headers byte by byte, each in time."""

    def answer(handler, _):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
        for _ in range(200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)

    server.answer = answer
    assert "time limit" in one(f"http:{server.url},timeout=2.5").reason
    assert len(server.seen) == 1


def test_compressed_answers_are_not_inflated(server):
    """Nothing was asked for compressed: what comes so is not a picture, however large it would become."""
    bomb = gzip.compress(bytes(2**26))

    def answer(handler, _):
        handler.reply(data=bomb, Content_Encoding="gzip")

    server.answer = answer
    assert "not a picture" in one(f"http:{server.url},max_mb=1").reason
    assert server.seen[0][1]["Accept-Encoding"] == "identity"


def test_no_proxy_of_the_environment_is_used(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server.answer = invert
    assert isinstance(one(f"http:{server.url},retries=0"), Edited)


def test_several_threads_and_a_running_event_loop(server):
    server.answer = invert
    with open_editor(f"http:{server.url}") as editor:
        requests = [[Request(crop(n), "x", n)] for n in range(8)]
        with ThreadPoolExecutor(4) as threads:
            outcomes = [outcome for (outcome,) in threads.map(editor.edit_batch, requests)]
        assert all(np.array_equal(o.image, 255 - crop(n)) for n, o in enumerate(outcomes))

        async def notebook():
            return editor.edit_batch([Request(crop(3), "x")])[0]

        assert np.array_equal(asyncio.run(notebook()).image, 255 - crop(3))
    assert "interrupted" in editor.edit_batch([Request(crop(3), "x")])[0].reason
    editor.close()


def test_closing_ends_waiting(server):
    waiting = threading.Event()

    def answer(handler, _):
        waiting.set()
        time.sleep(20)

    server.answer = answer
    editor = open_editor(f"http:{server.url}")
    found = []
    thread = threading.Thread(target=lambda: found.extend(editor.edit_batch([Request(crop(3), "x")])))
    thread.start()
    waiting.wait(10)
    editor.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(found) == 1
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "argument",
    [
        "//127.0.0.1/x",
        "ftp://h/x",
        "nothing",
        "http://",
        "http://h:99999/x",
        "http://h/a b",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_url(argument):
    with pytest.raises(ConfigError):
        open_editor(f"http:{argument}")
