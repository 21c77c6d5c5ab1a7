"""The log of answers, and what follows from it.

Nothing is overwritten: an undo is one more event. `answers` and `consensus` hold the current state. They are
written in the same transaction as the event, and `rebuild` derives them again from the events alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from mie.core.hashing import canonical
from mie.review.api import ApiError, comparable, verdict
from mie.review.assignments import find_assignment, update_assignment
from mie.review.database import answers, assignments, consensus, events, iso, items, tasks, users

ConsensusFilter: TypeAlias = Literal["disagreement", "answered", "settled", "all"]
_UNDO: Final = {"answer": "undo", "consensus": "consensus undo"}


@dataclass(frozen=True, slots=True)
class Action:
    """Something a person does to an item; `key` is the client's own name for it."""

    user_id: int
    item_id: int
    action: str
    key: str
    payload: Mapping[str, Any]
    seconds: float | None = None


def record(connection: Connection, action: Action, version: str | None, now: float) -> tuple[int, bool]:
    """Append the action, update the current state, and return (event id, whether it is new).

    The same action under the same key is one event, however often it is sent. `version` is the item's version
    as the person saw it; None for an undo.
    """
    item = connection.execute(select(items).where(items.c.id == action.item_id)).one_or_none()
    if item is None:
        raise ApiError(404, "unknown", "there is no such item")
    is_rating = action.action in ("answer", "undo")
    assignment = find_assignment(connection, action.item_id, action.user_id, lock=True) if is_rating else None
    if is_rating and assignment is None:
        raise ApiError(404, "unknown", "this item is not assigned to you")
    if not is_rating:  # adjudicators of one item write one after the other
        connection.execute(select(items.c.id).where(items.c.id == action.item_id).with_for_update())
    earlier = _sent_before(connection, action)
    if earlier is not None:
        return earlier, False
    if version is not None and version != item.version:
        raise ApiError(409, "conflict", "the item has changed; reload the page")
    history = _history(connection, action)
    before = current(history)
    if action.action.endswith("undo") and before is None:
        raise ApiError(409, "conflict", "there is no answer to undo")
    event = connection.execute(
        insert(events).returning(events),
        {
            "at": now,
            "user_id": action.user_id,
            "item_id": action.item_id,
            "item_version": item.version,
            "action": action.action,
            "payload": dict(action.payload),
            "seconds": action.seconds,
            "key": action.key,
        },
    ).one()
    after = current([*history, event])
    if is_rating:
        _store_answer(connection, item.task_id, action.item_id, action.user_id, after)
        assert assignment is not None  # noqa: S101
        change = (after is not None) - (before is not None)
        update_assignment(connection, action.item_id, assignment, change, now)
    else:
        _store_consensus(connection, action.item_id, after)
    return int(event.id), True


def _sent_before(connection: Connection, action: Action) -> int | None:
    same_key = (events.c.user_id == action.user_id, events.c.key == action.key)
    row = connection.execute(select(events).where(*same_key)).one_or_none()
    if row is None:
        return None
    same = (row.item_id, row.action) == (action.item_id, action.action) and row.payload == dict(
        action.payload
    )
    if not same:
        raise ApiError(409, "conflict", "this key was used for another answer")
    return int(row.id)


def _history(connection: Connection, action: Action) -> list[Row[Any]]:
    """Return the earlier events on the same answer: the rater's own, or those of all adjudicators."""
    first = "consensus" if action.action.startswith("consensus") else "answer"
    query = select(events).where(
        events.c.item_id == action.item_id, events.c.action.in_((first, _UNDO[first]))
    )
    if first == "answer":
        query = query.where(events.c.user_id == action.user_id)
    return list(connection.execute(query.order_by(events.c.id)))


def current(history: Iterable[Row[Any]]) -> Row[Any] | None:
    """Return the answer in force after these events of one rater (or of all adjudicators) on one item."""
    stack: list[Row[Any]] = []
    for row in history:
        if row.action.endswith("undo"):
            if stack:
                stack.pop()
        else:
            stack.append(row)
    return stack[-1] if stack else None


def _store_answer(
    connection: Connection, task_id: int, item_id: int, user_id: int, event: Row[Any] | None
) -> None:
    connection.execute(delete(answers).where(answers.c.item_id == item_id, answers.c.user_id == user_id))
    if event is None:
        return
    text = canonical(comparable(event.payload))
    row = {
        "item_id": item_id,
        "user_id": user_id,
        "task_id": task_id,
        "event_id": event.id,
        "at": event.at,
        "seconds": event.seconds,
        "verdict": verdict(event.payload),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
        "payload": event.payload,
    }
    connection.execute(insert(answers), row)


def _store_consensus(connection: Connection, item_id: int, event: Row[Any] | None) -> None:
    connection.execute(delete(consensus).where(consensus.c.item_id == item_id))
    if event is not None:
        row = {"item_id": item_id, "user_id": event.user_id, "event_id": event.id, "at": event.at}
        connection.execute(insert(consensus), {**row, "payload": event.payload})


