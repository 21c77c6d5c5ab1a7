"""What people said, in the order they said it. Nothing is overwritten: an undo is one more event.

`answers` and `consensus` hold what stands now. They are written in the same transaction as the event, and
`rebuild` makes them again from the events alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from mie.core.hashing import canonical
from mie.review.assignments import assignment_of, settle
from mie.review.database import answers, assignments, consensus, events, iso, items, users
from mie.review.errors import Refused
from mie.review.kinds import comparable, verdict
from mie.review.views import shown

_UNDO: Final = {"answer": "undo", "consensus": "consensus undo"}


@dataclass(frozen=True, slots=True)
class Act:
    """Something a person does to an item; `key` is the client's own name for it."""

    user_id: int
    item_id: int
    action: str
    key: str
    payload: Mapping[str, Any]
    seconds: float | None = None


def record(connection: Connection, act: Act, version: str | None, now: float) -> tuple[int, bool]:
    """Append the act and bring what stands up to date; its event's id, and whether it is new.

    The same act under the same key is one event, however often it is sent. `version` is the item's as the
    person saw it; None for an undo.
    """
    item = connection.execute(select(items).where(items.c.id == act.item_id)).one_or_none()
    if item is None:
        raise Refused(404, "unknown", "there is no such item")
    rates = act.action in ("answer", "undo")
    assignment = assignment_of(connection, act.item_id, act.user_id, lock=True) if rates else None
    if rates and assignment is None:
        raise Refused(404, "unknown", "this item was not given to you")
    if not rates:  # two adjudicators on one item: one after the other
        connection.execute(select(items.c.id).where(items.c.id == act.item_id).with_for_update())
    before = _sent_before(connection, act)
    if before is not None:
        return before, False
    if version is not None and version != item.version:
        raise Refused(409, "conflict", "the item is not what you saw; load it again")
    happened = _happened(connection, act)
    had = standing(happened)
    if act.action.endswith("undo") and had is None:
        raise Refused(409, "conflict", "there is nothing to take back")
    event = connection.execute(
        insert(events).returning(events),
        {
            "at": now,
            "user_id": act.user_id,
            "item_id": act.item_id,
            "item_version": item.version,
            "action": act.action,
            "payload": dict(act.payload),
            "seconds": act.seconds,
            "key": act.key,
        },
    ).one()
    has = standing([*happened, event])
    if rates:
        _put_answer(connection, item.task_id, act.item_id, act.user_id, has)
        assert assignment is not None  # noqa: S101
        settle(connection, act.item_id, assignment, (has is not None) - (had is not None), now)
    else:
        _put_consensus(connection, act.item_id, has)
    return int(event.id), True


def _sent_before(connection: Connection, act: Act) -> int | None:
    mine = (events.c.user_id == act.user_id, events.c.key == act.key)
    row = connection.execute(select(events).where(*mine)).one_or_none()
    if row is None:
        return None
    same = (row.item_id, row.action) == (act.item_id, act.action) and row.payload == dict(act.payload)
    if not same:
        raise Refused(409, "conflict", "this key was used for another answer")
    return int(row.id)


def standing(happened: Iterable[Row[Any]]) -> Row[Any] | None:
    """The answer that holds after these events of one rater (or of all adjudicators) on one item."""
    stack: list[Row[Any]] = []
    for row in happened:
        if row.action.endswith("undo"):
            if stack:
                stack.pop()
        else:
            stack.append(row)
    return stack[-1] if stack else None


def _happened(connection: Connection, act: Act) -> list[Row[Any]]:
    """What bears on the same answer as the act: the rater's own events, or all adjudicators'."""
    first = "consensus" if act.action.startswith("consensus") else "answer"
    query = select(events).where(events.c.item_id == act.item_id, events.c.action.in_((first, _UNDO[first])))
    if first == "answer":
        query = query.where(events.c.user_id == act.user_id)
    return list(connection.execute(query.order_by(events.c.id)))


def _put_answer(
    connection: Connection, task_id: int, item_id: int, user_id: int, has: Row[Any] | None
) -> None:
    connection.execute(delete(answers).where(answers.c.item_id == item_id, answers.c.user_id == user_id))
    if has is not None:
        connection.execute(insert(answers), {"task_id": task_id, "user_id": user_id, **_answer(has)})


