"""Accounts and access: people, one-time links, passwords, sessions, roles, and the audit log.

Tokens have 256 random bits and only their SHA-256 is stored, so a copy of the database does not give access.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from fastapi import Depends, Header, Request, Response, Security
from fastapi.security import APIKeyCookie
from sqlalchemy import Connection, Row, func, insert, select, update
from starlette.concurrency import run_in_threadpool

from mie.review.api import ApiError
from mie.review.database import Database, audit, invites, sessions, users

Role: TypeAlias = Literal["rater", "adjudicator", "admin"]
ROLES: Final = ("rater", "adjudicator", "admin")  # each role includes the ones before it
LOCAL_USER: Final = "local"  # the person at the machine that the server runs on
SESSION_COOKIE: Final = "mie_session"
SESSION_SECONDS: Final = 14 * 86400.0

_HASHER: Final = PasswordHasher()
# Verified when the name is unknown, so that the response time does not reveal it.
_DUMMY_HASH: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$hOrgmm3fOAQsu0HFHqCmLg$NkEulQfYkG1XmvJZ991Q4dleZs2587ne64hcXbvUY5c"
)
_CACHE_SECONDS: Final = 10.0  # until the closing of an account by another process takes effect
_CACHE_SIZE: Final = 10_000

# Logins that may fail within the window: of a name from one address, and of a name from anywhere. There is no
# limit by address alone: behind a proxy everybody has the same one.
MAX_FAILURES: Final = 10
MAX_FAILURES_ANYWHERE: Final = 100
FAILURE_WINDOW: Final = 300.0  # seconds
_FAILURE_KEYS: Final = 10_000  # a flood of new names evicts the oldest

# argon2 takes 64 MiB and four threads for a password.
HASHES_AT_ONCE: Final = 2
HASHES_WAITING: Final = 20

T = TypeVar("T")


# ---- People, links, passwords ----


def add_user(connection: Connection, name: str, role: str, hashed: str | None = None) -> int:
    """Add a person and return their id. `hashed` is what `hash_password` makes of their password."""
    if connection.scalar(select(users.c.id).where(users.c.name == name)) is not None:
        raise ApiError(422, "invalid", "this name is taken; choose another")
    count = int(connection.scalar(select(func.coalesce(func.max(users.c.id), 0))) or 0)
    row = {
        "name": name,
        "pseudonym": f"R{count + 1:02d}",
        "role": role,
        "password": hashed,
        "active": True,
        "created": time.time(),
    }
    return int(connection.execute(insert(users), row).inserted_primary_key[0])  # type: ignore[index]


def create_invite(
    connection: Connection, *, name: str | None, role: str, days: float
) -> tuple[int, str, float]:
    """Return (id, token, expiry) of a link that works once. A known name logs the same person in again."""
    user_id = None
    if name is not None:
        known = connection.execute(select(users.c.id, users.c.role).where(users.c.name == name)).one_or_none()
        if known is not None:
            user_id, role = known.id, known.role
    token, expires = secrets.token_urlsafe(32), time.time() + days * 86400
    row = {"token": token_digest(token), "user_id": user_id, "name": name, "role": role, "expires": expires}
    result = connection.execute(insert(invites), row)
    return int(result.inserted_primary_key[0]), token, expires  # type: ignore[index]


def find_invite(connection: Connection, token: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of a link that can be used; `lock` keeps others from using it in this transaction."""
    digest = token_digest(token)
    query = select(invites).where(invites.c.token == digest)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None or not hmac.compare_digest(row.token, digest) or row.used or row.expires < time.time():
        raise ApiError(410, "used", "this link has been used or has expired; ask for a new one")
    return row


def redeem_invite(connection: Connection, token: str, name: str | None, hashed: str | None) -> int:
    """Use up a link and return the id of the person who opened it.

    With `hashed`, a new password, somebody who has an account leaves every place where they are logged in.
    """
    row = find_invite(connection, token, lock=True)
    user_id = row.user_id
    if user_id is None:
        name = row.name or (name or "").strip() or None
        if name is None:
            raise ApiError(422, "name_needed", "enter your name")
        user_id = add_user(connection, name, row.role, hashed)
    elif hashed is not None:
        connection.execute(update(users).where(users.c.id == user_id).values(password=hashed))
        connection.execute(sessions.delete().where(sessions.c.user_id == user_id))
    if not connection.scalar(select(users.c.active).where(users.c.id == user_id)):
        raise ApiError(410, "used", "this account is closed")
    used = {"used": time.time(), "user_id": user_id}
    connection.execute(update(invites).where(invites.c.id == row.id).values(used))
    return int(user_id)


