"""The HTTP routes: sessions, a rater's work, consensus, administration."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Cookie, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, func, select, update
from starlette.concurrency import run_in_threadpool

from mie.review.api import Answer, ApiError, Kind, Text, error_responses
from mie.review.auth import (
    SESSION_COOKIE,
    AdjudicatorSession,
    AdminSession,
    RaterSession,
    Role,
    Session,
    check_password,
    client_address,
    create_invite,
    end_session,
    find_invite,
    hash_password,
    log_in,
    may_set_password,
    redeem_invite,
    set_first_password,
    write_audit,
)
from mie.review.database import answers, audit, invites, iso, sessions, users
from mie.review.events import ConsensusFilter, items_to_settle
from mie.review.export import csv_lines, json_lines, opinions
from mie.review.figures import figures
from mie.review.service import ReviewService

ItemId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
Name = Annotated[Text, Field(min_length=1, max_length=80)]
Password = Annotated[str, Field(min_length=10, max_length=200)]
Version = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


# `async`, because it does not wait: other functions are run in a thread, which costs time.
async def _get_service(request: Request) -> ReviewService:
    service: ReviewService = request.app.state.service
    return service


Service = Annotated[ReviewService, Depends(_get_service)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


# ---- Sessions ----

session_router = APIRouter(prefix="/api", tags=["session"])


class JoinRequest(_Body):
    token: str = Field(min_length=1, max_length=200)
    name: Name | None = None
    password: Password | None = None


class LoginRequest(_Body):
    name: Name
    password: str = Field(min_length=1, max_length=200)


class PasswordRequest(_Body):
    password: Password


@session_router.post("/join", responses=error_responses(410, 429))
async def join_by_link(
    body: JoinRequest, request: Request, response: Response, service: Service
) -> dict[str, Any]:
    """Log in by a one-time link. A password that is given with it ends the person's other sessions."""
    state, where = request.app.state, client_address(request)

    def check() -> None:
        with service.database.read() as connection:
            find_invite(connection, body.token)

    def join() -> dict[str, Any]:
        with service.database.write() as connection:
            user_id = redeem_invite(connection, body.token, body.name, hashed)
            session = log_in(connection, user_id, response, secure=state.secure)
            write_audit(connection, user_id, "join" if hashed is None else "join with password", where)
        return _profile(service, session)

    await run_in_threadpool(check)  # strangers neither lock the database nor have passwords hashed
    hashed = None
    if body.password is not None:
        hashed = await state.hashing.run(partial(hash_password, body.password))
    profile = await run_in_threadpool(join)
    if hashed is not None:
        state.sessions.clear()
    return profile


@session_router.post("/login", responses=error_responses(429))
async def login(body: LoginRequest, request: Request, response: Response, service: Service) -> dict[str, Any]:
    """Log in by name and password."""
    state, where = request.app.state, client_address(request)

    def check() -> int | None:
        with service.database.read() as connection:
            return check_password(connection, body.name, body.password)

    def enter() -> dict[str, Any] | None:
        with service.database.write() as connection:
            write_audit(connection, user_id, "login" if user_id else "failed login", where, name=body.name)
            if user_id is None:
                return None
            session = log_in(connection, user_id, response, secure=state.secure)
        return _profile(service, session)

    state.limiter.begin(body.name, where)
    user_id = await state.hashing.run(check)
    profile = await run_in_threadpool(enter)
    if profile is None:
        raise ApiError(401, "login", "wrong name or password")
    state.limiter.succeed(body.name, where)
    return profile


@session_router.post("/password", status_code=204, responses=error_responses(409, 429))
async def first_password(
    body: PasswordRequest, request: Request, service: Service, session: RaterSession
) -> None:
    """Set a password, to log in later without a link."""

    def store() -> None:
        with service.database.write() as connection:
            set_first_password(connection, session.user_id, hashed)
            write_audit(connection, session.user_id, "set password", client_address(request))

    hashed = await request.app.state.hashing.run(partial(hash_password, body.password))
    await run_in_threadpool(store)


@session_router.post("/logout", status_code=204, responses=error_responses())
def logout(
    request: Request,
    response: Response,
    service: Service,
    session: RaterSession,
    mie_session: Annotated[str, Cookie(include_in_schema=False)] = "",
) -> None:
    with service.database.write() as connection:
        end_session(connection, mie_session)
        write_audit(connection, session.user_id, "logout", client_address(request))
    request.app.state.sessions.clear()
    response.delete_cookie(SESSION_COOKIE, path="/")


@session_router.get("/openapi.json", include_in_schema=False)
async def description(request: Request, session: RaterSession) -> dict[str, Any]:
    """Describe this interface, to people who are logged in."""
    body: dict[str, Any] = request.app.openapi()
    return body


@session_router.get("/me", responses=error_responses())
def me(service: Service, session: RaterSession) -> dict[str, Any]:
    """Return who is logged in, and the tasks."""
    return _profile(service, session)


