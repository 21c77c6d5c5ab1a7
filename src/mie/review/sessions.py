"""Sessions that were looked up a moment ago: a request need not ask the database who it is from."""

from __future__ import annotations

import time
from typing import Final

from starlette.concurrency import run_in_threadpool

from mie.review.accounts import Session, hashed, session_of
from mie.review.database import Database

_FRESH: Final = 10.0  # seconds; other processes that close an account are heard of by then
_MOST: Final = 10_000


class Sessions:
    """Used on the event loop alone, except for `forget`, which replaces everything at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[float, Session]] = {}

    async def of(self, cookie: str) -> Session | None:
        digest, known, now = hashed(cookie), self._known, time.monotonic()
        if digest in known and known[digest][0] > now:
            return known[digest][1]
        session = await run_in_threadpool(self._look_up, cookie)
        if session is not None:
            if len(known) >= _MOST:
                known.clear()
            # Into the dictionary from before the look-up: what `forget` threw away stays away.
            known[digest] = now + _FRESH, session
        return session

    def _look_up(self, cookie: str) -> Session | None:
        with self._database.read() as connection:
            return session_of(connection, cookie)

    def forget(self) -> None:
        """After a session ended or somebody's rights changed."""
        self._known = {}
