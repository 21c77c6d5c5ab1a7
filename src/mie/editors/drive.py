"""What is left to do of a run, as requests: row groups are read only where something is left."""

from __future__ import annotations

import hashlib
import json
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.hashing import file_stem, stable_hash
from mie.core.journal import Journal
from mie.datasets.dataset import Dataset
from mie.editors.base import Edited, EditError, Editor, Request, SampleRef, Turn, as_edit_error
from mie.editors.outputs import as_pixels, checked, sync_folder, write_output
from mie.editors.runs import edit_line, output_name
from mie.errors import MieError
from mie.images.png import decode_png, encode_png
from mie.records import Edit

_COLUMNS: Final = ("id", "prompt", "params", "colour", "input")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A sample whose own images cannot be decoded: its edits fail, with the reason."""

    sample_id: str
    attempt: int
    reason: str


def edit_seed(sample_id: str, attempt: int) -> int:
    """31 bits from what is edited, never from when or where: every run of every editor draws the same."""
    return stable_hash("edit", sample_id, attempt) >> 33


@contextmanager
def reading(dataset: Dataset) -> Iterator[None]:
    """A damaged shard as a `MieError`."""
    try:
        yield
    except (pa.ArrowException, EOFError) as error:
        raise MieError(
            "the dataset cannot be read",
            where=dataset.folder,
            found=error,
            fix="`mie verify` says what is wrong",
        ) from error


def requests(
    dataset: Dataset, split: str | None, todo: dict[str, list[int]], *, needs_target: bool
) -> Iterator[Request | Unreadable]:
    """The attempts in `todo` by sample id, in dataset order. `todo` is emptied on the way."""
    columns = [*_COLUMNS, *(["target_image"] if needs_target else [])]
    for path in dataset.shards(split):
        with reading(dataset), pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                if not todo:
                    return
                ids = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                if todo.keys().isdisjoint(ids):
                    continue
                for row in file.read_row_group(group, columns=columns).to_pylist():
                    if row["id"] in todo:
                        yield from _requests(row, todo.pop(row["id"]))


def _requests(row: dict[str, Any], attempts: list[int]) -> Iterator[Request | Unreadable]:
    try:
        image = as_pixels(decode_png(row["input"]["bytes"]))
        target = row.get("target_image")
        sample = SampleRef(
            id=row["id"],
            stem=file_stem(row["id"]),
            params=json.loads(row["params"]),
            colour=row["colour"],
            target_image=None if target is None else as_pixels(decode_png(target["bytes"])),
        )
    except (MieError, ValueError, TypeError) as error:
        reason = error.reason if isinstance(error, MieError) else str(error)
        yield from (Unreadable(row["id"], k, f"the sample cannot be read: {reason}") for k in attempts)
        return
    for k in attempts:
        # A copy each: an editor may work in place.
        pixels = image if k == attempts[-1] else image.copy()
        yield Request(pixels, row["prompt"], edit_seed(row["id"], k), k, sample=sample)


# Conversations: samples with a group and a turn, each of which goes on from the turn before.
#
# `free`: a model is given its own output of the turn before, so that errors add up. `forced`: it is given
# the
# sample's own input, which is the reference of the turn before. Turns are made in waves, first turns first;
# an
# edit remembers the digest of the output that it began with, so that a turn whose past was made again is
# too.

FREE: Final = "free"
TURNS: Final = (FREE, "forced")
BEFORE: Final = "turn_before"  # in an edit's `meta`
NO_PAST: Final = "the turn before has no output"
Key = tuple[str, int]  # sample id, attempt


@dataclass(frozen=True, slots=True)
class Conversations:
    """Which sample goes on from which, and what each was asked."""

    before: Mapping[str, str]
    prompts: Mapping[str, str]

    @classmethod
    def of(cls, dataset: Dataset, split: str | None, ids: Iterable[str]) -> Conversations:
        """Those among the samples of a run. A turn that is not in it is skipped."""
        chosen = set(ids)
        table = dataset.table(["id", "group", "turn", "prompt"], split)
        talks: dict[str, dict[int, str]] = {}
        prompts = {}
        for name, group, turn, prompt in zip(*table.values(), strict=True):
            if group is not None and turn is not None and name in chosen:
                talks.setdefault(group, {}).setdefault(turn, name)
                prompts[name] = prompt
        before: dict[str, str] = {}
        for turns in talks.values():
            order = [turns[turn] for turn in sorted(turns)]
            before.update(zip(order[1:], order, strict=False))
        return cls(before, prompts)

    def past(self, sample: str) -> list[str]:
        """The samples of the turns before, first turn first."""
        found: list[str] = []
        while (earlier := self.before.get(sample)) is not None:
            found.insert(0, earlier)
            sample = earlier
        return found

    def left(self, wanted: Iterable[Key], edits: Mapping[Key, Edit], left: set[Key]) -> set[Key]:
        """What is to be made again beside `left`, because the turn before is or was since."""
        found: set[Key] = set()
        for name, k in sorted(wanted, key=lambda key: len(self.past(key[0]))):
            earlier = self.before.get(name)
            if earlier is None or (name, k) in left:
                continue
            edit, past = edits.get((name, k)), edits.get((earlier, k))
            again = (earlier, k) in left or (earlier, k) in found
            if edit is not None and past is not None and past.state == "done":
                stale = edit.meta.get(BEFORE) != past.sha256
                again |= stale if edit.state == "done" else str(edit.reason).startswith(NO_PAST)
            if again:
                found.add((name, k))
        return found

    def waves(self, left: Iterable[Key]) -> list[list[Key]]:
        """What can be made at the same time: first turns and single samples, then second turns, ..."""
        found: dict[int, list[Key]] = {}
        for key in left:
            found.setdefault(len(self.past(key[0])), []).append(key)
        return [found[depth] for depth in sorted(found)]


def going_on(
    requests: Iterable[Request | Unreadable],
    talks: Conversations,
    folder: Path,
    edits: Mapping[Key, Edit],
) -> Iterator[Request | Unreadable]:
    """The requests with the model's own outputs: the image of the turn before, and all turns as history."""
    for request in requests:
        if isinstance(request, Unreadable) or request.sample is None:
            yield request
            continue
        name, k = request.sample.id, request.attempt
        past = talks.past(name)
        if not past:
            yield request
            continue
        last = edits.get((past[-1], k))
        if last is None or last.state != "done":
            yield Unreadable(name, k, NO_PAST)
            continue
        images = [decode_png((folder / output_name(earlier, k)).read_bytes()) for earlier in past]
        turns = [Turn(talks.prompts[earlier], image) for earlier, image in zip(past, images, strict=True)]
        # A copy: the editor may work in place, and the image is in its history too.
        yield replace(request, image=images[-1].copy(), history=tuple(turns), origin=last.sha256)


