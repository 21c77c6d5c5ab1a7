"""Connections to one endpoint, for many small requests at a time."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import httpcore
import httpx

from mie.privacy.endpoints import proxy_of

_EXPIRY: Final = 5.0  # seconds without use after which a connection is not used again, httpx's own default
_ALIVE: Final = 0.5  # seconds since its last use for which a connection is not asked whether it is alive
_ERRORS: Final = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
    httpcore.ConnectionNotAvailable,
)


def open_transport(url: str) -> httpx.AsyncBaseTransport:
    """What sends requests to this URL: by the proxy that the environment names, else straight.

    No redirect is followed, and there is no limit of time: whoever calls has one for the whole call.
    """
    proxy = proxy_of(url)
    return SeparateConnections() if proxy is None else httpx.AsyncHTTPTransport(proxy=proxy)


class SeparateConnections(httpx.AsyncBaseTransport):
    """Connections of which a request takes any that is free, the last used first.

    httpx's own pool asks each of its sockets, for each request, whether it is still alive, and its client
    adds cookies, authentication and redirects: together more than half of what a short call costs. Here only
    a connection that rested is asked. A server that closes one in that time makes the call fail, and the
    executor makes it again.
    """

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None  # reads all certificates: once, not for each connection
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        connection = await self._take(target.origin)
        sent = httpcore.Request(
            request.method, target, headers=request.headers.raw, content=await request.aread()
        )
        try:
            with _httpx_errors():
                response = await connection.http.handle_async_request(sent)
        except BaseException:
            await self._drop(connection)
            raise
        stream = _Stream(self, connection, response)
        return httpx.Response(
            response.status, headers=response.headers, stream=stream, extensions=response.extensions
        )

    async def aclose(self) -> None:
        for connection in list(self._all):
            await self._drop(connection)
        self._free.clear()

    async def _take(self, origin: httpcore.Origin) -> _Connection:
        while self._free:
            connection = self._free.pop()
            rested = time.monotonic() - connection.used > _ALIVE
            if not connection.http.is_closed() and not (rested and connection.http.has_expired()):
                return connection
            await self._drop(connection)
        if origin.scheme == b"https" and self._context is None:
            self._context = httpx.create_ssl_context()
        connection = _Connection(origin, self._context)
        self._all.add(connection)
        return connection

    async def _drop(self, connection: _Connection) -> None:
        self._all.discard(connection)
        await connection.http.aclose()

    def give_back(self, connection: _Connection) -> None:
        connection.used = time.monotonic()
        self._free.append(connection)


class _Connection:
    def __init__(self, origin: httpcore.Origin, context: ssl.SSLContext | None) -> None:
        self.http = httpcore.AsyncHTTPConnection(origin, context, keepalive_expiry=_EXPIRY)
        self.used = 0.0


class _Stream(httpx.AsyncByteStream):
    """The body of a response. Returns its connection once it is closed."""

    def __init__(
        self, pool: SeparateConnections, connection: _Connection, response: httpcore.Response
    ) -> None:
        self._pool, self._connection, self._response = pool, connection, response
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors():
            async for piece in self._response.aiter_stream():
                yield piece

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            try:
                await self._response.aclose()
            finally:
                self._pool.give_back(self._connection)


@contextmanager
def _httpx_errors() -> Iterator[None]:
    """The errors of httpcore, on which httpx stands, by httpx's names, which are the same."""
    try:
        yield
    except _ERRORS as error:
        raise getattr(httpx, type(error).__name__, httpx.TransportError)(str(error)) from error
