"""How far raters agree. The statistics are `mie.analysis`'; here answers become what they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mie.analysis.krippendorff import krippendorff_alpha
from mie.analysis.ranks import kendall_w
from mie.review.kinds import CRITERIA, QUESTIONS

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
    raters = sorted({rater for answers in ratings.values() for rater in answers})
    codes: dict[str, int] = {}
    table = np.full((len(raters), len(ratings)), np.nan)
    for at, answers in enumerate(ratings.values()):
        for rater, answer in answers.items():
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
    for answers in ratings.values():
        ranks = [mean_ranks(answer["rankings"][criterion]) for answer in answers.values()]
        runs = sorted(ranks[0])
        tables.append(np.array([[given[run] for run in runs] for given in ranks]))
    return tables


def _side_by_side(ratings: Ratings, tables: Sequence[Floats]) -> Floats:
    """(raters, runs of all items): who did not rank an item has nan there."""
    raters = sorted({rater for answers in ratings.values() for rater in answers})
    wide = np.full((len(raters), sum(table.shape[1] for table in tables)), np.nan)
    start = 0
    for answers, table in zip(ratings.values(), tables, strict=True):
        stop = start + table.shape[1]
        wide[[raters.index(rater) for rater in answers], start:stop] = table
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
