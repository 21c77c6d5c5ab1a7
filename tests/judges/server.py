"""A judge on this machine: speaks the chat-completions protocol over HTTP/1.1, well or badly, as told."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np


@dataclass(frozen=True)
class Say:
    """What the server does with one request."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    finish: str = "stop"
    refusal: str | None = None
    model: str = "tiny-judge-2025-01-01"
    usage: tuple[int, int] = (1000, 100)
    body: str | None = None  # instead of a completion
    hang_up: bool = False  # in the middle of the reply


class JudgeServer:
    """`with JudgeServer(answer) as server:`; `answer` is given each request's body and says what to do.

    `requests` are the bodies in order of arrival; `most` is how many were under way at once.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Say | str], *, port: int = 0) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.most = 0
        self._now = self._open = 0
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> JudgeServer:
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=2**26)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until_left(self, seconds: float = 30) -> None:
        """Wait until no client is connected: what a killed one had sent before has then been counted."""
        until, free = time.monotonic() + seconds, 0
        while free < 3:  # a connection may still wait to be accepted
            assert time.monotonic() < until, f"{self._open} clients are still connected"
            time.sleep(0.02)
            free = 0 if self._open else free + 1

    async def _close(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    int(line.split(":")[1])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length")
                )
                body = json.loads(await reader.readexactly(length))
                self.heads.append(head)
                self.requests.append(body)
                self._now += 1
                self.most = max(self.most, self._now)
                try:
                    await self._respond(writer, body)
                finally:
                    self._now -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open -= 1
            with contextlib.suppress(Exception):
                writer.close()

    async def _respond(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        say = self.answer(body)
        say = Say(say) if isinstance(say, str) else say
        await asyncio.sleep(say.delay)
        if body.get("stream") and say.status == 200 and say.body is None:
            data, kind = _stream(say), "text/event-stream"
        else:
            data, kind = (say.body if say.body is not None else _completion(say)).encode(), "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(data)), **say.headers}
        lines = [f"HTTP/1.1 {say.status} X", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write(
            ("\r\n".join(lines) + "\r\n\r\n").encode() + (data[: len(data) // 2] if say.hang_up else data)
        )
        await writer.drain()
        if say.hang_up:
            raise ConnectionError


def _completion(say: Say) -> str:
    message = {"role": "assistant", "content": say.text, "refusal": say.refusal}
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": say.model,
            "choices": [{"index": 0, "message": message, "finish_reason": say.finish}],
            "usage": {
                "prompt_tokens": say.usage[0],
                "completion_tokens": say.usage[1],
                "total_tokens": sum(say.usage),
            },
        },
        ensure_ascii=False,
    )


def _stream(say: Say) -> bytes:
    head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": say.model}
    pieces = [say.text[at : at + 7] for at in range(0, len(say.text), 7)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces
    ]
    last = {"refusal": say.refusal} if say.refusal else {}
    chunks.append({"choices": [{"index": 0, "delta": last, "finish_reason": say.finish}]})
    usage = {"prompt_tokens": say.usage[0], "completion_tokens": say.usage[1], "total_tokens": sum(say.usage)}
    chunks.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def texts_of(body: dict[str, Any]) -> list[str]:
    """The text parts of a request's messages."""
    found = []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [part["text"] for part in parts if part["type"] == "text"]
    return found


def images_of(body: dict[str, Any]) -> list[np.ndarray]:
    """The images of a request, decoded by another library, RGB."""
    found = []
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "image_url":
                head, _, data = part["image_url"]["url"].partition(",")
                assert head == "data:image/png;base64"
                pixels = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
                found.append(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
    return found


if __name__ == "__main__":  # `bench/judge.py` starts it in a process of its own
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.05)
    reply = json.dumps({"conclusion": "fine", "score_list": [4, 4, 5, 3, 5, 4, 4, 5]})
    delay = parser.parse_args().delay
    with JudgeServer(lambda _: Say(reply, delay=delay)) as server:
        print(server.url, flush=True)
        sys.stdin.read()  # until the parent closes the pipe
