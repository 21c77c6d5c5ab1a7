"""The benchmarks: which samples, which numbers, how they add up.

Another package adds one with an entry point of the group `mie.protocols`: its name, and the `module:function`
of a `score_run(run_folder, *, variant, workers, progress, judge) -> document`; `judge` is only given where
the user names one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mie.core.registry import nearest_name
from mie.errors import ConfigError

if TYPE_CHECKING:
    from mie.judges.contracts import JudgeOptions

# Imported when asked for: a protocol brings its kernels along.
_OURS: Final = {
    "miedb": "mie.scoring.benchmarks.miedb.score:score_run",
    "medebench": "mie.scoring.benchmarks.medebench.score:score_run",
    "imgedit": "mie.scoring.benchmarks.imgedit.score:score_run",
    "omni-iie": "mie.scoring.benchmarks.omni_iie.score:score_run",
}
VARIANTS: Final = ("paper", "as_released")


class ScoreRun(Protocol):
    """Scores a run's folder and returns the document that `mie score --json` prints."""

    def __call__(
        self,
        run_folder: Path | str,
        *,
        variant: str = "paper",
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        judge: JudgeOptions | None = None,
    ) -> dict[str, Any]: ...


def protocol_names() -> list[str]:
    """Our protocols and those that other packages brought."""
    return sorted({*_OURS, *_plugins()})


def find_protocol(name: str) -> ScoreRun:
    """The protocol's `score_run`; a name that nobody knows is answered with the nearest one."""
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        found: ScoreRun = getattr(import_module(module), attribute)
        return found
    plugin = _plugins().get(name)
    if plugin is None:
        known = protocol_names()
        near = nearest_name(name, known)
        raise ConfigError(
            f"no protocol named {name!r}",
            expected=", ".join(known),
            fix=f"did you mean {near!r}?" if near else None,
        )
    loaded: ScoreRun = plugin.load()
    return loaded


def score(
    run_folder: Path | str,
    protocol: str = "miedb",
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | str | None = None,
) -> dict[str, Any]:
    """Score a run by a protocol's name; the document is the one that `mie score --json` prints.

    `judge` is a spec such as `openai:gpt-4o`, or `JudgeOptions` with more to say.
    """
    asked = {} if judge is None else {"judge": _options(judge)}
    return find_protocol(protocol)(run_folder, variant=variant, workers=workers, progress=progress, **asked)


def _options(judge: JudgeOptions | str) -> JudgeOptions:
    from mie.judges.contracts import JudgeOptions  # brings the image kernels along

    return JudgeOptions(judge) if isinstance(judge, str) else judge


def check_variant(variant: str) -> None:
    """`ConfigError` for a variant that no protocol has."""
    if variant not in VARIANTS:
        near = nearest_name(variant, VARIANTS)
        raise ConfigError(
            f"no variant named {variant!r}",
            expected=", ".join(VARIANTS),
            fix=f"did you mean {near!r}?" if near else None,
        )


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="mie.scoring.benchmarks")}


# Tables in the layout of a benchmark's paper, from the document that scoring returns.

_TABLES: Final = {
    "medebench": "mie.scoring.benchmarks.medebench.tables:tables",
    "imgedit": "mie.scoring.benchmarks.imgedit.tables:tables",
    "omni-iie": "mie.scoring.benchmarks.omni_iie.tables:tables",
}


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(document: Mapping[str, Any]) -> list[Table]:
    """The tables of a protocol that has a layout of its own; none for the others."""
    place = _TABLES.get(document["protocol"])
    if place is None:
        return []
    module, _, name = place.partition(":")
    make: Callable[[Mapping[str, Any]], list[Table]] = getattr(import_module(module), name)
    return make(document)


def by_group(
    document: Mapping[str, Any],
    key: str,
    names: Mapping[str, str],
    *,
    title: str,
    show: Callable[[float], str] = "{:.2f}".format,
    last: str = "overall",
) -> Table:
    """A row for each group of `key` and one for all; a cell is a mean with its coverage.

    `names` maps a metric's key to the column's head.
    """
    groups = [item for item in document["groups"] if list(item["group"]) == [key]]
    shown = [(item["group"][key], item["metrics"]) for item in groups if item["group"][key]]
    shown.append((last, document["groups"][0]["metrics"]))
    rows = tuple((name, *(cell(found.get(m), show) for m in names)) for name, found in shown)
    return Table(title, (key.replace("_", " "), *names.values()), rows)


def cell(entry: Mapping[str, Any] | None, show: Callable[[float], str] = "{:.2f}".format) -> str:
    """`0.62 (14/15)`; nothing where the metric does not apply."""
    if entry is None:
        return ""
    mean = float(entry["mean"])  # "nan" and "inf" are text in a document
    number = "–" if math.isnan(mean) else show(mean)
    return f"{number} ({entry['n']}/{entry['n'] + entry['unscored']})"


def published(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], show: str = "{:.2f}"
) -> Table:
    """Reference rows: numbers as the paper prints them."""
    shown = tuple(tuple(show.format(v) if isinstance(v, float) else str(v) for v in row) for row in rows)
    return Table(title, tuple(header), shown)
