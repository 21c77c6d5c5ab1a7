"""Numbers about a review while it runs: one person's progress, speed, accept rate, agreement of raters."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, case, func, select

from mie.review.api import ASKED, CRITERIA
from mie.review.database import Database, answers, assignments, items, users
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.statistics.ranks import kendall_w, krippendorff_alpha

Run = TypeVar("Run", int, str)
Ratings: TypeAlias = Mapping[int, Mapping[str, Mapping[str, Any]]]  # item -> rater -> answer
Floats: TypeAlias = NDArray[np.float64]

_MEASURES: Final = ("krippendorff_alpha", "kendall_w")
_RECENT_OWN: Final = 50  # answers from which one person's speed is computed
_RECENT_ALL: Final = 500  # answers from which the speed of all raters is computed
_COUNT_SECONDS: Final = 5.0  # how long a count of the open items is reused


class ProgressCounter:
    """One person's progress, cheap enough to return with every answer.

    Their own answers are counted each time; the open items, which takes longer, every few seconds.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: dict[tuple[int, int], tuple[float, int, int, float | None]] = {}

    def of(self, task_id: int, user_id: int) -> dict[str, Any]:
        with self._database.read() as connection:
            mine = (answers.c.user_id == user_id, answers.c.task_id == task_id)
            done = int(connection.scalar(select(func.count()).where(*mine)) or 0)
            empty = (-_COUNT_SECONDS, 0, 0, None)
            counted_at, done_then, open_then, speed = self._counts.get((task_id, user_id), empty)
            if time.monotonic() - counted_at >= _COUNT_SECONDS or speed is None:
                open_then, done_then = _count_remaining(connection, task_id, user_id), done
                speed = _median_seconds(connection, _RECENT_OWN, *mine)
                self._counts[task_id, user_id] = time.monotonic(), done_then, open_then, speed
        remaining = max(0, open_then - (done - done_then))
        return {
            "done": done,
            "remaining": remaining,
            "total": done + remaining,
            "seconds_per_item": None if speed is None else round(speed, 2),
            "seconds_left": None if speed is None else round(speed * remaining),
        }


def _count_remaining(connection: Connection, task_id: int, user_id: int) -> int:
    """Count the items leased to this person, and the open ones that are new to them."""
    mine = assignments.c.user_id == user_id, assignments.c.task_id == task_id
    leased = select(func.count()).where(*mine, assignments.c.state == "leased")
    free = select(func.count()).select_from(items).where(items.c.task_id == task_id, items.c.open > 0)
    seen = (
        select(func.count())
        .select_from(assignments)
        .join(items, items.c.id == assignments.c.item_id)
        .where(*mine, assignments.c.state != "lapsed", items.c.open > 0)
    )
    counts = [int(connection.scalar(query) or 0) for query in (leased, free, seen)]
    return counts[0] + counts[1] - counts[2]


def _median_seconds(connection: Connection, limit: int, *where: ColumnElement[bool]) -> float | None:
    """Return the seconds per answer, recently. The median, so that a break does not count as slowness."""
    query = select(answers.c.seconds).where(*where, answers.c.seconds.is_not(None))
    recent = connection.scalars(query.order_by(answers.c.event_id.desc()).limit(limit)).all()
    return statistics.median(recent) if recent else None


def agreement(kind: str, ratings: Ratings) -> dict[str, Any]:
    """Return Krippendorff's alpha and, for rankings, Kendall's W, overall and by criterion.

    Overall is the mean over criteria. A number that cannot be computed is null, and `reason` says why.
    """
    empty: dict[str, Any] = {"krippendorff_alpha": None, "kendall_w": None, "n": len(ratings), "by": {}}
    if not ratings:
        return {**empty, "reason": "no item has two answers yet"}
    names = CRITERIA if kind == "rank" else tuple(ASKED.get(kind, ("",)))
    by: dict[str, dict[str, float | None]] = {}
    for name in names:
        if kind == "rank":
            tables = rank_tables(ratings, name)
            alpha = krippendorff_alpha(_side_by_side(ratings, tables), "ordinal")
            w = _mean([kendall_w(table) for table in tables])
        else:
            level = "ordinal" if kind == "grade" else "nominal"
            alpha, w = krippendorff_alpha(label_table(kind, ratings, name), level), None
        by[name] = {"krippendorff_alpha": _known(alpha), "kendall_w": w}
    overall = {name: _mean([row[name] for row in by.values()]) for name in _MEASURES}
    same = "all answers are equal, so reliability is undefined"
    return {
        **overall,
        "n": len(ratings),
        "by": by if names != ("",) else {},
        "reason": same if overall["krippendorff_alpha"] is None else None,
    }


