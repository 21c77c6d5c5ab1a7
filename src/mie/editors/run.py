"""What a run is: the same plan, and nothing else, may go on in the same folder."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.environment import environment, versions
from mie.core.files import folder_lock
from mie.core.journal import Journal
from mie.core.registry import unknown_name
from mie.datasets.dataset import Dataset
from mie.editors import Editor, Spec, open_editor, parse_spec
from mie.editors.drive import FREE, TURNS, Conversations, Drive, going_on, reading, requests
from mie.editors.runs import Run, chosen_ids, read_edits, refuse_other_files, write_run_info
from mie.errors import ConfigError, MieError
from mie.records import Edit
from mie.vocabulary import SPLITS


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Which samples, and how often."""

    attempts: int = 1
    split: str | None = None
    limit: int | None = None
    turns: str = FREE

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise unknown_name("split", self.split, SPLITS)
        if self.turns not in TURNS:
            raise unknown_name("way to run turns", self.turns, TURNS)
        for name, value in (("attempts", self.attempts), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} does not make sense", expected="1 or more", found=value)


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset, an editor, a choice of samples, and the folder for the result."""

    dataset: Dataset
    editor: Editor
    spec: Spec
    config: RunConfig
    folder: Path

    def document(self) -> dict[str, Any]:
        """The part of `run.json` that is known before the first edit."""
        path = self.dataset.folder.resolve()
        editor = self.editor
        return {
            "dataset": {
                "path": str(path),
                "relative_path": os.path.relpath(path, self.folder.resolve()),
                "name": self.dataset.name,
                "digest": self.dataset.digest,
                "samples": len(self.dataset),
            },
            "editor": {
                "spec": str(self.spec.masked()),
                "name": self.spec.name,
                "meta": {
                    "batch_size": editor.batch_size,
                    "deterministic": editor.deterministic,
                    "native_sizes": editor.native_sizes,
                    **editor.about(),
                },
            },
            "config": asdict(self.config),
        }

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

    def _identity(self, document: Mapping[str, Any]) -> dict[str, Any]:
        spec = parse_spec(document["editor"]["spec"]).without(self.editor.tuning)
        return {
            "dataset": document["dataset"]["digest"],
            "editor": str(spec),
            "turns": FREE,
            **document["config"],
        }


# `mie run`: make every edit of a dataset, or go on with a run that was interrupted.
#
# `edits.jsonl` is the truth. An edit with a line is never made again, unless its output has vanished, or it
# failed and `retry_failed` is said. An output without a line is made again and replaced: after any number
# of
# kills the outputs are those of a run that nobody interrupted, as far as the editor is deterministic.

_CHECKPOINT: Final = 10.0  # seconds between two updates of `run.json`


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` edits that were left to do, `failed` of them in vain, in `seconds`."""

    done: int
    total: int
    failed: int
    before: int  # edits that were there already
    seconds: float

    @property
    def rate(self) -> float:
        """Edits per second."""
        return self.done / self.seconds if self.seconds else 0.0


