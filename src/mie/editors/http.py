"""A model behind a URL.

POST, `application/json`: `{"instruction": text, "seed": number, "image": base64 of a PNG}`. The answer is a
picture file, or JSON: `{"image": base64}` (a `data:` URL will do) or `{"error": text}`.

Nothing is sent anywhere but to the URL the user named: redirects are not followed, no proxy is used. 429,
5xx and broken connections are tried again after a growing pause, or after what `Retry-After` asks.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import email.utils
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from mie.core.spec import mask_secrets
from mie.editors.base import Edited, EditError, Editor, Turn
from mie.editors.outputs import decode_output
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.images.raster import raster_format
from mie.records import Pixels

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_LONGEST_RETRY_AFTER: Final = 600.0
_READ: Final = 2**16


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    retry_after: float | None


class Http(Editor):
    """`timeout` (seconds) is for one request, `max_mb` for one answer; `token_env` names the environment
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
        if timeout <= 0 or retries < 0 or max_mb <= 0:
            raise ConfigError(
                "limit does not make sense", where=mask_secrets(url), expected="numbers above 0"
            )
        self._shown = mask_secrets(url)
        self._connect, self._path, self._headers = _target(url, self._shown, timeout)
        if token_env is not None:
            if not os.environ.get(token_env):
                raise ConfigError("no token", where=f"environment variable {token_env}", found="nothing")
            self._headers["Authorization"] = f"Bearer {os.environ[token_env]}"
        self._timeout = timeout
        self._retries = retries
        self._max_bytes = int(max_mb * 2**20)
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = set()

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        encoded = base64.b64encode(encode_png(image)).decode()
        body = json.dumps({"instruction": instruction, "seed": seed, "image": encoded}).encode()
        answer = _picture(self._ask(body))
        return decode_output(answer, like=image.shape, where=self._shown)

    def close(self) -> None:
        self._closed.set()
        for open_socket in list(self._sockets):
            _hang_up(open_socket)

    def _ask(self, body: bytes) -> bytes:
        """The body of the first good answer."""
        trouble = ""
        for tried in range(self._retries + 1):
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**tried)
            try:
                answer = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if 200 <= answer.status < 300:
                    return answer.body
                trouble = f"HTTP {answer.status}: {answer.body[:300].decode(errors='replace')}"
                if answer.status in range(300, 400):
                    raise EditError("the server sends us elsewhere", found=trouble, fix="name the final URL")
                if answer.status != 429 and answer.status < 500:
                    raise EditError("the server refused the edit", found=trouble)
                pause = pause if answer.retry_after is None else answer.retry_after
            if pause > _LONGEST_RETRY_AFTER:
                raise EditError("the server asks to wait too long", found=f"{trouble}; {pause:g} s")
            if tried < self._retries and self._closed.wait(pause):
                break
        raise EditError(
            "the server gave no edit", expected=f"an answer in {self._retries + 1} tries", found=trouble
        )

    def _post(self, body: bytes) -> _Answer:
        if self._closed.is_set():
            raise EditError("interrupted")
        connection = self._connect()
        with contextlib.closing(connection):
            connection.connect()
            line = connection.sock
            self._sockets.add(line)
            # A socket's own limit counts from byte to byte: this one holds for the whole exchange.
            late = threading.Event()
            watch = threading.Timer(self._timeout, _cut, (line, late))
            watch.daemon = True
            watch.start()
            try:
                connection.request("POST", self._path, body, self._headers)
                with connection.getresponse() as response:
                    body = self._read(response)
                    return _Answer(response.status, body, _seconds(response.getheader("Retry-After")))
            finally:
                watch.cancel()
                self._sockets.discard(line)
                # To the reader a connection that we cut looks like an error, or like the end of the answer.
                if late.is_set():
                    raise EditError(
                        "the server ran past the time limit", expected=f"an answer within {self._timeout:g} s"
                    )

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        body = bytearray()
        while chunk := response.read(_READ):
            body += chunk
            if len(body) > self._max_bytes:
                raise EditError(
                    "the server's answer is too large", expected=f"at most {self._max_bytes} bytes"
                )
        if response.length:  # `read` with a size does not complain about an early end
            raise http.client.IncompleteRead(bytes(body), response.length)
        return bytes(body)


def _target(url: str, shown: str, timeout: float) -> tuple[Any, str, dict[str, str]]:
    """(something that makes a connection, path with query, headers) of a URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("not a URL", where=shown, found=error) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            "not a URL of a server",
            where=shown,
            expected="http:http://host:port/path or http:https://host/path",
            fix=f"write http:http:{shown}" if url.startswith("//") else None,
        )
    headers = {"Content-Type": "application/json", "Accept": "image/png, application/json"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ConfigError(
            "the URL has characters that must be escaped", where=shown, expected="%20 and the like"
        )
    if parts.scheme == "http":
        return lambda: http.client.HTTPConnection(host, port, timeout=timeout), path, headers
    context = ssl.create_default_context()
    return lambda: http.client.HTTPSConnection(host, port, timeout=timeout, context=context), path, headers


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
            "the server's answer is no picture",
            expected='a picture file, or {"image": base64}',
            found=f"{len(body)} bytes that begin with {body[:60]!r}",
        ) from None


def _seconds(retry_after: str | None) -> float | None:
    """`Retry-After` is a number of seconds or a date."""
    if retry_after is None:
        return None
    if retry_after.strip().isascii() and retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _cut(line: socket.socket, late: threading.Event) -> None:
    late.set()  # before the reader can see the end
    _hang_up(line)


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