def rebuild(connection: Connection) -> None:
    """Derive `answers`, `consensus` and the counts of `items` from events and assignments alone."""
    connection.execute(delete(answers))
    connection.execute(delete(consensus))
    task_ids = {row.id: row.task_id for row in connection.execute(select(items.c.id, items.c.task_id))}
    by_rater: dict[tuple[int, int], list[Row[Any]]] = {}
    by_item: dict[int, list[Row[Any]]] = {}
    for row in connection.execute(select(events).order_by(events.c.id)):
        if row.action in ("answer", "undo"):
            by_rater.setdefault((row.item_id, row.user_id), []).append(row)
        else:
            by_item.setdefault(row.item_id, []).append(row)
    for (item_id, user_id), history in by_rater.items():
        _store_answer(connection, task_ids[item_id], item_id, user_id, current(history))
    for item_id, history in by_item.items():
        _store_consensus(connection, item_id, current(history))
    answered = select(func.count()).where(answers.c.item_id == items.c.id).scalar_subquery()
    taken = (
        select(func.count())
        .where(assignments.c.item_id == items.c.id, assignments.c.state != "lapsed")
        .scalar_subquery()
    )
    connection.execute(update(items).values(answered=answered, open=items.c.wanted - taken))


def items_to_settle(
    connection: Connection, task_id: int, only: ConsensusFilter, after: int, limit: int
) -> dict[str, Any]:
    """List items by position, starting at position `after`, with whether their raters agree."""
    raters = func.count(answers.c.user_id).label("raters")
    verdicts = func.count(answers.c.digest.distinct()).label("verdicts")
    settled = func.max(consensus.c.event_id).label("settled")
    query = (
        select(items.c.id, items.c.position, raters, verdicts, settled)
        .outerjoin(answers, answers.c.item_id == items.c.id)
        .outerjoin(consensus, consensus.c.item_id == items.c.id)
        .where(items.c.task_id == task_id, items.c.position >= after)
        .group_by(items.c.id, items.c.position)
        .order_by(items.c.position)
        .limit(limit)
    )
    if only == "disagreement":
        query = query.where(items.c.answered > 1).having(verdicts > 1)
    elif only == "answered":
        query = query.where(items.c.answered > 0)
    elif only == "settled":
        query = query.where(consensus.c.event_id.is_not(None))
    rows = connection.execute(query).all()
    return {
        "items": [
            {
                "item": row.id,
                "position": row.position,
                "raters": row.raters,
                "agree": row.verdicts == 1 if row.raters > 1 else None,
                "settled": row.settled is not None,
            }
            for row in rows
        ],
        "after": rows[-1].position + 1 if len(rows) == limit else None,
    }


def answers_to(connection: Connection, item_id: int) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return every rater's stored answer to an item, by pseudonym, and the consensus if there is one."""
    columns = (users.c.pseudonym, answers.c.at, answers.c.payload)
    ratings = connection.execute(
        select(*columns)
        .join(users, users.c.id == answers.c.user_id)
        .where(answers.c.item_id == item_id)
        .order_by(users.c.id)
    )
    given = [{"rater": row.pseudonym, "at": iso(row.at), "answer": row.payload} for row in ratings]
    row = connection.execute(
        select(users.c.pseudonym, consensus.c.at, consensus.c.payload)
        .join(users, users.c.id == consensus.c.user_id)
        .where(consensus.c.item_id == item_id)
    ).one_or_none()
    return given, row and {"by": row.pseudonym, "at": iso(row.at), "answer": row.payload}


def final_answers(connection: Connection, kind: str) -> dict[tuple[int, str], list[Mapping[str, Any]]]:
    """Return (item, sample) -> every rater's current answer, or the consensus alone if there is one."""
    final: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for table in (answers, consensus):
        rows = connection.execute(
            select(items.c.id, items.c.sample_id, table.c.payload)
            .join(tasks, tasks.c.id == items.c.task_id)
            .join(table, table.c.item_id == items.c.id)
            .where(tasks.c.kind == kind)
            .order_by(table.c.event_id)
        )
        if table is answers:
            for row in rows:
                final.setdefault((row.id, row.sample_id), []).append(row.payload)
        else:
            final |= {(row.id, row.sample_id): [row.payload] for row in rows}
    return final


def items_of(connection: Connection, kind: str) -> list[tuple[int, str, int]]:
    """Return (item, sample, raters wanted) of a kind of work, answered or not."""
    rows = connection.execute(
        select(items.c.id, items.c.sample_id, items.c.wanted)
        .join(tasks, tasks.c.id == items.c.task_id)
        .where(tasks.c.kind == kind)
        .order_by(items.c.id)
    )
    return [(row.id, row.sample_id, row.wanted) for row in rows]


def settled_items(connection: Connection, kind: str) -> set[int]:
    """Return the items of a kind of work that an adjudicator has decided."""
    rows = connection.scalars(
        select(items.c.id)
        .join(tasks, tasks.c.id == items.c.task_id)
        .join(consensus, consensus.c.item_id == items.c.id)
        .where(tasks.c.kind == kind)
    )
    return set(rows)