def run_editor(
    dataset_folder: Path | str,
    editor: str,
    run_folder: Path | str,
    *,
    attempts: int = 1,
    split: str | None = None,
    limit: int | None = None,
    turns: str = FREE,
    retry_failed: bool = False,
    workers: int | None = None,
    batch_size: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Run:
    """Run the editor of a spec string over a dataset, `attempts` times per sample.

    `split` and `limit` choose samples: all of them by default. `workers` threads call the editor at once,
    with `batch_size` requests each; both default to what the editor declares. `turns` is for samples of a
    conversation: "free" gives the editor its own output of the turn before, "forced" the sample's input.
    """
    config = RunConfig(attempts, split, limit, turns)
    spec = parse_spec(editor)
    folder = Path(run_folder)
    with open_editor(spec) as opened:
        workers = _workers(opened, spec, workers)
        batch_size = batch_size or opened.batch_size
        plan = Plan(Dataset(dataset_folder), opened, spec, config, folder)
        plan.refuse_other()  # before the lock, which would leave its file in a folder that is not ours
        with folder_lock(folder):
            plan.refuse_other()
            return _sitting(plan, workers, batch_size, retry_failed, progress)


def _workers(editor: Editor, spec: Spec, asked: int | None) -> int:
    if asked is not None and asked > 1 and not editor.thread_safe:
        raise ConfigError(f"editor {spec.name!r} makes one edit at a time", expected="workers 1", found=asked)
    return asked or editor.workers or len(os.sched_getaffinity(0))


def _sitting(
    plan: Plan, workers: int, batch_size: int, retry_failed: bool, progress: Callable[[Progress], None]
) -> Run:
    """Everything that is left to do, in the folder that we hold."""
    with reading(plan.dataset):
        ids = chosen_ids(plan.dataset, split=plan.config.split, limit=plan.config.limit)
    edits = read_edits(plan.folder / "edits.jsonl")
    wanted = [(sample_id, k) for sample_id in ids for k in range(plan.config.attempts)]
    left = [key for key in wanted if _is_left(edits.get(key), plan.folder, retry_failed)]
    talks = Conversations({}, {})
    if plan.config.turns == FREE:
        with reading(plan.dataset):
            talks = Conversations.of(plan.dataset, plan.config.split, ids)
        again = talks.left(wanted, edits, set(left))
        again |= set(left)
        left = [key for key in wanted if key in again]
    past = Run.open(plan.folder).info if (plan.folder / "run.json").exists() else None
    if not left and past is not None and past["status"] == "complete":
        return Run(plan.folder, past)
    for key in left:
        edits.pop(key, None)
    log = _Log(
        plan, len(ids), edits.values(), len(left), progress, past["timings"]["seconds"] if past else 0.0
    )
    log.write("running")
    outputs = plan.folder / "outputs"
    outputs.mkdir(exist_ok=True)
    for leftover in outputs.glob(".*.tmp"):
        leftover.unlink()
    journal = Journal(plan.folder / "edits.jsonl")
    try:
        drive = Drive(plan.editor, plan.folder, journal, log.edit, workers=workers, batch_size=batch_size)
        for wave in talks.waves(left):
            todo: dict[str, list[int]] = {}
            for sample_id, k in wave:
                todo.setdefault(sample_id, []).append(k)
            made = read_edits(plan.folder / "edits.jsonl") if talks.before else {}
            found = requests(plan.dataset, plan.config.split, todo, needs_target=plan.editor.needs_target)
            drive.run(going_on(found, talks, plan.folder, made))
    finally:
        journal.close()
    log.write("complete")
    return Run.open(plan.folder)


def _is_left(edit: Edit | None, folder: Path, retry_failed: bool) -> bool:
    if edit is None:
        return True
    if edit.state == "failed":
        return retry_failed
    return edit.path is None or not (folder / edit.path).is_file()


class _Log:
    """Counts edits as they are written down; tells the user, and now and then `run.json`."""

    def __init__(
        self,
        plan: Plan,
        samples: int,
        earlier: Iterable[Edit],
        total: int,
        progress: Callable[[Progress], None],
        past_seconds: float,
    ) -> None:
        self._plan = plan
        self._samples = samples
        self._counts = Counter(edit.state for edit in earlier)
        self._before = self._counts.copy()
        self._total = total
        self._progress = progress
        self._past_seconds = past_seconds
        self._started = self._written = time.monotonic()

    def edit(self, edit: Edit) -> None:
        self._counts[edit.state] += 1
        now = self._counts - self._before
        seconds = time.monotonic() - self._started
        self._progress(Progress(now.total(), self._total, now["failed"], self._before.total(), seconds))
        if time.monotonic() - self._written >= _CHECKPOINT:
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
                    "samples": self._samples,
                    "edits": edits,
                    **{state: self._counts[state] for state in ("done", "failed")},
                },
                "timings": {
                    "seconds": round(seconds, 3),
                    "edits_per_second": round(edits / seconds, 3) if seconds else 0.0,
                },
                "versions": versions(),
                "environment": environment(),
            },
        )
        self._written = time.monotonic()
