"""How far raters agree. The statistics are `mie.analysis`'; here answers become what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mie.review.kinds import CRITERIA, QUESTIONS

Run = TypeVar("Run", int, str)
Ratings = Mapping[int, Mapping[str, Mapping[str, Any]]]  # item -> rater -> answer


def agreement(kind: str, ratings: Ratings) -> dict[str, Any]:
    """Krippendorff's alpha of labels and Kendall's W of rankings, by criterion; null with a reason."""
    reason = "no item has two answers yet" if not ratings else "the agreement statistics are not connected"
    return {
        "krippendorff_alpha": None,
        "kendall_w": None,
        "n": len(ratings),
        "reason": reason,
        "by": dict.fromkeys(criteria(kind)),
    }


def criteria(kind: str) -> tuple[str, ...]:
    return {"rank": CRITERIA, "questions": tuple(QUESTIONS)}.get(kind, ())


def labels(kind: str, ratings: Ratings, criterion: str | None = None) -> list[dict[str, Any]]:
    """One dictionary rater -> label per item: what Krippendorff's alpha (nominal) takes."""
    found = []
    for raters in ratings.values():
        if kind == "inspect":
            found.append({rater: a["decision"] for rater, a in raters.items()})
        elif kind == "mask":
            found.append({rater: a["mask"] or a["choice"] for rater, a in raters.items()})
        else:
            found.append({rater: a["answers"][criterion] for rater, a in raters.items()})
    return found


def ranks(ratings: Ratings, criterion: str) -> list[dict[str, dict[int, float]]]:
    """One dictionary rater -> {run: rank} per item, ties with their mean rank: what Kendall's W takes."""
    return [
        {rater: mean_ranks(answer["rankings"][criterion]) for rater, answer in raters.items()}
        for raters in ratings.values()
    ]


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
