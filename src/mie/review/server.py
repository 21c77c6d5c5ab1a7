"""The review server: the ASGI application, the checks that every request passes, and starting it.

Browsers name the site that a request comes from; other programs need not. So a foreign `Origin` is rejected
and a missing one is not: without a browser there is no cookie that another site could use.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import mie
from mie.core.registry import unknown_name
from mie.errors import ConfigError, MieError
from mie.review.api import ApiError
from mie.review.auth import (
    ROLES,
    HashingSlots,
    LoginLimiter,
    SessionCache,
    create_invite,
    create_local_invite,
    has_accounts,
)
from mie.review.connections import KEEP_ALIVE_SECONDS, TimedProtocol
from mie.review.database import DatabaseFailureError
from mie.review.routes import admin_router, consensus_router, session_router, work_router
from mie.review.service import ReviewService

STATIC: Final = Path(__file__).parent / "static"
DEFAULT_PORT: Final = 8000
MAX_JSON: Final = 256 * 1024
MAX_UPLOAD: Final = 64 * 2**20  # a mask of the largest image that is read, as browsers compress it

_ADDRESS: Final = "address"  # in the table `meta`: where the server was started last
_CODES: Final = {400: "invalid", 404: "unknown", 405: "unknown", 413: "too_large", 415: "invalid"}
_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
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


# ---- The application ----


def create_app(service: ReviewService, *, url: str, origins: Iterable[str] = ()) -> FastAPI:
    """Return the ASGI application. It accepts only the hosts of `url` and `origins`; links use `url`."""
    app = FastAPI(
        title="mie review",
        version=mie.__version__,
        openapi_url=None,  # the description needs a login: see `routes`
        docs_url=None,  # its page loads scripts from other sites
        redoc_url=None,
    )
    app.state.service = service
    app.state.sessions = SessionCache(service.database)
    app.state.limiter = LoginLimiter()
    app.state.hashing = HashingSlots()
    app.state.url = url
    app.state.secure = url.startswith("https:")
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(DatabaseFailureError, _on_database_failure)
    for router in (session_router, work_router, consensus_router, admin_router):
        app.include_router(router)
    app.mount("/static", _Static(directory=STATIC), name="static")
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_middleware(SecurityMiddleware, origins={url, *origins}, https=app.state.secure)
    return app


class _Static(StaticFiles):
    """Revalidated on every request (304 while unchanged), so that an upgrade takes effect at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101
    return JSONResponse(error.body(), error.status, headers=error.headers)


def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    code = _CODES.get(error.status_code, "invalid")
    body = ApiError(error.status_code, code, str(error.detail)).body()
    return JSONResponse(body, error.status_code, headers=error.headers)


def _on_database_failure(_request: Request, error: Exception) -> Response:
    """Answer that nothing was saved, and that the same request may be sent again."""
    assert isinstance(error, DatabaseFailureError)  # noqa: S101
    logging.getLogger("uvicorn.error").error("%s", error.reason)
    text = "the review database cannot be used now; nothing was saved, try again later"
    return JSONResponse(ApiError(503, "unavailable", text).body(), 503)


def _on_invalid_request(_request: Request, error: Exception) -> Response:
    """Report the first problem, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    first: dict[str, Any] = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    text = f"{where}: {first['msg']}".encode(errors="replace").decode()
    return JSONResponse(ApiError(422, "invalid", text[:500]).body(), 422)


class SecurityMiddleware:
    """Checks Host, Origin and size of every request and adds security headers to every response.

    Plain ASGI, so that no body is held in memory twice and streaming responses stay streaming.
    """

    def __init__(self, app: ASGIApp, *, origins: Iterable[str], https: bool) -> None:
        self.app = app
        self.origins = frozenset(map(_normal_origin, origins))  # "http://127.0.0.1:8000"
        self.hosts = frozenset(origin.split("://")[1] for origin in self.origins)
        self._headers = dict(_HEADERS)
        if https:
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no websockets
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *self._missing(message["headers"])]
            await send(message)

        try:
            self._check_sender(scope["method"], headers)
            limit = MAX_UPLOAD if scope["method"] == "PUT" else MAX_JSON
            length = headers.get(b"content-length", "0")
            if not length.isdecimal() or int(length) > limit:
                raise _too_large(limit)
            await self.app(scope, _limited(receive, limit), send_with_headers)
        except ApiError as error:
            if not started:
                await _send_error(error, send_with_headers)
        except ClientDisconnect:
            pass  # nobody is left to be told

    def _check_sender(self, method: str, headers: dict[bytes, str]) -> None:
        # Another site can point its own name at this machine, but it cannot change the Host that is sent.
        host = headers.get(b"host", "").lower()
        if host not in self.hosts:
            raise ApiError(403, "host", "the server does not accept requests for this host name")
        if method in _SAFE_METHODS:
            return
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site", "same-origin")
        is_foreign = origin is not None and _normal_origin(origin) not in self.origins
        if is_foreign or site not in ("same-origin", "none"):
            raise ApiError(403, "origin", "requests from other sites are rejected")

    def _missing(self, present: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name.decode("latin-1").lower() for name, _ in present}
        extra = [(name, value) for name, value in self._headers.items() if name not in names]
        if "cache-control" not in names:
            extra.append(("cache-control", "no-store"))
        return [(name.encode(), value.encode()) for name, value in extra]


def _normal_origin(origin: str) -> str:
    """Return the origin as browsers write it, without the default port of its scheme."""
    origin = origin.lower().rstrip("/")
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


def _limited(receive: Receive, limit: int) -> Receive:
    """Return `receive` with an error for a body that is longer than the limit."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            # Raised inside the application, which passes on only its own kind of error.
            raise HTTPException(413, _too_large(limit).message)
        return message

    return limited


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"the request is larger than {limit:,} bytes")


