"""`mie run`: make every edit of a dataset, or resume a run that was interrupted.

`edits.jsonl` decides what is done. An edit with a line there is not made again, unless its output is gone, it
failed and `retry_failed` is set, or it was refused and `retry_refused` is. An output without a line is made
again and replaced: after any number of kills the outputs are those of an uninterrupted run, as far as the
editor is deterministic.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mie.core.environment import environment, versions
from mie.core.files import folder_lock, make_folder
from mie.core.journal import Journal
from mie.core.spec import Spec, parse_spec
from mie.core.storage import place_of
from mie.datasets.dataset import Dataset, Subset
from mie.editors.base import EditFunction, Editor, Origin, StopRunError, Turn, opened
from mie.editors.context import Demonstrations
from mie.editors.pipeline import Pipeline
from mie.editors.requests import (
    FREE,
    Conversations,
    Key,
    RunConfig,
    Unreadable,
    dataset_errors,
    released,
    sample_requests,
)
from mie.editors.runs import STATES, Run, chosen_ids, read_edits, refuse_other_files, write_run_info
from mie.errors import ConfigError, MieError
from mie.privacy.gate import LOG, Finding, Gate, Policy
from mie.records import Edit

_CHECKPOINT: Final = 10.0  # seconds between two updates of `run.json`


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` edits of this session, `failed` and `refused` ones included, in `seconds`."""

    done: int
    total: int
    failed: int
    refused: int
    earlier: int  # edits of earlier sessions
    seconds: float

    @property
    def rate(self) -> float:
        """Edits per second."""
        return self.done / self.seconds if self.seconds else 0.0


