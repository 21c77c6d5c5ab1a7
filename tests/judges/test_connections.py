"""The connections to a judge: used again, made anew where the server closed them, broken replies named."""

import asyncio
import base64
import json

import httpx
import pytest

from mie.judges import connections, openai
from mie.judges.connections import SeparateConnections, open_transport
from mie.judges.contracts import CallError, Message, Request
from mie.judges.openai import OpenAI

GOOD = b'{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}], "model": "m"}'
ASKED = Request("k", 0, (Message("user", ("How is it?",)),))


class Server:
    """Answers each connection's requests by `replies`; `closes` after each, with or without saying so."""

    def __init__(self, body: bytes = GOOD, *, closes: str = "", kind: str = "application/json") -> None:
        self.body, self.closes, self.kind = body, closes, kind
        self.connections, self.heads = 0, []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = next(
                    int(x[15:]) for x in head.split("\r\n") if x.lower().startswith("content-length")
                )
                await reader.readexactly(length)
                close = "Connection: close\r\n" if self.closes == "told" else ""
                top = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: {self.kind}\r\n{close}Content-Length: {len(self.body)}"
                )
                writer.write(f"{top}\r\n\r\n".encode() + self.body)
                await writer.drain()
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def asked(server: Server, times: int = 1, pause: float = 0.0, **options):
    login = options.pop("login", "")
    client = OpenAI("m", base_url=f"http://{login}127.0.0.1:{server.port}/v1", **options)
    client.ready()
    try:
        replies = []
        for _ in range(times):
            replies.append(await client.ask(ASKED))
            await asyncio.sleep(pause)
        return replies
    finally:
        await client.close()


def test_one_connection_serves_calls_in_turn_and_more_serve_calls_at_once():
    async def run():
        async with Server() as server:
            assert [reply.text for reply in await asked(server, 3)] == ["fine"] * 3
            in_turn = server.connections
            client = OpenAI("m", base_url=f"http://127.0.0.1:{server.port}/v1")
            client.ready()
            await asyncio.gather(*(client.ask(ASKED) for _ in range(4)))
            await asyncio.gather(*(client.ask(ASKED) for _ in range(4)))
            await client.close()
            return in_turn, server.connections - in_turn

    assert asyncio.run(run()) == (1, 4)


@pytest.mark.parametrize("closes", ["told", "silently"])
def test_a_connection_that_the_server_closed_is_not_used_again(closes, monkeypatch):
    monkeypatch.setattr(connections, "_ALIVE", 0.01)

    async def run():
        async with Server(closes=closes) as server:
            replies = await asked(server, 3, pause=0.05)
            return len(replies), server.connections

    assert asyncio.run(run()) == (3, 3)


def test_what_identifies_us_and_nothing_else_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")

    async def run():
        async with Server() as server:
            await asked(server)
            await asked(server, login="me:p%40ss@")
            monkeypatch.delenv("OPENAI_API_KEY")
            await asked(server)
            return server.heads

    keyed, basic, bare = asyncio.run(run())
    assert "Authorization: Bearer sk-1" in keyed
    assert f"Authorization: Basic {base64.b64encode(b'me:p@ss').decode()}" in basic
    assert "Authorization" not in bare
    names = {line.partition(":")[0].lower() for line in bare.split("\r\n")[1:] if line}
    assert names == {"host", "content-type", "accept", "accept-encoding", "user-agent", "content-length"}


def events(*bodies) -> bytes:
    return b"".join(
        b"data: " + (json.dumps(b).encode() if isinstance(b, dict) else b) + b"\n\n" for b in bodies
    )


PIECE = {"model": "m", "choices": [{"delta": {"content": "fi"}}]}
LAST = {"choices": [{"delta": {"content": "ne"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7}}


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b": comment\n\n" + events(PIECE, LAST, b"[DONE]"), "fine"),
        (events(PIECE, LAST), "fine"),
        (events(PIECE), "ended early"),
        (events(PIECE, {"error": {"message": "overloaded"}}), "overloaded"),
        (events(PIECE, b"{"), "not JSON"),
        (events({"choices": [3]}), "not a piece of a reply"),
    ],
)
def test_a_stream_is_a_reply_or_a_reason(body, outcome):
    async def run():
        async with Server(body, kind="text/event-stream") as server:
            try:
                (reply,) = await asked(server, stream=True)
                return f"{reply.text}", reply.usage.input
            except CallError as error:
                return error.reason, 7

    said, tokens = asyncio.run(run())
    assert outcome in said
    assert tokens == 7


def test_errors_have_httpx_names_and_a_call_can_be_stopped(monkeypatch):
    async def refused():
        transport = SeparateConnections()
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("POST", "http://127.0.0.1:9/v1", content=b""))
        await transport.aclose()
        return len(transport._all)

    assert asyncio.run(refused()) == 0

    async def stopped():
        async def never(reader, writer):
            await asyncio.sleep(30)

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        transport = SeparateConnections()
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await transport.handle_async_request(httpx.Request("POST", url, content=b"x"))
        server.close()
        return len(transport._all)

    assert asyncio.run(stopped()) == 0

    monkeypatch.setenv("HTTP_PROXY", "127.0.0.1:3128")
    monkeypatch.setenv("http_proxy", "127.0.0.1:3128")
    assert isinstance(open_transport("http://127.0.0.1/v1"), SeparateConnections)
    assert not isinstance(open_transport("http://10.1.2.3/v1"), SeparateConnections)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_without_end_is_cut_off(monkeypatch, stream):
    monkeypatch.setattr(openai, "_MOST_BYTES", len(GOOD))

    async def main(body: bytes):
        async with Server(body) as server:
            return (await asked(server, stream=stream))[0].text

    if not stream:
        assert asyncio.run(main(GOOD)) == "fine"
    with pytest.raises(CallError, match="larger than"):
        asyncio.run(main(b" " + GOOD if not stream else b"data: " + b"x" * 4096))
