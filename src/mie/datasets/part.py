"""One part, made by one worker: units -> cases -> samples -> gates -> Parquet files in `parts/`."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mie.core import scratch
from mie.core.files import FULL, atomic_path
from mie.datasets.engine import Standing, report
from mie.datasets.leaks import FirstTraces, sample_key, turn_key
from mie.datasets.names import Names
from mie.datasets.plan import Part
from mie.datasets.recipe import RecipeConfig, source_facts, split_of
from mie.datasets.rejected import write_rejected
from mie.datasets.schema import IMAGE_COLUMNS, RowEncoder, ShardWriter, table
from mie.datasets.wide import widened
from mie.errors import MieError
from mie.images.hashes import perceptual
from mie.perspectives import (
    PERSPECTIVES,
    BuildFacts,
    Gate,
    Recipe,
    VolumeRecipe,
    WholeVolumeRecipe,
    find_perspective,
)
from mie.perspectives.volumes import is_whole, volume_id, volume_of
from mie.records import Case, Pixels, Rejection, Sample, Unit
from mie.sources.catalog import Entry
from mie.sources.source import open_source

# Trouble of the machine, not of one file. Memory is not among it: what one file asks for, another does not.
_FATAL = (*FULL, errno.EMFILE, errno.ENFILE)
_NO_MEMORY = "there is not enough memory for it"
_REMEMBERED = 64  # images whose trace is kept: perspectives share the images of a case

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
        ("group", pa.string()),
        ("turn", pa.int32()),
        ("sha256", pa.string()),
        ("content", pa.binary()),
        ("hash", pa.uint64()),
        ("thumb", pa.binary()),
        ("pixels", pa.list_(pa.binary())),  # digests of input, target image and mask
        ("goal_hash", pa.uint64()),  # of a target image that shows the patient anew; null for an overlay
        ("goal_thumb", pa.binary()),
        ("references", pa.int32()),  # how many further images it has
        ("volume", pa.string()),  # the whole volume that it is a slice of
    ]
)


@dataclass(frozen=True, slots=True)
class PartTask:
    """All that a worker needs for one part."""

    part: Part
    sources: dict[int, tuple[Entry, Path]]
    config: RecipeConfig
    folder: Path
    allow_remote: bool = False  # a recipe's judge may be on another machine
    deadly: frozenset[int] = frozenset()  # units (by index) that ended a worker process: rejected unread


@dataclass(frozen=True, slots=True)
class PartResult:
    number: int
    units: int
    kept: int
    refused: Counter[str]


def part_path(folder: Path, number: int, what: str) -> Path:
    return folder / f"{number:05d}.{what}.parquet"


def finished(folder: Path, part: Part) -> Standing | None:
    """Units, samples and rejections of a part that is whole; None while it is not."""
    index, rejected = part_path(folder, part.number, "index"), part_path(folder, part.number, "rejected")
    if not index.exists():
        return None
    refused = pq.read_metadata(rejected).num_rows if rejected.exists() else 0
    return len(part.units), pq.read_metadata(index).num_rows, refused


def judge_folder(folder: Path, number: int) -> Path:
    """Beside `parts/`: replies were paid for, and are kept when the dataset is whole or made afresh."""
    return folder.parent / "judge" / f"part-{number:05d}"


def without_deadly_unit(task: PartTask, standing: Standing) -> PartTask | None:
    """The part again, after it ended its process: the unit that was being worked on is left out."""
    unit = standing[0]
    return None if unit in task.deadly else replace(task, deadly=task.deadly | {unit})


def unit_name(task: PartTask, standing: Standing) -> str:
    """What a part was working on, as people know it."""
    units = task.part.units[standing[0] :] or task.part.units
    return f"{task.sources[units[0].source][0].name}/{units[0].unit.key}"


def make_part(task: PartTask) -> PartResult:
    """Write the part's shards, its rejections and, last, its index: the index says that the part is whole.

    Reports (units done, samples kept, rejections) as it goes, also before it reads a unit.
    """
    encoder = RowEncoder()
    names = Names(task.config.keep_names)
    units = _Count()
    traces = PartTraces()
    rejections: list[Rejection] = []
    number = task.part.number
    with ExitStack() as stack:
        stack.enter_context(scratch.scratch_folder(task.folder))
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
            scratch.give_back()
    if rejections:  # most parts have none, and a file less is two syncs less
        write_rejected(part_path(task.folder, number, "rejected"), rejections)
    traces.write(task.folder, number)
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


@dataclass(frozen=True, slots=True)
class _Maker:
    """One perspective at work on a part."""

    name: str
    recipe: Recipe
    gates: Sequence[Gate]
    wide: bool
    config: RecipeConfig

    def outcomes(self, cases: Sequence[Case], *, volume: str | None = None) -> Iterator[Sample | Rejection]:
        """What becomes of one case, or of the slices of a volume."""
        several = len(self.config.makers) > 1
        for outcome in self._outcomes(cases, volume):
            if several and isinstance(outcome, Rejection):
                outcome = replace(outcome, perspective=self.name)
            yield outcome

    def _outcomes(self, cases: Sequence[Case], volume: str | None) -> Iterator[Sample | Rejection]:
        samples = self._samples(cases, volume)
        for whole, group in itertools.groupby(
            samples, lambda s: None if isinstance(s, Rejection) else volume_id(s)
        ):
            if whole is None:
                for sample in group:
                    yield sample if isinstance(sample, Rejection) else self._judged(sample)
            else:
                yield from self._judged_together([s for s in group if isinstance(s, Sample)])

    def _judged_together(self, slices: Sequence[Sample]) -> list[Sample | Rejection]:
        """A whole volume passes the gates, or does not, as one image: its slices below each other."""
        montage = _montage(slices)
        verdict = next((r for gate in self.gates if (r := gate(montage)) is not None), None)
        if verdict is not None:
            return [verdict]
        if not self.wide:
            return list(slices)
        words = widened(slices[0])  # one instruction for all of them
        prompts: dict[str, Any] = {"prompt": words.prompt, "prompt_template": words.prompt_template}
        return [replace(s, **prompts, params={**words.params, **s.params}) for s in slices]

    def _samples(self, cases: Sequence[Case], volume: str | None) -> Iterator[Sample | Rejection]:
        seed = self.config.seed
        make: Callable[[Sequence[Case], str, int], Iterator[Sample | Rejection]] | None = None
        if volume is not None and is_whole(cases[0]):
            if not isinstance(self.recipe, WholeVolumeRecipe):
                reason = f"{self.name} makes no samples of whole volumes; choose a number of slices"
                yield Rejection(cases[0].source, volume, "source", reason)
                return
            make = self.recipe.whole_volume
        elif volume is not None and isinstance(self.recipe, VolumeRecipe):
            make = self.recipe.volume
        if make is not None:
            try:
                split = split_of(cases[0], self.config.split, seed)
                yield from make(cases, split, seed)
            except MemoryError:
                yield Rejection(cases[0].source, str(volume), "error", _NO_MEMORY)
            return
        for case in cases:
            try:
                yield from self.recipe.samples(case, split_of(case, self.config.split, seed), seed)
            except MemoryError:
                yield Rejection(case.source, case.case_id, "error", _NO_MEMORY)

    def _judged(self, sample: Sample) -> Sample | Rejection:
        if self.wide:
            sample = widened(sample)
        return next((r for gate in self.gates if (r := gate(sample)) is not None), None) or sample


def _montage(slices: Sequence[Sample]) -> Sample:
    """The slices that show the region below each other; of a volume without one, all of them."""
    marked = [s for s in slices if s.mask is not None and s.mask.any()] or list(slices)
    below: dict[str, Any] = {}
    for name in IMAGE_COLUMNS:
        images = [getattr(s, name) for s in marked]
        if images[0] is not None:
            height, *rest = images[0].shape
            below[name] = scratch.zeros((len(images) * height, *rest), images[0].dtype)
            for at, image in enumerate(images):
                below[name][at * height : (at + 1) * height] = image
                scratch.give_back()
    return replace(marked[0], **below)


def _open_makers(task: PartTask, resources: ExitStack) -> list[_Maker]:
    config, names = task.config, Names(task.config.keep_names)
    makers = []
    for at, maker in enumerate(config.makers):
        used = {planned.source for planned in task.part.units if at in planned.makers}
        build = BuildFacts(
            config.name,
            config.bins,
            tuple(source_facts(*task.sources[n], _units(task, n)) for n in task.sources if n in used),
            judge_folder(task.folder, task.part.number),
            resources,
            case_name=lambda case: names.case(case.source, case.case_id),
            allow_remote=task.allow_remote,
        )
        perspective = PERSPECTIVES[maker.kind]
        recipe, gates = perspective.samples(maker, build), perspective.gates(maker, config.gates)
        makers.append(_Maker(maker.kind, recipe, gates, maker.wordings == "wide", config))
    return makers


def _outcomes(task: PartTask, units: _Count) -> Iterator[Sample | Rejection]:
    """Every case is read once, and goes to each perspective that uses its data set."""
    with ExitStack() as resources:
        makers = _open_makers(task, resources)

        def volume(item: tuple[int, Case | Rejection]) -> tuple[int, tuple[str, str] | None]:
            return item[0], None if isinstance(item[1], Rejection) else volume_of(item[1])

        # A volume's slices come one after the other; anything else is a group of its own.
        for (unit, name), group in itertools.groupby(
            read_cases(task.part, task.sources, units.begin, task.deadly), volume
        ):
            chosen = [makers[at] for at in task.part.units[unit].makers]
            first = next(group)
            group = itertools.chain([first], group)
            together = isinstance(first[1], Case) and (
                is_whole(first[1]) or any(isinstance(maker.recipe, VolumeRecipe) for maker in chosen)
            )
            if name is None or not together:
                for _, case in group:
                    if isinstance(case, Rejection):
                        yield case
                        continue
                    for maker in chosen:
                        yield from maker.outcomes([case])
                continue
            slices = [case for _, case in group if isinstance(case, Case)]
            units.begin(unit)  # the group's end was found by reading the next unit
            for maker in chosen:
                yield from maker.outcomes(slices, volume=name[1])


def _units(task: PartTask, source: int) -> list[Unit]:
    return [planned.unit for planned in task.part.units if planned.source == source]


def read_cases(
    part: Part,
    places: Mapping[int, tuple[Entry, Path]],
    begin: Callable[[int], None],
    deadly: frozenset[int] = frozenset(),
) -> Iterator[tuple[int, Case | Rejection]]:
    """The cases of every unit, each with the unit's index. What cannot be read is a rejection.

    `begin` is told the index of each unit before it is read; `deadly` units are not read at all.
    """
    sources = {at: open_source(entry, root) for at, (entry, root) in places.items()}
    for index, planned in enumerate(part.units):
        begin(index)
        entry, root = places[planned.source]
        key = planned.unit.key
        if index in deadly:
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


class PartTraces:
    """What the finish needs to compare samples across parts without opening images again."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._known: dict[bytes, tuple[int, bytes]] = {}  # by the digest of the pixels
        self._first = FirstTraces()

    def add(self, sample: Sample, sha256: str, digests: Mapping[str, bytes | None]) -> None:
        row = {name: getattr(sample, name) for name in INDEX_SCHEMA.names[:11]}
        perspective = find_perspective(sample.perspective)
        turn = perspective is not None and perspective.prove_group is not None
        hash_, thumb = self._first.of(sample) or self._trace(sample.input, digests["input"])
        self._first.keep(sample if turn else None, (hash_, thumb))
        anew = perspective is not None and "target_image" in perspective.patient_images and not turn
        goal = self._trace(sample.target_image, digests["target_image"]) if anew else (None, None)
        edit = "image" if perspective is None else perspective.edit
        found = {
            "sha256": sha256,
            "content": turn_key(sample) if turn else sample_key(sample, digests, edit),
            "hash": hash_,
            "thumb": thumb,
            "pixels": [digests[name] for name in IMAGE_COLUMNS],
            "goal_hash": goal[0],
            "goal_thumb": goal[1],
            "references": len(sample.references),
            "volume": volume_id(sample),
        }
        self.rows.append({**row, **found})

    def write(self, folder: Path, number: int) -> None:
        with atomic_path(part_path(folder, number, "index")) as temporary:
            pq.write_table(table(self.rows, INDEX_SCHEMA), temporary, compression="zstd")

    def _trace(self, image: Pixels, digest: bytes | None) -> tuple[int, bytes]:
        key = digest or b""
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = perceptual(image)
        return self._known[key]
