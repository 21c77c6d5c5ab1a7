"""What people said of the runs, question by question: preference, agreement, shares of yes, mean scores.

Ratings are those that `mie agree` reads (a review's database or its exports). Ranks and scores under one
name are two questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mie.errors import ConfigError, MieError
from mie.report.measures import Measure, measure
from mie.report.scored import PROTOCOL, ScoredRun
from mie.scoring.clusters import Identity, clusters_of_samples
from mie.scoring.results import ScoredRun as Numbers
from mie.scoring.results import read_scored_runs
from mie.scoring.statistics.agreement import compare_with_people
from mie.scoring.statistics.intervals import mean_interval, wilson
from mie.scoring.statistics.people import Human, Rating, gather

_FIRST: Final = ("accuracy", "preservation", "quality")  # as the page of a review asks them
_AGAIN: Final = re.compile(r"(.+)/\d+")


@dataclass(frozen=True, slots=True)
class Tally:
    """All scores of one model on one question: the share of yes or the mean, and its 95% interval."""

    model: str
    value: float
    low: float
    high: float
    answers: int
    samples: int
    raters: int


@dataclass(frozen=True, slots=True)
class Question:
    """One criterion, by rank or by score. `found` is the document of `mie agree`."""

    name: str
    rated: str  # "rank" or "score"
    samples: int
    raters: int
    shared: int  # samples that two raters or more answered: what agreement rests on
    compares: bool  # somebody placed two models of one sample
    yes_no: bool
    found: Mapping[str, Any]
    tallies: tuple[Tally, ...]  # where there are scores

    @property
    def alpha(self) -> tuple[str, float]:
        """The level of measurement and Krippendorff's alpha."""
        level = "nominal" if self.yes_no else "ordinal"
        return level, float(self.found["raters"]["krippendorff_alpha"][level])


@dataclass(frozen=True, slots=True)
class People:
    questions: tuple[Question, ...]
    names: Mapping[str, str]  # model as people's ratings name it -> its run's name on this page
    numbers: Mapping[str, int]  # name on this page -> the run's number, which decides its colour
    without_metrics: str  # why metrics are not compared with people; empty where they are

    def name_of(self, model: str) -> str:
        """As this page names it; people's own name where it is not among the runs."""
        return self.names.get(model, model)

    @property
    def compared(self) -> list[Question]:
        return [question for question in self.questions if question.compares]

    @property
    def scored(self) -> list[Question]:
        return [question for question in self.questions if question.tallies]


def read_people(ratings: Sequence[Rating], runs: Sequence[ScoredRun], variant: str) -> People:
    """Every question of the ratings. Refused when models were compared and none of them is among the runs."""
    try:
        scored = read_scored_runs([run.folder for run in runs], variant=variant, protocol=PROTOCOL)
        reason = ""
    except ConfigError as error:  # shown side by side by force: there is no one metric for all of them
        scored, reason = [], error.reason
    names = {alias: run.name for run, found in zip(runs, scored, strict=False) for alias in found.aliases}
    numbers = {run.name: at for at, run in enumerate(runs)}
    groups: dict[tuple[int, str, bool], list[Rating]] = {}
    for rating in ratings:
        order = _FIRST.index(rating.criterion) if rating.criterion in _FIRST else len(_FIRST)
        groups.setdefault((order, rating.criterion, rating.rank is None), []).append(rating)
    questions = tuple(_question(groups[key], scored) for key in sorted(groups))
    _same_samples(questions, ratings, runs)
    return People(questions, names, numbers, reason)


def people_in(raters: Sequence[str]) -> int:
    """How many people: `R01/2` is the second ranking of R01, asked for when a run was added.

    >>> people_in(["R01", "R01/2", "R02"])
    2
    """
    names = set(raters)
    return sum((again := _AGAIN.fullmatch(name)) is None or again[1] not in names for name in names)


def _question(ratings: list[Rating], scored: Sequence[Numbers]) -> Question:
    human = gather(ratings)
    compares = any(len(order) > 1 for by_rater in human.orders.values() for order in by_rater.values())
    given = [r.score for r in ratings if r.score is not None]
    yes_no = bool(given) and set(given) <= {0.0, 1.0}
    identities = {sample: identity for run in scored for sample, identity in run.identities.items()}
    return Question(
        human.criterion or "overall",
        "score" if ratings[0].rank is None else "rank",
        len(human.orders),
        people_in(human.raters),
        sum(people_in(list(by_rater)) > 1 for by_rater in human.orders.values()),
        compares,
        yes_no,
        compare_with_people(human, scored if compares else []),
        tuple(_tally(human, model, identities, yes_no=yes_no) for model in human.models) if given else (),
    )


def _tally(human: Human, model: str, identities: Mapping[str, Identity], *, yes_no: bool) -> Tally:
    rows = [
        (sample, rater, score)
        for sample, by_model in human.scores.items()
        for rater, score in by_model.get(model, {}).items()
    ]
    scores = [score for _, _, score in rows]
    if not scores:
        return Tally(model, math.nan, math.nan, math.nan, 0, 0, 0)
    samples = [sample for sample, _, _ in rows]
    if yes_no:
        interval = wilson(round(sum(scores)), len(scores))
    else:
        found = mean_interval(scores, clusters_of_samples(samples, identities))
        interval = found.low, found.high
    raters = people_in([rater for _, rater, _ in rows])
    return Tally(model, float(np.mean(scores)), *interval, len(scores), len(set(samples)), raters)


def _same_samples(
    questions: Sequence[Question], ratings: Sequence[Rating], runs: Sequence[ScoredRun]
) -> None:
    """A review of another dataset has no sample in common with the runs."""
    there = {sample for run in runs for sample in run.ids}
    if questions and not any(rating.sample_id in there for rating in ratings):
        raise MieError(
            "the review is of other samples than the runs",
            expected=f"ids such as {min(there, default='none')}",
            found=ratings[0].sample_id,
            fix="give the review of the dataset that the runs were made on",
        )


# What people said, as tables: rows of figures, each with its interval and what it rests on.

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
