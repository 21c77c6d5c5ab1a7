"""The plan: every unit of every data set in a fixed order, cut into parts whatever the number of workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mie.core.hashing import canonical
from mie.datasets.recipe import RecipeConfig
from mie.perspectives.perspective import Weights
from mie.records import Rejection, Unit
from mie.sources.catalog import DicomLayout, Entry, VolumeLayout
from mie.sources.source import open_source, refuse_missing_folders

# A part is what one worker makes in one go and what a crash can cost; it becomes one shard per split.
_PART_WEIGHT = 64


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """A unit, the data set it belongs to (an index into `Plan.sources`), and the perspectives that use it.

    `makers` are places in `RecipeConfig.makers`.
    """

    source: int
    unit: Unit
    makers: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    units: tuple[PlannedUnit, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    config: RecipeConfig
    sources: tuple[tuple[Entry, Path], ...]
    parts: tuple[Part, ...]
    rejections: tuple[Rejection, ...]  # files that fit no pattern
    fingerprint: str  # recipe, units, the size and age of their files, and weights
    weights: Weights | None = None  # by family; None where no network makes samples

    @property
    def units(self) -> int:
        return sum(len(part.units) for part in self.parts)

    def with_weights(self, weights: Weights | None) -> Plan:
        """The plan of a build that uses these weights (`Perspective.prepare`), where it uses any."""
        if not weights:
            return replace(self, weights=weights)
        known = hashlib.sha256((self.fingerprint + canonical(weights)).encode())
        return replace(self, weights=weights, fingerprint=known.hexdigest())

    def listed(self, maker: int | None = None) -> Iterator[tuple[Entry, Path, list[Unit]]]:
        """Every data set, where it lies, and its units; those of one perspective (`makers`) where given."""
        for at, (entry, root) in enumerate(self.sources):
            if maker is not None and self.config.sources[at].limit_for(self.config.makers[maker].kind) == 0:
                continue
            units = [
                planned.unit
                for part in self.parts
                for planned in part.units
                if planned.source == at and (maker is None or maker in planned.makers)
            ]
            yield entry, root, units


def make_plan(config: RecipeConfig, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """List every data set. Nothing is decoded yet."""
    refuse_missing_folders((item.entry, item.root) for item in config.sources)
    sources: list[tuple[Entry, Path]] = []
    rejections: list[Rejection] = []
    planned: list[PlannedUnit] = []
    digest = hashlib.sha256(canonical(config.public()).encode())
    for index, item in enumerate(config.sources):
        progress(item.entry.name)
        source = open_source(item.entry, item.root)
        sources.append((item.entry, source.root))
        limits = [item.limit_for(maker.kind) for maker in config.makers]
        number = 0
        for found in source.scan():
            if isinstance(found, Rejection):
                rejections.append(found)
                continue
            makers = tuple(at for at, limit in enumerate(limits) if limit is None or number < limit)
            if makers:
                number += 1
                planned.append(PlannedUnit(index, found, makers))
                digest.update(file_facts(source.root, item.entry.name, found).encode())
    return Plan(config, tuple(sources), cut(planned, sources), tuple(rejections), digest.hexdigest())


def cut(planned: Sequence[PlannedUnit], sources: Sequence[tuple[Entry, Path]]) -> tuple[Part, ...]:
    """Parts of about 64 images, in this order."""
    parts: list[Part] = []
    current: list[PlannedUnit] = []
    weight = 0
    for item in planned:
        current.append(item)
        weight += _weight(sources[item.source][0], item.unit)
        if weight >= _PART_WEIGHT:
            parts.append(Part(len(parts), tuple(current)))
            current, weight = [], 0
    if current:
        parts.append(Part(len(parts), tuple(current)))
    return tuple(parts)


def first_files(parts: Sequence[Part], sources: Sequence[tuple[Entry, Path]]) -> list[Path]:
    """One file of each data set: whoever sees them can read the data sets."""
    first: dict[int, Path] = {}
    for item in (unit for part in parts for unit in part.units):
        if item.source not in first:
            for path in (path for paths in item.unit.files.values() for path in paths):
                first.setdefault(item.source, sources[item.source][1] / path)
    return list(first.values())


def _weight(entry: Entry, unit: Unit) -> int:
    """About how many images the unit gives."""
    if unit.rows is not None:
        return unit.rows[1] - unit.rows[0]
    if isinstance(entry.layout, VolumeLayout | DicomLayout):
        slices = _PART_WEIGHT if entry.layout.slices == "all" else entry.layout.slices
        return slices * len(entry.layout.planes) * max(1, len(entry.targets))
    return 1


def file_facts(root: Path, name: str, unit: Unit) -> str:
    """Size and age of a unit's files: other files make another plan."""
    facts = []
    for role, paths in sorted(unit.files.items()):
        for path in paths:
            stat = (root / path).stat()
            facts.append((role, path, stat.st_size, stat.st_mtime_ns))
    return canonical([name, unit.key, unit.rows, facts])
