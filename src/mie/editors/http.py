"""A model behind a URL.

The editor sends a POST request with JSON, `{"instruction": text, "seed": number, "image": base64 of a PNG}`.
The server answers with a picture file, or with JSON: `{"image": base64 or data: URL}` or `{"error": text}`.

Nothing is sent anywhere but to the URL that the user named: redirects are not followed and no proxy is used.
429, 5xx and broken connections are retried (`mie.core.retry`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import json
import os
import random
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpx

from mie.core.retry import LONGEST_RETRY_AFTER, CallError, call_with_retries, retry_after
from mie.core.spec import mask_secrets
from mie.editors.base import Edited, EditError, Editor, Turn
from mie.editors.outputs import decode_output
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.images.raster import raster_format
from mie.privacy.endpoints import is_loopback
from mie.records import Pixels

_SHOWN: Final = 300  # bytes of an error's text


class Http(Editor):
    """Sends image and instruction to a server and takes the image that it returns.

    `timeout` (seconds) is for one whole request, `max_mb` for one answer; `token_env` names the environment
    variable with a bearer token.
    """

    thread_safe = True
    tuning = frozenset({"timeout", "retries", "max_mb", "token_env"})

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 300.0,
        retries: int = 4,
        max_mb: float = 64.0,
        token_env: str | None = None,
    ) -> None:
        self._shown = mask_secrets(url)
        if timeout <= 0 or retries < 0 or max_mb <= 0:
            raise ConfigError(
                "a limit is out of range",
                where=self._shown,
                expected="timeout and max_mb above 0, retries 0 or more",
            )
        self._url, self._headers = _target(url, self._shown)
        self.destination = None if is_loopback(self._url.host) else self._url.host
        if token_env is not None:
            if not os.environ.get(token_env):
                raise ConfigError("no token", where=f"environment variable {token_env}", found="not set")
            self._headers["Authorization"] = f"Bearer {os.environ[token_env]}"
        self._timeout = timeout
        self._retries = retries
        self._max_bytes = int(max_mb * 2**20)
        self._draw = random.Random(0)  # noqa: S311 (jitter)
        self._loop = _LoopThread()
        self._client: httpx.AsyncClient | None = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        encoded = base64.b64encode(encode_png(image)).decode()
        body = json.dumps({"instruction": instruction, "seed": seed, "image": encoded}).encode()
        answer = self._loop.run(lambda: self._ask(body))
        return decode_output(_picture(answer), like=image.shape, where=self._shown)

    def close(self) -> None:
        self._loop.close(self._hang_up)

    async def _hang_up(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _ask(self, body: bytes) -> bytes:
        """The body of the first good answer."""
        try:
            return await call_with_retries(
                lambda: self._post(body), retries=self._retries, seconds=float("inf"), draw=self._draw
            )
        except CallError as error:
            raise EditError(
                "the server returned no edit",
                expected=f"an answer in {self._retries + 1} tries",
                found=error.reason,
            ) from None

    async def _post(self, body: bytes) -> bytes:
        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                # The system's certificates, as for every other program on this machine.
                verify=ssl.create_default_context() if self._url.scheme == "https" else False,
                timeout=None,  # noqa: S113 (one limit for the whole request instead, below)
                follow_redirects=False,
                trust_env=False,
            )
        try:
            # The whole request: httpx's own limits count from byte to byte.
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream("POST", self._url, content=body) as response,
            ):
                answer = await self._read(response)
        except TimeoutError:
            raise EditError(
                "the server exceeded the time limit", expected=f"an answer within {self._timeout:g} s"
            ) from None
        except (httpx.TransportError, OSError) as error:
            cause = _root_cause(error)
            raise CallError(f"{type(cause).__name__}: {cause}") from None
        return self._checked(response, answer)

    def _checked(self, response: httpx.Response, answer: bytes) -> bytes:
        status = response.status_code
        if 200 <= status < 300:
            return answer
        found = f"HTTP {status}: {answer[:_SHOWN].decode(errors='replace')}"
        if 300 <= status < 400:
            raise EditError("the server redirects to another address", found=found, fix="give the final URL")
        if status != 429 and status < 500:
            raise EditError("the server refused the edit", found=found)
        pause = retry_after(response.headers)
        if pause is not None and pause > LONGEST_RETRY_AFTER:
            raise EditError("the server asks to wait too long", found=f"{found}; {pause:g} s")
        raise CallError(found, retry_after=pause)

    async def _read(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():  # never decompressed: no encoding is accepted
            body += chunk
            if len(body) > self._max_bytes:
                raise EditError(
                    "the server's answer is too large", expected=f"at most {self._max_bytes} bytes"
                )
        return bytes(body)


class _LoopThread:
    """An event loop in a thread of its own, so that edits work from any thread, and in a notebook's too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def run(self, start: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Wait for the coroutine that `start` makes; `EditError` when the loop is closed meanwhile."""
        with self._lock:
            if self._closed:
                raise EditError("interrupted")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(start(), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EditError("interrupted") from None

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what is running, run `last`, end the thread. Safe to call twice, and from any thread."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _cancel_all(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await last()


def _target(url: str, shown: str) -> tuple[httpx.URL, dict[str, str]]:
    """The URL without its password, and the headers of every request."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # an impossible port raises here
    except ValueError as error:
        raise ConfigError("not a URL", where=shown, found=error) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            "not the URL of a server",
            where=shown,
            expected="http:http://host:port/path or http:https://host/path",
            fix=f"write http:http:{shown}" if url.startswith("//") else None,
        )
    headers = {
        "Content-Type": "application/json",
        "Accept": "image/png, application/json",
        "Accept-Encoding": "identity",
    }
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ConfigError(
            "the URL has characters that must be escaped", where=shown, expected="%20 for a space, and so on"
        )
    return httpx.URL(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"), headers


def _picture(body: bytes) -> bytes:
    """The picture file in an answer: the body itself, or what its JSON holds."""
    if raster_format(body[:12]) is not None:
        return body
    try:
        answer = json.loads(body)
        if isinstance(answer, dict) and answer.get("error") is not None:
            raise EditError("the server reports an error", found=str(answer["error"])[:2000])
        text = answer["image"]
        if text.startswith("data:"):
            text = text.partition(",")[2]
        return base64.b64decode(text, validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise EditError(
            "the server's answer is not a picture",
            expected='a picture file, or {"image": base64}',
            found=f"{len(body)} bytes that begin with {body[:60]!r}",
        ) from None


def _root_cause(error: BaseException) -> BaseException:
    """The error of the operating system behind httpx's own, which says less."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