def _put_consensus(connection: Connection, item_id: int, has: Row[Any] | None) -> None:
    connection.execute(delete(consensus).where(consensus.c.item_id == item_id))
    if has is not None:
        row = {"item_id": item_id, "user_id": has.user_id, "event_id": has.id, "at": has.at}
        connection.execute(insert(consensus), {**row, "payload": has.payload})


def _answer(row: Row[Any]) -> dict[str, Any]:
    text = canonical(comparable(row.payload))
    return {
        "item_id": row.item_id,
        "event_id": row.id,
        "at": row.at,
        "seconds": row.seconds,
        "verdict": verdict(row.payload),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
        "payload": row.payload,
    }


def rebuild(connection: Connection) -> None:
    """`answers`, `consensus` and the counts of `items`, from events and assignments alone."""
    connection.execute(delete(answers))
    connection.execute(delete(consensus))
    task_of = {row.id: row.task_id for row in connection.execute(select(items.c.id, items.c.task_id))}
    told: dict[tuple[int, int], list[Row[Any]]] = {}
    agreed: dict[int, list[Row[Any]]] = {}
    for row in connection.execute(select(events).order_by(events.c.id)):
        if row.action in ("answer", "undo"):
            told.setdefault((row.item_id, row.user_id), []).append(row)
        else:
            agreed.setdefault(row.item_id, []).append(row)
    for (item_id, user_id), happened in told.items():
        _put_answer(connection, task_of[item_id], item_id, user_id, standing(happened))
    for item_id, happened in agreed.items():
        _put_consensus(connection, item_id, standing(happened))
    answered = select(func.count()).where(answers.c.item_id == items.c.id).scalar_subquery()
    held = (
        select(func.count())
        .where(assignments.c.item_id == items.c.id, assignments.c.state != "lapsed")
        .scalar_subquery()
    )
    connection.execute(update(items).values(answered=answered, open=items.c.wanted - held))


# Where raters differ, and what an adjudicator made of it. Raters go by their pseudonyms.

Which: TypeAlias = Literal["disagreement", "answered", "settled", "all"]


def listed(connection: Connection, task_id: int, only: Which, after: int, limit: int) -> dict[str, Any]:
    """Items in the order of their positions, from the one behind position `after` - 1 on."""
    given = func.count(answers.c.user_id).label("raters")
    kinds = func.count(answers.c.digest.distinct()).label("kinds")
    settled = func.max(consensus.c.event_id).label("settled")
    query = (
        select(
            items.c.id,
            items.c.position,
            given,
            kinds,
            settled,
        )
        .outerjoin(answers, answers.c.item_id == items.c.id)
        .outerjoin(consensus, consensus.c.item_id == items.c.id)
        .where(items.c.task_id == task_id, items.c.position >= after)
        .group_by(items.c.id, items.c.position)
        .order_by(items.c.position)
        .limit(limit)
    )
    if only == "disagreement":
        query = query.where(items.c.answered > 1).having(kinds > 1)
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
                "agree": row.kinds == 1 if row.raters > 1 else None,
                "settled": row.settled is not None,
            }
            for row in rows
        ],
        "after": rows[-1].position + 1 if len(rows) == limit else None,
    }


def answers_on(
    connection: Connection, item: Row[Any], seed: int
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Every rater's answer and the consensus, rankings in the labels that `seed` gives."""
    given = connection.execute(
        select(users.c.pseudonym, answers.c.at, answers.c.payload)
        .join(users, users.c.id == answers.c.user_id)
        .where(answers.c.item_id == item.id)
        .order_by(users.c.id)
    )
    told = [
        {
            "rater": row.pseudonym,
            "at": iso(row.at),
            "answer": shown(row.payload, item, seed),
            "mask_image": _mask_url(item, row.payload),
        }
        for row in given
    ]
    row = connection.execute(
        select(users.c.pseudonym, consensus.c.at, consensus.c.payload)
        .join(users, users.c.id == consensus.c.user_id)
        .where(consensus.c.item_id == item.id)
    ).one_or_none()
    if row is None:
        return told, None
    return told, {"by": row.pseudonym, "at": iso(row.at), "answer": shown(row.payload, item, seed)}


def _mask_url(item: Row[Any], payload: dict[str, Any]) -> str | None:
    if payload["kind"] != "mask" or payload["choice"] == "none":
        return None
    name = f"upload-{payload['mask']}" if payload["mask"] else f"proposal-{payload['choice']}"
    return f"/api/items/{item.id}/images/{name}?v={item.version[:12]}"
