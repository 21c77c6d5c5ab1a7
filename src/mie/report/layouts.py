"""What the report knows about benchmarks: names of metrics, columns of tables, charts, published rows.

No other module of the report knows a benchmark or a metric by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mie.scoring.benchmarks import BENCHMARKS, Table, published, tables_of
from mie.scoring.benchmarks.imgedit import TYPES
from mie.scoring.benchmarks.miedb import CRITERIA, MIEDB
from mie.scoring.metric import GRADES, SHARE, Metric, find_metric

_KNOWN: Final = (
    *(find_metric(name) for name in ("dice", "p_acc", "b_psnr", "b_ssim")),
    Metric(
        "rubric", "Rubric", "eight criteria judged by a language model, 0 to 100", decimals=1, scale=(0, 100)
    ),
    *(find_metric(name) for name in ("psnr", "ssim", "class_dice", "dice_guarded")),
    *(
        Metric(f"rubric_{number}", f"Rubric {number}: {name}", "mean grade, 1 to 5", decimals=2, scale=GRADES)
        for number, name in enumerate(CRITERIA, start=1)
    ),
    Metric("ea", "EA", "editing accuracy, by a judge that is told the change", decimals=2, scale=SHARE),
    find_metric("cp"),
    Metric("vq", "VQ", "visual quality, by the same judge", decimals=2, scale=SHARE),
    Metric("ea_plain", "EA, instruction", "the judge is told the plain instruction", decimals=2, scale=SHARE),
    Metric("vq_plain", "VQ, instruction", "the judge is told the plain instruction", decimals=2, scale=SHARE),
    *(Metric(kind, kind.capitalize(), "1 to 5", decimals=2, scale=GRADES) for kind in TYPES),
    Metric("imgedit", "Overall", "mean over the kinds of edit", decimals=2, scale=GRADES),
    Metric("adherence", "Adherence", "as given, before the cap", decimals=2, scale=GRADES),
    Metric("quality", "Quality", "as given, before the cap", decimals=2, scale=GRADES),
    Metric("preservation", "Preservation", "as given, before the cap", decimals=2, scale=GRADES),
    Metric("uge", "Hard suite", "one score, 1 to 5", decimals=2, scale=GRADES),
    *(
        Metric(name, name.capitalize(), "conversations, share of yes", decimals=2, scale=SHARE)
        for name in ("memory", "understanding", "backtracking")
    ),
    Metric("overall", "Overall", "LPIPS, CLIP, QA and SSIM together", scale=SHARE),
    *(
        Metric(f"lpips_{part}", label, f"{where}; lower is better", higher_is_better=False)
        for part, label, where in (
            ("all", "LPIPS", "whole image"),
            ("fg", "LPIPS FG", "inside the region"),
            ("bg", "LPIPS BG", "outside the region"),
        )
    ),
    Metric("clip_all", "CLIP", "whole image", scale=SHARE),
    Metric("clip_fg", "CLIP FG", "inside the region", scale=SHARE),
    Metric("clip_bg", "CLIP BG", "outside the region", scale=SHARE),
    Metric("qa", "QA", "share of outputs with every question answered right", scale=SHARE),
    Metric("scale_gap", "Scale gap", "Overall of low minus high scale, on complete pairs"),
    Metric("turn_slope", "Slope a turn", "of Overall, mean over conversations", decimals=4),
)
_METRICS: Final = {known.name: known for known in _KNOWN}


def metric(name: str) -> Metric:
    """Return the metric of that name; one that is not known is shown under its own name."""
    return _METRICS.get(name) or find_metric(name)


def in_order(names: Iterable[str]) -> list[Metric]:
    """Return known metrics in the order of the published table, then the others by name."""
    there = set(names)
    return [metric(name) for name in [n for n in _METRICS if n in there] + sorted(there - set(_METRICS))]


@dataclass(frozen=True, slots=True)
class Board:
    """A table of means with a row for each run; columns that no run has are left out.

    The means are those over all samples, unless one of these is given: `group` (key, value) takes those of
    one group, `spread` (metric, key) makes a column of each group of a key, `entries` takes what stands at
    the top of the summary under the column's name.
    """

    title: str
    columns: tuple[Metric, ...] = ()  # none: every metric there is
    group: tuple[str, str] | None = None
    spread: tuple[str, str] | None = None
    entries: bool = False
    best: bool = True  # the best mean of a column is bold


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """The numbers of a paper, in its order of columns."""

    caption: str
    columns: tuple[Metric, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]  # model, values
    marked: frozenset[str]  # columns that hold for another variant, as `note` says
    variant: str
    note: str
    short_note: str  # for a text file
    source: str


@dataclass(frozen=True, slots=True)
class Radar:
    """One radar chart for each metric, an axis for each group of `key`."""

    key: str
    panels: Mapping[str, str]  # metric -> title


@dataclass(frozen=True, slots=True)
class Layout:
    """How a benchmark is shown."""

    name: str
    title: str  # of its section
    boards: tuple[Board, ...]
    leads: bool = False  # its metrics of pixels make the leaderboard, the charts and the gallery on top
    main: tuple[str, ...] = ()  # where it leads: the columns of the leaderboard; the rest is folded
    shares: frozenset[str] = frozenset()  # each sample has 0 or 1: no histogram, no best and worst
    published: PublishedRows | None = None  # where it leads
    curves: tuple[str, ...] = ()  # metrics that are drawn over the turns of conversations
    radar: Radar | None = None
    judged: bool = True  # has metrics that only a judge can give


_MAIN: Final = ("dice", "p_acc", "b_psnr", "b_ssim", "rubric", "psnr", "ssim")
_RANK: Final = Metric("rank", "Pref-Rank", "mean rank given by people; 1 is best", decimals=1)
_PUBLISHED_COLUMNS: Final = (
    *(metric(name) for name in ("dice", "p_acc", "b_psnr", "b_ssim", "rubric")),
    _RANK,
    *(metric(name) for name in ("psnr", "ssim")),
)
# Never mixed with rows of ours: the authors' own test set and their released script.
_MIEDB_PUBLISHED: Final = PublishedRows(
    caption="MieDB-100k, measured by its authors on their own test set",
    columns=_PUBLISHED_COLUMNS,
    rows=tuple(
        (row.model, tuple(getattr(row, column.name) for column in _PUBLISHED_COLUMNS))
        for row in sorted(MIEDB, key=lambda row: -row.dice)
    ),
    marked=frozenset({"b_psnr", "b_ssim"}),
    variant="as_released",
    note="B-PSNR and B-SSIM come from the released script (variant as_released), which paints two image rows "
    "instead of removing the region; they do not compare with paper. Published rows were measured by their "
    "authors on another test set.",
    short_note="B-PSNR and B-SSIM: released script",
    source="published by the authors of MieDB-100k, own test set; B-PSNR, B-SSIM by the released script",
)


def _metrics(*names: str) -> tuple[Metric, ...]:
    return tuple(metric(name) for name in names)


_OMNI: Final = _metrics(
    *("overall", "lpips_all", "lpips_fg", "lpips_bg", "clip_all", "clip_fg", "clip_bg", "qa", "ssim", "psnr")
)
_LAYOUTS: Final = {
    layout.name: layout
    for layout in (
        Layout(
            "miedb",
            "MieDB rubric",
            (
                Board(
                    "Rubric (0 to 100) and its eight criteria (1 to 5), first attempt",
                    tuple(known for known in _KNOWN if known.name.startswith("rubric")),
                ),
            ),
            leads=True,
            main=_MAIN,
            shares=frozenset({"p_acc"}),
            published=_MIEDB_PUBLISHED,
        ),
        Layout(
            "medebench",
            "MedEBench",
            (
                Board(
                    "Overall, 0 to 1, first attempt",
                    _metrics("ea", "cp", "vq", "ea_plain", "vq_plain", "psnr", "ssim"),
                ),
            ),
            radar=Radar(
                "organ", {"ea": "Editing accuracy", "cp": "Context preservation", "vq": "Visual quality"}
            ),
        ),
        Layout(
            "imgedit",
            "ImgEdit",
            (
                Board(
                    "Basic suite by kind of edit, 1 to 5, first attempt",
                    _metrics(*TYPES, "imgedit"),
                    spread=("imgedit", "edit_type"),
                ),
                Board(
                    "Criteria, hard suite, conversations",
                    _metrics(
                        *("adherence", "quality", "preservation", "uge"),
                        *("memory", "understanding", "backtracking"),
                    ),
                ),
            ),
            curves=("memory", "understanding", "backtracking"),
        ),
        Layout(
            "omni-iie",
            "Omni IIE",
            (
                Board("Single-turn track, first attempt", _OMNI, group=("track", "single")),
                Board("Multi-turn track, first attempt", _OMNI, group=("track", "multi")),
                Board(
                    "Scale gap and slope over turns, in Overall",
                    _metrics("scale_gap", "turn_slope"),
                    entries=True,
                    best=False,
                ),
            ),
            curves=("overall", "qa", "ssim"),
        ),
    )
}


def layout_of(benchmark: str) -> Layout:
    """Return the layout of a benchmark; one that says nothing about it gets a table of all its metrics."""
    if benchmark in _LAYOUTS:
        return _LAYOUTS[benchmark]
    if benchmark not in BENCHMARKS or not BENCHMARKS[benchmark].boards:
        return Layout(benchmark, benchmark, (Board("Every metric, first attempt"),), judged=False)
    found = BENCHMARKS[benchmark]
    boards = tuple(
        Board(
            board.title,
            tuple(found.metric(name) for name in board.columns),
            board.group,
            board.spread,
            board.entries,
            board.best,
        )
        for board in found.boards
    )
    shares = frozenset(name for name in found.own_metrics if found.metric(name).binary)
    return Layout(
        benchmark,
        found.title or benchmark,
        boards,
        main=found.main,
        shares=shares,
        curves=found.curves,
        judged=bool(found.judged),
    )


def leading(benchmarks: Iterable[str]) -> Layout:
    """Return the layout of the benchmark on top of the page: the first that leads, else the first of all."""
    layouts = [layout_of(name) for name in benchmarks]
    return next((layout for layout in layouts if layout.leads), layouts[0])


def ordered(benchmarks: Iterable[str]) -> list[str]:
    """Return our benchmarks in the order of the page, then the others by name."""
    there = set(benchmarks)
    return [name for name in _LAYOUTS if name in there] + sorted(there - set(_LAYOUTS))


def published_tables(layout: Layout, document: Mapping[str, Any]) -> list[Table]:
    """Return the reference rows of a benchmark's section."""
    if layout.published is None:
        return [table for table in tables_of(document) if _is_published(table)]
    shown = [column for board in layout.boards for column in board.columns]
    kept = [(at, column) for at, column in enumerate(layout.published.columns) if column in shown]
    rows = sorted(layout.published.rows, key=lambda row: -row[1][kept[0][0]])
    return [
        published(
            "published, by the authors' judge",
            ("model", *(column.label for _, column in kept)),
            [(model, *(values[at] for at, _ in kept)) for model, values in rows],
            f"{{:.{kept[0][1].decimals}f}}",
        )
    ]


def own_tables(document: Mapping[str, Any]) -> Sequence[Table]:
    """Return the tables that `mie score` prints, without the published rows."""
    return [table for table in tables_of(document) if not _is_published(table)]


def _is_published(table: Table) -> bool:
    return table.title.startswith("published")
