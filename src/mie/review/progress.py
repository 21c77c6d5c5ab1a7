"""How far one person has come: cheap enough to go out with every answer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, func, select

from mie.review.database import Database
from mie.review.tables import answers, assignments, items

_RECENT: Final = 50  # answers that the speed is taken from
_FRESH: Final = 5.0  # seconds for which a count of open items is good enough


class Progress:
    """Counts what is left rarely, because it looks at every open item; the person's own acts at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted: dict[tuple[int, int], tuple[float, int, int, float | None]] = {}

    def of(self, task_id: int, user_id: int) -> dict[str, Any]:
        with self._database.read() as connection:
            mine = (answers.c.user_id == user_id, answers.c.task_id == task_id)
            done = int(connection.scalar(select(func.count()).where(*mine)) or 0)
            when, then, left, speed = self._counted.get((task_id, user_id), (-_FRESH, 0, 0, None))
            if time.monotonic() - when >= _FRESH or speed is None:
                left, then, speed = (
                    count_remaining(connection, task_id, user_id),
                    done,
                    _speed(connection, mine),
                )
                self._counted[task_id, user_id] = time.monotonic(), then, left, speed
        remaining = max(0, left - (done - then))
        return {
            "done": done,
            "remaining": remaining,
            "total": done + remaining,
            "seconds_per_item": None if speed is None else round(speed, 2),
            "seconds_left": None if speed is None else round(speed * remaining),
        }


def _speed(connection: Connection, mine: Sequence[ColumnElement[bool]]) -> float | None:
    """Seconds per answer, lately. The median: one lunch break says nothing about speed."""
    recent = connection.scalars(
        select(answers.c.seconds).where(*mine).order_by(answers.c.event_id.desc()).limit(_RECENT)
    )
    known = [seconds for seconds in recent if seconds is not None]
    return statistics.median(known) if known else None


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
