"""Who does which item, by short leases: raters never wait for each other, and nobody sees an item twice."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Row, and_, func, insert, select, update

from mie.core.hashing import stable_hash
from mie.review.database import assignments, items

LEASE_SECONDS: Final = 900.0  # a rater who is away longer keeps the item only if nobody else takes it
_EXPIRED_PER_CALL: Final = 64  # leases that one call ends, so that calls stay short


def display_seed(task_seed: int, user_id: int, item_id: int) -> int:
    """Return 31 bits that decide the order in which one rater sees the choices of one item."""
    return stable_hash("display", task_seed, user_id, item_id) >> 33


def next_items(
    connection: Connection, task_id: int, task_seed: int, user_id: int, count: int, now: float
) -> list[int]:
    """Lease up to `count` items to the rater, the ones already leased to them first; return their ids."""
    _end_expired_leases(connection, now)
    numbers = _renew_leases(connection, task_id, user_id, count, now)
    if len(numbers) < count:
        numbers += _lease_new_items(connection, task_id, task_seed, user_id, count - len(numbers), now)
    return numbers


def _end_expired_leases(connection: Connection, now: float) -> None:
    expired = connection.execute(
        select(assignments.c.id, assignments.c.item_id)
        .where(assignments.c.state == "leased", assignments.c.until < now)
        .limit(_EXPIRED_PER_CALL)
        .with_for_update(skip_locked=True)
    ).all()
    for assignment_id, item_id in expired:
        connection.execute(
            update(assignments).where(assignments.c.id == assignment_id).values(state="lapsed")
        )
        connection.execute(update(items).where(items.c.id == item_id).values(open=items.c.open + 1))


def _renew_leases(connection: Connection, task_id: int, user_id: int, count: int, now: float) -> list[int]:
    mine = and_(assignments.c.user_id == user_id, assignments.c.task_id == task_id)
    leased = list(
        connection.scalars(
            select(assignments.c.item_id)
            .where(mine, assignments.c.state == "leased")
            .order_by(assignments.c.position)
            .limit(count)
        )
    )
    # Leases that lapsed while nobody else took the item.
    lapsed = connection.scalars(
        select(items.c.id)
        .join(assignments, assignments.c.item_id == items.c.id)
        .where(mine, assignments.c.state == "lapsed", items.c.open > 0)
        .order_by(items.c.position)
        .limit(count - len(leased))
        .with_for_update(skip_locked=True, of=items)
    ).all()
    if lapsed:
        connection.execute(update(items).where(items.c.id.in_(lapsed)).values(open=items.c.open - 1))
    numbers = [*leased, *lapsed]
    if numbers:
        connection.execute(
            update(assignments)
            .where(assignments.c.user_id == user_id, assignments.c.item_id.in_(numbers))
            .values(state="leased", until=now + LEASE_SECONDS)
        )
    return numbers


def _lease_new_items(
    connection: Connection, task_id: int, task_seed: int, user_id: int, count: int, now: float
) -> list[int]:
    mine = select(assignments.c.id).where(
        assignments.c.item_id == items.c.id, assignments.c.user_id == user_id
    )
    free = (
        select(items.c.id, items.c.position)
        .where(items.c.task_id == task_id, items.c.open > 0, ~mine.exists())
        .order_by(items.c.position)
        .with_for_update(skip_locked=True)
    )
    # Start after the rater's last item, so that the query does not walk past everything they have done.
    last = connection.scalar(
        select(func.max(assignments.c.position)).where(
            assignments.c.user_id == user_id, assignments.c.task_id == task_id
        )
    )
    rows = list(
        connection.execute(free.where(items.c.position > (-1 if last is None else last)).limit(count))
    )
    if last is not None and len(rows) < count:
        rows += connection.execute(free.where(items.c.position < last).limit(count - len(rows))).all()
    if not rows:
        return []
    numbers = [row.id for row in rows]
    connection.execute(update(items).where(items.c.id.in_(numbers)).values(open=items.c.open - 1))
    leases = [
        {
            "task_id": task_id,
            "item_id": row.id,
            "user_id": user_id,
            "position": row.position,
            "state": "leased",
            "until": now + LEASE_SECONDS,
            "seed": display_seed(task_seed, user_id, row.id),
        }
        for row in rows
    ]
    connection.execute(insert(assignments), leases)
    return numbers


def find_assignment(
    connection: Connection, item_id: int, user_id: int, *, lock: bool = False
) -> Row[Any] | None:
    """Return the rater's assignment to the item; None if it was never theirs."""
    query = select(assignments).where(assignments.c.item_id == item_id, assignments.c.user_id == user_id)
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def update_assignment(
    connection: Connection, item_id: int, assignment: Row[Any], change: int, now: float
) -> None:
    """Count that the rater gained an answer (`change` 1), lost it (-1), or replaced it (0)."""
    values = {items.c.answered: items.c.answered + change}
    if assignment.state == "lapsed":  # another rater may have taken the place; then there is one rater more
        values[items.c.open] = items.c.open - 1
    connection.execute(update(items).where(items.c.id == item_id).values(values))
    state = {"state": "leased", "until": now + LEASE_SECONDS} if change < 0 else {"state": "done"}
    connection.execute(update(assignments).where(assignments.c.id == assignment.id).values(state))
