"""What every adapter does: list a data set without opening pixels, then load one unit of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mie.records import Case, Refusal, Unit
from mie.sources.catalog import Entry


class Source(Protocol):
    """A data set on disk."""

    entry: Entry
    root: Path

    def scan(self) -> Iterator[Unit | Refusal]:
        """Units in a stable order; files that fit nothing come as refusals."""
        ...

    def load(self, unit: Unit) -> Iterator[Case | Refusal]:
        """The cases of one unit. Raises `MieError` when the unit as a whole cannot be read."""
        ...
