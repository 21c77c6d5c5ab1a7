"""Connections that do not look at each other.

The usual pool asks each of its sockets, for each request, whether it is still alive: with 16 connections that
is most of what a call costs. Here each connection is a pool of one, and a request takes any that is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """As many connections as calls at a time; the one that was used last is used first, so it is alive."""

    def __init__(self) -> None:
        self._context = httpx.create_ssl_context()  # reads all certificates: once, not for each connection
        self._free: list[httpx.AsyncHTTPTransport] = []
        self._all: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._free.pop() if self._free else self._new()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._free.append(lane)
            raise
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 (of an async transport)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Stream(stream, lane, self._free),
            extensions=response.extensions,
        )

    def _new(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        lane = httpx.AsyncHTTPTransport(verify=self._context, limits=limits)
        self._all.append(lane)
        return lane

    async def aclose(self) -> None:
        for lane in self._all:
            await lane.aclose()


class _Stream(httpx.AsyncByteStream):
    """Gives its lane back once it is read or given up."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream,
        lane: httpx.AsyncHTTPTransport,
        free: list[httpx.AsyncHTTPTransport],
    ) -> None:
        self._stream, self._lane, self._free = stream, lane, free
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
        if self._open:
            self._open = False
            self._free.append(self._lane)
