"""What people said of the runs, question by question: preference, agreement, shares of yes, mean scores.

Ratings are those that `mie agree` reads (a review's database or its exports). Ranks and scores under one
name are two questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from mie.core.documents import plural
from mie.errors import ConfigError, MieError
from mie.report.charts import Chart, leaderboard_chart
from mie.report.layouts import Layout, metric
from mie.report.scored import Cell, ScoredRun, Support
from mie.report.views import NONE, Label, MeanCell, Row, Section, TextTable, interval
from mie.scoring.clusters import Identity, clusters_of_samples
from mie.scoring.metric import Metric
from mie.scoring.results import ScoredRun as Numbers
from mie.scoring.results import read_scored_runs
from mie.scoring.statistics.agreement import compare_with_people
from mie.scoring.statistics.intervals import mean_interval
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
    support: Support


# Run -> metric -> what people answered about it.
Answers: TypeAlias = Mapping[str, Mapping[str, Tally]]


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
    support: Support  # patients of the samples

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

    def answers(self, asked: Mapping[str, str]) -> Answers:
        """Return run -> metric -> what people answered, for yes/no questions that stand for a metric."""
        by_name = {question.name: question for question in self.scored if question.yes_no}
        found: dict[str, dict[str, Tally]] = {}
        for metric_name, name in asked.items():
            for tally in by_name[name].tallies if name in by_name else ():
                if tally.answers:
                    found.setdefault(self.name_of(tally.model), {})[metric_name] = tally
        return found


def read_people(ratings: Sequence[Rating], runs: Sequence[ScoredRun], layout: Layout) -> People:
    """Read every question of the ratings; models that were compared must be among the runs."""
    try:
        variant = runs[0].variant
        scored = read_scored_runs([run.folder for run in runs], variant=variant, benchmark=layout.name)
        reason = ""
    except ConfigError as error:  # shown side by side by force: there is no one metric for all of them
        scored, reason = [], error.reason
    names = {alias: run.name for run, found in zip(runs, scored, strict=False) for alias in found.aliases}
    numbers = {run.name: at for at, run in enumerate(runs)}
    groups: dict[tuple[int, str, bool], list[Rating]] = {}
    for rating in ratings:
        order = _FIRST.index(rating.criterion) if rating.criterion in _FIRST else len(_FIRST)
        groups.setdefault((order, rating.criterion, rating.rank is None), []).append(rating)
    identities = _identities(runs)
    questions = tuple(_question(groups[key], scored, identities) for key in sorted(groups))
    _same_samples(ratings, identities)
    return People(questions, names, numbers, reason)


def _identities(runs: Sequence[ScoredRun]) -> dict[str, Identity]:
    """Return sample -> its patient and image, over all runs."""
    tables = (s.samples.table for run in runs for s in run.scores.values() if s.samples)
    return {sample: who for table in tables for sample, who in zip(table.ids, table.identities, strict=True)}


def people_in(raters: Sequence[str]) -> int:
    """Count people: `R01/2` is the second ranking of R01, asked for when a run was added.

    >>> people_in(["R01", "R01/2", "R02"])
    2
    """
    names = set(raters)
    return sum((again := _AGAIN.fullmatch(name)) is None or again[1] not in names for name in names)


def _question(
    ratings: list[Rating], scored: Sequence[Numbers], identities: Mapping[str, Identity]
) -> Question:
    human = gather(ratings)
    compares = any(len(order) > 1 for by_rater in human.orders.values() for order in by_rater.values())
    given = [r.score for r in ratings if r.score is not None]
    yes_no = bool(given) and set(given) <= {0.0, 1.0}
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
        Support.of(clusters_of_samples(list(human.orders), identities)),
    )


def _tally(human: Human, model: str, identities: Mapping[str, Identity], *, yes_no: bool) -> Tally:
    rows = [
        (sample, rater, score)
        for sample, by_model in human.scores.items()
        for rater, score in by_model.get(model, {}).items()
    ]
    scores = [score for _, _, score in rows]
    if not scores:
        return Tally(model, math.nan, math.nan, math.nan, 0, 0, 0, Support(0, 0))
    samples = [sample for sample, _, _ in rows]
    clusters = clusters_of_samples(samples, identities)
    # Two raters of one image, or two images of one patient, say less than two of different patients.
    mean = mean_interval(scores, clusters, bounds=(0, 1) if yes_no else None)
    raters = people_in([rater for _, rater, _ in rows])
    support = Support.of(clusters)
    return Tally(model, mean.value, mean.low, mean.high, len(scores), len(set(samples)), raters, support)


def _same_samples(ratings: Sequence[Rating], there: Mapping[str, Identity]) -> None:
    """Refuse a review of another dataset, which has no sample in common with the runs."""
    if not any(rating.sample_id in there for rating in ratings):
        raise MieError(
            "the review is of other samples than the runs",
            expected=f"ids such as {min(there, default='none')}",
            found=ratings[0].sample_id,
            fix="give the review of the dataset that the runs were made on",
        )


# What people said, as tables: rows of numbers, each with its interval and what it rests on.

STRENGTH: Final = Metric("strength", "Strength", "log strength; the mean over the models is 0", decimals=2)
_RANK: Final = Metric("rank", "Mean rank", "1 is best", decimals=2)
SHARE: Final = Metric("share", "Share", "", scale=(0, 1))


def _row(name: str, *cells: MeanCell) -> Row:
    return Label(name), [*cells]


def _samples_words(samples: str, support: Support, raters: int) -> str:
    return f"{samples}, {support}, {plural(raters, 'rater')}"


def people_row(name: str, number: int, said: Mapping[str, Tally]) -> tuple[Label, dict[str, Cell]]:
    """Make the row of a benchmark's table that has what people answered about a run."""
    cells = {
        f"{metric}@1": Cell(one.value, one.low, one.high, one.answers, 0, support=one.support)
        for metric, one in said.items()
    }
    raters, asked = (max(getattr(one, what) for one in said.values()) for what in ("raters", "samples"))
    note = f"{plural(raters, 'rater')}, {plural(asked, 'conversation')}"
    return Label(name, number, note=note, badge="people"), cells


