"""Coming and going."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Cookie, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mie.review.accounts import (
    Session,
    check_password,
    end_session,
    hash_password,
    join,
    may_set_password,
    note,
    set_password,
)
from mie.review.desk import Desk
from mie.review.door import COOKIE, Rater, TheDesk, address, let_in, refusals
from mie.review.kinds import Words
from mie.review.refusals import Refused

router = APIRouter(prefix="/api", tags=["session"])

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


@router.post("/join", responses=refusals(410, 429))
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


@router.post("/login", responses=refusals(429))
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


@router.post("/password", status_code=204, responses=refusals(409))
def first_password(body: NewPassword, request: Request, desk: TheDesk, session: Rater) -> None:
    """Set a password, to come back without a link."""
    hashed = hash_password(body.password)
    with desk.database.write() as connection:
        set_password(connection, session.user_id, hashed)
        note(connection, session.user_id, "set password", address(request))


@router.post("/logout", status_code=204, responses=refusals())
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


@router.get("/me", responses=refusals())
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
