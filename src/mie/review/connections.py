"""Connections that cannot be held for nothing: a request must arrive in time, and room is made for new ones.

uvicorn itself waits for the rest of a request for as long as the client likes, so a thousand half-sent
requests take every file descriptor of the process and nobody else gets in.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS: Final = 15.0  # from the connection, or the first byte of the next request, to the last header
BODY_SECONDS: Final = 180.0  # for the whole body: a repaired mask over a slow line
KEEP_ALIVE_SECONDS: Final = 5
# Files and databases need descriptors too.
MAX_CONNECTIONS: Final = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for each request's headers and body, and a limit on connections.

    Where there are too many connections, the one that has kept the server waiting for the longest time is
    closed. A request that is being answered is never cut off.
    """

    _timer: asyncio.TimerHandle | None = None
    _phase: object = None  # h11's state while the rest of a request is missing, else None
    _since: float = 0.0  # when the server began to wait for the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [c for c in self.connections if isinstance(c, TimedProtocol) and c._can_give_way]
            min(waiting, key=lambda connection: connection._since).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()

    @property
    def _can_give_way(self) -> bool:
        """Whether nothing is being answered: the request is incomplete, or there is none."""
        answering = self._phase is None and self.cycle is not None and not self.cycle.response_complete
        return not answering and not self.transport.is_closing()

    def _watch(self) -> None:
        """Start the clock of a new phase. More bytes of the same phase do not gain time."""
        phase = self.conn.their_state
        if phase not in (h11.IDLE, h11.SEND_BODY):
            self._stop()
        elif phase is not self._phase:
            self._stop()
            self._phase, self._since = phase, self.loop.time()
            seconds = HEADER_SECONDS if phase is h11.IDLE else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self) -> None:
        self._phase = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
