"""The tables of a review. `events` is the truth; `answers` and `consensus` follow from it and can be rebuilt.

Times are seconds since 1970 (UTC) as floats. `items.open` is how many raters an item still lacks: `wanted`
less those who hold a lease on it or have answered.
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
    event,
    insert,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from mie.errors import ConfigError, MieError

SCHEMA_VERSION: Final = 1
metadata = MetaData()


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _of(name: str, table: str, **options: Any) -> Column[int]:
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
    _of("task_id", "tasks"),
    Column("sample_id", Text, nullable=False),
    Column("variant", Text, nullable=False),  # which runs are shown; empty where none are
    Column("version", Text, nullable=False),  # a digest of everything that is shown
    Column("position", Integer, nullable=False),
    Column("wanted", Integer, nullable=False),
    Column("open", Integer, nullable=False),
    Column("answered", Integer, nullable=False, default=0),
    Column("strata", Text, nullable=False),  # canonical JSON: PostgreSQL cannot group by its own
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
    Column("password", Text),  # argon2, or none: then only links let them in
    Column("active", Boolean, nullable=False, default=True),
    Column("created", Double, nullable=False),
)

invites = Table(
    "invites",
    metadata,
    _id(),
    Column("token", Text, nullable=False, unique=True),  # SHA-256 of the token
    Column("user_id", Integer, ForeignKey("users.id")),  # who logs in by it; null: somebody new
    Column("name", Text),
    Column("role", Text, nullable=False),
    Column("expires", Double, nullable=False),
    Column("used", Double),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token", Text, primary_key=True),  # SHA-256 of the cookie
    _of("user_id", "users"),
    Column("csrf", Text, nullable=False),
    Column("expires", Double, nullable=False),
)

assignments = Table(
    "assignments",
    metadata,
    _id(),
    _of("task_id", "tasks"),
    _of("item_id", "items"),
    _of("user_id", "users"),
    Column("position", Integer, nullable=False),
    Column("state", Text, nullable=False),  # "leased", "lapsed" or "done"
    Column("until", Double, nullable=False),  # end of the lease
    Column("seed", Integer, nullable=False),  # of the order in which outputs are shown
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
    _of("user_id", "users"),
    _of("item_id", "items", index=True),
    Column("item_version", Text, nullable=False),
    Column("action", Text, nullable=False),  # "answer", "undo", "consensus" or "consensus undo"
    Column("payload", JSON, nullable=False),
    Column("seconds", Double),
    Column("key", Text, nullable=False),  # made by the client: the same act sent twice is one event
    UniqueConstraint("user_id", "key"),
    sqlite_autoincrement=True,  # ids never come back
)

answers = Table(
    "answers",
    metadata,
    Column("item_id", Integer, ForeignKey("items.id"), primary_key=True),
    Column("user_id", Integer, ForeignKey("users.id"), primary_key=True),
    _of("task_id", "tasks"),
    _of("event_id", "events"),
    Column("at", Double, nullable=False),
    Column("seconds", Double),
    Column("verdict", Text, nullable=False),  # a few words; for inspect the decision itself
    Column("digest", Text, nullable=False),  # equal for raters who agree
    Column("payload", JSON, nullable=False),
)
Index("answers_of", answers.c.user_id, answers.c.task_id, answers.c.event_id)
Index("answers_task", answers.c.task_id, answers.c.verdict)

consensus = Table(
    "consensus",
    metadata,
    Column("item_id", Integer, ForeignKey("items.id"), primary_key=True),
    _of("user_id", "users"),
    _of("event_id", "events"),
    Column("at", Double, nullable=False),
    Column("payload", JSON, nullable=False),
)

masks = Table(
    "masks",
    metadata,
    Column("sha256", Text, primary_key=True),
    _of("item_id", "items", primary_key=True),
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

# Nothing is ever overwritten: the database itself refuses.
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


# One door to the review's database: SQLite in a file, or PostgreSQL by its URL.

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