def run_editor(
    dataset: Dataset | Subset | Path | str,
    editor: str | Editor | EditFunction,
    folder: Path | str,
    *,
    attempts: int = 1,
    split: str | None = None,
    limit: int | None = None,
    turns: str = FREE,
    demonstrations: int = 0,
    retry_failed: bool = False,
    retry_refused: bool = False,
    workers: int | None = None,
    batch_size: int | None = None,
    engine: str = "local",
    policy: Policy | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    search_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Run an editor over a dataset. An interrupted run resumes; a finished one is returned as it is.

    Args:
        dataset: A dataset, its folder, or a part of one (`ds.filter(modality="CT")`).
        editor: A spec such as `"otsu"` or `"http:http://127.0.0.1:8000/edit"`; an `Editor` object; or a
            function `(image, instruction) -> image` with `(H, W, 3) uint8` arrays. A function that has
            parameters named `seed`, `history` or `references` is given them. A run by a function or an object
            resumes only if its source text is unchanged.
        folder: The run's folder: new, or one with this very run.
        attempts: Edits per sample, each with its own seed.
        split: "train", "val" or "test"; all of them by default.
        limit: At most this many samples.
        turns: For conversations: "free" passes the editor its own output of the turn before, "forced" the
            sample's input. The history shows the same: its own outputs, or references.
        demonstrations: Show each edit so many other samples of its task, input, instruction and target image.
            The editor must take further images.
        retry_failed: Make the edits that failed again.
        retry_refused: Make the edits that the model declined again.
        workers: Threads that call the editor; by default what it declares.
        batch_size: Requests per call; by default what the editor declares.
        engine: "local", or "ray": `workers` actors edit, by default one per GPU of the cluster. The editor
            must be a spec.
        policy: What may leave this machine, for an editor on another one: `Policy(allow_remote=True)`.
        progress: Called after every edit.
        search_progress: Called with (done, total) while images are searched before they leave.

    """
    part = dataset if isinstance(dataset, Subset) else Dataset(dataset).filter()
    config = RunConfig(attempts, split, limit, turns, part.where or None, demonstrations)
    folder = Path(folder)
    with opened(editor) as (editing, origin), ExitStack() as stack:
        if engine != "local":
            from mie.editors.actors import on_engine

            editing = stack.enter_context(on_engine(engine, editing, origin, workers))
        workers = _workers(editing, origin.name, workers)
        plan = _Plan(part.dataset, editing, origin, config, folder)
        plan.refuse_other()  # before the lock, which would leave its file in a folder that is not ours
        plan.refuse_empty()
        plan.check_context()
        with folder_lock(folder):
            plan.refuse_other()
            gate = None
            if editing.destination is not None:
                gate = Gate(policy or Policy(), editing.destination, folder / LOG)
                gate.check_consent()
                gate.check_statement(part.dataset.info)
            try:
                return _run(
                    plan,
                    workers,
                    batch_size or editing.batch_size,
                    _retried(retry_failed, retry_refused),
                    progress,
                    gate,
                    search_progress,
                )
            finally:
                if gate is not None:
                    gate.close()


def preview_run(
    dataset: Dataset | Subset | Path | str,
    editor: str | Editor | EditFunction,
    folder: Path | str,
    *,
    attempts: int = 1,
    split: str | None = None,
    limit: int | None = None,
    turns: str = FREE,
    demonstrations: int = 0,
    retry_failed: bool = False,
    retry_refused: bool = False,
) -> dict[str, Any]:
    """What `run_editor` with the same arguments would send, and what that costs. Sends and writes nothing.

    Returns `editor`, `destination` (None: nothing leaves this machine), `edits` to make, the `images` and
    `bytes` that they send, the number of different `instructions`, and `cost_usd` (None: unknown). A later
    turn's image is not known yet; the sample's own input stands for it.
    """
    part = dataset if isinstance(dataset, Subset) else Dataset(dataset).filter()
    config = RunConfig(attempts, split, limit, turns, part.where or None, demonstrations)
    with opened(editor) as (editing, origin):
        plan = _Plan(part.dataset, editing, origin, config, Path(folder))
        plan.refuse_other()
        plan.refuse_empty()
        edits = read_edits(plan.folder / "edits.jsonl")
        todo, conversations = _todo(plan, edits, _retried(retry_failed, retry_refused))
        images = size = 0
        instructions = set()
        leaving = {} if editing.destination is None else _by_sample(todo)
        requests = sample_requests(
            part.dataset,
            split,
            leaving,
            needs_target=False,
            takes_references=editing.takes_references,
            demonstrations=plan.demonstrations,
        )
        for request in requests:
            if isinstance(request, Unreadable) or request.sample is None:
                continue
            earlier = conversations.earlier(request.sample.id)
            history = tuple(Turn(conversations.prompts[sample], request.image) for sample in earlier)
            count, length = editing.sends(replace(request, history=history))
            images, size = images + count, size + length
            instructions.add(request.instruction)
        return {
            "editor": plan.document()["editor"]["spec"],
            "destination": editing.destination,
            "edits": len(todo),
            "images": images,
            "bytes": size,
            "instructions": len(instructions),
            "cost_usd": editing.cost(len(todo)),
        }


def _retried(failed: bool, refused: bool) -> set[str]:
    """The states whose edits are made again."""
    return {state for state, again in (("failed", failed), ("refused", refused)) if again}


def _by_sample(keys: Iterable[Key]) -> dict[str, list[int]]:
    """The attempts of each sample."""
    attempts: dict[str, list[int]] = {}
    for sample_id, k in keys:
        attempts.setdefault(sample_id, []).append(k)
    return attempts


def _workers(editor: Editor, name: str, asked: int | None) -> int:
    if asked is not None and asked > 1 and not editor.thread_safe:
        raise ConfigError(f"editor {name!r} makes one edit at a time", expected="workers 1", found=asked)
    return asked or editor.workers or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class _Plan:
    """A dataset, an editor, a choice of samples, and the folder for the result."""

    dataset: Dataset
    editor: Editor
    origin: Spec | Origin
    config: RunConfig
    folder: Path

    @cached_property
    def ids(self) -> list[str]:
        """The samples to edit, in dataset order."""
        config = self.config
        with dataset_errors(self.dataset):
            return chosen_ids(self.dataset, split=config.split, limit=config.limit, where=config.where)

    @cached_property
    def demonstrations(self) -> Demonstrations | None:
        count = self.config.demonstrations
        return Demonstrations(self.dataset, count) if count else None

    def check_context(self) -> None:
        """Raise when demonstrations are asked for that the editor would not see, or the dataset lacks."""
        if self.demonstrations is None:
            return
        if not self.editor.takes_references:
            raise ConfigError(
                f"editor {self.origin.name!r} takes no further images",
                expected="an editor that is shown reference images: http, command, omnigen2, a provider's",
                fix="leave --demonstrations out, or use another editor",
            )
        self.demonstrations.check(self.ids)

    def document(self) -> dict[str, Any]:
        """The part of `run.json` that is known before the first edit."""
        path = self.dataset.folder.resolve()
        editor, origin = self.editor, self.origin
        shown = {"references": editor.takes_references} if self.dataset.has_references else {}
        source = {"source_sha256": origin.sha256} if isinstance(origin, Origin) else {}
        return {
            "dataset": {
                "path": place_of(path),
                "relative_path": os.path.relpath(path, self.folder.resolve()),
                "name": self.dataset.name,
                "digest": self.dataset.digest,
                "samples": len(self.dataset),
            },
            "editor": {
                "spec": origin.label if isinstance(origin, Origin) else str(origin.masked()),
                "name": origin.name,
                "meta": {
                    "batch_size": editor.batch_size,
                    "deterministic": editor.deterministic,
                    "native_sizes": editor.native_sizes,
                    **editor.about(),
                    **source,
                    **shown,
                },
            },
            "config": self.config.document(),
        }

    def refuse_empty(self) -> None:
        """Raise when there is nothing to edit, and say why."""
        if self.ids:
            return
        chosen: dict[str, tuple[Any, ...]] = dict(self.config.where or {})
        if self.config.split is not None:
            chosen["split"] = (self.config.split,)
        present = self.dataset.table(list(chosen)) if chosen else {}
        raise ConfigError(
            "there is nothing to edit",
            where=self.dataset.folder,
            expected="; ".join(f"{name}: {' or '.join(map(str, v))}" for name, v in chosen.items())
            or "a dataset with samples",
            found="; ".join(f"{name}: {_counted(values)}" for name, values in present.items())
            or "no samples at all",
            fix="choose other samples" if chosen else "`mie build` says why samples were rejected",
        )

    def refuse_other(self) -> None:
        """Raise when the folder holds anything but this very run."""
        refuse_other_files(self.folder)
        if not (self.folder / "run.json").exists():
            return
        found, wanted = self._identity(Run.open(self.folder).info), self._identity(self.document())
        other = [key for key in wanted if found.get(key) != wanted[key]]
        if other:
            raise MieError(
                "this folder holds another run",
                where=self.folder,
                expected=", ".join(f"{key} {wanted[key]}" for key in other),
                found=", ".join(f"{key} {found.get(key)}" for key in other),
                fix="choose another folder",
            )
        if isinstance(self.origin, Origin) and self.origin.sha256 is None:
            raise MieError(
                "this run cannot be resumed",
                where=self.folder,
                expected="a function whose source text Python can find",
                found=f"{self.origin.label}, which may have changed since",
                fix="choose another folder, or define the function in a file or a notebook cell",
            )

    def _identity(self, document: Mapping[str, Any]) -> dict[str, Any]:
        editor = document["editor"]
        if editor["spec"].startswith("<"):
            name = f"{editor['spec']} with source {str(editor['meta'].get('source_sha256'))[:12]}"
        else:
            name = str(parse_spec(editor["spec"]).without(self.editor.tuning))
        return {
            "dataset": document["dataset"]["digest"],
            "editor": name,
            "turns": FREE,
            "where": None,
            **document["config"],
        }


def _counted(values: list[Any]) -> str:
    common = Counter(str(value) for value in values).most_common(8)
    return ", ".join(f"{name} ({count:,})" for name, count in common) or "nothing"


def _search(plan: _Plan, todo: Iterable[Key], gate: Gate, progress: Callable[[int, int], None]) -> None:
    """Look at all images before the first one leaves."""
    ids = dict.fromkeys(sample_id for sample_id, _ in todo)
    findings: list[Finding] = []
    requests = sample_requests(
        plan.dataset,
        plan.config.split,
        {name: [0] for name in ids},
        needs_target=False,
        takes_references=plan.editor.takes_references,
        demonstrations=plan.demonstrations,
    )
    for done, request in enumerate(requests, start=1):
        if not isinstance(request, Unreadable) and request.sample is not None:
            findings += gate.look(request.image, request.sample.id)
            for image in request.references:
                findings += gate.look(image, f"{request.sample.id}, a reference")
        progress(done, len(ids))
    gate.check(findings)


def _run(
    plan: _Plan,
    workers: int,
    batch_size: int,
    retried: set[str],
    progress: Callable[[Progress], None],
    gate: Gate | None,
    search_progress: Callable[[int, int], None],
) -> Run:
    """Make the edits that are missing. The folder is locked."""
    edits = read_edits(plan.folder / "edits.jsonl")
    todo, conversations = _todo(plan, edits, retried)
    past = Run.open(plan.folder).info if (plan.folder / "run.json").exists() else None
    if not todo and past is not None and past["status"] == "complete":
        return Run(plan.folder, past)
    if gate is not None:
        _search(plan, todo, gate, search_progress)
    if todo:
        plan.editor.load()
    for key in todo:
        edits.pop(key, None)
    plan.editor.keep_in(plan.folder)
    for edit in edits.values():
        plan.editor.recorded(edit.sample_id, edit.attempt)
    log = _Log(plan, edits.values(), len(todo), progress, past["timings"]["seconds"] if past else 0.0)
    log.write("running")
    make_folder(plan.folder / "outputs")
    journal = Journal(plan.folder / "edits.jsonl")
    try:
        pipeline = Pipeline(
            plan.editor,
            plan.folder,
            journal,
            log.edit,
            workers=workers,
            batch_size=batch_size,
            name=plan.editor.marked_as(plan.origin.name),
        )
        for wave in conversations.waves(todo):
            requests = sample_requests(
                plan.dataset,
                plan.config.split,
                _by_sample(wave),
                needs_target=plan.editor.needs_target,
                takes_references=plan.editor.takes_references,
                demonstrations=plan.demonstrations,
            )
            made = read_edits(plan.folder / "edits.jsonl") if conversations.before else {}
            continued = conversations.continued(
                requests, plan.folder, made, needs_original=plan.editor.needs_original
            )
            pipeline.run(continued if gate is None else released(gate, continued))
    except StopRunError:
        log.write("running")  # with the counts of what is finished
        raise
    finally:
        journal.close()
    log.write("complete")
    return Run.open(plan.folder)


def _todo(plan: _Plan, edits: Mapping[Key, Edit], retried: set[str]) -> tuple[list[Key], Conversations]:
    """The edits to make, and the conversations that they belong to."""
    wanted = [(sample_id, k) for sample_id in plan.ids for k in range(plan.config.attempts)]
    missing = {key for key in wanted if _is_missing(edits.get(key), plan.folder, retried)}
    with dataset_errors(plan.dataset):
        conversations = Conversations.of(plan.dataset, plan.config.split, plan.ids, plan.config.turns)
    missing |= conversations.outdated(wanted, edits, missing)
    return [key for key in wanted if key in missing], conversations


def _is_missing(edit: Edit | None, folder: Path, retried: set[str]) -> bool:
    if edit is None:
        return True
    if edit.state != "done":
        return edit.state in retried
    return edit.path is None or not (folder / edit.path).is_file()


class _Log:
    """Counts edits as they are recorded; reports progress, and updates `run.json` now and then."""

    def __init__(
        self,
        plan: _Plan,
        earlier: Iterable[Edit],
        total: int,
        progress: Callable[[Progress], None],
        past_seconds: float,
    ) -> None:
        self._plan = plan
        self._counts = Counter(edit.state for edit in earlier)
        self._earlier = self._counts.total()
        self._now = Counter[str]()  # of this session
        self._done, self._total = 0, total
        self._progress = progress
        self._past_seconds = past_seconds
        self._started = self._written = time.monotonic()

    def edit(self, edit: Edit) -> None:
        self._plan.editor.recorded(edit.sample_id, edit.attempt)
        self._counts[edit.state] += 1
        self._now[edit.state] += 1
        self._done += 1
        at = time.monotonic()
        states = (self._now["failed"], self._now["refused"])
        self._progress(Progress(self._done, self._total, *states, self._earlier, at - self._started))
        if at - self._written >= _CHECKPOINT:
            self.write("running")

    def write(self, status: str) -> None:
        seconds = self._past_seconds + time.monotonic() - self._started
        edits = self._counts.total()
        write_run_info(
            self._plan.folder,
            {
                "status": status,
                **self._plan.document(),
                "counts": {
                    "samples": len(self._plan.ids),
                    "edits": edits,
                    **{state: self._counts[state] for state in STATES},
                },
                **({} if self._plan.editor.spent is None else {"cost_usd": self._plan.editor.spent}),
                "timings": {
                    "seconds": round(seconds, 3),
                    "edits_per_second": round(edits / seconds, 3) if seconds else 0.0,
                },
                "versions": versions(),
                "environment": environment(),
            },
        )
        self._written = time.monotonic()
