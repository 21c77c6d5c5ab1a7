"""Who is at the door: the session of a request, its CSRF token and its role."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Request, Response, Security
from fastapi.security import APIKeyCookie
from pydantic import Field
from sqlalchemy import Connection

from mie.review.accounts import SESSION_SECONDS, Role, Session, begin_session, session_of
from mie.review.errors import ErrorBody, Refused
from mie.review.work import Desk

COOKIE: Final = "mie_session"
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, description="set by joining or logging in")
_MEANINGS: Final = {
    400: "not JSON",
    401: "not logged in",
    403: "CSRF token, Origin, Host or role is wrong",
    404: "not there, or not yours",
    409: "conflict with what is there",
    410: "the link was used or has expired",
    413: "too large",
    415: "not the media type that is expected",
    422: "does not make sense",
    429: "too many attempts",
}

ItemId = Annotated[int, Field(ge=1, le=2**31 - 1)]


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for its description."""
    common = (400, 401, 403, 413, 422)
    return {
        status: {"model": ErrorBody, "description": _MEANINGS[status]}
        for status in sorted({*common, *statuses})
    }


# What does not wait is `async`: every other function costs a change of thread.
async def get_desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def address(request: Request) -> str:
    return request.client.host if request.client else ""


async def signed_in(
    request: Request,
    desk: Annotated[Desk, Depends(get_desk)],
    cookie: Annotated[str | None, Security(_cookie)],
    x_csrf_token: Annotated[str | None, Header(description="needed to write")] = None,
) -> Session:
    """The session of the cookie. Writing also takes the session's CSRF token."""
    session = await desk.sessions.of(cookie) if cookie else None
    if session is None:
        raise Refused(401, "login", "log in first")
    if request.method not in ("GET", "HEAD") and not hmac.compare_digest(
        (x_csrf_token or "").encode(), session.csrf.encode()
    ):
        raise Refused(403, "csrf", "the page is out of date; load it again")
    return session


def at_least(role: Role) -> Callable[[Session], Awaitable[Session]]:
    async def check(session: Annotated[Session, Depends(signed_in)]) -> Session:
        if not session.may(role):
            raise Refused(403, "role", f"this is for the {role}")
        return session

    return check


TheDesk = Annotated[Desk, Depends(get_desk)]
Rater = Annotated[Session, Depends(signed_in)]
Adjudicator = Annotated[Session, Depends(at_least("adjudicator"))]
Admin = Annotated[Session, Depends(at_least("admin"))]


def let_in(connection: Connection, user_id: int, response: Response, *, secure: bool) -> Session:
    """Begin a session and set its cookie."""
    token = begin_session(connection, user_id)
    response.set_cookie(
        COOKIE, token, max_age=int(SESSION_SECONDS), path="/", httponly=True, samesite="strict", secure=secure
    )
    session = session_of(connection, token)
    assert session is not None  # noqa: S101
    return session