def _profile(service: ReviewService, session: Session) -> dict[str, Any]:
    with service.database.read() as connection:
        may_set = may_set_password(connection, session.user_id)
    return {
        "user": {
            "id": session.user_id,
            "name": session.name,
            "role": session.role,
            "pseudonym": session.pseudonym,
        },
        "csrf": session.csrf,
        "dataset": service.describe_material(),
        "tasks": [service.describe_task(kind, session) for kind in service.tasks],
        "can": {
            "rate": True,
            "set_password": may_set,
            "adjudicate": session.has_role("adjudicator"),
            "administer": session.has_role("admin"),
        },
    }


# ---- A rater's work ----

work_router = APIRouter(prefix="/api", tags=["work"])


class NextRequest(_Body):
    count: int = Field(1, ge=1, le=10)


class AnswerRequest(_Body):
    key: Key
    version: Version
    seconds: float = Field(ge=0, le=86400, allow_inf_nan=False)
    answer: Answer


class UndoRequest(_Body):
    key: Key


@work_router.get("/tasks/{kind}", responses=error_responses(404))
def task(kind: Kind, service: Service, session: RaterSession) -> dict[str, Any]:
    return service.describe_task(kind, session)


@work_router.post("/tasks/{kind}/next", responses=error_responses(404))
def next_items(kind: Kind, body: NextRequest, service: Service, session: RaterSession) -> dict[str, Any]:
    """Return the items to answer now and next."""
    return service.next(kind, session, body.count)


@work_router.get("/tasks/{kind}/history", responses=error_responses(404))
def history(
    kind: Kind,
    service: Service,
    session: RaterSession,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> dict[str, Any]:
    """List one's own answers, newest first."""
    return service.history(kind, session, before, limit)


@work_router.get("/items/{item_id}", responses=error_responses(404))
def item(item_id: ItemId, service: Service, session: RaterSession) -> dict[str, Any]:
    return service.item(item_id, session)


@work_router.get(
    "/items/{item_id}/images/{name}",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {}}},
        **error_responses(404),
    },
)
def image(
    item_id: ItemId,
    name: Annotated[str, Path(pattern=r"^[a-z0-9-]{1,80}$")],
    service: Service,
    session: RaterSession,
    side: Literal["256", "512", "1024", "2048"] | None = None,
    v: Annotated[str, Query(max_length=32)] = "",
) -> Response:
    """Return an image of an item, at most `side` pixels long. Browsers keep no copy of it on their disk."""
    png = service.image(item_id, name, int(side) if side else None, session)
    return Response(png, media_type="image/png", headers={"Cache-Control": "private, no-store"})


@work_router.post("/items/{item_id}/answers", status_code=201, responses=error_responses(404, 409))
def answer(
    item_id: ItemId, body: AnswerRequest, response: Response, service: Service, session: RaterSession
) -> dict[str, Any]:
    """Store an answer before returning. The same key sent again changes nothing and returns 200."""
    content = body.answer.model_dump(mode="json")
    event, new, progress = service.answer(session, item_id, body.key, body.version, body.seconds, content)
    response.status_code = 201 if new else 200
    return {"event": event, "item": item_id, "progress": progress}


@work_router.post("/items/{item_id}/undo", responses=error_responses(404, 409))
def undo(item_id: ItemId, body: UndoRequest, service: Service, session: RaterSession) -> dict[str, Any]:
    """Undo one's last answer to this item; the one before it becomes current again."""
    return service.undo(session, item_id, body.key)