def create_local_invite(connection: Connection) -> str:
    """Return the token of a link for the person at this machine, who owns the database anyway."""
    if connection.scalar(select(users.c.id).where(users.c.name == LOCAL_USER)) is None:
        add_user(connection, LOCAL_USER, "admin")
    return create_invite(connection, name=LOCAL_USER, role="admin", days=1)[1]


def has_accounts(connection: Connection) -> bool:
    """Return whether anybody but the local person can log in or has an open invitation."""
    people = select(users.c.id).where(users.c.name != LOCAL_USER, users.c.active)
    links = select(invites.c.id).where(
        invites.c.used.is_(None), invites.c.expires > time.time(), invites.c.name.is_distinct_from(LOCAL_USER)
    )
    return connection.scalar(people.limit(1)) is not None or connection.scalar(links.limit(1)) is not None


def may_set_password(connection: Connection, user_id: int) -> bool:
    """Return whether this person has no password yet. The local person needs none."""
    row = connection.execute(select(users.c.name, users.c.password).where(users.c.id == user_id)).one()
    return row.name != LOCAL_USER and row.password is None


def set_first_password(connection: Connection, user_id: int, hashed: str) -> None:
    """Store a first password. Changing it takes a new link, so an unattended page cannot take an account."""
    if not may_set_password(connection, user_id):
        raise ApiError(409, "conflict", "a password is already set")
    connection.execute(update(users).where(users.c.id == user_id).values(password=hashed))


def hash_password(password: str) -> str:
    """Slow by design: call it through `HashingSlots`, and never inside a write transaction."""
    return _HASHER.hash(password)


def check_password(connection: Connection, name: str, password: str) -> int | None:
    """Return the person's id if the password is right. An unknown name takes as long as a known one."""
    row = connection.execute(select(users).where(users.c.name == name)).one_or_none()
    stored = row.password if row is not None and row.password and row.active else None
    try:
        _HASHER.verify(stored or _DUMMY_HASH, password)
    except (VerificationError, InvalidHashError):
        return None
    return int(row.id) if row is not None and stored else None


def write_audit(
    connection: Connection, user_id: int | None, action: str, address: str, **detail: Any
) -> None:
    """Append one line to the audit log."""
    row = {"at": time.time(), "user_id": user_id, "action": action, "detail": detail, "address": address}
    connection.execute(insert(audit), row)


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class HashingSlots:
    """Bounds the work that strangers can cause: so many passwords are hashed at once, so many wait."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(HASHES_AT_ONCE)
        self._pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work`, which hashes a password, in a thread as soon as a slot is free."""
        if self._pending >= HASHES_AT_ONCE + HASHES_WAITING:
            raise ApiError(
                429, "slow_down", "too many people are logging in; try again", {"Retry-After": "2"}
            )
        self._pending += 1
        try:
            async with self._free:
                return await run_in_threadpool(work)
        finally:
            self._pending -= 1


