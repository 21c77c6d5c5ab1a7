"""`mie train`: one loop for all that we train, which goes on where it was killed.

Batches, losses and random numbers depend on (seed, step) alone, and a checkpoint holds every tensor that a
step changes. So a run that is killed at any moment and started again ends with the weights of a run that
nobody interrupted: bit for bit on a CPU.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from mie.errors import ConfigError, MieError
from mie.images.files import atomic_path, atomic_write, folder_lock
from mie.images.png import encode_png
from mie.training import machine
from mie.training.board import Board
from mie.training.checkpoint import load_model, newest, prune, read_checkpoint, read_ema, write_checkpoint
from mie.training.config import TrainConfig
from mie.training.datasets import check_datasets
from mie.training.folder import Folder
from mie.training.journal import Journal
from mie.training.memory import peak_gib
from mie.training.prefetch import Prefetch
from mie.training.registry import make_trainee
from mie.training.schedule import learning_rate
from mie.training.seeds import seed_step
from mie.training.session import Session
from mie.training.timing import Profile

PATIENCE: Final = 20  # steps in a row without a finite gradient


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the training stands, each time a line is logged, or what it is busy with (`note`)."""

    step: int
    steps: int
    first: int  # the step this sitting began at
    loss: float | None = None
    images_per_second: float | None = None
    memory_gib: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training as far as it has come: `info` is `train.json`."""

    folder: Path
    info: dict[str, Any]
    profile: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        return bool(self.info["status"] == "complete")


Show = Callable[[Progress], None]


def train(
    config: TrainConfig,
    out: Path,
    *,
    device: str | None = None,
    stop_after: float | None = None,
    profile: int = 0,
    progress: Show = lambda _: None,
) -> Trained:
    """Train what `config` names into the folder `out`, or go on with it.

    After `stop_after` seconds the loop stops at the end of a step, with a checkpoint. `profile` steps are
    timed by phase after a warm-up.
    """
    folder = Folder(out)
    folder.refuse_foreign()
    main = machine.rank() == 0
    with folder_lock(out) if main else contextlib.nullcontext(), _full_disk(out):
        return _Training(config, folder, main, progress).run(device, stop_after, profile)


@contextlib.contextmanager
def _full_disk(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        last = newest(out / "checkpoints")
        raise MieError(
            "the disk is full",
            where=out,
            found=os.strerror(error.errno),
            fix="free some space and run the same command again: it goes on from "
            + (last.name if last else "the beginning"),
        ) from error


class _Training:
    """One sitting. Only the main process writes; the others step along."""

    def __init__(self, config: TrainConfig, folder: Folder, main: bool, progress: Show) -> None:
        self.config = config
        self.folder = folder
        self.main = main
        self.show = progress if main else lambda _: None
        self.first = 0
        self.best: dict[str, Any] | None = None
        self.seconds = 0.0  # of earlier sittings, up to the checkpoint
        self.started = time.monotonic()

    def run(self, device: str | None, stop_after: float | None, profile: int) -> Trained:
        trainee = make_trainee(self.config)
        self._say("checking the data")
        self._identify(trainee.check())
        if (info := self.folder.info()) is not None and info["status"] == "complete":
            return Trained(self.folder.path, info)
        accelerator = machine.open_accelerator(self.config, device)
        accelerator.wait_for_everyone()  # until the main process has checked the folder
        self.body.update(machine.facts(accelerator.device))
        self._say("reading the data")
        trainee.prepare(accelerator.device)
        self.session = session = Session(self.config, trainee, accelerator)
        self.trainee, self.accelerator = trainee, accelerator
        self._resume()
        self.stop_at = None if stop_after is None else self.started + stop_after
        self.profile = Profile(profile, session.device)
        self.profiled: dict[str, Any] | None = None
        with contextlib.ExitStack() as stack:
            if self.main:
                self._open_logs(stack)
            try:
                status = self._steps()
                if status == "complete":
                    self._ship()
            except BaseException:
                with contextlib.suppress(OSError, MieError):  # the first error is the one to tell
                    self._write("interrupted", None)
                raise
        return Trained(self.folder.path, self.body, self.profiled)

    def _identify(self, checked: Any) -> None:
        """Refuse a folder that holds another training; what is known before the first step."""
        world = machine.world()
        if self.config.batch % world:
            raise ConfigError(
                "the batch cannot be shared out", expected=f"a multiple of {world}", found=self.config.batch
            )
        datasets: dict[str, Any] = {}
        if self.main:
            known = (self.folder.info() or {}).get("datasets", {})
            datasets = check_datasets(self.config, known, self._say)
        decisive = {
            **self.config.decisive(),
            "processes": world,
            "data_digests": {**checked, **{path: fact["digest"] for path, fact in datasets.items()}},
        }
        if self.main:
            self.folder.refuse_other(decisive)
        self.body: dict[str, Any] = {
            "config": self.config.document(),
            "decisive": decisive,
            "datasets": datasets,
        }

    def _resume(self) -> None:
        last = newest(self.folder.checkpoints)
        if last is None:
            return
        state, files = read_checkpoint(last)
        self.session.restore(files, state, last)
        self.first, self.best, self.seconds = state["step"], state["best"], state["seconds"]

    def _open_logs(self, stack: contextlib.ExitStack) -> None:
        resumed = self.folder.log.exists() or self.first > 0
        self.journal = Journal(self.folder.log)
        stack.callback(self.journal.close)
        self.journal.append("resume" if resumed else "start", self.first, {"versions": machine.versions()})
        self.board = Board(self.folder.path / "tensorboard", self.first)
        stack.callback(self.board.close)
        self._write("running", self.first)

    def _steps(self) -> str:
        config, session = self.config, self.session
        if self.first >= config.steps:
            return "complete"
        make = lambda step: session.trainee.batch(step, session.rank, session.world)
        prefetch = Prefetch(make, self.first, config.steps, pin=session.device.type == "cuda")
        self.clock, self.logged = time.monotonic(), self.first
        batches = iter(prefetch)
        try:
            for step in range(self.first, config.steps):
                ran_out = None
                try:
                    session.step(step, next(batches)[1], self.profile)
                except torch.OutOfMemoryError as error:
                    ran_out = str(error)
                if ran_out is not None:  # outside `except`, whose traceback would keep the tensors
                    prefetch.close()
                    raise session.out_of_memory(step, ran_out)
                if self.profile.step_done():
                    self._profile(step + 1)
                if self._after(step + 1):
                    return "stopped" if step + 1 < config.steps else "complete"
        finally:
            prefetch.close()
        return "complete"

    def _after(self, done: int) -> bool:
        """Log, validate, save what is due after `done` steps; true when it is time to stop."""
        config = self.config
        last = done == config.steps
        log = done % config.log_every == 0
        stop = self._time_is_up(log)
        validate = last or done % config.validation.every == 0
        save = last or stop or done % config.checkpoint.every == 0
        if log or validate or save:
            self._log(done)
        if validate and self.main:
            # The weights of a new best must be on disk: they are what is shipped.
            save |= self._validate(done)
        if save and self.main:
            self._checkpoint(done)
        if validate or save:
            self.accelerator.wait_for_everyone()
            self.clock, self.logged = time.monotonic(), done
        if stop and not last and self.main:
            self._write("stopped", done)
        return stop

    def _time_is_up(self, log: bool) -> bool:
        if self.stop_at is None:
            return False
        late = time.monotonic() >= self.stop_at
        if self.session.world == 1:
            return late
        if not log:  # processes agree when they wait for the device anyway
            return False
        flag = torch.tensor(float(late), device=self.session.device)
        torch.distributed.broadcast(flag, 0)
        return bool(flag.item())

    def _log(self, done: int) -> None:
        session, optimizer = self.session, self.session.optimizer
        means, (skipped, in_a_row) = session.meter.read(optimizer.skipped, optimizer.in_a_row)
        self.skipped, self.in_a_row = int(skipped), int(in_a_row)
        now = time.monotonic()
        rate = self.config.batch * (done - self.logged) / max(now - self.clock, 1e-9)
        self.clock, self.logged = now, done
        if self.main:
            facts = {
                **{name: _rounded(value) for name, value in means.items()},
                "lr": _rounded(learning_rate(done - 1, self.config.steps, self.config.optimizer)),
                "images_per_second": round(rate, 1),
                "memory_gib": peak_gib(session.device),
                "skipped": self.skipped,
                "seconds": round(self._spent(), 2),
            }
            self.journal.append("train", done, facts)
            self.board.scalars("train", facts, done)
            self.show(Progress(done, self.config.steps, self.first, means["loss"], rate, facts["memory_gib"]))
        if self.in_a_row >= PATIENCE:
            last = newest(self.folder.checkpoints)
            raise MieError(
                f"the gradient was not finite in {self.in_a_row} steps in a row",
                where=f"step {done}",
                found=f"{self.skipped} skipped steps in all; the weights are those before them",
                fix=f"the last checkpoint is {last or 'not written yet'}; lower optimizer.lr or look at the "
                "loss, and train in another folder",
            )

    def _validate(self, done: int) -> bool:
        """Figures and a grid of the averaged weights; true when they are the best so far."""
        self._say("validating", done)
        before = time.monotonic()
        seed_step(self.config.seed, done)
        with torch.no_grad():
            figures = self.trainee.validate(self.session.average)
            grid = self.trainee.grid(self.session.average)
        facts = {"figures": figures, "validation_seconds": round(time.monotonic() - before, 2)}
        self.journal.append("validation", done, facts)
        self.board.scalars("validation", figures, done)
        if grid is not None:
            path = self.folder.path / "grids" / f"step-{done:06d}.png"
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, encode_png(grid))
            self.board.image(grid, done)
        if self.trainee.score not in figures:
            raise MieError(
                "validation lacks the figure that chooses the best",
                expected=self.trainee.score,
                found=", ".join(figures),
            )
        value = figures[self.trainee.score]
        if value is None or (self.best is not None and value <= self.best["value"]):
            return False
        self.best = {"step": done, "score": self.trainee.score, "value": value, "figures": figures}
        return True

    def _checkpoint(self, done: int) -> None:
        self._say("saving", done)
        state = {
            "seconds": round(self._spent(), 3),
            "skipped": self.skipped,
            "skipped_in_a_row": self.in_a_row,
            "best": self.best,
            "random": {"seed": self.config.seed, "next_step": done, "processes": self.session.world},
        }
        root = self.folder.checkpoints
        write_checkpoint(root, done, self.session.snapshot(), state)
        if self.best is not None:
            self.folder.write_best(self.best)
        prune(root, self.config.checkpoint.keep, self.best["step"] if self.best else None)
        self._write("running", done)

    def _ship(self) -> None:
        """The averaged weights of the best checkpoint, of the last where nothing could be scored."""
        if not self.main:
            return
        step = self.best["step"] if self.best else self.config.steps
        where = self.folder.checkpoints / f"step-{step:06d}"
        model = self.trainee.model().eval()
        load_model(model, read_ema(where), where)
        facts = {
            "step": step,
            "seconds": round(self._spent(), 1),
            "config": self.config.document(),
            "validation": self.best["figures"] if self.best else None,
            "data_digests": self.body["decisive"]["data_digests"],
            "versions": machine.versions(),
        }
        with atomic_path(self.folder.weights) as temporary:
            self.trainee.save(model, temporary, facts)
        self._write("complete", self.config.steps)

    def _profile(self, done: int) -> None:
        flops = self.trainee.flops_per_image
        self.profiled = self.profile.report(self.config.batch, flops)
        if self.main:
            self.journal.append("profile", done, self.profiled)

    def _spent(self) -> float:
        return self.seconds + time.monotonic() - self.started

    def _say(self, note: str, step: int | None = None) -> None:
        self.show(Progress(self.first if step is None else step, self.config.steps, self.first, note=note))

    def _write(self, status: str, step: int | None) -> None:
        if not self.main:
            return
        if step is not None:
            self.body["step"] = step
        self.body |= {"status": status, "best": self.best, "seconds": round(self._spent(), 1)}
        self.folder.write(self.body)


def _rounded(value: float | None) -> float | None:
    """Six significant digits are enough for a log."""
    return None if value is None else float(f"{value:.6g}")
