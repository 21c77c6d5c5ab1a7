"""What people said, as tables: rows of figures, each with its interval and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from mie.report.measures import Measure, measure
from mie.report.people import People, Question

STRENGTH: Final = Measure("strength", "Strength", "log strength; the mean over the models is 0", decimals=2)
_RANK: Final = Measure("rank", "Mean rank", "1 is best", decimals=2)
SHARE: Final = Measure("share", "Share", "", decimals=3)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, its interval and what it rests on."""

    value: str
    interval: str = ""
    coverage: str = ""

    @property
    def line(self) -> str:
        return " ".join(part for part in (self.value, self.interval, self.coverage) if part)


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Figure, ...]], ...]  # heading of the row, its cells


def preference_table(people: People, question: Question) -> Table:
    """Mean rank, Bradley-Terry and Plackett-Luce of each model, the strongest first."""
    board = question.found["leaderboard"]
    luce = {one["model"]: one for one in board["plackett-luce"]}
    rows = []
    for one in board["bradley-terry"]:
        rank = Figure(_RANK.show(one["mean_rank"]), "", f"n {one['n']:,}/{board['rankings']:,} rankings")
        of = f"{question.samples:,} samples, {question.raters:,} raters"
        rows.append(
            (
                people.name_of(one["model"]),
                (rank, *(_strength(each, of) for each in (one, luce[one["model"]]))),
            )
        )
    return Table(
        f"Preference, {question.name}: {board['rankings']:,} rankings",
        ("Model", "Mean rank", "Bradley–Terry", "Plackett–Luce"),
        tuple(rows),
    )


def _strength(one: dict[str, Any], coverage: str) -> Figure:
    return Figure(STRENGTH.show(one["strength"]), _interval(STRENGTH, *one["ci95"]), coverage)


def raters_table(people: People) -> Table:
    rows = []
    for question in people.questions:
        w = question.found["raters"]["kendall_w"]
        level, alpha = question.alpha
        of = f"n {question.shared:,}/{question.samples:,} samples, {question.raters:,} raters"
        concordance = Figure("–")  # of rankings alone
        if question.compares:
            among = f"n {w['n']:,}/{question.samples:,} samples, {question.raters:,} raters"
            concordance = Figure(SHARE.show(w["mean"]), _interval(SHARE, *w["ci95"]), among)
        cells = concordance, Figure(SHARE.show(alpha), "", f"{level}; {of}")
        rows.append((f"{question.name}, by {question.rated}", cells))
    return Table("Agreement of the raters", ("Question", "Kendall’s W", "Krippendorff’s α"), tuple(rows))


def metrics_table(people: People) -> Table:
    """Spearman's correlation of each metric's order of the models with people's, by question."""
    asked = people.compared
    keys = list(dict.fromkeys(key for question in asked for key in question.found["metrics"]))
    rows = []
    for key in keys:
        cells = []
        for question in asked:
            entry = question.found["metrics"].get(key, {}).get("spearman")
            if entry is None:
                cells.append(Figure("–"))
                continue
            coverage = f"n {entry['n']:,}/{entry['n'] + entry['unscored']:,} samples"
            cells.append(Figure(SHARE.show(entry["mean"]), _interval(SHARE, *entry["ci95"]), coverage))
        rows.append((measure(key.rpartition("@")[0]).label, tuple(cells)))
    heads = ("Metric", *(question.name.capitalize() for question in asked))
    return Table("Metrics and judges against people: Spearman’s correlation", heads, tuple(rows))


def scores_table(people: People) -> Table:
    rows = []
    for question in people.scored:
        for one in question.tallies:
            of = f"n {one.answers:,} answers, {one.samples:,} samples, {one.raters:,} raters"
            figure = Figure(SHARE.show(one.value), _interval(SHARE, one.low, one.high), of)
            none = Figure("–")
            cells = (figure, none) if question.yes_no else (none, figure)
            rows.append((f"{question.name}: {people.name_of(one.model)}", cells))
    return Table("Answers with a number", ("Question", "Share of yes", "Mean score"), tuple(rows))


def tables(people: People) -> list[Table]:
    found = [preference_table(people, q) for q in people.compared if "reason" not in q.found["leaderboard"]]
    found.append(raters_table(people))
    if any(question.found["metrics"] for question in people.compared):
        found.append(metrics_table(people))
    if people.scored:
        found.append(scores_table(people))
    return found


def _interval(m: Measure, low: float, high: float) -> str:
    return "" if math.isnan(low) else f"[{m.show(low)}, {m.show(high)}]"
