"""Tables in the layout of a benchmark's paper, from the document that scoring returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

_OURS: Final = {
    "medebench": "mie.protocols.medebench.tables:tables",
    "imgedit": "mie.protocols.imgedit.tables:tables",
    "omni-iie": "mie.protocols.omni_iie.tables:tables",
}


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(document: Mapping[str, Any]) -> list[Table]:
    """The tables of a protocol that has a layout of its own; none for the others."""
    place = _OURS.get(document["protocol"])
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
