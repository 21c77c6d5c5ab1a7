"""What every request passes before any route sees it: Host, Origin, size; and every answer on its way out.

Browsers name the page that a request comes from; other programs need not. So a foreign `Origin` is refused,
and a missing one is not: without a browser there is no cookie to steal the use of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mie.review.errors import Refused

MAX_JSON: Final = 256 * 1024
MAX_UPLOAD: Final = 8 * 2**20
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; font-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), interest-cohort=()",
}


class Guard:
    """Plain ASGI: no body is held in memory twice, and streaming stays streaming."""

    def __init__(self, app: ASGIApp, *, origins: Iterable[str], https: bool) -> None:
        self.app = app
        self.origins = frozenset(map(_usual, origins))  # "http://127.0.0.1:8000"
        self.hosts = frozenset(origin.split("://")[1] for origin in self.origins)
        self._extra = dict(_HEADERS)
        if https:
            self._extra["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no websockets here
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        begun = False

        async def guarded_send(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], *self._missing(message["headers"])]
            await send(message)

        try:
            self._check(scope["method"], headers)
            limit = MAX_UPLOAD if scope["method"] == "PUT" else MAX_JSON
            length = headers.get(b"content-length", "0")
            if not length.isdecimal() or int(length) > limit:
                raise _too_large(limit)
            await self.app(scope, _limited(receive, limit), guarded_send)
        except Refused as refused:
            if not begun:
                await _refuse(refused, guarded_send)

    def _check(self, method: str, headers: dict[bytes, str]) -> None:
        # A page elsewhere can point its own name at this machine; the Host it sends is still its own.
        host = headers.get(b"host", "").lower()
        if host not in self.hosts:
            raise Refused(403, "host", "this server does not answer to that name")
        if method in _SAFE:
            return
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site", "same-origin")
        if (origin is not None and _usual(origin) not in self.origins) or site not in ("same-origin", "none"):
            raise Refused(403, "origin", "requests from other pages are refused")

    def _missing(self, there: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name.decode("latin-1").lower() for name, _ in there}
        extra = [(name, value) for name, value in self._extra.items() if name not in names]
        if "cache-control" not in names:
            extra.append(("cache-control", "no-store"))
        return [(name.encode(), value.encode()) for name, value in extra]


def _usual(origin: str) -> str:
    """As browsers write it: without the port that its scheme has anyway."""
    origin = origin.lower().rstrip("/")
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


def _limited(receive: Receive, limit: int) -> Receive:
    """`receive`, but a body that is longer than it said is cut off by an error."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            # Raised inside the application, which lets only its own kind of error through.
            raise HTTPException(413, _too_large(limit).message)
        return message

    return limited


def _too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"at most {limit:,} bytes may be sent here")


async def _refuse(refused: Refused, send: Send) -> None:
    body = json.dumps(refused.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refused.headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
