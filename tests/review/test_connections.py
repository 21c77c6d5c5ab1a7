"""Half-sent requests, by real sockets: they end, and others get in meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn

from mie.review import connections
from mie.review.server import listen, plain_http_risk, server_config

HALF = b"POST /api/login HTTP/1.1\r\nHost: x\r\nX: "
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12"


async def application(scope, receive, send) -> None:
    """Reads the body and says so."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def connect(monkeypatch) -> Iterator[Callable[[bytes], socket.socket]]:
    """A function that connects to a server with short limits and sends bytes."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(server_config(application))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    opened: list[socket.socket] = []

    def connect(data: bytes) -> socket.socket:
        client = socket.create_connection(listener.getsockname(), timeout=20)
        client.sendall(data)
        opened.append(client)
        return client

    yield connect
    server.should_exit = server.force_exit = True
    thread.join()
    for client in opened:
        client.close()
    listener.close()


def answer(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection, or pauses after a whole response."""
    received = b""
    try:
        while not received.endswith(b"ok") and (data := client.recv(65536)):
            received += data
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("sent", [b"", b"G", HALF, BODY, WHOLE + HALF])
def test_a_request_that_does_not_arrive_is_ended(connect, sent):
    client = connect(sent)
    if sent.startswith(WHOLE):
        assert answer(client).endswith(b"ok")
    assert answer(client) == b""  # closed, long before this socket's own time is up


@pytest.mark.parametrize("sent", [HALF, BODY.replace(b"10", b"1000")])
def test_a_byte_now_and_then_gains_no_time(connect, sent):
    client = connect(sent)
    client.settimeout(0.1)
    with contextlib.suppress(ConnectionError):
        for _ in range(40):  # eight times as long as the limit
            with contextlib.suppress(TimeoutError):
                assert client.recv(1) == b""
                return
            client.sendall(b"1")
        pytest.fail("the connection is still open")


def test_half_sent_requests_do_not_keep_others_out(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 60.0)
    held = [connect(HALF) for _ in range(30)]
    assert answer(connect(WHOLE)).endswith(b"ok")
    closed = sum(answer(client) == b"" for client in held[:20])  # the oldest gave way
    assert closed == 20


def test_everyday_requests_are_answered_on_one_connection(connect):
    client = connect(b"")
    for _ in range(3):
        client.sendall(WHOLE)
        assert answer(client).endswith(b"ok")
    client.sendall(BODY)
    client.sendall(b"34567890")
    assert answer(client).endswith(b"ok")


def test_plain_http_for_others_is_said():
    assert plain_http_risk("127.0.0.1", "http://127.0.0.1:8000") is None
    assert plain_http_risk("127.0.0.1", "https://review.example.org") is None
    assert "TLS" in str(plain_http_risk("0.0.0.0", "http://review.example.org"))
    assert "TLS" in str(plain_http_risk("127.0.0.1", "http://review.example.org"))
    assert "only your TLS proxy" in str(plain_http_risk("0.0.0.0", "https://review.example.org"))