def label_table(kind: str, ratings: Ratings, question: str) -> Floats:
    """Return (raters, items): a number for each label, nan where a rater gave no answer."""
    raters = sorted({rater for given in ratings.values() for rater in given})
    codes: dict[str, int] = {}
    table = np.full((len(raters), len(ratings)), np.nan)
    for at, given in enumerate(ratings.values()):
        for rater, answer in given.items():
            if kind == "grade":
                table[raters.index(rater), at] = answer["grades"][question]
                continue
            if kind == "inspect":
                label = answer["decision"]
            elif kind == "mask":
                label = answer["mask"] or answer["choice"]
            else:
                label = answer["answers"][question]
            table[raters.index(rater), at] = codes.setdefault(str(label), len(codes))
    return table


def rank_tables(ratings: Ratings, criterion: str) -> list[Floats]:
    """Return for each item (raters, runs): the ranks, with the mean rank for ties."""
    tables = []
    for given in ratings.values():
        ranks = [mean_ranks(answer["rankings"][criterion]) for answer in given.values()]
        runs = sorted(ranks[0])
        tables.append(np.array([[given[run] for run in runs] for given in ranks]))
    return tables


def _side_by_side(ratings: Ratings, tables: Sequence[Floats]) -> Floats:
    """Return (raters, runs of all items), nan where a rater did not rank an item."""
    raters = sorted({rater for given in ratings.values() for rater in given})
    wide = np.full((len(raters), sum(table.shape[1] for table in tables)), np.nan)
    start = 0
    for given, table in zip(ratings.values(), tables, strict=True):
        stop = start + table.shape[1]
        wide[[raters.index(rater) for rater in given], start:stop] = table
        start = stop
    return wide


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else None


def mean_ranks(groups: Sequence[Sequence[Run]]) -> dict[Run, float]:
    """Return the rank of each run from 1, best first; ties share their mean rank.

    >>> mean_ranks([[7], [3, 5]])
    {7: 1.0, 3: 2.5, 5: 2.5}
    """
    ranks: dict[Run, float] = {}
    before = 0
    for group in groups:
        for run in group:
            ranks[run] = before + (len(group) + 1) / 2
        before += len(group)
    return ranks


def figures(connection: Connection, task_id: int, kind: str) -> dict[str, Any]:
    """Return how much of a task is done, how fast, how much of it is accepted, and how far raters agree."""
    of_task = items.c.task_id == task_id
    n_items, wanted, done, full = connection.execute(
        select(
            func.count(),
            func.coalesce(func.sum(items.c.wanted), 0),
            func.coalesce(func.sum(items.c.answered), 0),
            func.coalesce(func.sum(case((items.c.answered >= items.c.wanted, 1), else_=0)), 0),
        ).where(of_task)
    ).one()
    lacking = func.sum(case((items.c.wanted > items.c.answered, items.c.wanted - items.c.answered), else_=0))
    remaining = int(connection.scalar(select(func.coalesce(lacking, 0)).where(of_task)) or 0)
    speed = _speed(connection, task_id)
    hour = connection.scalar(
        select(func.count()).where(answers.c.task_id == task_id, answers.c.at > time.time() - 3600)
    )
    return {
        "kind": kind,
        "items": n_items,
        "answers_wanted": int(wanted),
        "answers_done": int(done),
        "items_done": int(full),
        "items_disagreeing": _disagreeing(connection, task_id),
        "remaining": remaining,
        "seconds_per_answer": speed,
        "answers_per_hour": float(hour or 0),
        "seconds_left": None if speed is None else round(speed * remaining),
        "accept_rate": _accept_rate(connection, task_id) if kind == "inspect" else None,
        "agreement": agreement(kind, _ratings(connection, task_id)),
        "raters": _raters(connection, task_id, kind),
        "strata": _strata(connection, task_id),
    }