async def _send_error(error: ApiError, send: Send) -> None:
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ---- Starting it ----


def serve(
    service: ReviewService,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    url: str | None = None,
    ready: Callable[[str], None] = lambda _link: None,
    warn: Callable[[str], None] = lambda _text: None,
) -> None:
    """Serve until interrupted: to this machine alone, unless there are accounts.

    `ready` is called with the address; for this machine alone, with a link that logs in once. `warn` is
    called where others could read along.
    """
    private = is_loopback(host)
    if not private or url is not None:  # with a URL there is a proxy in front
        _check_public(service, url)
    listener = listen(host, port)
    port = listener.getsockname()[1]
    local = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    address = (url or local).rstrip("/")
    service.database.set_value(_ADDRESS, address)
    origins = {f"http://{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")} if private else set()
    app = create_app(service, url=address, origins={local, *origins} if private else origins)
    link = address
    if private and url is None:
        with service.database.write() as connection:
            link += f"/#join={create_local_invite(connection)}"
    if risk := plain_http_risk(host, address):
        warn(risk)
    ready(link)
    # Every SQL statement releases the interpreter lock and waits to get it back, by default for up to 5 ms.
    sys.setswitchinterval(0.0005)
    try:
        uvicorn.Server(server_config(app)).run(sockets=[listener])
    finally:
        listener.close()
        service.database.close()


def server_config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )


def plain_http_risk(host: str, address: str) -> str | None:
    """Return what to tell the person who lets other machines reach this server, which has no TLS itself."""
    if not address.startswith("https:") and not is_loopback(urlsplit(address).hostname or ""):
        return (
            f"{address} is plain HTTP: images, links and passwords can be read on the way; put a "
            "proxy with TLS in front and give its address by --url https://..."
        )
    if not is_loopback(host):
        return (
            f"the server listens on {host} in plain HTTP: let only your TLS proxy reach this port, or listen "
            "on 127.0.0.1 if the proxy runs on this machine"
        )
    return None


def invite_link(
    service: ReviewService,
    name: str,
    role: str,
    *,
    url: str | None = None,
    port: int | None = None,
    days: float = 7,
) -> str:
    """Return a link that logs a person in once.

    It starts with `url`, else with this machine and `port`, else with the address at which the server of this
    review was started last.
    """
    if role not in ROLES:
        raise unknown_name("role", role, ROLES)
    local = None if not port else f"http://127.0.0.1:{port}"
    default = f"http://127.0.0.1:{DEFAULT_PORT}"
    base = url or local or service.database.value(_ADDRESS) or default
    with service.database.write() as connection:
        token = create_invite(connection, name=name, role=role, days=days)[1]
    return f"{base.rstrip('/')}/#join={token}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_public(service: ReviewService, url: str | None) -> None:
    with service.database.read() as connection:
        known = has_accounts(connection)
    if not known:
        raise ConfigError(
            "a review that other machines can reach needs accounts",
            expected="at least one invited person",
            found="none",
            fix="run `mie review ... --invite NAME --role admin --url URL`, then this command again",
        )
    parts = urlsplit(url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(
            "the public address of the review is unknown",
            expected="--url https://review.example.org",
            found=url,
            fix="give the address that people type; requests for other host names are rejected",
        )


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # The protocol is named, because asyncio turns off Nagle's delay only if it sees that this is TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise MieError(
            "the server cannot listen at this address",
            where=f"{host}:{port}",
            found=error.strerror or error,
            fix="choose another --port, or 0 for any free port",
        ) from None
    listener.set_inheritable(True)
    return listener
