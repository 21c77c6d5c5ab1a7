"""`mie plan`: what a build will give and cost, from a measured pilot.

Some units of every data set, one in a hundred and at least three, spread evenly over its list, are made as a
build would make them, in one process, into a folder that is removed afterwards. Samples, bytes and seconds of
the other units are taken to be like theirs; the interval comes from how much the units of a data set differ.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from mie.datasets.build import prepare
from mie.datasets.engine import cores, run_tasks
from mie.datasets.part import PartResult, PartTask, make_part, part_path, without_deadly_unit
from mie.datasets.plan import Part, Plan, PlannedUnit, make_plan
from mie.datasets.recipe import RecipeConfig
from mie.errors import MieError
from mie.vocabulary import SPLITS

SHARE: Final = 0.01
_LEAST: Final = 3  # units of a data set: with fewer, nothing says how much they differ
_STARTS: Final = 1  # the first unit of a data set also loads what the others use


@dataclass(frozen=True, slots=True)
class Amount:
    """A total and the ends of its 95 % interval; these are NaN where too little was measured."""

    total: float
    low: float = math.nan
    high: float = math.nan

    def as_json(self) -> dict[str, float]:
        return {"total": self.total, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a data set will give: `seconds` are those of one core."""

    name: str
    units: int
    measured: int
    samples: Amount
    size: Amount  # bytes
    seconds: Amount


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What a build will give, and how long it will take with so many processes."""

    name: str
    workers: int
    sources: tuple[SourcePlan, ...]
    samples: Amount
    size: Amount
    seconds: Amount  # of one core
    start: float  # seconds that every process needs before its first sample
    rejected: Mapping[str, int] = field(default_factory=dict)  # in the pilot, by gate
    judge: str | None = None  # named by the recipe; the pilot does not ask it

    @property
    def hours(self) -> Amount:
        """On the clock."""
        parts = (self.seconds.total, self.seconds.low, self.seconds.high)
        return Amount(*((seconds / self.workers + self.start) / 3600 for seconds in parts))

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "workers": self.workers,
            "samples": self.samples.as_json(),
            "bytes": self.size.as_json(),
            "core_seconds": self.seconds.as_json(),
            "hours": self.hours.as_json(),
            "rejected_in_pilot": dict(self.rejected),
            "judge": self.judge,
            "sources": [
                {
                    "name": one.name,
                    "units": one.units,
                    "measured": one.measured,
                    "samples": one.samples.as_json(),
                    "bytes": one.size.as_json(),
                    "core_seconds": one.seconds.as_json(),
                }
                for one in self.sources
            ],
        }


@dataclass(frozen=True, slots=True)
class _Measured:
    source: int
    samples: int
    size: int
    seconds: float
    refused: Mapping[str, int]


def plan_build(
    config: RecipeConfig,
    *,
    share: float = SHARE,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> BuildPlan:
    """Make a pilot of the build and say what the whole will give. Nothing is written where the user looks."""
    asked, config = _without_judge(config)
    plan = make_plan(config)
    if not plan.parts:
        raise MieError(
            "no image was found",
            where=", ".join(str(root) for _, root in plan.sources),
            fix="`mie sources check NAME ROOT` shows what matches and what does not",
        )
    prepare(plan, allow_remote=False)
    chosen = list(_chosen(plan, share))
    with tempfile.TemporaryDirectory(prefix="mie-plan-") as scratch:
        parts = Path(scratch) / "parts"
        parts.mkdir()
        tasks = [
            PartTask(Part(number, (unit,)), {unit.source: plan.sources[unit.source]}, config, parts)
            for number, unit in enumerate(chosen)
        ]
        measured = []
        progress(0, len(tasks))
        # One process: with several, each would load everything, and seconds would be those of a busy core.
        for one in run_tasks(_measure, tasks, workers=1, isolate=True, rescue=without_deadly_unit):
            measured.append(one)
            progress(len(measured), len(tasks))
    return _extrapolated(plan, measured, workers or cores(), asked)


def _without_judge(config: RecipeConfig) -> tuple[str | None, RecipeConfig]:
    """The judge that a perspective of the recipe names, and the recipe without it: a pilot pays nobody."""
    found = None
    makers = []
    for maker in config.makers:
        judge = getattr(maker, "judge", None)
        found = found or judge
        makers.append(maker if judge is None else maker.model_copy(update={"judge": None}))
    changed = {"perspectives": tuple(makers)} if config.perspectives else {"recipe": makers[0]}
    return found, config if found is None else config.model_copy(update=changed)


def _chosen(plan: Plan, share: float) -> Iterator[PlannedUnit]:
    """The units of the pilot, data set by data set, spread evenly over its list."""
    by_source: dict[int, list[PlannedUnit]] = defaultdict(list)
    for part in plan.parts:
        for unit in part.units:
            by_source[unit.source].append(unit)
    for source in sorted(by_source):
        units = by_source[source]
        count = min(len(units), max(_LEAST + _STARTS, math.ceil(share * len(units))))
        yield from (units[at] for at in np.linspace(0, len(units) - 1, count).round().astype(int))


def _measure(task: PartTask) -> _Measured:
    before = time.perf_counter()
    result: PartResult = make_part(task)
    seconds = time.perf_counter() - before
    paths = [part_path(task.folder, task.part.number, split) for split in SPLITS]
    size = sum(_stored(path) for path in paths if path.exists())
    return _Measured(task.part.units[0].source, result.kept, size, seconds, dict(result.refused))


def _stored(path: Path) -> int:
    """The bytes of the columns: header and footer are those of a file, and a build has few files."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return sum(group.column(at).total_compressed_size for group in groups for at in range(group.num_columns))