def _speed(connection: Connection, task_id: int, user_id: int | None = None) -> float | None:
    where = [answers.c.task_id == task_id, *([answers.c.user_id == user_id] if user_id is not None else [])]
    seconds = _median_seconds(connection, _RECENT_ALL, *where)
    return None if seconds is None else round(seconds, 2)


def _accept_rate(connection: Connection, task_id: int, user_id: int | None = None) -> dict[str, Any] | None:
    """Return the share of accepted samples among accepted and rejected ones; flags do not count."""
    query = (
        select(answers.c.verdict, items.c.sample_id)
        .join(items, items.c.id == answers.c.item_id)
        .where(answers.c.task_id == task_id, answers.c.verdict.in_(("accept", "reject")))
    )
    if user_id is not None:
        query = query.where(answers.c.user_id == user_id)
    rows = connection.execute(query).all()
    if not rows:
        return None
    verdicts, samples = zip(*rows, strict=True)
    # The answers to one sample belong together; the database does not know the patients.
    share = mean_interval([verdict == "accept" for verdict in verdicts], samples, bounds=(0, 1))
    low, high = (None, None) if share.reason else (share.low, share.high)
    return {"value": share.value, "low": low, "high": high, "n": len(rows)}


def _disagreeing(connection: Connection, task_id: int) -> int:
    differ = (
        select(answers.c.item_id)
        .where(answers.c.task_id == task_id)
        .group_by(answers.c.item_id)
        .having(func.count(answers.c.digest.distinct()) > 1)
        .subquery()
    )
    return int(connection.scalar(select(func.count()).select_from(differ)) or 0)


def _ratings(connection: Connection, task_id: int) -> dict[int, dict[str, Any]]:
    """Return item -> rater -> answer for the items that at least two raters have answered."""
    query = (
        select(answers.c.item_id, users.c.pseudonym, answers.c.payload)
        .join(users, users.c.id == answers.c.user_id)
        .join(items, items.c.id == answers.c.item_id)
        .where(answers.c.task_id == task_id, items.c.answered > 1)
    )
    ratings: dict[int, dict[str, Any]] = {}
    for row in connection.execute(query):
        ratings.setdefault(row.item_id, {})[row.pseudonym] = row.payload
    return ratings


def _raters(connection: Connection, task_id: int, kind: str) -> list[dict[str, Any]]:
    query = (
        select(users.c.id, users.c.pseudonym, func.count())
        .join(answers, answers.c.user_id == users.c.id)
        .where(answers.c.task_id == task_id)
        .group_by(users.c.id, users.c.pseudonym)
        .order_by(users.c.id)
    )
    raters = []
    for user_id, pseudonym, done in connection.execute(query).all():
        rate = _accept_rate(connection, task_id, user_id) if kind == "inspect" else None
        raters.append(
            {
                "rater": pseudonym,
                "done": done,
                "seconds_per_answer": _speed(connection, task_id, user_id),
                "accept_rate": None if rate is None else rate["value"],
            }
        )
    return raters


def _strata(connection: Connection, task_id: int) -> list[dict[str, Any]]:
    done = func.sum(case((items.c.answered >= items.c.wanted, 1), else_=0))
    query = (
        select(items.c.strata, func.count(), done)
        .where(items.c.task_id == task_id)
        .group_by(items.c.strata)
        .order_by(items.c.strata)
    )
    rows = connection.execute(query).all()
    return [{"stratum": json.loads(s), "items": n, "done": int(d)} for s, n, d in rows if s != "{}"]