def preference_table(people: People, question: Question) -> TextTable:
    """Make mean rank, Bradley-Terry and Plackett-Luce of each model, the strongest first."""
    board = question.found["leaderboard"]
    luce = {one["model"]: one for one in board["plackett-luce"]}
    of = _samples_words(plural(question.samples, "sample"), question.support, question.raters)
    rows = [
        _row(
            people.name_of(one["model"]),
            MeanCell(_RANK.show(one["mean_rank"]), coverage=f"n {one['n']:,}/{board['rankings']:,} rankings"),
            *(
                MeanCell(STRENGTH.show(each["strength"]), interval(STRENGTH, *each["ci95"]), coverage=of)
                for each in (one, luce[one["model"]])
            ),
        )
        for one in board["bradley-terry"]
    ]
    return TextTable(
        f"Preference, {question.name}: {board['rankings']:,} rankings",
        ("Model", "Mean rank", "Bradley–Terry", "Plackett–Luce"),
        rows,
    )


def raters_table(people: People) -> TextTable:
    rows = []
    for question in people.questions:
        w = question.found["raters"]["kendall_w"]
        level, alpha = question.alpha
        shared = f"n {question.shared:,}/{question.samples:,} samples"
        concordance = MeanCell(NONE)  # of rankings alone
        if question.compares:
            among = f"n {w['n']:,}/{question.samples:,} samples"
            concordance = MeanCell(
                SHARE.show(w["mean"]),
                interval(SHARE, *w["ci95"]),
                coverage=_samples_words(among, question.support, question.raters),
            )
        of = _samples_words(f"{level}; {shared}", question.support, question.raters)
        rows.append(
            _row(
                f"{question.name}, by {question.rated}", concordance, MeanCell(SHARE.show(alpha), coverage=of)
            )
        )
    return TextTable("Agreement of the raters", ("Question", "Kendall’s W", "Krippendorff’s α"), rows)