# `edits.jsonl`: appended to, never rewritten. A line is written after its output is safe on disk.

_BLOCK: Final = 1 << 16


# Requests through an editor to outputs on disk: reading, editing, encoding and syncing at the same time.
#
# The calling thread decodes inputs ahead of the editor and writes the journal; `workers` threads edit; a
# few
# more encode and sync. What is in flight is bounded, so memory does not grow with the dataset.

# Lines are written in groups, because a sync costs as much as a hundred lines. A finished edit waits at
# most this long for its line; a kill in that time means that it is made again.
_GROUP: Final = 64
_SECONDS: Final = 0.5
_SAVERS: Final = 4  # threads that encode and sync: more than cores, because syncing is waiting
_REASON: Final = 2000  # characters


class Drive:
    """One pass of an editor over requests. `on_edit` hears of every edit once it is in the journal."""

    def __init__(
        self,
        editor: Editor,
        folder: Path,
        journal: Journal,
        on_edit: Callable[[Edit], None],
        *,
        workers: int,
        batch_size: int,
    ) -> None:
        self._editor = editor
        self._folder = folder
        self._journal = journal
        self._on_edit = on_edit
        self._workers = workers
        self._batch_size = batch_size
        self._results: queue.SimpleQueue[Edit | BaseException] = queue.SimpleQueue()
        self._in_flight = 0
        self._group: list[Edit] = []
        self._written = time.monotonic()

    def run(self, requests: Iterable[Request | Unreadable]) -> None:
        """Make every edit. Interrupted, it still writes down those that are finished."""
        window = (self._workers + 1) * self._batch_size + 2 * _SAVERS
        with ThreadPoolExecutor(_SAVERS) as saving, ThreadPoolExecutor(self._workers) as editing:
            try:
                for batch in self._batches(requests):
                    while self._in_flight and self._in_flight + len(batch) > window:
                        self._take()
                    self._in_flight += len(batch)
                    editing.submit(self._edit, batch, saving)
                while self._in_flight:
                    self._take()
                self._write()
            except BaseException as error:
                editing.shutdown(wait=False, cancel_futures=True)
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    self._write_finished()
                self._editor.close()  # from here on edits fail because we stop, which is nobody's failure
                raise

    def _batches(self, requests: Iterable[Request | Unreadable]) -> Iterator[list[Request]]:
        batch: list[Request] = []
        for request in requests:
            if isinstance(request, Unreadable):
                self._in_flight += 1
                self._results.put(self._failed(request.sample_id, request.attempt, request.reason, 0.0))
                continue
            batch.append(request)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _edit(self, batch: Sequence[Request], saving: ThreadPoolExecutor) -> None:
        try:
            started = time.perf_counter()
            outcomes = edit_all(self._editor, batch)
            seconds = (time.perf_counter() - started) / len(batch)
            for request, outcome in zip(batch, outcomes, strict=True):
                saving.submit(self._save, request, outcome, seconds)
        except BaseException as error:
            self._results.put(error)

    def _save(self, request: Request, outcome: Edited | EditError, seconds: float) -> None:
        try:
            self._results.put(self._saved(request, outcome, seconds))
        except BaseException as error:  # a full disk ends the run, not the edit
            self._results.put(error)

    def _saved(self, request: Request, outcome: Edited | EditError, seconds: float) -> Edit:
        assert request.sample is not None  # noqa: S101
        name, k = request.sample.id, request.attempt
        height, width = request.image.shape[:2]
        try:
            if isinstance(outcome, EditError):
                raise outcome
            edited = checked(outcome, (height, width))
        except EditError as error:
            return self._failed(name, k, error.reason, seconds)
        png = encode_png(edited.image)
        path = output_name(name, k)
        write_output(self._folder / path, png)
        return Edit(
            sample_id=name,
            attempt=k,
            seed=request.seed,
            state="done",
            seconds=round(seconds, 4),
            path=path,
            sha256=hashlib.sha256(png).hexdigest(),
            size=(edited.image.shape[0], edited.image.shape[1]),
            meta=edited.meta if request.origin is None else {**edited.meta, BEFORE: request.origin},
        )

    def _failed(self, sample_id: str, attempt: int, reason: str, seconds: float) -> Edit:
        # A kill may have left an output without a line; beside a failure it would be taken for the edit.
        (self._folder / output_name(sample_id, attempt)).unlink(missing_ok=True)
        seed = edit_seed(sample_id, attempt)
        return Edit(sample_id, attempt, seed, "failed", round(seconds, 4), reason=reason[:_REASON])

    def _take(self) -> None:
        """Wait for one edit, or until the group is due."""
        due = self._written + _SECONDS - time.monotonic()
        try:
            result = self._results.get(timeout=max(0.0, due) if self._group else None)
        except queue.Empty:
            self._write()
            return
        if isinstance(result, BaseException):
            raise result
        self._in_flight -= 1
        self._group.append(result)
        if len(self._group) >= _GROUP or time.monotonic() - self._written >= _SECONDS:
            self._write()

    def _write(self) -> None:
        """Outputs are synced one by one already; their names are now, and after that come the lines."""
        # Taken out first: interrupted halfway, an edit is made again rather than written down twice.
        group, self._group = self._group, []
        if group:
            sync_folder(self._folder / "outputs")
            self._journal.append(b"".join(map(edit_line, group)))
            for edit in group:
                self._on_edit(edit)
        self._written = time.monotonic()

    def _write_finished(self) -> None:
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, Edit):
                self._group.append(result)
        self._write()


def edit_all(editor: Editor, batch: Sequence[Request]) -> list[Edited | EditError]:
    """One outcome per request. A batch that fails as a whole is tried again one by one."""
    try:
        outcomes = list(editor.edit_batch(batch))
        if len(outcomes) != len(batch) or not all(isinstance(o, Edited | EditError) for o in outcomes):
            raise EditError(
                "the editor did not give one outcome per request", expected=len(batch), found=len(outcomes)
            )
    except Exception as error:  # an editor is anybody's code
        if len(batch) == 1:
            return [as_edit_error(error)]
        return [outcome for request in batch for outcome in edit_all(editor, [request])]
    return outcomes
