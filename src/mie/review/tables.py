"""The tables of a review. `events` is the truth; `answers` and `consensus` follow from it and can be rebuilt.

Times are seconds since 1970 (UTC) as floats. `items.open` is how many raters an item still lacks: `wanted`
less those who hold a lease on it or have answered.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    DDL,
    JSON,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
)

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
