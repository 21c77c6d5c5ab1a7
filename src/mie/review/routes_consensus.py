"""The adjudicator's work, and the figures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from mie.review.adjudication import Which, answers_on, listed
from mie.review.door import Adjudicator, ItemId, TheDesk, refusals
from mie.review.figures import figures
from mie.review.kinds import Answer, Kind
from mie.review.refusals import Refused
from mie.review.routes_work import Key, Undo

router = APIRouter(prefix="/api", tags=["consensus"])


class Settled(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Key
    version: str = Field(pattern=r"^[0-9a-f]{32}$")
    answer: Answer


@router.get("/tasks/{kind}/figures", responses=refusals(404))
def live_figures(kind: Kind, desk: TheDesk, session: Adjudicator) -> dict[str, Any]:
    with desk.database.read() as connection:
        return figures(connection, desk.task(kind).id, kind)


@router.get("/tasks/{kind}/consensus", responses=refusals(404))
def items_to_settle(
    kind: Kind,
    desk: TheDesk,
    session: Adjudicator,
    only: Which = "disagreement",
    after: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:
    with desk.database.read() as connection:
        return listed(connection, desk.task(kind).id, only, after, limit)


@router.get("/tasks/{kind}/consensus/{item_id}", responses=refusals(404))
def answers_to_settle(kind: Kind, item_id: ItemId, desk: TheDesk, session: Adjudicator) -> dict[str, Any]:
    """An item with everybody's answers, by pseudonym."""
    with desk.database.read() as connection:
        item, seed = desk.look(connection, item_id, session)
        if item.task_id != desk.task(kind).id:
            raise Refused(404, "unknown", "there is no such item")
        given, settled = answers_on(connection, item, seed)
    return {"item": desk.views.item(kind, item, seed, None), "answers": given, "consensus": settled}


@router.post("/items/{item_id}/consensus", status_code=201, responses=refusals(404, 409))
def settle(
    item_id: ItemId, body: Settled, response: Response, desk: TheDesk, session: Adjudicator
) -> dict[str, Any]:
    given = body.answer.model_dump(mode="json")
    event, new = desk.settle(session, item_id, body.key, body.version, given)
    response.status_code = 201 if new else 200
    return {"event": event}


@router.post("/items/{item_id}/consensus/undo", responses=refusals(404, 409))
def unsettle(item_id: ItemId, body: Undo, desk: TheDesk, session: Adjudicator) -> dict[str, Any]:
    return {"event": desk.settle(session, item_id, body.key, None, None)[0]}
