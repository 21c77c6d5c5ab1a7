"""Coming and going."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Cookie, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, func, select, update
from starlette.concurrency import run_in_threadpool

from mie.review.accounts import (
    Role,
    Session,
    check_password,
    end_session,
    hash_password,
    invite,
    join,
    may_set_password,
    note,
    set_password,
)
from mie.review.auth import COOKIE, Adjudicator, Admin, ItemId, Rater, TheDesk, address, let_in, refusals
from mie.review.database import answers, audit, invites, iso, sessions, users
from mie.review.errors import Refused
from mie.review.events import Which, answers_on, listed
from mie.review.export import csv_lines, json_lines, opinions
from mie.review.figures import figures
from mie.review.kinds import Answer, Kind, Words
from mie.review.work import Desk

session_router = APIRouter(prefix="/api", tags=["session"])

Name = Annotated[Words, Field(min_length=1, max_length=80)]
Password = Annotated[str, Field(min_length=10, max_length=200)]


class Joining(BaseModel):
    model_config = ConfigDict(extra="forbid")
    token: str = Field(min_length=1, max_length=200)
    name: Name | None = None
    password: Password | None = None


class Login(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Name
    password: str = Field(min_length=1, max_length=200)


class NewPassword(BaseModel):
    model_config = ConfigDict(extra="forbid")
    password: Password


@session_router.post("/join", responses=refusals(410, 429))
def join_by_link(body: Joining, request: Request, response: Response, desk: TheDesk) -> dict[str, Any]:
    """Spend a one-time link."""
    limiter, where = request.app.state.limiter, address(request)
    limiter.check(f"address {where}")
    try:
        with desk.database.write() as connection:
            user_id = join(connection, body.token, body.name, body.password)
            session = let_in(connection, user_id, response, secure=request.app.state.secure)
            note(connection, user_id, "join", where)
    except Refused as refused:
        if refused.code == "used":
            limiter.fail(f"address {where}")
        raise
    return about_me(desk, session)


@session_router.post("/login", responses=refusals(429))
def login(body: Login, request: Request, response: Response, desk: TheDesk) -> dict[str, Any]:
    """By name and password."""
    limiter, where = request.app.state.limiter, address(request)
    keys = (f"name {body.name}", f"address {where}")
    limiter.check(*keys)
    with desk.database.read() as connection:
        user_id = check_password(connection, body.name, body.password)  # slow by design: not in a write
    with desk.database.write() as connection:
        note(connection, user_id, "login" if user_id else "failed login", where, name=body.name)
        if user_id is not None:
            return about_me(desk, let_in(connection, user_id, response, secure=request.app.state.secure))
    limiter.fail(*keys)
    raise Refused(401, "login", "name or password is wrong")


@session_router.post("/password", status_code=204, responses=refusals(409))
def first_password(body: NewPassword, request: Request, desk: TheDesk, session: Rater) -> None:
    """Set a password, to come back without a link."""
    hashed = hash_password(body.password)
    with desk.database.write() as connection:
        set_password(connection, session.user_id, hashed)
        note(connection, session.user_id, "set password", address(request))


@session_router.post("/logout", status_code=204, responses=refusals())
def logout(
    request: Request,
    response: Response,
    desk: TheDesk,
    session: Rater,
    mie_session: Annotated[str, Cookie(include_in_schema=False)] = "",
) -> None:
    with desk.database.write() as connection:
        end_session(connection, mie_session)
        note(connection, session.user_id, "logout", address(request))
    desk.sessions.forget()
    response.delete_cookie(COOKIE, path="/")


@session_router.get("/me", responses=refusals())
def me(desk: TheDesk, session: Rater) -> dict[str, Any]:
    """Who is logged in, and what there is to do."""
    return about_me(desk, session)


def about_me(desk: Desk, session: Session) -> dict[str, Any]:
    dataset = desk.material.dataset
    with desk.database.read() as connection:
        may_set = may_set_password(connection, session.user_id)
    return {
        "user": {
            "id": session.user_id,
            "name": session.name,
            "role": session.role,
            "pseudonym": session.pseudonym,
        },
        "csrf": session.csrf,
        "dataset": {"name": dataset.name, "samples": len(dataset), "digest": dataset.digest},
        "tasks": [desk.about(kind, session) for kind in desk.tasks],
        "can": {
            "rate": True,
            "set_password": may_set,
            "adjudicate": session.may("adjudicator"),
            "administer": session.may("admin"),
        },
    }


# The rater's work.

work_router = APIRouter(prefix="/api", tags=["work"])

Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
_FOREVER = "private, max-age=31536000, immutable"


class Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = Field(1, ge=1, le=10)


class Given(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Key
    version: str = Field(pattern=r"^[0-9a-f]{32}$")
    seconds: float = Field(ge=0, le=86400, allow_inf_nan=False)
    answer: Answer


class Undo(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Key


@work_router.get("/tasks/{kind}", responses=refusals(404))
def task(kind: Kind, desk: TheDesk, session: Rater) -> dict[str, Any]:
    return desk.about(kind, session)


@work_router.post("/tasks/{kind}/next", responses=refusals(404))
def next_items(kind: Kind, body: Wish, desk: TheDesk, session: Rater) -> dict[str, Any]:
    """What to do now, and what will come after it."""
    return desk.next(kind, session, body.count)


@work_router.get("/tasks/{kind}/history", responses=refusals(404))
def history(
    kind: Kind,
    desk: TheDesk,
    session: Rater,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> dict[str, Any]:
    """One's own answers, newest first."""
    return desk.history(kind, session, before, limit)


@work_router.get("/items/{item_id}", responses=refusals(404))
def item(item_id: ItemId, desk: TheDesk, session: Rater) -> dict[str, Any]:
    return desk.item(item_id, session)