@work_router.put(
    "/items/{item_id}/mask",
    responses=error_responses(404, 409, 415),
    openapi_extra={
        "requestBody": {
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
async def upload_mask(
    item_id: ItemId, request: Request, service: Service, session: RaterSession
) -> dict[str, str]:
    """Upload a repaired mask as PNG."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "image/png":
        raise ApiError(415, "invalid", "send the mask as image/png")
    return await run_in_threadpool(service.upload_mask, session, item_id, await request.body())


# ---- Consensus and figures ----

consensus_router = APIRouter(prefix="/api", tags=["consensus"])


class ConsensusRequest(_Body):
    key: Key
    version: Version
    answer: Answer


@consensus_router.get("/tasks/{kind}/figures", responses=error_responses(404))
def live_figures(kind: Kind, service: Service, session: AdjudicatorSession) -> dict[str, Any]:
    with service.database.read() as connection:
        return figures(connection, service.task(kind).id, kind)


@consensus_router.get("/tasks/{kind}/consensus", responses=error_responses(404))
def list_to_settle(
    kind: Kind,
    service: Service,
    session: AdjudicatorSession,
    only: ConsensusFilter = "disagreement",
    after: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:
    with service.database.read() as connection:
        return items_to_settle(connection, service.task(kind).id, only, after, limit)


@consensus_router.get("/tasks/{kind}/consensus/{item_id}", responses=error_responses(404))
def answers_to_settle(
    kind: Kind, item_id: ItemId, service: Service, session: AdjudicatorSession
) -> dict[str, Any]:
    """Return an item with everybody's answers, by pseudonym."""
    return service.all_answers(kind, item_id, session)


@consensus_router.post("/items/{item_id}/consensus", status_code=201, responses=error_responses(404, 409))
def set_consensus(
    item_id: ItemId, body: ConsensusRequest, response: Response, service: Service, session: AdjudicatorSession
) -> dict[str, Any]:
    content = body.answer.model_dump(mode="json")
    event, new = service.set_consensus(session, item_id, body.key, body.version, content)
    response.status_code = 201 if new else 200
    return {"event": event}


@consensus_router.post("/items/{item_id}/consensus/undo", responses=error_responses(404, 409))
def undo_consensus(
    item_id: ItemId, body: UndoRequest, service: Service, session: AdjudicatorSession
) -> dict[str, Any]:
    return {"event": service.set_consensus(session, item_id, body.key, None, None)[0]}


# ---- Administration: people, links, audit log, exports ----

admin_router = APIRouter(prefix="/api", tags=["admin"])


class InviteRequest(_Body):
    name: Name | None = None
    role: Role = "rater"
    days: float = Field(7, gt=0, le=90, allow_inf_nan=False)


class UserChange(_Body):
    role: Role | None = None
    active: bool | None = None


@admin_router.get("/users", responses=error_responses())
def list_users(service: Service, session: AdminSession) -> dict[str, Any]:
    query = select(users, func.count(answers.c.item_id).label("answers")).outerjoin(
        answers, answers.c.user_id == users.c.id
    )
    with service.database.read() as connection:
        rows = connection.execute(query.group_by(users.c.id).order_by(users.c.id)).all()
    return {"users": [_describe_user(row) for row in rows]}


def _describe_user(row: Any) -> dict[str, Any]:
    known = {name: getattr(row, name) for name in ("id", "name", "role", "pseudonym", "active", "answers")}
    return {**known, "has_password": row.password is not None}


@admin_router.post("/users/{user_id}", responses=error_responses(404, 409))
def change_user(
    user_id: ItemId, body: UserChange, request: Request, service: Service, session: AdminSession
) -> dict[str, Any]:
    """Change somebody's role, or close or reopen their account. At least one admin always remains."""
    changes = body.model_dump(exclude_none=True)
    with service.database.write() as connection:
        if connection.scalar(select(users.c.id).where(users.c.id == user_id)) is None:
            raise ApiError(404, "unknown", "there is no such user")
        if changes:
            connection.execute(update(users).where(users.c.id == user_id).values(changes))
        admins = select(func.count()).where(users.c.role == "admin", users.c.active)
        if not connection.scalar(admins):
            raise ApiError(409, "conflict", "at least one admin must remain")
        if body.active is False:
            connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
        write_audit(
            connection, session.user_id, "change user", client_address(request), user=user_id, **changes
        )
    request.app.state.sessions.clear()
    return next(p for p in list_users(service, session)["users"] if p["id"] == user_id)


@admin_router.get("/invites", responses=error_responses())
def list_invites(service: Service, session: AdminSession) -> dict[str, Any]:
    with service.database.read() as connection:
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


@admin_router.post("/invites", status_code=201, responses=error_responses())
def create_link(
    body: InviteRequest, request: Request, service: Service, session: AdminSession
) -> dict[str, Any]:
    """Create a one-time link. It is shown only this once."""
    with service.database.write() as connection:
        number, token, expires = create_invite(connection, name=body.name, role=body.role, days=body.days)
        write_audit(
            connection, session.user_id, "invite", client_address(request), name=body.name, role=body.role
        )
    return {"id": number, "url": f"{request.app.state.url}/#join={token}", "expires": iso(expires)}


@admin_router.delete("/invites/{invite_id}", status_code=204, responses=error_responses(404))
def withdraw_link(invite_id: ItemId, request: Request, service: Service, session: AdminSession) -> None:
    with service.database.write() as connection:
        unused = (invites.c.id == invite_id, invites.c.used.is_(None))
        if not connection.execute(delete(invites).where(*unused)).rowcount:
            raise ApiError(404, "unknown", "there is no such unused link")
        write_audit(connection, session.user_id, "drop invite", client_address(request), invite=invite_id)


@admin_router.get("/audit", responses=error_responses())
def audit_log(
    service: Service,
    session: AdminSession,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> dict[str, Any]:
    query = select(audit, users.c.name).outerjoin(users, users.c.id == audit.c.user_id)
    if before is not None:
        query = query.where(audit.c.id < before)
    with service.database.read() as connection:
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
        **error_responses(404),
    },
)
def export(
    kind: Kind, format: Literal["csv", "jsonl"], request: Request, service: Service, session: AdminSession
) -> Response:
    """Download everybody's opinions, by pseudonym."""
    task_id = service.task(kind).id
    with service.database.write() as connection:
        write_audit(connection, session.user_id, "export", client_address(request), kind=kind, format=format)
    lines, media = (csv_lines, "text/csv") if format == "csv" else (json_lines, "application/x-ndjson")
    headers = {"Content-Disposition": f'attachment; filename="{kind}.{format}"'}
    return StreamingResponse(lines(opinions(service.database, task_id)), media_type=media, headers=headers)
