"""By how many people a sample is reviewed, and in which order one sees its outputs: by hash, so the same
everywhere. Which samples are drawn is in `mie.analysis.sampling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, func, insert, select, update

from mie.core.hashing import stable_hash
from mie.core.registry import nearest_name
from mie.errors import ConfigError
from mie.review.database import assignments, items
from mie.review.material import INDEXED


def raters_of(sample_id: str, raters: int, overlap: float, seed: int) -> int:
    """`raters` for a share `overlap` of the samples, 1 for the others."""
    return raters if stable_hash("overlap", seed, sample_id) < overlap * 2**64 else 1


def display_seed(task_seed: int, user_id: int, item_id: int) -> int:
    """31 bits: the order in which one rater sees the outputs of one item."""
    return stable_hash("display", task_seed, user_id, item_id) >> 33


# How a kind of work is handed out.

_STRATA: Final = tuple(name for name in INDEXED if name not in ("id", "sha256", "group", "turn", "colour"))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a task is handed out; fixed once its items exist."""

    raters: int = 1
    overlap: float = 1.0  # share of the items that `raters` people see; one person sees the others
    sample: int | None = None
    stratify: tuple[str, ...] = ()
    seed: int = 0
    proposals: str | None = None  # of masks: a digest of the regions that models proposed

    def __post_init__(self) -> None:
        for name in self.stratify:
            if name not in _STRATA:
                near = nearest_name(name, _STRATA)
                raise ConfigError(
                    f"no stratum named {name!r}",
                    expected=", ".join(_STRATA),
                    fix=f"did you mean {near!r}?" if near else None,
                )
        if self.raters < 1 or not 0 <= self.overlap <= 1 or (self.sample is not None and self.sample < 1):
            raise ConfigError(
                "the review's numbers do not make sense",
                expected="raters and sample of 1 or more, overlap from 0 to 1",
                found=f"raters {self.raters}, overlap {self.overlap}, sample {self.sample}",
            )


# Who does what: short leases, so that two raters never wait for each other and none sees an item twice.

LEASE: Final = 900.0  # seconds; a rater who is away longer keeps the item only if nobody else wants it
_SWEPT: Final = 64  # expired leases that one call takes back: calls stay short


def next_items(
    connection: Connection, task_id: int, task_seed: int, user_id: int, count: int, now: float
) -> list[int]:
    """Ids of the `count` items that the rater should do: what they hold, then what is new to them."""
    _take_back(connection, now)
    held = _held(connection, task_id, user_id, count, now)
    if len(held) < count:
        held += _new(connection, task_id, task_seed, user_id, count - len(held), now)
    return held


def _take_back(connection: Connection, now: float) -> None:
    """Leases that have run out: their places are open again."""
    expired = connection.execute(
        select(assignments.c.id, assignments.c.item_id)
        .where(assignments.c.state == "leased", assignments.c.until < now)
        .limit(_SWEPT)
        .with_for_update(skip_locked=True)
    ).all()
    for assignment_id, item_id in expired:
        connection.execute(
            update(assignments).where(assignments.c.id == assignment_id).values(state="lapsed")
        )
        connection.execute(update(items).where(items.c.id == item_id).values(open=items.c.open + 1))


def _held(connection: Connection, task_id: int, user_id: int, count: int, now: float) -> list[int]:
    mine = and_(assignments.c.user_id == user_id, assignments.c.task_id == task_id)
    leased = list(
        connection.scalars(
            select(assignments.c.item_id)
            .where(mine, assignments.c.state == "leased")
            .order_by(assignments.c.position)
            .limit(count)
        )
    )
    # Lapsed, and still nobody else's: theirs again.
    again = connection.scalars(
        select(items.c.id)
        .join(assignments, assignments.c.item_id == items.c.id)
        .where(mine, assignments.c.state == "lapsed", items.c.open > 0)
        .order_by(items.c.position)
        .limit(count - len(leased))
        .with_for_update(skip_locked=True, of=items)
    ).all()
    if again:
        connection.execute(update(items).where(items.c.id.in_(again)).values(open=items.c.open - 1))
    held = [*leased, *again]
    if held:
        connection.execute(
            update(assignments)
            .where(assignments.c.user_id == user_id, assignments.c.item_id.in_(held))
            .values(state="leased", until=now + LEASE)
        )
    return held


def _new(
    connection: Connection, task_id: int, task_seed: int, user_id: int, count: int, now: float
) -> list[int]:
    mine = select(assignments.c.id).where(
        assignments.c.item_id == items.c.id, assignments.c.user_id == user_id
    )
    free = (
        select(items.c.id, items.c.position)
        .where(items.c.task_id == task_id, items.c.open > 0, ~mine.exists())
        .order_by(items.c.position)
        .with_for_update(skip_locked=True)
    )
    # Beyond the last one that was theirs first: there is no need to look past all that they have done.
    last = connection.scalar(
        select(func.max(assignments.c.position)).where(
            assignments.c.user_id == user_id, assignments.c.task_id == task_id
        )
    )
    found = list(
        connection.execute(free.where(items.c.position > (-1 if last is None else last)).limit(count))
    )
    if last is not None and len(found) < count:
        found += connection.execute(free.where(items.c.position < last).limit(count - len(found))).all()
    if not found:
        return []
    numbers = [row.id for row in found]
    connection.execute(update(items).where(items.c.id.in_(numbers)).values(open=items.c.open - 1))
    rows = [
        {
            "task_id": task_id,
            "item_id": row.id,
            "user_id": user_id,
            "position": row.position,
            "state": "leased",
            "until": now + LEASE,
            "seed": display_seed(task_seed, user_id, row.id),
        }
        for row in found
    ]
    connection.execute(insert(assignments), rows)
    return numbers


def assignment_of(
    connection: Connection, item_id: int, user_id: int, *, lock: bool = False
) -> Row[Any] | None:
    """What this rater has to do with the item; None where it was never theirs."""
    query = select(assignments).where(assignments.c.item_id == item_id, assignments.c.user_id == user_id)
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def settle(connection: Connection, item_id: int, assignment: Row[Any], change: int, now: float) -> None:
    """The rater now has an answer (`change` 1), has none any more (-1), or has another one (0)."""
    values = {items.c.answered: items.c.answered + change}
    if assignment.state == "lapsed":  # somebody else may hold the place by now: then there is one rater more
        values[items.c.open] = items.c.open - 1
    connection.execute(update(items).where(items.c.id == item_id).values(values))
    state = {"state": "leased", "until": now + LEASE} if change < 0 else {"state": "done"}
    connection.execute(update(assignments).where(assignments.c.id == assignment.id).values(state))
