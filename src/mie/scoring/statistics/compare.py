"""Several runs on one dataset: which is better, by how much, and how sure that is.

Interval and p-value of a difference come from one spread, that between patients: p is under .05 exactly where
the interval leaves out zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.errors import ConfigError
from mie.scoring.results import ScoreTable, judges_differ, read_score_table, split_key, yardstick
from mie.scoring.statistics.intervals import Interval, mean_interval

_TIE: Final = 1e-6  # values closer than this are equal


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run `a` against run `b` over the samples that both were scored on. Differences are a - b."""

    a: str
    b: str
    metric: str
    n: int
    left_out: int  # samples the metric applies to that one of the two has no score for
    mean_a: float
    mean_b: float
    difference: float
    ci95: tuple[float, float]  # of the mean difference, over patients
    p: float  # two-sided, of the same test that the interval inverts; nan where there is no interval
    p_holm: float  # corrected for the number of pairs in the table
    wins: int
    ties: int
    losses: int
    patients: int = 0  # that the n samples come from
    unknown: int = 0  # images without a known patient, each counted as a patient of its own
    reason: str = ""  # why there is no interval and no p


def compare_runs(
    score_files: Mapping[str, Path] | Sequence[Path],
    metric: str = "dice@1",
    *,
    force: bool = False,
) -> list[Comparison]:
    """Compare every pair of runs on one metric (`name@k`), in the order they are given.

    Differences are a - b; wins are counted as the metric does: of a distance, the lower value wins.

    `score_files` are `scores/<benchmark>.<variant>.jsonl` of runs on one dataset, scored in one way;
    a mapping names the runs, a sequence names them by their folders. Numbers of different judges are refused
    unless `force` is set: another model or prompt is another yardstick.
    """
    files = score_files if isinstance(score_files, Mapping) else _named(score_files)
    tables = {name: read_score_table(Path(path)) for name, path in files.items()}
    _check_same(tables)
    if not force:
        _check_judges(tables, split_key(metric)[0])
    pairs = [_Pair(a, b, tables[a], tables[b], metric) for a, b in combinations(tables, 2)]
    intervals = [pair.interval() for pair in pairs]
    p_values = [interval.p_value() for interval in intervals]
    return [
        pair.comparison(interval, p, float(p_holm))
        for pair, interval, p, p_holm in zip(pairs, intervals, p_values, holm(p_values), strict=True)
    ]


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Correct p-values by Holm's step-down method; nan (no test was possible) stays nan and does not count.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    out = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return out


class _Pair:
    def __init__(self, a: str, b: str, table_a: ScoreTable, table_b: ScoreTable, metric: str) -> None:
        name, k = split_key(metric)
        self.a, self.b, self.metric = a, b, f"{name}@{k}"
        chosen_a, chosen_b = table_a.select(name, k), table_b.select(name, k)
        place = {sample: row for row, sample in enumerate(table_b.ids)}
        rows = [(row, place[sample]) for row, sample in enumerate(table_a.ids) if sample in place]
        in_a, in_b = np.array(rows, np.int64).reshape(-1, 2).T
        both = chosen_a.scored[in_a] & chosen_b.scored[in_b]
        applies = len({s for t, c in ((table_a, chosen_a), (table_b, chosen_b)) for s in _ids(t, c.applies)})
        self.left_out = applies - int(both.sum())
        self.values_a, self.values_b = chosen_a.values[in_a[both]], chosen_b.values[in_b[both]]
        self.clusters = table_a.clusters[in_a[both]]
        spec = table_a.metric(name)
        low, high = spec.scale or (-np.inf, np.inf)
        self.better = 1 if spec.higher_is_better else -1
        self.bounds = low - high, high - low
        # Two infinities (exact matches) are a tie, not inf - inf. So are two DICE of "nothing in common",
        # which the smoothing term leaves around 1e-9 apart.
        same = np.isclose(self.values_a, self.values_b, rtol=0, atol=_TIE)
        self.differences = np.zeros(len(same))
        self.differences[~same] = self.values_a[~same] - self.values_b[~same]

    def interval(self) -> Interval:
        found = mean_interval(self.differences, self.clusters, bounds=self.bounds)
        if not found.reason and np.isnan(found.p_value()):
            # A judge's grades may all differ by the same step: that says nothing about other patients.
            nothing = "all differences are equal: their spread is unknown"
            return replace(found, low=np.nan, high=np.nan, reason=nothing)
        return found

    def comparison(self, interval: Interval, p: float, p_holm: float) -> Comparison:
        count = len(self.differences)
        return Comparison(
            a=self.a,
            b=self.b,
            metric=self.metric,
            n=count,
            left_out=self.left_out,
            mean_a=float(self.values_a.mean()) if count else np.nan,
            mean_b=float(self.values_b.mean()) if count else np.nan,
            difference=interval.value,
            ci95=(interval.low, interval.high),
            p=p,
            p_holm=p_holm,
            wins=int((self.better * self.differences > 0).sum()),
            ties=int((self.differences == 0).sum()),
            losses=int((self.better * self.differences < 0).sum()),
            patients=interval.patients,
            unknown=interval.unknown,
            reason=interval.reason,
        )


def _ids(table: ScoreTable, rows: NDArray[np.bool_]) -> list[str]:
    return [table.ids[row] for row in np.flatnonzero(rows)]


def _named(files: Sequence[Path]) -> dict[str, Path]:
    """Runs by the name of their folder (RUN/scores/file), or by the whole path when two names are equal."""
    names = [Path(path).resolve().parents[1].name for path in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in files]
    return dict(zip(names, map(Path, files), strict=True))


def _check_same(tables: Mapping[str, ScoreTable]) -> None:
    if len(tables) < 2:
        raise ConfigError("nothing to compare", expected="the scores of at least two runs", found=len(tables))
    for key in ("protocol", "variant", "dataset_digest"):
        found = {name: table.header[key] for name, table in tables.items()}
        if len(set(found.values())) > 1:
            raise ConfigError(
                f"the runs differ in {key}",
                expected="one dataset, scored by one benchmark and variant",
                found=", ".join(f"{name}: {str(value)[:16]}" for name, value in found.items()),
                fix="compare runs on the same dataset, and score them the same way",
            )


def _check_judges(tables: Mapping[str, ScoreTable], metric: str) -> None:
    """Only where the metric is a judge's: numbers from pixels compare whoever judged the rest."""
    judges = {name: table.header.get("judge") or {} for name, table in tables.items()}
    if not any(metric in judge.get("metrics", ()) for judge in judges.values()):
        return
    if judges_differ(list(judges.values())):
        found = {name: yardstick(judge) for name, judge in judges.items()}
        raise ConfigError(
            "the runs were scored by different judges",
            where=metric,
            expected="one provider, model, set of parameters and prompts",
            found=" / ".join(f"{name}: {who}" for name, who in found.items()),
            fix="score them again with one judge, or compare them all the same with force",
        )
