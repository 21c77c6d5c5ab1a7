"""The benchmarks. Each is one folder whose `BENCHMARK` says all that differs between benchmarks.

Another package adds one with an entry point of the group `mie.benchmarks`: its name, and the
`module:attribute` of a `Benchmark`. The least that one needs is a name, a version and metrics that have
functions. The older group `mie.protocols` is read too; there the attribute may be a bare function
`score_run(run_folder, *, variant, workers, progress) -> document`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from mie.core.registry import Registry, found_in, load_target, unknown_name
from mie.errors import ConfigError
from mie.scoring.metric import METRICS, Metric, added_metrics, find_metric

if TYPE_CHECKING:
    from mie.scoring.judging import Questions
    from mie.scoring.score import Aggregate, Measure, ScoreRun

VARIANTS: Final = ("paper", "as_released")
# The groups that a summary has means of.
PARTITIONS: Final = ("perspective", "modality", "task", "target", "source")

Document: TypeAlias = Mapping[str, Any]  # what `mie score --json` prints


@dataclass(frozen=True, slots=True)
class Table:
    """A table in the layout of a benchmark's paper."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A table of means with a row for each run; columns that no run has are left out.

    The means are those over all samples, unless one of these is given: `group` (key, value) takes those of
    one group, `spread` (metric, key) makes a column of each group of a key, `entries` takes what stands at
    the top of the summary under the column's name.
    """

    title: str
    columns: tuple[str, ...] = ()  # names of metrics; none: every metric there is
    group: tuple[str, str] | None = None
    spread: tuple[str, str] | None = None
    entries: bool = False
    best: bool = True  # the best mean of a column is bold


@dataclass(frozen=True, slots=True)
class Radar:
    """One radar chart for each metric, an axis for each group of `key`."""

    key: str
    panels: Mapping[str, str]  # metric -> title


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the one table that has a row for each model: a metric over the samples of a group."""

    metric: str  # its name; one that no score file has, such as people's mean rank, is filled in elsewhere
    group: tuple[str, str] | None = None  # ("perspective", "perception"); None: all samples
    label: str = ""  # instead of the metric's

    @property
    def where(self) -> dict[str, str]:
        """The group as a summary has it."""
        return {} if self.group is None else {self.group[0]: self.group[1]}


