"""Failed logins are counted, and too many of them cost time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Final

from mie.review.refusals import Refused

# Fewer for a name than for an address: behind a proxy everybody has the same one.
FAILURES: Final = {"name": 10, "address": 50}
WINDOW: Final = 300.0  # seconds
_REMEMBERED: Final = 10_000  # names and addresses; a flood of new ones pushes out the oldest


class Limiter:
    """Counts failures by "name Ada" and "address 10.0.0.7", in memory: a restart forgives."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, *keys: str) -> None:
        now = time.monotonic()
        with self._lock:
            for key in keys:
                recent = [at for at in self._failures.get(key, ()) if now - at < WINDOW]
                most = FAILURES[key.split()[0]]
                if len(recent) >= most:
                    wait = str(int(WINDOW - (now - recent[-most])) + 1)
                    raise Refused(
                        429, "slow_down", f"too many attempts; wait {wait} s", {"Retry-After": wait}
                    )

    def fail(self, *keys: str) -> None:
        now = time.monotonic()
        with self._lock:
            for key in keys:
                recent = [at for at in self._failures.pop(key, ()) if now - at < WINDOW]
                self._failures[key] = [*recent, now][-max(FAILURES.values()) :]
            while len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
