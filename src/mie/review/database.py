"""The database of a review: its tables, in a SQLite file or on a PostgreSQL server.

`events` is append-only and authoritative; `answers` and `consensus` follow from it and can be rebuilt. Times
are seconds since 1970 (UTC) as floats. `items.open` is the number of raters that an item still needs:
`wanted` minus those who hold a lease on it or have answered.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    DDL,
    JSON,
    URL,
    Boolean,
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    delete,
    event,
    insert,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError

from mie.core.environment import install_hint
from mie.errors import ConfigError, MieError

SCHEMA_VERSION: Final = 1
_LOCK_NUMBER: Final = 0x6D6965  # PostgreSQL's advisory lock while tables are created
metadata = MetaData()


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _reference(name: str, table: str, **options: Any) -> Column[int]:
    return Column(name, Integer, ForeignKey(f"{table}.id"), nullable=False, **options)


meta = Table("meta", metadata, Column("key", Text, primary_key=True), Column("value", Text, nullable=False))

runs = Table(
    "runs",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("fingerprint", Text, nullable=False, unique=True),
)

tasks = Table(
    "tasks",
    metadata,
    _id(),
    Column("kind", Text, nullable=False, unique=True),
    Column("settings", JSON, nullable=False),
)

items = Table(
    "items",
    metadata,
    _id(),
    _reference("task_id", "tasks"),
    Column("sample_id", Text, nullable=False),
    Column("variant", Text, nullable=False),  # the runs that are shown; empty if none
    Column("version", Text, nullable=False),  # a digest of everything that the item shows
    Column("position", Integer, nullable=False),
    Column("wanted", Integer, nullable=False),
    Column("open", Integer, nullable=False),
    Column("answered", Integer, nullable=False, default=0),
    Column(
        "strata", Text, nullable=False
    ),  # canonical JSON as text: PostgreSQL cannot group by its JSON type
    Column("places", JSON, nullable=False),  # [[shard, row group, row], ...]: one, or one per turn
    Column("outputs", JSON, nullable=False),  # [[run id, sample id, sha256], ...]
    UniqueConstraint("task_id", "sample_id", "variant"),
)
Index("items_open", items.c.task_id, items.c.position, sqlite_where=items.c.open > 0,
      postgresql_where=items.c.open > 0)  # fmt: skip

users = Table(
    "users",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("pseudonym", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("password", Text),  # argon2; null if the person logs in by links only
    Column("active", Boolean, nullable=False, default=True),
    Column("created", Double, nullable=False),
)

invites = Table(
    "invites",
    metadata,
    _id(),
    Column("token", Text, nullable=False, unique=True),  # SHA-256 of the token
    Column("user_id", Integer, ForeignKey("users.id")),  # the person it logs in; null for somebody new
    Column("name", Text),
    Column("role", Text, nullable=False),
    Column("expires", Double, nullable=False),
    Column("used", Double),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token", Text, primary_key=True),  # SHA-256 of the cookie
    _reference("user_id", "users"),
    Column("csrf", Text, nullable=False),
    Column("expires", Double, nullable=False),
)

assignments = Table(
    "assignments",
    metadata,
    _id(),
    _reference("task_id", "tasks"),
    _reference("item_id", "items"),
    _reference("user_id", "users"),
    Column("position", Integer, nullable=False),
    Column("state", Text, nullable=False),  # "leased", "lapsed" or "done"
    Column("until", Double, nullable=False),  # end of the lease
    Column("seed", Integer, nullable=False),  # of the order in which choices are shown
    UniqueConstraint("item_id", "user_id"),
)
Index("assignments_of", assignments.c.user_id, assignments.c.task_id, assignments.c.state,
      assignments.c.position)  # fmt: skip
Index("assignments_leased", assignments.c.until, sqlite_where=assignments.c.state == "leased",
      postgresql_where=assignments.c.state == "leased")  # fmt: skip

events = Table(
    "events",
    metadata,
    _id(),
    Column("at", Double, nullable=False),
    _reference("user_id", "users"),
    _reference("item_id", "items", index=True),
    Column("item_version", Text, nullable=False),
    Column("action", Text, nullable=False),  # "answer", "undo", "consensus" or "consensus undo"
    Column("payload", JSON, nullable=False),
    Column("seconds", Double),
    Column("key", Text, nullable=False),  # chosen by the client: the same action sent twice is one event
    UniqueConstraint("user_id", "key"),
    sqlite_autoincrement=True,  # ids are never reused
)

answers = Table(
    "answers",
    metadata,
    Column("item_id", Integer, ForeignKey("items.id"), primary_key=True),
    Column("user_id", Integer, ForeignKey("users.id"), primary_key=True),
    _reference("task_id", "tasks"),
    _reference("event_id", "events"),
    Column("at", Double, nullable=False),
    Column("seconds", Double),
    Column("verdict", Text, nullable=False),  # a few words; for an inspection the decision
    Column("digest", Text, nullable=False),  # equal for raters who agree
    Column("payload", JSON, nullable=False),
)
Index("answers_of", answers.c.user_id, answers.c.task_id, answers.c.event_id)
Index("answers_task", answers.c.task_id, answers.c.verdict)

consensus = Table(
    "consensus",
    metadata,
    Column("item_id", Integer, ForeignKey("items.id"), primary_key=True),
    _reference("user_id", "users"),
    _reference("event_id", "events"),
    Column("at", Double, nullable=False),
    Column("payload", JSON, nullable=False),
)

masks = Table(
    "masks",
    metadata,
    Column("sha256", Text, primary_key=True),
    _reference("item_id", "items", primary_key=True),
    Column("png", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    _id(),
    Column("at", Double, nullable=False),
    Column("user_id", Integer, ForeignKey("users.id")),
    Column("action", Text, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("address", Text, nullable=False),
    sqlite_autoincrement=True,
)

# The database itself rejects changes to these two tables.
for _table in (events, audit):
    for _verb in ("UPDATE", "DELETE"):
        _name = f"{_table.name}_no_{_verb.lower()}"
        event.listen(
            _table,
            "after_create",
            DDL(  # type: ignore[no-untyped-call]
                f"CREATE TRIGGER {_name} BEFORE {_verb} ON {_table.name} "
                f"BEGIN SELECT RAISE(ABORT, '{_table.name} is append-only'); END"
            ).execute_if(dialect="sqlite"),
        )
        event.listen(
            _table,
            "after_create",
            DDL(  # type: ignore[no-untyped-call]
                f"CREATE OR REPLACE FUNCTION {_name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{_table.name} is append-only'; END $$; "
                f"CREATE TRIGGER {_name} BEFORE {_verb} ON {_table.name} "
                f"FOR EACH ROW EXECUTE FUNCTION {_name}()"
            ).execute_if(dialect="postgresql"),
        )


def iso(seconds: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


_RAISED: Final = "P0001"  # PostgreSQL: one of our own triggers, which keep the log append-only


class DatabaseFailureError(MieError):
    """The disk of the database is full, its connection is lost, or it is none. Nothing was saved."""


class Database:
    """`read()` and `write()` yield a connection in a transaction; a write is committed whole or not at all.

    A committed write survives the end of the process. To survive a power cut it must also be synced to disk:
    `write()` does that, `write(durable=False)` leaves it to the next durable write.
    """

    def __init__(self, place: str | Path) -> None:
        text = str(place)
        self.is_sqlite = "://" not in text
        # SQLite allows one writer. Waiting on a lock is fair and quick; SQLite itself would poll.
        self._write_lock = threading.Lock() if self.is_sqlite else nullcontext()
        self._place = self.display_name(text)
        self.engine = _sqlite(Path(text)) if self.is_sqlite else _postgres(text)
        self._create_tables()

    @classmethod
    def open_existing(cls, place: str) -> Database:
        """Open the database of a review; an error if there is none."""
        if "://" not in place and not Path(place).is_file():
            expected = "the file that `mie review` writes"
            raise MieError("no review database here", where=place, expected=expected)
        return cls(place)

    @staticmethod
    def display_name(place: str | Path) -> str:
        """Return the file or URL without a password."""
        return make_url(str(place)).render_as_string() if "://" in str(place) else str(place)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:  # two people at once, say: the caller knows what it means
            raise
        except DatabaseError as error:
            if getattr(error.orig, "sqlstate", None) == _RAISED:
                raise
            raise DatabaseFailureError(
                "cannot open the review database",
                where=self._place,
                found=str(error.orig).splitlines()[0] if error.orig else error,
                fix="check the disk or the database server, and run the same command again: every confirmed "
                "answer is saved",
            ) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        with self._write_lock, self._errors(), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.info["synchronous"] = "FULL" if durable else "NORMAL"
            with connection.begin():
                if not self.is_sqlite and not durable:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                yield connection

    def value(self, key: str) -> str | None:
        """Return an entry of the table `meta`."""
        with self.read() as connection:
            return connection.scalar(select(meta.c.value).where(meta.c.key == key))

    def set_value(self, key: str, value: str) -> None:
        with self.write() as connection:
            connection.execute(delete(meta).where(meta.c.key == key))
            connection.execute(insert(meta), {"key": key, "value": value})

    def close(self) -> None:
        self.engine.dispose()

    def _create_tables(self) -> None:
        with self.write() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})")
            metadata.create_all(connection)
            found = connection.scalar(select(meta.c.value).where(meta.c.key == "schema_version"))
            if found is None:
                entries = {"schema_version": str(SCHEMA_VERSION), "secret": secrets.token_hex(32)}
                connection.execute(insert(meta), [{"key": k, "value": v} for k, v in entries.items()])
        if found not in (None, str(SCHEMA_VERSION)):
            raise MieError(
                "the review database has another schema version",
                where=self.engine.url.render_as_string(),
                expected=SCHEMA_VERSION,
                found=found,
                fix="open it with the version of mie that wrote it",
            )


def _sqlite(path: Path) -> Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)  # it holds names, password hashes and tokens
    engine = create_engine(URL.create("sqlite", database=str(path)), pool_size=8, max_overflow=64)

    @event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are started explicitly, below
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
        # A write takes the lock at once: a transaction that reads first could not wait for it later.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgres(text: str) -> Engine:
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError("not a database URL", expected="postgresql://user@host/name") from None
    if url.get_backend_name() != "postgresql":
        raise ConfigError(
            "unsupported database",
            expected="a SQLite file or postgresql://…",
            found=url.drivername,
        )
    try:
        return create_engine(url.set(drivername="postgresql+psycopg"), pool_size=8, max_overflow=64)
    except ModuleNotFoundError:
        raise ConfigError(
            "the PostgreSQL driver is not installed", fix=install_hint("review-postgres")
        ) from None
