"""A dataset's samples as requests to an editor, and the turns of conversations.

Samples with a `group` and a `turn` belong to one conversation. With turns `free` an editor edits its own
output of the turn before, so that errors add up; with `forced` it edits the sample's own input, which is the
reference of the turn before, and its history shows references. Free turns run in waves, first turns first.
An edit records the SHA-256 of the output that it started from: it is made again when that output changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mie.core.hashing import file_stem, stable_hash
from mie.core.registry import unknown_name
from mie.datasets.dataset import Dataset, Where
from mie.datasets.parquet import ShardFile
from mie.datasets.schema import REFERENCES, params_of, references_of
from mie.editors.base import Request, SampleRef, Turn
from mie.editors.context import Demonstrations, in_context
from mie.editors.outputs import as_rgb
from mie.editors.runs import output_name
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png
from mie.privacy.gate import Gate
from mie.records import Edit, Pixels
from mie.vocabulary import SPLITS

FREE: Final = "free"
TURNS: Final = (FREE, "forced")
TURN_BEFORE: Final = "turn_before"  # in an edit's `meta`: the SHA-256 of the output that it started from
NO_TURN_BEFORE: Final = "the turn before has no output"
_COLUMNS: Final = ("id", "prompt", "params", "colour", "input")

_GROUPS: Final = 4  # row groups in memory: a long conversation lies in two

Key = tuple[str, int]  # sample id, attempt


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Which samples a run edits, how often, and what each edit is shown: `config` of `run.json`."""

    attempts: int = 1
    split: str | None = None
    limit: int | None = None
    turns: str = FREE
    where: Where | None = None  # the filters of a subset
    demonstrations: int = 0  # other samples that each edit is shown

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise unknown_name("split", self.split, SPLITS)
        if self.turns not in TURNS:
            raise unknown_name("way to run turns", self.turns, TURNS)
        for name, value in (("attempts", self.attempts), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1", found=value)
        if self.demonstrations < 0:
            raise ConfigError("demonstrations must be at least 0", found=self.demonstrations)

    def document(self) -> dict[str, Any]:
        """What `run.json` keeps under `config`."""
        body = asdict(self)
        if not self.demonstrations:
            del body["demonstrations"]
        if self.where is None:
            del body["where"]
        else:
            body["where"] = {name: list(values) for name, values in self.where.items()}
        return body


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An attempt that cannot be made because its images cannot be read; it fails with the reason."""

    sample_id: str
    attempt: int
    reason: str


def edit_seed(sample_id: str, attempt: int) -> int:
    """31 bits from the sample and the attempt, never from order or time: the same in every run."""
    return stable_hash("edit", sample_id, attempt) >> 33


@contextmanager
def dataset_errors(dataset: Dataset) -> Iterator[None]:
    """Turn a damaged shard into a `MieError`."""
    try:
        yield
    except (pa.ArrowException, EOFError) as error:
        raise MieError(
            "the dataset cannot be read",
            where=dataset.folder,
            found=error,
            fix="`mie verify` says what is wrong",
        ) from error


def sample_requests(
    dataset: Dataset,
    split: str | None,
    todo: Mapping[str, list[int]],
    *,
    needs_target: bool,
    takes_references: bool = False,
    demonstrations: Demonstrations | None = None,
) -> Iterator[Request | Unreadable]:
    """Yield the attempts of `todo` (by sample id) in dataset order. Only row groups with work are read."""
    left = dict(todo)
    columns = [*_COLUMNS, *(["target_image"] if needs_target else [])]
    columns += [REFERENCES] if takes_references and dataset.has_references else []
    for path in dataset.shards(split):
        with dataset_errors(dataset), ShardFile(path) as file:
            for group in range(file.num_row_groups):
                if not left:
                    return
                ids = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                if left.keys().isdisjoint(ids):
                    continue
                for row in file.read_row_group(group, columns=columns).to_pylist():
                    if row["id"] in left:
                        yield from _row_requests(row, left.pop(row["id"]), demonstrations)


def released(gate: Gate, requests: Iterable[Request | Unreadable]) -> Iterator[Request | Unreadable]:
    """Pass every image through the gate. An output of an earlier turn came from the same server."""
    for request in requests:
        if isinstance(request, Unreadable):
            yield request
            continue
        where = request.sample.id if request.sample is not None else "the image"
        history = request.history
        if request.origin is None:
            history = tuple(replace(t, image=gate.release(t.image, f"{where}, history")) for t in history)
        original = request.original
        yield replace(
            request,
            image=request.image if request.origin is not None else gate.release(request.image, where),
            history=history,
            original=None if original is None else gate.release(original, f"{where}, first image"),
            references=tuple(gate.release(image, f"{where}, a reference") for image in request.references),
        )


def _row_requests(
    row: dict[str, Any], attempts: list[int], demonstrations: Demonstrations | None
) -> Iterator[Request | Unreadable]:
    try:
        image = as_rgb(decode_png(row["input"]["bytes"]))
        target = row.get("target_image")
        sample = SampleRef(
            id=row["id"],
            stem=file_stem(row["id"]),
            params=params_of(row),
            colour=row["colour"],
            target_image=None if target is None else as_rgb(decode_png(target["bytes"])),
        )
        if not isinstance(row["prompt"], str):
            raise MieError("no instruction", found=type(row["prompt"]).__name__)
        shown = (*references_of(row), *(() if demonstrations is None else demonstrations.of(row["id"])))
        instruction, references = in_context(row["prompt"], shown)
    except (MieError, ValueError, TypeError) as error:
        reason = error.reason if isinstance(error, MieError) else str(error)
        yield from (Unreadable(row["id"], k, f"the sample cannot be read: {reason}") for k in attempts)
        return
    for k in attempts:
        # A copy each: an editor may work in place.
        pixels = image if k == attempts[-1] else image.copy()
        yield Request(pixels, instruction, edit_seed(row["id"], k), k, sample=sample, references=references)


class Inputs:
    """The inputs of samples by id, read from the shards. A few row groups stay in memory."""

    def __init__(self, dataset: Dataset, split: str | None) -> None:
        self._places: dict[str, tuple[Path, int, int]] = {}  # shard, row group, row
        for path in dataset.shards(split):
            with dataset_errors(dataset), ShardFile(path) as file:
                for group in range(file.num_row_groups):
                    ids = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                    self._places |= {name: (path, group, row) for row, name in enumerate(ids)}
        self._read = lru_cache(maxsize=_GROUPS)(_row_group)

    def read(self, sample: str) -> Pixels:
        path, group, row = self._places[sample]
        return as_rgb(decode_png(self._read(path, group)[row].as_py()["bytes"]))


def _row_group(path: Path, group: int) -> Any:
    with ShardFile(path) as file:
        return file.read_row_group(group, columns=["input"]).column("input")


@dataclass(frozen=True, slots=True)
class Conversations:
    """Which sample follows which, and what each asks for."""

    before: Mapping[str, str]  # sample -> the sample of the turn before
    prompts: Mapping[str, str]
    turns: str = FREE
    inputs: Inputs | None = None
    broken: Mapping[str, str] = field(default_factory=dict)  # sample -> why it cannot follow

    @classmethod
    def of(cls, dataset: Dataset, split: str | None, ids: Iterable[str], turns: str = FREE) -> Conversations:
        """Return the conversations among these samples. What follows a turn that is not there is broken."""
        chosen = set(ids)
        table = dataset.table(["id", "group", "turn", "prompt"], split)
        groups: dict[str, dict[int, str]] = {}
        prompts = {}
        for name, group, turn, prompt in zip(*table.values(), strict=True):
            if group is not None and turn is not None and name in chosen:
                groups.setdefault(group, {}).setdefault(turn, name)
                prompts[name] = prompt
        before: dict[str, str] = {}
        broken: dict[str, str] = {}
        for found in groups.values():
            numbers = sorted(found)
            order = [found[turn] for turn in numbers]
            before.update(zip(order[1:], order, strict=False))
            gap = next((turn for turn in range(numbers[0], numbers[-1]) if turn not in found), None)
            if gap is not None:
                reason = f"turn {gap} of its conversation is missing"
                broken.update({found[turn]: reason for turn in numbers if turn > gap})
        return cls(before, prompts, turns, Inputs(dataset, split) if before else None, broken)

    def earlier(self, sample: str) -> list[str]:
        """The samples of the turns before, first turn first."""
        samples: list[str] = []
        while (previous := self.before.get(sample)) is not None:
            samples.insert(0, previous)
            sample = previous
        return samples

    def outdated(self, wanted: Iterable[Key], edits: Mapping[Key, Edit], missing: set[Key]) -> set[Key]:
        """Edits to make again because the turn before is missing, or has changed since."""
        outdated: set[Key] = set()
        if self.turns != FREE:
            return outdated
        for name, k in sorted(wanted, key=lambda key: len(self.earlier(key[0]))):
            previous = self.before.get(name)
            if previous is None or (name, k) in missing:
                continue
            edit, past = edits.get((name, k)), edits.get((previous, k))
            again = (previous, k) in missing or (previous, k) in outdated
            if edit is not None and past is not None and past.state == "done":
                stale = edit.meta.get(TURN_BEFORE) != past.sha256
                again |= stale if edit.state == "done" else str(edit.reason).startswith(NO_TURN_BEFORE)
            if again:
                outdated.add((name, k))
        return outdated

    def waves(self, todo: Iterable[Key]) -> list[list[Key]]:
        """Group what can run at the same time: first turns and single samples, then second turns, ...

        Turns that start from references do not wait for each other.
        """
        if self.turns != FREE:
            return [list(todo)]
        waves: dict[int, list[Key]] = {}
        for key in todo:
            waves.setdefault(len(self.earlier(key[0])), []).append(key)
        return [waves[depth] for depth in sorted(waves)]

    def continued(
        self,
        requests: Iterable[Request | Unreadable],
        folder: Path,
        edits: Mapping[Key, Edit],
        *,
        needs_original: bool = False,
    ) -> Iterator[Request | Unreadable]:
        """Give later turns the earlier ones as history, and free ones their own output of the turn before."""
        for request in requests:
            if isinstance(request, Unreadable) or request.sample is None:
                yield request
                continue
            name, k = request.sample.id, request.attempt
            if name in self.broken:
                yield Unreadable(name, k, self.broken[name])
                continue
            earlier = self.earlier(name)
            if not earlier or self.inputs is None:
                yield request
                continue
            last = edits.get((earlier[-1], k))
            if self.turns != FREE:
                images = [self.inputs.read(sample) for sample in (*earlier[1:], name)]
            elif last is None or last.state != "done":
                yield Unreadable(name, k, NO_TURN_BEFORE)
                continue
            else:
                images = [decode_png((folder / output_name(sample, k)).read_bytes()) for sample in earlier]
            history = tuple(Turn(self.prompts[s], image) for s, image in zip(earlier, images, strict=True))
            yield replace(
                request,
                # A copy: the editor may work in place, and the image is in its history too.
                image=images[-1].copy(),
                history=history,
                origin=last.sha256 if last is not None and self.turns == FREE else None,
                original=self.inputs.read(earlier[0]) if needs_original else None,
            )
