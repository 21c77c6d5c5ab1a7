"""Who is who: people, one-time links, sessions, passwords.

Tokens have 256 random bits and only their SHA-256 is stored, so a copy of the database lets nobody in.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection, func, insert, select, update
from starlette.concurrency import run_in_threadpool

from mie.review.database import Database, audit, invites, sessions, users
from mie.review.errors import Refused

Role: TypeAlias = Literal["rater", "adjudicator", "admin"]
ROLES: Final = ("rater", "adjudicator", "admin")  # each may do what the ones before it may
LOCAL: Final = "local"  # the person at the machine that the server runs on
SESSION_SECONDS: Final = 14 * 86400.0
_HASHER: Final = PasswordHasher()
# Verified when there is no such person, so that the time tells nothing.
_NOBODY: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$hOrgmm3fOAQsu0HFHqCmLg$NkEulQfYkG1XmvJZ991Q4dleZs2587ne64hcXbvUY5c"
)


@dataclass(frozen=True, slots=True)
class Session:
    """A person, logged in."""

    user_id: int
    name: str
    role: Role
    pseudonym: str
    csrf: str

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def add_user(connection: Connection, name: str, role: str, password: str | None = None) -> int:
    if connection.scalar(select(users.c.id).where(users.c.name == name)) is not None:
        raise Refused(422, "invalid", "somebody already has this name; choose another")
    count = int(connection.scalar(select(func.coalesce(func.max(users.c.id), 0))) or 0)
    body = {
        "name": name,
        "pseudonym": f"R{count + 1:02d}",
        "role": role,
        "password": None if password is None else _HASHER.hash(password),
        "active": True,
        "created": time.time(),
    }
    return int(connection.execute(insert(users), body).inserted_primary_key[0])  # type: ignore[index]


def invite(connection: Connection, *, name: str | None, role: str, days: float) -> tuple[int, str, float]:
    """(id, token, expiry) of a link that works once. It lets a known person in again, under that name."""
    user_id = None
    if name is not None:
        known = connection.execute(select(users.c.id, users.c.role).where(users.c.name == name)).one_or_none()
        if known is not None:
            user_id, role = known.id, known.role
    token, expires = secrets.token_urlsafe(32), time.time() + days * 86400
    body = {"token": hashed(token), "user_id": user_id, "name": name, "role": role, "expires": expires}
    made = connection.execute(insert(invites), body)
    return int(made.inserted_primary_key[0]), token, expires  # type: ignore[index]


def join(connection: Connection, token: str, name: str | None, password: str | None) -> int:
    """Spend a link; the id of the person who came by it."""
    now, digest = time.time(), hashed(token)
    row = connection.execute(select(invites).where(invites.c.token == digest).with_for_update()).one_or_none()
    if row is None or not hmac.compare_digest(row.token, digest) or row.used or row.expires < now:
        raise Refused(410, "used", "this link was used before or has expired; ask for a new one")
    user_id = row.user_id
    if user_id is None:
        name = row.name or (name or "").strip() or None
        if name is None:
            raise Refused(422, "name_needed", "say who you are")
        user_id = add_user(connection, name, row.role, password)
    elif password is not None:
        connection.execute(update(users).where(users.c.id == user_id).values(password=_HASHER.hash(password)))
    if not connection.scalar(select(users.c.active).where(users.c.id == user_id)):
        raise Refused(410, "used", "this account is closed")
    connection.execute(update(invites).where(invites.c.id == row.id).values(used=now, user_id=user_id))
    return int(user_id)


def may_set_password(connection: Connection, user_id: int) -> bool:
    """Whoever came by a link and has none. The local person needs none: the command lets them in."""
    row = connection.execute(select(users.c.name, users.c.password).where(users.c.id == user_id)).one()
    return row.name != LOCAL and row.password is None


def set_password(connection: Connection, user_id: int, hash_: str) -> None:
    """A first password. Another one takes a new link: a page left open lets nobody take an account over."""
    if not may_set_password(connection, user_id):
        raise Refused(409, "conflict", "there is a password already")
    connection.execute(update(users).where(users.c.id == user_id).values(password=hash_))


def hash_password(password: str) -> str:
    """Slow by design: not to be called inside a write."""
    return _HASHER.hash(password)


def check_password(connection: Connection, name: str, password: str) -> int | None:
    """The person's id if the password is theirs; as slow for nobody as for somebody."""
    row = connection.execute(select(users).where(users.c.name == name)).one_or_none()
    stored = row.password if row is not None and row.password and row.active else None
    try:
        _HASHER.verify(stored or _NOBODY, password)
    except (VerificationError, InvalidHashError):
        return None
    return int(row.id) if row is not None and stored else None


