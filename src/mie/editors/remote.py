"""The one way to a server that edits: a POST to the URL that the user named, and nowhere else.

Redirects are not followed, no proxy is used, an answer has a limit of time and bytes and is never
decompressed. 429, 5xx and broken connections are retried (`mie.core.retry`). What the bodies say is the
business of the editors: `http` for servers of the user's own, `apis` for those of providers.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import random
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from mie.core.retry import LONGEST_RETRY_AFTER, CallError, call_with_retries, retry_after
from mie.core.spec import mask_secrets
from mie.editors.base import EditError
from mie.errors import ConfigError
from mie.privacy.endpoints import is_loopback

T = TypeVar("T")

_SHOWN: Final = 300  # bytes of an error's text
_BUSY: Final = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's final answer."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300


class Server:
    """One URL that takes POST requests. Any thread may call it, also one that runs an event loop.

    `secret` is struck out of every text that is shown. A user name and a password in the URL become a header.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        timeout: float,
        retries: int,
        max_mb: float,
        secret: str | None = None,
    ) -> None:
        self.shown = mask_secrets(url)
        if timeout <= 0 or retries < 0 or max_mb <= 0:
            raise ConfigError(
                "a limit is out of range",
                where=self.shown,
                expected="timeout and max_mb above 0, retries 0 or more",
            )
        self._url, own = _target(url, self.shown)
        self._headers = {**own, "Accept-Encoding": "identity", **headers}
        self._secret = secret
        self._timeout = timeout
        self._retries = retries
        self._max_bytes = int(max_mb * 2**20)
        self._draw = random.Random(0)  # noqa: S311 (jitter)
        self._loop = _LoopThread()
        self._client: httpx.AsyncClient | None = None

    @property
    def host(self) -> str:
        return self._url.host

    @property
    def destination(self) -> str | None:
        """The host, None where it is this machine."""
        return None if is_loopback(self.host) else self.host

    def post(
        self,
        body: bytes,
        kind: str,
        *,
        lost: Callable[[], None] = lambda: None,
        final: Callable[[Reply], bool] = lambda _: False,
    ) -> Reply:
        """The first answer that is neither busy (429, 408, 425) nor broken (5xx); `EditError` without one.

        `kind` is the body's content type. `lost` is called for each try that may have reached the server
        and got no answer: its provider may charge for it. `final` picks out errors that waiting cannot cure.
        """
        return self._loop.run(lambda: self._ask(body, kind, lost, final))

    def error_text(self, reply: Reply) -> str:
        """An answer that is an error, fit to be shown."""
        text = f"HTTP {reply.status}: {reply.body[:_SHOWN].decode(errors='replace')}"
        if self._secret:
            text = text.replace(self._secret, "***")
        return mask_secrets(text)

    def close(self) -> None:
        self._loop.close(self._hang_up)

    async def _hang_up(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _ask(
        self, body: bytes, kind: str, lost: Callable[[], None], final: Callable[[Reply], bool]
    ) -> Reply:
        try:
            return await call_with_retries(
                lambda: self._post(body, kind, lost, final),
                retries=self._retries,
                seconds=float("inf"),
                draw=self._draw,
            )
        except CallError as error:
            raise EditError(
                "the server returned no edit",
                expected=f"an answer in {self._retries + 1} tries",
                found=error.reason,
            ) from None

    async def _post(
        self, body: bytes, kind: str, lost: Callable[[], None], final: Callable[[Reply], bool]
    ) -> Reply:
        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                # The system's certificates, as for every other program on this machine.
                verify=ssl.create_default_context() if self._url.scheme == "https" else False,
                timeout=None,  # noqa: S113 (one limit for the whole request instead, below)
                follow_redirects=False,
                trust_env=False,
            )
        headers = {"Content-Type": kind}
        try:
            # The whole request: httpx's own limits count from byte to byte.
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                reply = Reply(response.status_code, await self._read(response))
        except TimeoutError:
            lost()
            raise EditError(
                "the server exceeded the time limit", expected=f"an answer within {self._timeout:g} s"
            ) from None
        except (httpx.TransportError, OSError) as error:
            if not isinstance(error, httpx.ConnectError):
                lost()
            cause = _root_cause(error)
            raise CallError(f"{type(cause).__name__}: {cause}") from None
        return self._checked(reply, response.headers, final)

    def _checked(self, reply: Reply, headers: Mapping[str, str], final: Callable[[Reply], bool]) -> Reply:
        if 300 <= reply.status < 400:
            raise EditError(
                "the server redirects to another address",
                found=self.error_text(reply),
                fix="give the final URL",
            )
        if not (reply.status in _BUSY or reply.status >= 500) or final(reply):
            return reply
        pause = retry_after(headers)
        if pause is not None and pause > LONGEST_RETRY_AFTER:
            raise EditError(
                "the server asks to wait too long", found=f"{self.error_text(reply)}; {pause:g} s"
            )
        raise CallError(self.error_text(reply), retry_after=pause)

    async def _read(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():  # never decompressed: no encoding is accepted
            body += chunk
            if len(body) > self._max_bytes:
                raise EditError(
                    "the server's answer is too large", expected=f"at most {self._max_bytes} bytes"
                )
        return bytes(body)


def picture_bytes(text: Any) -> bytes:
    """The picture file that an answer holds as base64 or as a `data:` URL; `EditError` for a link."""
    if not isinstance(text, str):
        raise ValueError("not text")
    if text[:8].lower().startswith(("http://", "https://")):
        raise EditError(
            "the answer is a link to a picture",
            expected="the picture itself: images are taken from the server that was asked, and from no other",
            found=mask_secrets(text)[:_SHOWN],
        )
    if text.startswith("data:"):
        text = text.partition(",")[2]
    return base64.b64decode(text, validate=True)


class _LoopThread:
    """An event loop in a thread of its own, so that edits work from any thread, and in a notebook's too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def run(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
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
    """The URL without its password, and a header with it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # an impossible port raises here
    except ValueError as error:
        raise ConfigError("not a URL", where=shown, found=error) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            "not the URL of a server",
            where=shown,
            expected="http://host:port/path or https://host/path",
            fix=f"write http:http:{shown}" if url.startswith("//") else None,
        )
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ConfigError(
            "the URL has characters that must be escaped", where=shown, expected="%20 for a space, and so on"
        )
    return httpx.URL(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"), headers


def _root_cause(error: BaseException) -> BaseException:
    """The error of the operating system behind httpx's own, which says less."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