@work_router.get(
    "/items/{item_id}/images/{name}",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}}, 304: {"description": "unchanged"}, **refusals(404)},
)
def image(
    item_id: ItemId,
    name: Annotated[str, Path(pattern=r"^[a-z0-9-]{1,80}$")],
    desk: TheDesk,
    session: Rater,
    side: Literal["256", "512", "1024", "2048"] | None = None,
    v: Annotated[str, Query(max_length=32)] = "",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """A picture of an item, at most `side` pixels long. What an item shows never changes."""
    version = desk.version(item_id, session)
    headers = {
        "ETag": f'"{version}-{name}-{side or "full"}"',
        "Cache-Control": _FOREVER if v and version.startswith(v) else "private, no-cache",
    }
    if if_none_match == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    png = desk.picture(item_id, name, int(side) if side else None, session)
    return Response(png, media_type="image/png", headers=headers)


@work_router.post("/items/{item_id}/answers", status_code=201, responses=refusals(404, 409))
def answer(item_id: ItemId, body: Given, response: Response, desk: TheDesk, session: Rater) -> dict[str, Any]:
    """Kept before this returns. The same key sent again changes nothing and answers 200."""
    given = body.answer.model_dump(mode="json")
    event, new, progress = desk.answer(session, item_id, body.key, body.version, body.seconds, given)
    response.status_code = 201 if new else 200
    return {"event": event, "item": item_id, "progress": progress}


@work_router.post("/items/{item_id}/undo", responses=refusals(404, 409))
def undo(item_id: ItemId, body: Undo, desk: TheDesk, session: Rater) -> dict[str, Any]:
    """Take back one's last answer of this item; the one before it holds again."""
    return desk.undo(session, item_id, body.key)


@work_router.put(
    "/items/{item_id}/mask",
    responses=refusals(404, 409, 415),
    openapi_extra={
        "requestBody": {
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
async def upload_mask(item_id: ItemId, request: Request, desk: TheDesk, session: Rater) -> dict[str, str]:
    """A repaired mask as PNG."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "image/png":
        raise Refused(415, "invalid", "send the mask as image/png")
    return await run_in_threadpool(desk.upload, session, item_id, await request.body())


# The adjudicator's work, and the figures.

consensus_router = APIRouter(prefix="/api", tags=["consensus"])


class Settled(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Key
    version: str = Field(pattern=r"^[0-9a-f]{32}$")
    answer: Answer


@consensus_router.get("/tasks/{kind}/figures", responses=refusals(404))
def live_figures(kind: Kind, desk: TheDesk, session: Adjudicator) -> dict[str, Any]:
    with desk.database.read() as connection:
        return figures(connection, desk.task(kind).id, kind)


@consensus_router.get("/tasks/{kind}/consensus", responses=refusals(404))
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


@consensus_router.get("/tasks/{kind}/consensus/{item_id}", responses=refusals(404))
def answers_to_settle(kind: Kind, item_id: ItemId, desk: TheDesk, session: Adjudicator) -> dict[str, Any]:
    """An item with everybody's answers, by pseudonym."""
    with desk.database.read() as connection:
        item, seed = desk.look(connection, item_id, session)
        if item.task_id != desk.task(kind).id:
            raise Refused(404, "unknown", "there is no such item")
        given, settled = answers_on(connection, item, seed)
    return {"item": desk.views.item(kind, item, seed, None), "answers": given, "consensus": settled}


@consensus_router.post("/items/{item_id}/consensus", status_code=201, responses=refusals(404, 409))
def settle(
    item_id: ItemId, body: Settled, response: Response, desk: TheDesk, session: Adjudicator
) -> dict[str, Any]:
    given = body.answer.model_dump(mode="json")
    event, new = desk.settle(session, item_id, body.key, body.version, given)
    response.status_code = 201 if new else 200
    return {"event": event}


@consensus_router.post("/items/{item_id}/consensus/undo", responses=refusals(404, 409))
def unsettle(item_id: ItemId, body: Undo, desk: TheDesk, session: Adjudicator) -> dict[str, Any]:
    return {"event": desk.settle(session, item_id, body.key, None, None)[0]}


# People, links, the audit log, exports.

admin_router = APIRouter(prefix="/api", tags=["admin"])


class Invitation(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    role: Role = "rater"
    days: float = Field(7, gt=0, le=90, allow_inf_nan=False)


class Change(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Role | None = None
    active: bool | None = None


@admin_router.get("/users", responses=refusals())
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


@admin_router.post("/users/{user_id}", responses=refusals(404, 409))
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


@admin_router.get("/invites", responses=refusals())
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


@admin_router.post("/invites", status_code=201, responses=refusals())
def make_link(body: Invitation, request: Request, desk: TheDesk, session: Admin) -> dict[str, Any]:
    """A one-time link; this is the only time that it is shown."""
    with desk.database.write() as connection:
        number, token, expires = invite(connection, name=body.name, role=body.role, days=body.days)
        note(connection, session.user_id, "invite", address(request), name=body.name, role=body.role)
    return {"id": number, "url": f"{request.app.state.url}/#join={token}", "expires": iso(expires)}


@admin_router.delete("/invites/{invite_id}", status_code=204, responses=refusals(404))
def drop_link(invite_id: ItemId, request: Request, desk: TheDesk, session: Admin) -> None:
    with desk.database.write() as connection:
        unused = (invites.c.id == invite_id, invites.c.used.is_(None))
        if not connection.execute(delete(invites).where(*unused)).rowcount:
            raise Refused(404, "unknown", "there is no such unused link")
        note(connection, session.user_id, "drop invite", address(request), invite=invite_id)


@admin_router.get("/audit", responses=refusals())
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


@admin_router.get(
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