def begin_session(connection: Connection, user_id: int) -> str:
    """The cookie's value."""
    token = secrets.token_urlsafe(32)
    connection.execute(
        insert(sessions),
        {
            "token": hashed(token),
            "user_id": user_id,
            "csrf": secrets.token_urlsafe(24),
            "expires": time.time() + SESSION_SECONDS,
        },
    )
    return token


def session_of(connection: Connection, cookie: str) -> Session | None:
    digest = hashed(cookie)
    row = connection.execute(
        select(sessions.c.token, sessions.c.csrf, users)
        .join(users, users.c.id == sessions.c.user_id)
        .where(sessions.c.token == digest, sessions.c.expires > time.time(), users.c.active)
    ).one_or_none()
    if row is None or not hmac.compare_digest(row.token, digest):
        return None
    return Session(row.id, row.name, row.role, row.pseudonym, row.csrf)


def end_session(connection: Connection, cookie: str) -> None:
    connection.execute(sessions.delete().where(sessions.c.token == hashed(cookie)))


def note(connection: Connection, user_id: int | None, action: str, address: str, **detail: Any) -> None:
    """One line of the audit log."""
    body = {"at": time.time(), "user_id": user_id, "action": action, "detail": detail, "address": address}
    connection.execute(insert(audit), body)


def local_invite(connection: Connection) -> str:
    """A link for the person at this machine, who owns the database anyway."""
    if connection.scalar(select(users.c.id).where(users.c.name == LOCAL)) is None:
        add_user(connection, LOCAL, "admin")
    return invite(connection, name=LOCAL, role="admin", days=1)[1]


def has_accounts(connection: Connection) -> bool:
    """Whether anybody but the local person can, or could, log in."""
    people = select(users.c.id).where(users.c.name != LOCAL, users.c.active)
    links = select(invites.c.id).where(
        invites.c.used.is_(None), invites.c.expires > time.time(), invites.c.name.is_distinct_from(LOCAL)
    )
    return connection.scalar(people.limit(1)) is not None or connection.scalar(links.limit(1)) is not None


# Sessions that were looked up a moment ago: a request need not ask the database who it is from.

_FRESH: Final = 10.0  # seconds; other processes that close an account are heard of by then
_MOST: Final = 10_000


class Sessions:
    """Used on the event loop alone, except for `forget`, which replaces everything at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[float, Session]] = {}

    async def of(self, cookie: str) -> Session | None:
        digest, known, now = hashed(cookie), self._known, time.monotonic()
        if digest in known and known[digest][0] > now:
            return known[digest][1]
        session = await run_in_threadpool(self._look_up, cookie)
        if session is not None:
            if len(known) >= _MOST:
                known.clear()
            # Into the dictionary from before the look-up: what `forget` threw away stays away.
            known[digest] = now + _FRESH, session
        return session

    def _look_up(self, cookie: str) -> Session | None:
        with self._database.read() as connection:
            return session_of(connection, cookie)

    def forget(self) -> None:
        """After a session ended or somebody's rights changed."""
        self._known = {}


# Failed logins are counted, and too many of them cost time.

# Fewer for a name than for an address: behind a proxy everybody has the same one.
FAILURES: Final = {"name": 10, "address": 50}
WINDOW: Final = 300.0  # seconds
_REMEMBERED: Final = 10_000  # names and addresses; a flood of new ones pushes out the oldest


class Limiter:
    """Counts failures by "name Ada" and "address 10.0.0.7", in memory: a restart forgives."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, *keys: str) -> None:
        now = time.monotonic()
        with self._lock:
            for key in keys:
                recent = [at for at in self._failures.get(key, ()) if now - at < WINDOW]
                most = FAILURES[key.split()[0]]
                if len(recent) >= most:
                    wait = str(int(WINDOW - (now - recent[-most])) + 1)
                    raise Refused(
                        429, "slow_down", f"too many attempts; wait {wait} s", {"Retry-After": wait}
                    )

    def fail(self, *keys: str) -> None:
        now = time.monotonic()
        with self._lock:
            for key in keys:
                recent = [at for at in self._failures.pop(key, ()) if now - at < WINDOW]
                self._failures[key] = [*recent, now][-max(FAILURES.values()) :]
            while len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