class LoginLimiter:
    """Counts logins that have not succeeded, by name and address, in memory: a restart clears them.

    A login counts from its beginning, so that many at the same time cannot pass before the first one fails.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[tuple[str, ...], list[float]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, name: str, address: str) -> None:
        """Count a login; `ApiError` where there were too many."""
        limits = {(name, address): MAX_FAILURES, (name,): MAX_FAILURES_ANYWHERE}
        now = time.monotonic()
        with self._lock:
            for key, limit in limits.items():
                recent = [at for at in self._tries.get(key, ()) if now - at < FAILURE_WINDOW]
                if len(recent) >= limit:
                    wait = str(int(FAILURE_WINDOW - (now - recent[-limit])) + 1)
                    message = f"too many attempts; wait {wait} s"
                    raise ApiError(429, "slow_down", message, {"Retry-After": wait})
                self._tries[key] = recent
            for key in limits:
                self._tries[key].append(now)
                self._tries.move_to_end(key)
            while len(self._tries) > _FAILURE_KEYS:
                self._tries.popitem(last=False)

    def succeed(self, name: str, address: str) -> None:
        """Take back the last login that was counted."""
        with self._lock:
            for key in ((name, address), (name,)):
                if self._tries.get(key):
                    self._tries[key].pop()


# ---- Sessions ----


@dataclass(frozen=True, slots=True)
class Session:
    """A person who is logged in."""

    user_id: int
    name: str
    role: Role
    pseudonym: str
    csrf: str

    def has_role(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


def create_session(connection: Connection, user_id: int) -> str:
    """Store a new session and return the value of its cookie."""
    token = secrets.token_urlsafe(32)
    row = {
        "token": token_digest(token),
        "user_id": user_id,
        "csrf": secrets.token_urlsafe(24),
        "expires": time.time() + SESSION_SECONDS,
    }
    connection.execute(insert(sessions), row)
    return token


def find_session(connection: Connection, cookie: str) -> Session | None:
    digest = token_digest(cookie)
    row = connection.execute(
        select(sessions.c.token, sessions.c.csrf, users)
        .join(users, users.c.id == sessions.c.user_id)
        .where(sessions.c.token == digest, sessions.c.expires > time.time(), users.c.active)
    ).one_or_none()
    if row is None or not hmac.compare_digest(row.token, digest):
        return None
    return Session(row.id, row.name, row.role, row.pseudonym, row.csrf)


def end_session(connection: Connection, cookie: str) -> None:
    connection.execute(sessions.delete().where(sessions.c.token == token_digest(cookie)))


class SessionCache:
    """Recently used sessions, so that most requests need no database query to identify their sender.

    Used on the event loop alone, except for `clear`, which replaces everything at once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions: dict[str, tuple[float, Session]] = {}

    async def get(self, cookie: str) -> Session | None:
        digest, cached, now = token_digest(cookie), self._sessions, time.monotonic()
        if digest in cached and cached[digest][0] > now:
            return cached[digest][1]
        session = await run_in_threadpool(self._find, cookie)
        if session is not None:
            if len(cached) >= _CACHE_SIZE:
                cached.clear()
            # Into the dictionary from before the query: what `clear` dropped meanwhile stays dropped.
            cached[digest] = now + _CACHE_SECONDS, session
        return session

    def _find(self, cookie: str) -> Session | None:
        with self._database.read() as connection:
            return find_session(connection, cookie)

    def clear(self) -> None:
        """Call after a session ended or somebody's role changed."""
        self._sessions = {}


# ---- What routes depend on ----

_cookie = APIKeyCookie(name=SESSION_COOKIE, auto_error=False, description="set by joining or logging in")


def client_address(request: Request) -> str:
    return request.client.host if request.client else ""


def log_in(connection: Connection, user_id: int, response: Response, *, secure: bool) -> Session:
    """Start a session and set its cookie."""
    token = create_session(connection, user_id)
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(SESSION_SECONDS),
        path="/",
        httponly=True,
        samesite="strict",
        secure=secure,
    )
    session = find_session(connection, token)
    assert session is not None  # noqa: S101
    return session


# `async`, because it rarely waits: other functions are run in a thread, which costs time.
async def current_session(
    request: Request,
    cookie: Annotated[str | None, Security(_cookie)],
    x_csrf_token: Annotated[str | None, Header(description="required for writing")] = None,
) -> Session:
    """Return the session of the cookie. Writing also requires the session's CSRF token."""
    cache: SessionCache = request.app.state.sessions
    session = await cache.get(cookie) if cookie else None
    if session is None:
        raise ApiError(401, "login", "log in first")
    if request.method not in ("GET", "HEAD") and not hmac.compare_digest(
        (x_csrf_token or "").encode(), session.csrf.encode()
    ):
        raise ApiError(403, "csrf", "this page is out of date; reload it")
    return session


def require_role(role: Role) -> Callable[[Session], Awaitable[Session]]:
    async def check(session: Annotated[Session, Depends(current_session)]) -> Session:
        if not session.has_role(role):
            raise ApiError(403, "role", f"this requires the role {role}")
        return session

    return check


RaterSession = Annotated[Session, Depends(current_session)]
AdjudicatorSession = Annotated[Session, Depends(require_role("adjudicator"))]
AdminSession = Annotated[Session, Depends(require_role("admin"))]
