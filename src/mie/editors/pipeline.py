"""Requests through an editor to outputs on disk: reading, editing, encoding and syncing at the same time.

The calling thread decodes inputs ahead of the editor and writes `edits.jsonl`; `workers` threads edit; a few
more encode and sync. The number of images in flight is bounded, so memory does not grow with the dataset.
"""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from mie.core.files import sync_folder
from mie.core.journal import Journal
from mie.editors.base import Edited, EditError, Editor, RefusedError, Request, StopRunError, edit_all
from mie.editors.outputs import check_output, write_output
from mie.editors.requests import TURN_BEFORE, Unreadable, edit_seed
from mie.editors.runs import edit_line, output_name
from mie.images.png import encode_png
from mie.images.provenance import MARK, edit_mark, mark_png
from mie.records import Edit

# Lines are written in groups, because a sync costs as much as a hundred lines. A finished edit waits at
# most this long for its line; if the process is killed in that time, the edit is made again.
_GROUP: Final = 64
_SECONDS: Final = 0.5
_WRITERS: Final = 4  # threads that encode and sync: more than cores, because syncing is waiting
_MAX_REASON: Final = 2000  # characters


class Pipeline:
    """Makes edits in one run folder. `on_edit` is called for every edit once it is in the journal."""

    def __init__(
        self,
        editor: Editor,
        folder: Path,
        journal: Journal,
        on_edit: Callable[[Edit], None],
        *,
        workers: int,
        batch_size: int,
        name: str,
    ) -> None:
        self._editor = editor
        self._name = name  # of the editor, in the marks of its outputs
        self._folder = folder
        self._journal = journal
        self._on_edit = on_edit
        self._workers = workers
        self._batch_size = batch_size
        self._results: queue.SimpleQueue[Edit | BaseException] = queue.SimpleQueue()
        self._in_flight = 0
        self._stopped = False  # the editor has said that no further edit can succeed
        self._group: list[Edit] = []
        self._written = time.monotonic()

    def run(self, requests: Iterable[Request | Unreadable]) -> None:
        """Make every edit. When it is interrupted, it still records the finished ones."""
        window = (self._workers + 1) * self._batch_size + 2 * _WRITERS
        with ThreadPoolExecutor(_WRITERS) as writers, ThreadPoolExecutor(self._workers) as editors:
            try:
                for batch in self._batches(requests):
                    while self._in_flight and self._in_flight + len(batch) > window:
                        self._collect()
                    self._in_flight += len(batch)
                    editors.submit(self._edit, batch, writers)
                while self._in_flight:
                    self._collect()
                self._record()
            except BaseException as error:
                stopped = isinstance(error, StopRunError)
                # An editor that stops the run has edits in progress that are paid for: they are waited for.
                editors.shutdown(wait=stopped, cancel_futures=True)
                if stopped:
                    writers.shutdown()
                if stopped or isinstance(error, KeyboardInterrupt | SystemExit):
                    self._record_finished()
                self._editor.close()  # edits that fail from here on fail because we stop: not recorded
                raise

    def _batches(self, requests: Iterable[Request | Unreadable]) -> Iterator[list[Request]]:
        batch: list[Request] = []
        for request in requests:
            if isinstance(request, Unreadable):
                self._in_flight += 1
                error = EditError(request.reason)
                self._results.put(self._failed(request.sample_id, request.attempt, error, 0.0))
                continue
            batch.append(request)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _edit(self, batch: Sequence[Request], writers: ThreadPoolExecutor) -> None:
        if self._stopped:
            return
        try:
            started = time.perf_counter()
            outcomes = edit_all(self._editor, batch)
            seconds = (time.perf_counter() - started) / len(batch)
            for request, outcome in zip(batch, outcomes, strict=True):
                writers.submit(self._write, request, outcome, seconds)
        except BaseException as error:
            self._stopped = self._stopped or isinstance(error, StopRunError)
            self._results.put(error)

    def _write(self, request: Request, outcome: Edited | EditError, seconds: float) -> None:
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
            edited = check_output(outcome, (height, width))
        except EditError as error:
            return self._failed(name, k, error, seconds)
        png = encode_png(edited.image)
        if self._editor.generative:
            mark = edit_mark(self._name, synthetic=True, seed=request.seed, sample=name, attempt=k)
            png = mark_png(png, mark)
        elif isinstance(kept := edited.meta.get(MARK), Mapping):
            png = mark_png(png, kept)
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
            meta=edited.meta if request.origin is None else {**edited.meta, TURN_BEFORE: request.origin},
        )

    def _failed(self, sample_id: str, attempt: int, error: EditError, seconds: float) -> Edit:
        # A kill may have left an output without a line; beside a failure it would be taken for the edit.
        (self._folder / output_name(sample_id, attempt)).unlink(missing_ok=True)
        seed = edit_seed(sample_id, attempt)
        state, reason = "refused" if isinstance(error, RefusedError) else "failed", error.reason[:_MAX_REASON]
        return Edit(sample_id, attempt, seed, state, round(seconds, 4), reason=reason)

    def _collect(self) -> None:
        """Wait for one edit, or until the group is due."""
        due = self._written + _SECONDS - time.monotonic()
        try:
            result = self._results.get(timeout=max(0.0, due) if self._group else None)
        except queue.Empty:
            self._record()
            return
        if isinstance(result, BaseException):
            raise result
        self._in_flight -= 1
        self._group.append(result)
        if len(self._group) >= _GROUP or time.monotonic() - self._written >= _SECONDS:
            self._record()

    def _record(self) -> None:
        """Write the group's lines. Outputs are synced already; first their names are, then come the lines."""
        # Taken out first: interrupted halfway, an edit is made again rather than recorded twice.
        group, self._group = self._group, []
        if group:
            sync_folder(self._folder / "outputs")
            self._journal.append(b"".join(map(edit_line, group)))
            for edit in group:
                self._on_edit(edit)
        self._written = time.monotonic()

    def _record_finished(self) -> None:
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, Edit):
                self._group.append(result)
        self._record()
