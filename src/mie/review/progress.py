"""How far one person has come: cheap enough to go out with every answer."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any, Final

from sqlalchemy import Connection, func, select

from mie.review.database import Database
from mie.review.tables import answers, assignments, items

_RECENT: Final = 50  # answers that the speed is taken from
_FRESH: Final = 5.0  # seconds for which a count of open items is good enough


class Progress:
    """Counts what is left rarely, because it looks at every open item; the person's own acts at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._counted: dict[tuple[int, int], tuple[float, int, int]] = {}  # (when, done, remaining)

    def of(self, task_id: int, user_id: int) -> dict[str, Any]:
        with self._database.read() as connection:
            mine = (answers.c.user_id == user_id, answers.c.task_id == task_id)
            done = int(connection.scalar(select(func.count()).where(*mine)) or 0)
            remaining = self._remaining(connection, task_id, user_id, done)
            recent = connection.scalars(
                select(answers.c.seconds).where(*mine).order_by(answers.c.event_id.desc()).limit(_RECENT)
            ).all()
        # The median: one lunch break says nothing about speed.
        speed = statistics.median(s for s in recent if s is not None) if any(recent) else None
        return {
            "done": done,
            "remaining": remaining,
            "total": done + remaining,
            "seconds_per_item": None if speed is None else round(speed, 2),
            "seconds_left": None if speed is None else round(speed * remaining),
        }

    def _remaining(self, connection: Connection, task_id: int, user_id: int, done: int) -> int:
        now = time.monotonic()
        with self._lock:
            when, then, left = self._counted.get((task_id, user_id), (-_FRESH, 0, 0))
        if now - when < _FRESH:
            return max(0, left - (done - then))
        left = count_remaining(connection, task_id, user_id)
        with self._lock:
            self._counted[task_id, user_id] = now, done, left
        return left


def count_remaining(connection: Connection, task_id: int, user_id: int) -> int:
    """What this person holds unanswered, and what is open and new to them."""
    mine = assignments.c.user_id == user_id, assignments.c.task_id == task_id
    held = select(func.count()).where(*mine, assignments.c.state == "leased")
    free = select(func.count()).select_from(items).where(items.c.task_id == task_id, items.c.open > 0)
    seen = (
        select(func.count())
        .select_from(assignments)
        .join(items, items.c.id == assignments.c.item_id)
        .where(*mine, assignments.c.state != "lapsed", items.c.open > 0)
    )
    counts = [int(connection.scalar(query) or 0) for query in (held, free, seen)]
    return counts[0] + counts[1] - counts[2]
