"""How far raters agree. Here answers become what they take."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, case, func, select

from mie.review.database import answers, items, users
from mie.review.kinds import CRITERIA, QUESTIONS
from mie.review.plan import strata_of
from mie.scoring.statistics.intervals import wilson
from mie.scoring.statistics.ranks import kendall_w, krippendorff_alpha

Run = TypeVar("Run", int, str)
Ratings: TypeAlias = Mapping[int, Mapping[str, Mapping[str, Any]]]  # item -> rater -> answer
Floats: TypeAlias = NDArray[np.float64]

_NAMES: Final = ("krippendorff_alpha", "kendall_w")


def agreement(kind: str, ratings: Ratings) -> dict[str, Any]:
    """Krippendorff's alpha of labels or ranks and Kendall's W of rankings, overall and by criterion.

    Overall is the mean over criteria. A number that cannot be had is null, and `reason` says why.
    """
    empty: dict[str, Any] = {"krippendorff_alpha": None, "kendall_w": None, "n": len(ratings), "by": {}}
    if not ratings:
        return {**empty, "reason": "no item has two answers yet"}
    names = {"rank": CRITERIA, "questions": tuple(QUESTIONS)}.get(kind, ("",))
    by: dict[str, dict[str, float | None]] = {}
    for name in names:
        if kind == "rank":
            tables = rank_tables(ratings, name)
            alpha = krippendorff_alpha(_side_by_side(ratings, tables), "ordinal")
            w = _mean([kendall_w(table) for table in tables])
        else:
            alpha, w = krippendorff_alpha(label_table(kind, ratings, name), "nominal"), None
        by[name] = {"krippendorff_alpha": _known(alpha), "kendall_w": w}
    overall = {name: _mean([row[name] for row in by.values()]) for name in _NAMES}
    same = "all answers are the same, and without variation there is no reliability"
    return {
        **overall,
        "n": len(ratings),
        "by": by if names != ("",) else {},
        "reason": same if overall["krippendorff_alpha"] is None else None,
    }


def label_table(kind: str, ratings: Ratings, question: str) -> Floats:
    """(raters, items): a number for each label that was given, nan where a rater gave none."""
    raters = sorted({rater for given in ratings.values() for rater in given})
    codes: dict[str, int] = {}
    table = np.full((len(raters), len(ratings)), np.nan)
    for at, given in enumerate(ratings.values()):
        for rater, answer in given.items():
            if kind == "inspect":
                label = answer["decision"]
            elif kind == "mask":
                label = answer["mask"] or answer["choice"]
            else:
                label = answer["answers"][question]
            table[raters.index(rater), at] = codes.setdefault(str(label), len(codes))
    return table


def rank_tables(ratings: Ratings, criterion: str) -> list[Floats]:
    """Of each item (raters, runs): the ranks that were given, tied runs with their mean rank."""
    tables = []
    for given in ratings.values():
        ranks = [mean_ranks(answer["rankings"][criterion]) for answer in given.values()]
        runs = sorted(ranks[0])
        tables.append(np.array([[given[run] for run in runs] for given in ranks]))
    return tables


def _side_by_side(ratings: Ratings, tables: Sequence[Floats]) -> Floats:
    """(raters, runs of all items): who did not rank an item has nan there."""
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
    """Best first, ranks from 1.

    >>> mean_ranks([[7], [3, 5]])
    {7: 1.0, 3: 2.5, 5: 2.5}
    """
    found: dict[Run, float] = {}
    before = 0
    for group in groups:
        for run in group:
            found[run] = before + (len(group) + 1) / 2
        before += len(group)
    return found


# The live figures of a task: how much is done, how fast, how often accepted, how far raters agree.

_RECENT: Final = 500
_HOUR: Final = 3600.0


def figures(connection: Connection, task_id: int, kind: str) -> dict[str, Any]:
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
        select(func.count()).where(answers.c.task_id == task_id, answers.c.at > time.time() - _HOUR)
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
    query = select(answers.c.seconds).where(answers.c.task_id == task_id, answers.c.seconds.is_not(None))
    if user_id is not None:
        query = query.where(answers.c.user_id == user_id)
    recent = connection.scalars(query.order_by(answers.c.event_id.desc()).limit(_RECENT)).all()
    return round(statistics.median(recent), 2) if recent else None


def _accept_rate(connection: Connection, task_id: int, user_id: int | None = None) -> dict[str, Any] | None:
    """Of answers that decide: a flag is neither."""
    query = select(answers.c.verdict, func.count()).where(answers.c.task_id == task_id)
    if user_id is not None:
        query = query.where(answers.c.user_id == user_id)
    counts = {row[0]: row[1] for row in connection.execute(query.group_by(answers.c.verdict))}
    accepted, n = counts.get("accept", 0), counts.get("accept", 0) + counts.get("reject", 0)
    if not n:
        return None
    low, high = wilson(accepted, n)
    return {"value": accepted / n, "low": low, "high": high, "n": n}


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
    """Item -> rater -> answer, of the items that two raters or more have answered."""
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
    found = []
    for user_id, pseudonym, done in connection.execute(query).all():
        rate = _accept_rate(connection, task_id, user_id) if kind == "inspect" else None
        found.append(
            {
                "rater": pseudonym,
                "done": done,
                "seconds_per_answer": _speed(connection, task_id, user_id),
                "accept_rate": None if rate is None else rate["value"],
            }
        )
    return found


def _strata(connection: Connection, task_id: int) -> list[dict[str, Any]]:
    done = func.sum(case((items.c.answered >= items.c.wanted, 1), else_=0))
    query = (
        select(items.c.strata, func.count(), done)
        .where(items.c.task_id == task_id)
        .group_by(items.c.strata)
        .order_by(items.c.strata)
    )
    rows = connection.execute(query).all()
    return [{"stratum": strata_of(s), "items": n, "done": int(d)} for s, n, d in rows if s != "{}"]