def metrics_table(people: People) -> TextTable:
    """Make Spearman's correlation of each metric's order of the models with people's, by question."""
    asked = people.compared
    keys = list(dict.fromkeys(key for question in asked for key in question.found["metrics"]))
    rows = []
    for key in keys:
        cells = []
        for question in asked:
            entry = question.found["metrics"].get(key, {}).get("spearman")
            if entry is None:
                cells.append(MeanCell(NONE))
                continue
            coverage = f"n {entry['n']:,}/{entry['n'] + entry['unscored']:,} samples"
            ends = interval(SHARE, *entry["ci95"])
            cells.append(MeanCell(SHARE.show(entry["mean"]), ends, coverage=coverage))
        rows.append(_row(metric(key.rpartition("@")[0]).label, *cells))
    heads = ("Metric", *(question.name.capitalize() for question in asked))
    return TextTable("Metrics and judges against people: Spearman’s correlation", heads, rows)


def scores_table(people: People) -> TextTable:
    rows = []
    for question in people.scored:
        for one in question.tallies:
            samples = f"n {plural(one.answers, 'answer')}, {plural(one.samples, 'sample')}"
            of = _samples_words(samples, one.support, one.raters)
            cell, none = (
                MeanCell(SHARE.show(one.value), interval(SHARE, one.low, one.high), coverage=of),
                MeanCell(NONE),
            )
            cells = (cell, none) if question.yes_no else (none, cell)
            rows.append(_row(f"{question.name}: {people.name_of(one.model)}", *cells))
    return TextTable("Answers with a number", ("Question", "Share of yes", "Mean score"), rows)


def tables(people: People) -> list[TextTable]:
    found = [preference_table(people, q) for q in people.compared if "reason" not in q.found["leaderboard"]]
    found.append(raters_table(people))
    if any(question.found["metrics"] for question in people.compared):
        found.append(metrics_table(people))
    if people.scored:
        found.append(scores_table(people))
    return found


# On the page.


def people_section(people: People, runs: Sequence[ScoredRun], plots: Path, files: Sequence[str]) -> Section:
    notices, notes = [], []
    for question in people.compared:
        if reason := question.found["leaderboard"].get("reason"):
            notices.append(f"No leaderboard for {question.name}: {reason}.")
        if absent := question.found["not_among_the_runs"]:
            notes.append(f"Ranked for {question.name}, but not on this page: {', '.join(absent)}.")
    if people.without_metrics and people.compared:
        notices.append(f"Metrics are not compared with people: {people.without_metrics}.")
    shown = [replace(table, rows=[_coloured(people, row) for row in table.rows]) for table in tables(people)]
    content = {
        "charts": _charts(people, [run.name for run in runs], plots),
        "notices": notices,
        "notes": notes,
        "tables": shown,
        "files": files,
    }
    return Section("people", "What people said", "People", "people.html", content)


def _coloured(people: People, row: Row) -> Row:
    label, cells = row
    return replace(label, run=people.numbers.get(label.name)), cells


def _charts(people: People, names: Sequence[str], folder: Path) -> list[Chart]:
    """Draw of each comparison the Bradley-Terry strengths, in the runs' colours; of yes and no the shares."""
    drawn = []
    for at, question in enumerate(people.compared):
        board = question.found["leaderboard"]
        cells = {
            people.name_of(one["model"]): Cell(one["strength"], low, high, n=board["rankings"], unscored=0)
            for one in board.get("bradley-terry", ())
            for low, high in [one["ci95"]]
        }
        if cells:
            others = [name for name in cells if name not in names]
            caption = f"Preference, {question.name}"
            chart = leaderboard_chart(folder, f"people_{at}", caption, STRENGTH, cells, [*names, *others])
            drawn.append(chart)
    shares = {
        f"{question.name}: {people.name_of(one.model)}": Cell(
            one.value, one.low, one.high, n=one.answers, unscored=0
        )
        for question in people.scored
        if question.yes_no
        for one in question.tallies
    }
    if shares:
        drawn.append(leaderboard_chart(folder, "people_shares", "Share of yes", SHARE, shares, list(shares)))
    return drawn
