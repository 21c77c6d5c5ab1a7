"""Where raters differ, and what an adjudicator made of it. Raters go by their pseudonyms."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, Row, func, select

from mie.review.database import iso
from mie.review.tables import answers, consensus, items, users
from mie.review.views import shown

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