@dataclass(frozen=True, slots=True)
class Success:
    """When an edit of a perspective counts as done: the metric at pass@1 reaches `least`."""

    perspective: str
    metric: str
    least: float
    above: bool = False  # it must lie above `least`, not only reach it
    tasks: tuple[str, ...] = ()  # of the perspective; none: all

    def words(self, metric: Metric) -> str:
        """`DICE > .800` or `Rubric ≥ 75.0`."""
        sign = (">" if self.above else "≥") if metric.higher_is_better else ("<" if self.above else "≤")
        return f"{metric.label} {sign} {metric.show(self.least)}"


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """The numbers of a paper, never mixed with rows of ours."""

    caption: str
    columns: tuple[Metric, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]  # model, values in the order of the columns
    variant: str = "as_released"  # that they compare with
    marked: frozenset[str] = frozenset()  # columns that hold for that variant alone, as `note` says
    note: str = ""
    source: str = ""

    def table(self, names: Sequence[str] = (), title: str = "") -> Table:
        """Some of the columns, or all of them, in the given order of rows."""
        kept = [(at, c) for at, c in enumerate(self.columns) if not names or c.name in names]
        rows = [
            (model, *("" if v[at] is None else c.show(v[at]) for at, c in kept)) for model, v in self.rows
        ]
        return Table(title or self.caption, ("model", *(c.label for _, c in kept)), tuple(rows))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All that differs between benchmarks. What is given as `"module:attribute"` is imported when needed.

    Scoring. Without `measure` and `score` an output gets the number of every metric that has a function and
    whose needs the sample meets.

    Args:
        name: On the command line and in the names of files.
        version: Goes up when the same run would get other numbers.
        metrics: In the order of the tables: a `Metric`, or the name of one in `METRICS`.
        title: The benchmark's own name.
        meaning: What it measures, in one line.
        variants: The ways of scoring it knows; the first is the default.
        unit: What gets a line: "sample", or "volume" for whole volumes. Then the row that `measure` gets has
            the slices' rows under "rows", and its outputs are those of each slice.
        measure: `(row, outputs, context) -> line`, for a benchmark with its own way to its numbers.
        columns: Of the dataset, that `measure` reads.
        questions: What it asks a judge.
        aggregate: `(document, table, scores file)`: changes the summary after the means are taken.
        setup: `() -> (setup, facts)`, what `measure` finds in its context and what the header says about it.
        score: `score_run(run_folder, *, variant, workers, progress, judge) -> document`: its own way through
            the whole run, instead of all these.
        takes_added_metrics: Metrics of other packages are computed too, where their needs are met.
        groups: Keys of a line's group, besides those of every benchmark.
        partitions: The groups that the summary has means of.
        missing_as_zero: `as_released` counts a sample without any output as 0.
        psnr_cap: Of exact matches in dB, in the variant `paper`.
        pool: Scored in several processes by default.
        tables: `document -> [Table]`, in the layout of its paper.
        published: The paper's own numbers.
        boards: Tables with a row for each run.
        model_columns: Of `mie board`, in the paper's order; by default those of its published rows, else
            its main metrics.
        joint: Two successes on the same lesion, which `mie board` counts together.
        main: The metrics of its main table, the first of which ranks runs.
        leads: Stands at the top of a report.
        curves: Metrics that are drawn over the turns of conversations.
        radar: The radar chart of its groups.
        summary_metrics: Numbers that only the summary has, which `aggregate` adds.
        section: `"module:function"` of a section of its own in a report, after its tables: it takes the
            benchmark's scores, all runs of the page and the report's folder.
        same_scale: Metrics on the scale of people's own scores, so that both can be compared as they are.
        people: Metric -> the question of a review that people answer for it; a report with ratings then has
            a row of theirs beside each row of a judge.
        importer: Reads the benchmark's own files, see `mie import`.

    """

    name: str
    version: int = 1
    metrics: tuple[Metric | str, ...] = ()
    title: str = ""
    meaning: str = ""
    variants: tuple[str, ...] = VARIANTS
    unit: Literal["sample", "volume"] = "sample"
    measure: Measure | str | None = None
    columns: tuple[str, ...] = ("input", "target_image", "mask", "colour")
    questions: Questions | str | None = None
    aggregate: Aggregate | str | None = None
    setup: Callable[[], tuple[Any, Mapping[str, Any]]] | str | None = None
    score: ScoreRun | str | None = None
    takes_added_metrics: bool = False
    groups: tuple[str, ...] = ()
    partitions: tuple[str, ...] = PARTITIONS
    missing_as_zero: bool = False
    psnr_cap: float | None = None
    pool: bool = True
    tables: Callable[[Document], list[Table]] | str | None = None
    published: PublishedRows | str | None = None
    boards: tuple[Board, ...] = ()
    model_columns: tuple[Column, ...] = ()
    joint: tuple[Success, Success] | None = None
    main: tuple[str, ...] = ()
    leads: bool = False
    curves: tuple[str, ...] = ()
    radar: Radar | None = None
    summary_metrics: tuple[Metric, ...] = ()
    section: str | None = None
    same_scale: frozenset[str] = frozenset()
    people: Mapping[str, str] = field(default_factory=dict)
    importer: str | None = None
    _known: dict[str, Metric] = field(default_factory=dict, repr=False, compare=False)

    def load(self, part: str) -> Any:
        """The part of that name, imported now where it is given as text; None where there is none."""
        value = getattr(self, part)
        return load_target(value) if isinstance(value, str) else value

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """The names of its own metrics, in the order of its tables."""
        return tuple(one if isinstance(one, str) else one.name for one in self.metrics)

    def find_metrics(self) -> dict[str, Metric]:
        """Its own metrics by name, then those of other packages that have a function, where it takes them."""
        metrics = {name: self.metric(name) for name in self.own_metrics}
        for name in added_metrics() if self.takes_added_metrics else ():
            if METRICS[name].function is not None:
                metrics.setdefault(name, METRICS[name])
        return metrics

    def metric(self, name: str) -> Metric:
        """Its metric of that name, else that of `METRICS`, else one that is shown under its own name."""
        if not self._known:
            own = [*self.metrics, *self.summary_metrics]
            self._known.update({one.name: one for one in own if isinstance(one, Metric)})
        return self._known.get(name) or find_metric(name)

    @property
    def judged(self) -> tuple[str, ...]:
        """The metrics that a judge gives; without one they apply to nothing."""
        return tuple(name for name in self.own_metrics if self.metric(name).judged)

    def tables_of(self, document: Document) -> list[Table]:
        """The summary in the layout of the benchmark's paper; nothing where it has none of its own."""
        make = self.load("tables")
        return [] if make is None else make(document)

    def check_variant(self, variant: str) -> None:
        """`ConfigError` for a variant that the benchmark does not have."""
        if variant not in self.variants:
            raise unknown_name("variant", variant, self.variants, where=f"benchmark {self.name}")


