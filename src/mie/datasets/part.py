"""One part, made by one worker: units -> cases -> samples -> gates -> Parquet files in `parts/`."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.files import atomic_path
from mie.datasets.engine import Standing, report
from mie.datasets.leaks import content_key
from mie.datasets.names import Names
from mie.datasets.plan import Part
from mie.datasets.recipe import RecipeConfig, source_facts, split_of
from mie.datasets.rejected import write_rejected
from mie.datasets.schema import IMAGE_COLUMNS, RowEncoder, ShardWriter, table
from mie.datasets.wide import widened
from mie.errors import MieError
from mie.images.hashes import perceptual
from mie.perspectives import BuildFacts, Recipe, VolumeRecipe
from mie.perspectives.perspective import EditKind
from mie.perspectives.volumes import volume_of
from mie.records import Case, Pixels, Rejection, Sample, Unit
from mie.sources.catalog import Entry
from mie.sources.source import open_source

# Trouble of the machine, not of one file. Memory is not among it: what one file asks for, another does not.
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_NO_MEMORY = "there is not enough memory for it"

INDEX_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("split", pa.string()),
        ("source", pa.string()),
        ("case_id", pa.string()),
        ("patient_id", pa.string()),
        ("perspective", pa.string()),
        ("modality", pa.string()),
        ("task", pa.string()),
        ("target", pa.string()),
        ("sha256", pa.string()),
        ("content", pa.binary()),
        ("hash", pa.uint64()),
        ("thumb", pa.binary()),
        ("pixels", pa.list_(pa.binary())),  # digests of input, target image and mask
    ]
)


@dataclass(frozen=True, slots=True)
class PartTask:
    """All that a worker needs for one part."""

    part: Part
    sources: dict[int, tuple[Entry, Path]]
    config: RecipeConfig
    folder: Path
    deadly: frozenset[int] = frozenset()  # units (by index) that ended a worker process: rejected unread


@dataclass(frozen=True, slots=True)
class PartResult:
    number: int
    units: int
    kept: int
    refused: Counter[str]


def part_path(folder: Path, number: int, what: str) -> Path:
    return folder / f"{number:05d}.{what}.parquet"


def judge_folder(folder: Path, number: int) -> Path:
    """Beside `parts/`: replies were paid for, and are kept when the dataset is whole or made afresh."""
    return folder.parent / "judge" / f"part-{number:05d}"


def without_deadly_unit(task: PartTask, standing: Standing) -> PartTask | None:
    """The part again, after it ended its process: the unit that was being worked on is left out."""
    unit = standing[0]
    return None if unit in task.deadly else replace(task, deadly=task.deadly | {unit})


def make_part(task: PartTask) -> PartResult:
    """Write the part's shards, its rejections and, last, its index: the index says that the part is whole.

    Reports (units done, samples kept, rejections) as it goes, also before it reads a unit.
    """
    encoder = RowEncoder()
    names = Names(task.config.keep_names)
    units = _Count()
    traces = _Traces(task.config.perspective.edit)
    rejections: list[Rejection] = []
    number = task.part.number
    with ExitStack() as stack:
        writers: dict[str, ShardWriter] = {}
        for outcome in _outcomes(task, units):
            units.kept, units.refused = len(traces.rows), len(rejections)
            units.report()
            if isinstance(outcome, Rejection):
                rejections.append(outcome)
                continue
            sample = names.sample(outcome)
            try:
                row, digests = encoder.row(sample)
            except MemoryError:
                rejections.append(Rejection(outcome.source, outcome.case_id, "error", _NO_MEMORY))
                continue
            if sample.split not in writers:
                path = part_path(task.folder, number, sample.split)
                writers[sample.split] = stack.enter_context(ShardWriter(path))
            writers[sample.split].write(row)
            traces.add(sample, row["sha256"], digests)
    if rejections:  # most parts have none, and a file less is two syncs less
        write_rejected(part_path(task.folder, number, "rejected"), rejections)
    with atomic_path(part_path(task.folder, number, "index")) as temporary:
        pq.write_table(table(traces.rows, INDEX_SCHEMA), temporary, compression="zstd")
    return PartResult(number, len(task.part.units), len(traces.rows), Counter(r.gate for r in rejections))


@dataclass(slots=True)
class _Count:
    done: int = 0  # also the index of the unit that is being worked on
    kept: int = 0
    refused: int = 0

    def begin(self, unit: int) -> None:
        self.done = unit
        self.report()

    def report(self) -> None:
        report(self.done, self.kept, self.refused)


def _outcomes(task: PartTask, units: _Count) -> Iterator[Sample | Rejection]:
    config, perspective = task.config, task.config.perspective
    gates = perspective.gates(config.recipe, config.gates)
    sources = [source_facts(*task.sources[at], _units(task, at)) for at in task.sources]
    folder = judge_folder(task.folder, task.part.number)
    with ExitStack() as resources:
        names = Names(config.keep_names)
        build = BuildFacts(
            config.name,
            config.bins,
            tuple(sources),
            folder,
            resources,
            case_name=lambda case: names.case(case.source, case.case_id),
        )
        recipe = perspective.samples(config.recipe, build)
        for sample in _samples(recipe, _cases(task, units), config, units):
            if isinstance(sample, Rejection):
                yield sample
                continue
            if config.recipe.wordings == "wide":
                sample = widened(sample)
            rejection = next((r for gate in gates if (r := gate(sample)) is not None), None)
            yield rejection or sample


def _samples(
    recipe: Recipe, cases: Iterator[tuple[int, Case | Rejection]], config: RecipeConfig, units: _Count
) -> Iterator[Sample | Rejection]:
    def of_case(case: Case | Rejection) -> Iterator[Sample | Rejection]:
        if isinstance(case, Rejection):
            yield case
            return
        try:
            yield from recipe.samples(case, split_of(case, config.split, config.seed), config.seed)
        except MemoryError:
            yield Rejection(case.source, case.case_id, "error", _NO_MEMORY)

    if not isinstance(recipe, VolumeRecipe):
        for _, case in cases:
            yield from of_case(case)
        return

    def volume(item: tuple[int, Case | Rejection]) -> tuple[int, tuple[str, str] | None]:
        return item[0], None if isinstance(item[1], Rejection) else volume_of(item[1])

    # A volume's slices come one after the other; anything else is a group of its own.
    for (unit, name), group in itertools.groupby(cases, volume):
        if name is None:
            for _, case in group:
                yield from of_case(case)
            continue
        slices = [case for _, case in group if isinstance(case, Case)]
        units.begin(unit)  # the group's end was found by reading the next unit
        try:
            split = split_of(slices[0], config.split, config.seed)
            yield from recipe.volume(slices, split, config.seed)
        except MemoryError:
            yield Rejection(slices[0].source, name[1], "error", _NO_MEMORY)


def _units(task: PartTask, source: int) -> list[Unit]:
    return [planned.unit for planned in task.part.units if planned.source == source]


def _cases(task: PartTask, units: _Count) -> Iterator[tuple[int, Case | Rejection]]:
    """The cases of every unit, each with the unit's index."""
    sources = {at: open_source(entry, root) for at, (entry, root) in task.sources.items()}
    for index, planned in enumerate(task.part.units):
        units.begin(index)
        entry, root = task.sources[planned.source]
        key = planned.unit.key
        if index in task.deadly:
            yield index, Rejection(entry.name, key, "image", "reading it ended the worker process")
            continue
        try:
            for case in sources[planned.source].load(planned.unit):
                yield index, case
        except MieError as error:
            yield index, Rejection(entry.name, _where(key, error, root), "image", error.reason)
        except MemoryError:
            yield index, Rejection(entry.name, key, "error", _NO_MEMORY)
        except Exception as error:  # one strange file among thousands is recorded, never fatal
            if isinstance(error, OSError) and error.errno in _FATAL:
                raise
            yield index, Rejection(entry.name, key, "error", f"{type(error).__name__}: {error}")


def _where(key: str, error: MieError, root: Path) -> str:
    """The unit, and the file inside it that failed; never a place on this machine's disk."""
    inside = (error.where or key).removeprefix(f"{root}/")
    return key if inside == key else f"{key} ({inside})"


class _Traces:
    """What the finish needs to compare samples across parts without opening images again."""

    def __init__(self, edit: EditKind) -> None:
        self.rows: list[dict[str, Any]] = []
        self._edit = edit
        self._last: tuple[Pixels, int, bytes] | None = None

    def add(self, sample: Sample, sha256: str, digests: Mapping[str, bytes | None]) -> None:
        if self._last is None or self._last[0] is not sample.input:
            self._last = (sample.input, *perceptual(sample.input))
        _, hash_, thumb = self._last
        row = {name: getattr(sample, name) for name in INDEX_SCHEMA.names[:9]}
        content = content_key(digests, self._edit)
        pixels = [digests[name] for name in IMAGE_COLUMNS]
        found = {"sha256": sha256, "content": content, "hash": hash_, "thumb": thumb, "pixels": pixels}
        self.rows.append({**row, **found})
