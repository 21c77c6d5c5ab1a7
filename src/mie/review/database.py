"""One door to the review's database: SQLite in a file, or PostgreSQL by its URL."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from mie.errors import ConfigError, MieError
from mie.review.tables import SCHEMA_VERSION, meta, metadata

_LOCK_NUMBER: Final = 0x6D6965  # of PostgreSQL's advisory lock while tables are made


def iso(seconds: float) -> str:
    """A time as people and spreadsheets read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class Database:
    """`read()` and `write()` give a connection inside a transaction; a write is committed, or not there.

    What was written survives the server's death at once, and the machine's as soon as the disk was waited
    for: `write()` does that, `write(durable=False)` leaves it to the next one that does.
    """

    def __init__(self, place: str | Path) -> None:
        text = str(place)
        self.is_sqlite = "://" not in text
        # SQLite has one writer. Waiting for it here is fair and quick; SQLite's own waiting polls.
        self._turn = threading.Lock() if self.is_sqlite else nullcontext()
        try:
            self.engine = _sqlite(Path(text)) if self.is_sqlite else _postgres(text)
            self._prepare()
        except (OperationalError, DatabaseError) as error:
            raise MieError(
                "the review's database cannot be opened",
                where=self.shown(text),
                found=str(error.orig).splitlines()[0] if error.orig else error,
            ) from None

    @staticmethod
    def shown(place: str | Path) -> str:
        """The place without a password in it."""
        return make_url(str(place)).render_as_string() if "://" in str(place) else str(place)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        with self._turn, self.engine.connect() as connection:
            if self.is_sqlite:
                connection.info["synchronous"] = "FULL" if durable else "NORMAL"
            with connection.begin():
                if not self.is_sqlite and not durable:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                yield connection

    def value(self, key: str) -> str | None:
        with self.read() as connection:
            return connection.scalar(select(meta.c.value).where(meta.c.key == key))

    def close(self) -> None:
        self.engine.dispose()

    def _prepare(self) -> None:
        with self.write() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})")
            metadata.create_all(connection)
            found = connection.scalar(select(meta.c.value).where(meta.c.key == "schema_version"))
            if found is None:
                facts = {"schema_version": str(SCHEMA_VERSION), "secret": secrets.token_hex(32)}
                connection.execute(insert(meta), [{"key": k, "value": v} for k, v in facts.items()])
        if found not in (None, str(SCHEMA_VERSION)):
            raise MieError(
                "review of another schema version",
                where=self.engine.url.render_as_string(),
                expected=SCHEMA_VERSION,
                found=found,
                fix="open it with the version of mie that wrote it",
            )


def _sqlite(path: Path) -> Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)  # names, password hashes and tokens: nobody else's business
    engine = create_engine(URL.create("sqlite", database=str(path)), pool_size=8, max_overflow=64)

    @event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so, below
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "busy_timeout=10000", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        synchronous = connection.info.pop("synchronous", None)
        if synchronous is None:
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
        # A write takes the lock at once: a transaction that first reads and then writes could not wait.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgres(text: str) -> Engine:
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError("not a database's URL", expected="postgresql://user@host/name") from None
    if url.get_backend_name() != "postgresql":
        raise ConfigError(
            "unknown kind of database",
            expected="a file for SQLite, or postgresql://…",
            found=url.drivername,
        )
    try:
        return create_engine(url.set(drivername="postgresql+psycopg"), pool_size=8, max_overflow=64)
    except ModuleNotFoundError:
        raise ConfigError("PostgreSQL needs its driver", fix="pip install 'mie[review-postgres]'") from None