class _Benchmarks(Registry[Benchmark]):
    """Both entry-point groups, and bare functions as benchmarks."""

    def __getitem__(self, name: str) -> Benchmark:
        thing: Any = super().__getitem__(name)
        return thing if isinstance(thing, Benchmark) else Benchmark(name, version=0, score=thing)

    def _points(self) -> dict[str, EntryPoint]:
        older = entry_points(group="mie.protocols")
        return {**{p.name: p for p in older if p.name not in self.targets}, **super()._points()}


def _check(thing: Any) -> str | None:
    return None if isinstance(thing, Benchmark) or callable(thing) else "a mie.scoring.benchmarks.Benchmark"


BENCHMARKS: Final[Registry[Benchmark]] = _Benchmarks(
    "benchmark",
    {name.replace("_", "-"): at for name, at in found_in("mie.scoring.benchmarks", "BENCHMARK").items()},
    group="mie.benchmarks",
    check=_check,
)


def tables_of(document: Document) -> list[Table]:
    """The tables of the document's benchmark; none where it is not installed or has no layout of its own."""
    name = document["protocol"]
    return BENCHMARKS[name].tables_of(document) if name in BENCHMARKS else []


def by_group(
    document: Document,
    key: str,
    columns: Mapping[str, Metric],
    *,
    title: str,
    last: str = "overall",
) -> Table:
    """A row for each group of `key` and one for all; a cell is a mean with its coverage.

    `columns` maps a key such as `ea@1` to its metric.
    """
    groups = [item for item in document["groups"] if list(item["group"]) == [key]]
    shown = [(item["group"][key], item["metrics"]) for item in groups if item["group"][key]]
    shown.append((last, document["groups"][0]["metrics"]))
    rows = tuple((name, *(cell(means.get(k), m) for k, m in columns.items())) for name, means in shown)
    return Table(title, (key.replace("_", " "), *(m.label for m in columns.values())), rows)


def first_attempts(benchmark: Benchmark, document: Document, names: Sequence[str]) -> dict[str, Metric]:
    """`ea@1` -> its metric, for those of `names` that the document has."""
    there = document["groups"][0]["metrics"]
    return {f"{name}@1": benchmark.metric(name) for name in names if f"{name}@1" in there}


def cell(entry: Mapping[str, Any] | None, metric: Metric) -> str:
    """`.62 (14/15)`; nothing where the metric does not apply."""
    if entry is None:
        return ""
    return f"{metric.show(entry['mean'])} ({coverage(entry)})"


def coverage(entry: Mapping[str, Any]) -> str:
    """`14/15`: how many of those that the metric applies to have a number."""
    return f"{entry['n']}/{entry['n'] + entry.get('unscored', 0)}"


def published(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], show: str = "{:.2f}"
) -> Table:
    """Reference rows: numbers as the paper prints them."""
    shown = tuple(tuple(show.format(v) if isinstance(v, float) else str(v) for v in row) for row in rows)
    return Table(title, tuple(header), shown)


def find_benchmark(benchmark: Benchmark | str) -> Benchmark:
    """The benchmark itself, by its name or as it is."""
    if isinstance(benchmark, Benchmark):
        return benchmark
    if not isinstance(benchmark, str):
        raise ConfigError("not a benchmark", expected="a name or a Benchmark", found=type(benchmark).__name__)
    return BENCHMARKS[benchmark]


__all__ = [
    "BENCHMARKS",
    "METRICS",
    "PARTITIONS",
    "VARIANTS",
    "Benchmark",
    "Board",
    "Column",
    "Document",
    "PublishedRows",
    "Radar",
    "Success",
    "Table",
    "by_group",
    "cell",
    "coverage",
    "find_benchmark",
    "first_attempts",
    "published",
    "tables_of",
]
