"""A leaderboard from what people preferred: mean rank, and strengths with intervals.

Bradley-Terry takes each ranking as its pairs, Plackett-Luce as a row of choices: the best of all, then the
best of the rest. Both are fitted by the same minorise-maximise steps (Hunter 2004): a comparison is a set of
models of which one wins, and

    strength_i  <-  wins_i / sum over comparisons with i of 1 / (sum of strengths in the comparison)

A ranking may cover any of the models, so a new one needs only comparisons that it takes part in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mie.core.registry import unknown_name
from mie.errors import MieError
from mie.scoring.clusters import ClustersLike, as_clusters
from mie.scoring.statistics.arrays import Floats, numbers
from mie.scoring.statistics.intervals import MIN_PATIENTS, jackknife_intervals
from mie.scoring.statistics.ranks import average_ranks

KINDS: Final = ("bradley-terry", "plackett-luce")
# Half a win and half a loss against an average model: keeps a model that always won, or always lost, finite.
PRIOR: Final = 0.5
_STEPS: Final = 10_000
_CLOSE: Final = 1e-8  # of log strengths from one step to the next

# Model -> its place, lower is better; equal places are ties.
Ranking: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Standing:
    """One line of the leaderboard. `strength` is a natural logarithm; over all models the mean is 0."""

    model: str
    mean_rank: float  # over the `n` rankings that cover every model; nan where there is none
    n: int
    strength: float
    ci95: tuple[float, float]  # (nan, nan) for fewer than `MIN_PATIENTS` patients
    patients: int
    unknown: int  # images without a known patient, each counted as a patient of its own
    top_two: float = math.nan  # share of the n rankings where at most one model is better (ImgEdit's picks)


def leaderboard(
    rankings: Sequence[Ranking],
    clusters: ClustersLike = None,
    *,
    kind: str = "bradley-terry",
    prior: float = PRIOR,
) -> list[Standing]:
    """Models from the strongest to the weakest, with 95% intervals over patients.

    `clusters` says which of the `(R,)` rankings are of one patient; without it each stands alone. The fit is
    repeated without each patient in turn, and the interval is Student's, as those of means. A place that is
    nan is refused (`MieError`).
    """
    if not rankings:
        return []
    numbers([place for ranking in rankings for place in ranking.values()])
    models = sorted({model for ranking in rankings for model in ranking})
    choices = _Choices.of(rankings, models, kind)
    _check_connected(choices, models)
    groups = as_clusters(clusters, len(rankings))
    sizes = np.unique(groups.codes, return_counts=True)[1]
    times, wins = choices.times.sum(axis=0, keepdims=True), choices.wins.sum(axis=0, keepdims=True)
    strengths = choices.fit(times, wins, prior)[0]
    low = high = np.full(len(models), np.nan)
    if len(sizes) >= MIN_PATIENTS:
        times_of, wins_of = choices.by_patient(groups.codes)
        without = choices.fit(times - times_of, wins - wins_of, prior, start=strengths)
        low, high = jackknife_intervals(strengths, without, sizes)
    whole = [ranking for ranking in rankings if len(ranking) == len(models)]
    ranks = np.array([average_ranks([r[m] for m in models]) for r in whole]).reshape(-1, len(models))
    means = ranks.mean(axis=0) if len(whole) else np.full(len(models), np.nan)
    better = (ranks[:, :, None] > ranks[:, None, :]).sum(axis=2)  # models before each, in each ranking
    firsts = (better < 2).mean(axis=0) if len(whole) else np.full(len(models), np.nan)
    order = np.argsort(-strengths, kind="stable")
    return [
        Standing(
            model=models[i],
            mean_rank=float(means[i]),
            n=len(whole),
            strength=float(strengths[i]),
            ci95=(float(low[i]), float(high[i])),
            patients=groups.patients,
            unknown=groups.unknown,
            top_two=float(firsts[i]),
        )
        for i in order
    ]


def place_model(
    model: str, rankings: Sequence[Ranking], strengths: Mapping[str, float], *, prior: float = PRIOR
) -> float:
    """The log strength of a new model from its own comparisons alone, the others held where they are.

    `strengths` are log strengths of the models it was compared with, as `leaderboard` gives them. A place or
    a strength that is nan is refused (`MieError`).
    """
    numbers([*strengths.values(), *(place for ranking in rankings for place in ranking.values())])
    mine = [r for r in rankings if model in r and any(other in strengths for other in r if other != model)]
    if not mine:
        raise MieError("a model that was not compared with any", found=model, expected=", ".join(strengths))
    unknown = sorted({m for r in mine for m in r} - set(strengths) - {model})
    if unknown:
        raise MieError("models without a strength", found=", ".join(unknown), expected=", ".join(strengths))
    wins, times, others = prior, [2 * prior], [1.0]
    for ranking in mine:
        for other, place in ranking.items():
            if other != model:
                wins += float(np.sign(place - ranking[model]) + 1) / 2
                times.append(1.0)
                others.append(float(np.exp(strengths[other])))
    strength, n, against = 1.0, np.array(times), np.array(others)
    for _ in range(_STEPS):
        last, strength = strength, wins / float((n / (strength + against)).sum())
        if abs(np.log(strength / last)) < _CLOSE:
            break
    return float(np.log(strength))


@dataclass(frozen=True, slots=True)
class _Choices:
    """The different sets that were chosen from, and what each of R rankings adds to them."""

    members: Floats  # (U, m): 1 where a model is in a set
    times: Floats  # (R, U): how often a set was chosen from
    wins: Floats  # (R, m)

    @classmethod
    def of(cls, rankings: Sequence[Ranking], models: Sequence[str], kind: str) -> _Choices:
        if kind not in KINDS:
            raise unknown_name("model of preference", kind, KINDS)
        number = {model: at for at, model in enumerate(models)}
        sets: dict[frozenset[int], int] = {}
        entries: list[tuple[int, int, float]] = []
        wins = np.zeros((len(rankings), len(models)))
        split = _pairs if kind == "bradley-terry" else _stages
        for row, ranking in enumerate(rankings):
            places = {number[model]: place for model, place in ranking.items()}
            for chosen_from, won in split(places):
                entries.append((row, sets.setdefault(chosen_from, len(sets)), sum(won.values())))
                for model, share in won.items():
                    wins[row, model] += share
        members = np.zeros((len(sets), len(models)))
        for chosen_from, at in sets.items():
            members[at, list(chosen_from)] = 1
        times = np.zeros((len(rankings), len(sets)))
        for row, at, weight in entries:
            times[row, at] += weight
        return cls(members, times, wins)

    def by_patient(self, codes: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """What each of C patients adds: `times` `(C, U)` and `wins` `(C, m)`."""
        _, code = np.unique(codes, return_inverse=True)
        times, wins = (np.zeros((code.max() + 1, column.shape[1])) for column in (self.times, self.wins))
        np.add.at(times, code, self.times)
        np.add.at(wins, code, self.wins)
        return times, wins

    def fit(self, times: Floats, wins: Floats, prior: float, *, start: Floats | None = None) -> Floats:
        """Log strengths `(B, m)`, centred, for B ways of counting: `times` `(B, U)` and `wins` `(B, m)`."""
        wins = wins + prior
        strengths = np.ones(wins.shape) if start is None else np.tile(np.exp(start), (len(wins), 1))
        for _ in range(_STEPS):
            share = (times / np.maximum(strengths @ self.members.T, 1e-300)) @ self.members
            new = wins / (share + 2 * prior / (strengths + 1))
            moved = np.abs(np.log(np.maximum(new, 1e-300) / strengths)).max(initial=0)
            strengths = np.maximum(new, 1e-300)
            if moved < _CLOSE:
                break
        out: Floats = np.log(strengths)
        return out - out.mean(axis=1, keepdims=True)


def _pairs(places: Mapping[int, float]) -> list[tuple[frozenset[int], dict[int, float]]]:
    """Each two models; a tie is half a win for both."""
    out = []
    for (a, at_a), (b, at_b) in combinations(places.items(), 2):
        share = float(np.sign(at_b - at_a) + 1) / 2
        out.append((frozenset((a, b)), {a: share, b: 1 - share}))
    return out


def _stages(places: Mapping[int, float]) -> list[tuple[frozenset[int], dict[int, float]]]:
    """The best of all, the best of the rest, and so on; tied models all win from the same set (Breslow)."""
    out = []
    left = dict(places)
    while len(left) > 1:
        best = min(left.values())
        winners = [model for model, place in left.items() if place == best]
        out.append((frozenset(left), dict.fromkeys(winners, 1.0)))
        for model in winners:
            del left[model]
    return out


def _check_connected(choices: _Choices, models: Sequence[str]) -> None:
    """Models that were never compared, not even through others, have no common scale."""
    reached = {0} if models else set()
    while True:
        touching = choices.members[:, sorted(reached)].any(axis=1)
        grown = reached | set(np.flatnonzero(choices.members[touching].any(axis=0)).tolist())
        if grown == reached:
            break
        reached = grown
    apart = [model for at, model in enumerate(models) if at not in reached]
    if apart:
        raise MieError(
            "models that were never compared with each other",
            found=f"{', '.join(apart)} apart from {', '.join(models[at] for at in sorted(reached))}",
            fix="let people rank some of both groups together",
        )
