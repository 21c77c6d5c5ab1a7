"""People, links, the audit log, exports."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, func, select, update

from mie.review.accounts import Role, invite, note
from mie.review.database import iso
from mie.review.door import Admin, ItemId, TheDesk, address, refusals
from mie.review.export import csv_lines, json_lines, opinions
from mie.review.kinds import Kind
from mie.review.refusals import Refused
from mie.review.routes_session import Name
from mie.review.tables import answers, audit, invites, sessions, users

router = APIRouter(prefix="/api", tags=["admin"])


class Invitation(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    role: Role = "rater"
    days: float = Field(7, gt=0, le=90, allow_inf_nan=False)


class Change(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Role | None = None
    active: bool | None = None


@router.get("/users", responses=refusals())
def everybody(desk: TheDesk, session: Admin) -> dict[str, Any]:
    query = select(users, func.count(answers.c.item_id).label("answers")).outerjoin(
        answers, answers.c.user_id == users.c.id
    )
    with desk.database.read() as connection:
        rows = connection.execute(query.group_by(users.c.id).order_by(users.c.id)).all()
    return {"users": [_person(row) for row in rows]}


def _person(row: Any) -> dict[str, Any]:
    known = {name: getattr(row, name) for name in ("id", "name", "role", "pseudonym", "active", "answers")}
    return {**known, "has_password": row.password is not None}


@router.post("/users/{user_id}", responses=refusals(404, 409))
def change_user(
    user_id: ItemId, body: Change, request: Request, desk: TheDesk, session: Admin
) -> dict[str, Any]:
    """Another role, or no way in any more. One admin always stays."""
    changes = body.model_dump(exclude_none=True)
    with desk.database.write() as connection:
        if connection.scalar(select(users.c.id).where(users.c.id == user_id)) is None:
            raise Refused(404, "unknown", "there is no such person")
        if changes:
            connection.execute(update(users).where(users.c.id == user_id).values(changes))
        admins = select(func.count()).where(users.c.role == "admin", users.c.active)
        if not connection.scalar(admins):
            raise Refused(409, "conflict", "somebody must stay admin")
        if body.active is False:
            connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
        note(connection, session.user_id, "change user", address(request), user=user_id, **changes)
    desk.sessions.forget()
    return next(p for p in everybody(desk, session)["users"] if p["id"] == user_id)


@router.get("/invites", responses=refusals())
def links(desk: TheDesk, session: Admin) -> dict[str, Any]:
    with desk.database.read() as connection:
        rows = connection.execute(select(invites).order_by(invites.c.id)).all()
    return {
        "invites": [
            {
                "id": row.id,
                "name": row.name,
                "role": row.role,
                "expires": iso(row.expires),
                "expired": row.expires < time.time(),
                "used": row.used is not None,
            }
            for row in rows
        ]
    }


@router.post("/invites", status_code=201, responses=refusals())
def make_link(body: Invitation, request: Request, desk: TheDesk, session: Admin) -> dict[str, Any]:
    """A one-time link; this is the only time that it is shown."""
    with desk.database.write() as connection:
        number, token, expires = invite(connection, name=body.name, role=body.role, days=body.days)
        note(connection, session.user_id, "invite", address(request), name=body.name, role=body.role)
    return {"id": number, "url": f"{request.app.state.url}/#join={token}", "expires": iso(expires)}


@router.delete("/invites/{invite_id}", status_code=204, responses=refusals(404))
def drop_link(invite_id: ItemId, request: Request, desk: TheDesk, session: Admin) -> None:
    with desk.database.write() as connection:
        unused = (invites.c.id == invite_id, invites.c.used.is_(None))
        if not connection.execute(delete(invites).where(*unused)).rowcount:
            raise Refused(404, "unknown", "there is no such unused link")
        note(connection, session.user_id, "drop invite", address(request), invite=invite_id)


@router.get("/audit", responses=refusals())
def log(
    desk: TheDesk,
    session: Admin,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> dict[str, Any]:
    query = select(audit, users.c.name).outerjoin(users, users.c.id == audit.c.user_id)
    if before is not None:
        query = query.where(audit.c.id < before)
    with desk.database.read() as connection:
        rows = connection.execute(query.order_by(audit.c.id.desc()).limit(limit)).all()
    entries = [
        {
            "id": row.id,
            "at": iso(row.at),
            "who": row.name,
            "action": row.action,
            "detail": row.detail,
            "address": row.address,
        }
        for row in rows
    ]
    return {"entries": entries, "before": rows[-1].id if len(rows) == limit else None}


@router.get(
    "/export/{kind}.{format}",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/csv": {}, "application/x-ndjson": {}}},
        **refusals(404),
    },
)
def export(
    kind: Kind, format: Literal["csv", "jsonl"], request: Request, desk: TheDesk, session: Admin
) -> Response:
    """Everybody's opinions by pseudonym, as a file."""
    task_id = desk.task(kind).id
    with desk.database.write() as connection:
        note(connection, session.user_id, "export", address(request), kind=kind, format=format)
    lines, media = (csv_lines, "text/csv") if format == "csv" else (json_lines, "application/x-ndjson")
    headers = {"Content-Disposition": f'attachment; filename="{kind}.{format}"'}
    found = opinions(desk.database, task_id)
    return StreamingResponse(lines(found), media_type=media, headers=headers)
