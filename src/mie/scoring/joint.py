"""Right for the wrong reason: two tasks on the same lesion, counted together for each model.

A model that removes lesions it cannot point at has not understood what it edits. A lesion is a target in an
image; it takes part where a sample of each of the two perspectives asks about it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mie.core.registry import suggestion
from mie.errors import ConfigError
from mie.scoring.benchmarks import Benchmark, Success
from mie.scoring.clusters import Identity, clusters_of_samples
from mie.scoring.metric import Metric
from mie.scoring.scores import ScoreTable


@dataclass(frozen=True, slots=True)
class JointCount:
    """The same lesions by two successes of one model."""

    model: str
    both: int
    first_only: int
    second_only: int
    neither: int
    unpaired: int  # lesions that only one of the two perspectives has a number for
    patients: int
    images: int  # of unknown patients

    @property
    def lesions(self) -> int:
        return self.both + self.first_only + self.second_only + self.neither

    @property
    def given_first(self) -> float:
        """The share of second successes among lesions with the first."""
        return _share(self.both, self.both + self.first_only)

    @property
    def given_not_first(self) -> float:
        """The share of second successes among lesions without the first: right for the wrong reason."""
        return _share(self.second_only, self.second_only + self.neither)


@dataclass(frozen=True, slots=True)
class Joint:
    """What both successes are, the counts of each model, and why there are none for some."""

    successes: tuple[Success, Success]
    metrics: tuple[Metric, Metric]
    counts: tuple[JointCount, ...]
    reasons: Mapping[str, str]  # model -> why it has no counts

    @property
    def words(self) -> tuple[str, str]:
        """`perception: DICE > .800` and the other."""
        pairs = zip(self.successes, self.metrics, strict=True)
        first, second = (f"{success.perspective}: {success.words(metric)}" for success, metric in pairs)
        return first, second

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
        names = ("both", "first_only", "second_only", "neither", "unpaired", "patients", "images")
        return {
            "first": self.words[0],
            "second": self.words[1],
            "models": [
                {
                    "model": count.model,
                    "lesions": count.lesions,
                    **{name: getattr(count, name) for name in names},
                    "second_given_first": count.given_first,
                    "second_given_not_first": count.given_not_first,
                }
                for count in self.counts
            ],
            "reasons": dict(self.reasons),
        }


def count_joint(
    benchmark: Benchmark, models: Mapping[str, Sequence[ScoreTable]], least: Mapping[str, float]
) -> Joint | None:
    """The counts of each model (name -> its scores); None where the benchmark has no such question.

    `least` (metric -> value) replaces a threshold, or the metric of the perspective that it applies to.
    """
    if benchmark.joint is None:
        return None
    first, second = (_replaced(success, models, least) for success in benchmark.joint)
    unused = sorted(set(least) - {first.metric, second.metric})
    if unused:
        known = sorted({name for tables in models.values() for table in tables for name in table.values})
        raise ConfigError(
            "a success by a metric that no run has",
            found=unused[0],
            expected=", ".join(known) or "scored samples",
            fix=suggestion(unused[0], known),
        )
    counts, reasons = [], {}
    for model, tables in models.items():
        sides = [_successes(success, tables) for success in (first, second)]
        missing = [s for s, side in zip((first, second), sides, strict=True) if not side]
        if missing:
            metric = benchmark.metric(missing[0].metric)
            reasons[model] = f"no {metric.label} of {missing[0].perspective}"
            continue
        counts.append(_count(model, *sides))
    return Joint(
        (first, second),
        (benchmark.metric(first.metric), benchmark.metric(second.metric)),
        tuple(counts),
        reasons,
    )


def _replaced(
    success: Success, models: Mapping[str, Sequence[ScoreTable]], least: Mapping[str, float]
) -> Success:
    """Another threshold, or another metric of the same perspective."""
    for name, value in least.items():
        for tables in models.values():
            for table in tables:
                inside = table.rows_of({"perspective": success.perspective})
                if name in table.values and (table.applies[name] & inside).any():
                    return replace(success, metric=name, least=value, above=False)
    return success


def _successes(
    success: Success, tables: Sequence[ScoreTable]
) -> dict[tuple[str, str], tuple[bool, Identity]]:
    """(image, target) -> whether every sample of that lesion succeeded, and whose it is."""
    found: dict[tuple[str, str], tuple[bool, Identity]] = {}
    for table in tables:
        if success.metric not in table.values:
            continue
        chosen = table.select(success.metric, 1)
        better = 1 if table.metric(success.metric).higher_is_better else -1
        inside = table.rows_of({"perspective": success.perspective}) & chosen.scored
        for row in np.flatnonzero(inside):
            if success.tasks and table.groups["task"][row] not in success.tasks:
                continue
            margin = better * (chosen.values[row] - success.least)
            done = bool(margin > 0 if success.above else margin >= 0)
            key = table.identities[row][1], str(table.groups["target"][row])
            before = found.get(key, (True, table.identities[row]))
            found[key] = (before[0] and done, table.identities[row])
    return found


def _count(
    model: str,
    first: Mapping[tuple[str, str], tuple[bool, Identity]],
    second: Mapping[tuple[str, str], tuple[bool, Identity]],
) -> JointCount:
    shared = [key for key in first if key in second]
    pairs = Counter((first[key][0], second[key][0]) for key in shared)
    identities = {str(key): first[key][1] for key in shared}
    clusters = clusters_of_samples(list(identities), identities)
    return JointCount(
        model,
        pairs[True, True],
        pairs[True, False],
        pairs[False, True],
        pairs[False, False],
        len(set(first) ^ set(second)),
        clusters.patients,
        clusters.unknown,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
