"""How many calls at a time, and how long to wait after trouble."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Final

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_LONGEST_RETRY_AFTER: Final = 600.0


class Pace:
    """An adaptive limit: one more call at a time after a round of good ones, half as many after trouble.

    `Retry-After` holds everybody back, not only the call that was told so. For one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self.running = 0
        self._resume = 0.0  # the loop's time before which nobody starts
        self._cut = 0.0  # when the limit was last halved
        self._queue: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> float:
        """Wait for a place; returns the time of the start, which `leave` wants back."""
        loop = asyncio.get_running_loop()
        while True:
            while self.running >= int(self.limit):
                turn = loop.create_future()
                self._queue.append(turn)
                await turn
            pause = self._resume - loop.time()
            if pause <= 0:
                self.running += 1
                return loop.time()
            await asyncio.sleep(pause)

    def leave(self, started: float, *, trouble: bool, retry_after: float | None = None) -> None:
        now = asyncio.get_running_loop().time()
        self.running -= 1
        if not trouble:
            self.limit = min(self.most, self.limit + 1 / self.limit)
        elif started >= self._cut:  # else it began under the old limit and says nothing about the new
            self.limit = max(1.0, self.limit / 2)
            self._cut = now
        if retry_after:
            self._resume = max(self._resume, now + min(retry_after, _LONGEST_RETRY_AFTER))
        places = int(self.limit) - self.running
        while self._queue and places > 0:
            turn = self._queue.popleft()
            if not turn.done():  # cancelled while it waited
                turn.set_result(None)
                places -= 1


def pause_before(retry: int, draw: random.Random) -> float:
    """Seconds before the retry of that number (0, 1, ...): exponential, with jitter over its upper half."""
    full = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**retry)
    return full * (0.5 + draw.random() / 2)