def _extrapolated(plan: Plan, measured: Sequence[_Measured], workers: int, judge: str | None) -> BuildPlan:
    units: dict[int, int] = defaultdict(int)
    for part in plan.parts:
        for unit in part.units:
            units[unit.source] += 1
    sources = []
    start = 0.0
    refused: dict[str, int] = defaultdict(int)
    for source, count in sorted(units.items()):
        mine = [one for one in measured if one.source == source]
        for one in mine:
            for gate, number in one.refused.items():
                refused[gate] += number
        steady = mine[_STARTS:] or mine
        seconds = _whole([one.seconds for one in steady], count)
        if len(mine) > _STARTS:
            start += max(0.0, mine[0].seconds - seconds.total / count)
        sources.append(
            SourcePlan(
                name=plan.sources[source][0].name,
                units=count,
                measured=len(mine),
                samples=_whole([one.samples for one in mine], count),
                size=_whole([one.size for one in mine], count),
                seconds=seconds,
            )
        )
    return BuildPlan(
        name=plan.config.name,
        workers=workers,
        sources=tuple(sources),
        samples=_sum([one.samples for one in sources]),
        size=_sum([one.size for one in sources]),
        seconds=_sum([one.seconds for one in sources]),
        start=start,
        rejected=dict(sorted(refused.items())),
        judge=judge,
    )


def _whole(values: Sequence[float], count: int) -> Amount:
    """The total over `count` units of which these were measured; exact where all of them were."""
    total = float(np.mean(values)) * count
    if len(values) >= count:
        return Amount(total, total, total)
    if len(values) < _LEAST:
        return Amount(total)
    from scipy.stats import t

    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) * math.sqrt(1 - len(values) / count)
    wide = float(t.ppf(0.975, len(values) - 1)) * error * count
    return Amount(total, max(0.0, total - wide), total + wide)


def _sum(amounts: Sequence[Amount]) -> Amount:
    """Of independent data sets: their deviations add up as squares."""
    total = sum(one.total for one in amounts)
    wide = math.sqrt(sum((one.high - one.total) ** 2 for one in amounts))  # NaN where one is unknown
    return Amount(total, max(0.0, total - wide) if not math.isnan(wide) else math.nan, total + wide)


__all__ = ["Amount", "BuildPlan", "SourcePlan", "plan_build"]
