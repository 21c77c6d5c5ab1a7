"""`mie train`: one loop for everything we train. It resumes where it was killed.

Batches, losses and random numbers depend on (seed, step) alone, and a checkpoint holds every tensor that a
step changes. So a run that is killed at any moment and started again ends with the weights of a run that
nobody interrupted: bit for bit on a CPU.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from torch import nn

from mie.core.files import folder_lock
from mie.errors import ConfigError, MieError
from mie.training import machine
from mie.training.batches import Prefetch, seed_step, to_device
from mie.training.checkpoints import Tensors, load_model, newest, read_checkpoint, write_checkpoint
from mie.training.config import TrainConfig, check_datasets
from mie.training.folder import Recorder, TrainingFolder
from mie.training.large import Masters, Shards, Weights, WeightsAverage, load_weights, shard
from mie.training.machine import Profile, matmul_peak, out_of_memory, peak_gib
from mie.training.optimize import Meter, MovingAverage, Optimizer, learning_rate
from mie.training.trainee import Trainee, make_trainee
from mie.training.watch import Watch

_GRAPHS: Final = 64
_LOST: Final = re.compile(r"gloo|nccl|connection (closed|reset)|socket|process group|timed? ?out", re.I)
PATIENCE: Final = 20  # steps in a row without a finite gradient


class TrainingState:
    """Model, average and optimizer on their device: what changes from step to step."""

    def __init__(self, config: TrainConfig, trainee: Trainee, accelerator: Accelerator) -> None:
        self.config = config
        self.trainee = trainee
        self.device = accelerator.device
        self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self._accelerator = accelerator
        seed_step(config.seed, -1)
        self.raw = trainee.model().to(self.device).train()
        if config.channels_last:
            self.raw.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        blocks = list(trainee.blocks(self.raw))
        half = config.precision == "bf16"
        self.sharded = trainee.sharded and self.world > 1
        self.weights: Weights | None = None
        self.ema: MovingAverage | WeightsAverage
        if self.sharded or (trainee.sharded and half):
            self._compile(blocks)
            if self.sharded:
                shard(self.raw, blocks, self.device, half=half)
            self.weights = Shards(self.raw) if self.sharded else Masters(self.raw)
            self.ema = WeightsAverage(self.weights, config.ema)
        else:
            # Copied first: Accelerate binds its bf16 forward to the very module it is given.
            self.ema = MovingAverage(self.raw, config.ema)
            self._compile(blocks)
        self.optimizer = Optimizer(self.raw, config.optimizer, trainee.slower, self.weights)
        self.meter = Meter()
        if config.compile and not blocks:
            # In place: the names in the state dict stay. Sizes are few, each deserves kernels of its own.
            self.raw.compile(dynamic=False)
        if self.weights is not None:
            self.model = self.average = self.raw
            return
        self.model = accelerator.prepare_model(self.raw)
        self.average = self.raw
        if isinstance(self.ema, MovingAverage) and self.ema.kept:
            self.average = accelerator.prepare_model(self.ema.module, evaluation_mode=True)

    def _compile(self, blocks: Sequence[nn.Module]) -> None:
        """Compile the blocks one by one, where the trainee names them and the config says so."""
        if self.config.compile and blocks:
            # With and without mask, time and gradient: each is a graph of its own. Beyond the limit torch
            # would silently run eagerly.
            torch._dynamo.config.recompile_limit = _GRAPHS
            for block in blocks:
                block.compile(dynamic=True)  # lengths are many: one graph serves all of them

    def step(self, step: int, batch: Any, profile: Profile) -> None:
        """One step on a batch; nothing here waits for the device."""
        seed_step(self.config.seed, step, self.rank)
        batch = to_device(batch, self.device)
        profile.mark()
        micro = self.trainee.split(batch)
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(micro, start=1):
            loss, parts = self.trainee.loss(self.model, part, step)
            if number == len(micro):  # of several micro-batches, all but the last backward count as forward
                profile.mark()
            self._accelerator.backward(loss)
            total += loss.detach()
            if parts:
                self.meter.add(parts)
        profile.mark()
        if self.trainee.shares and self.world > 1:
            total /= self.world
            torch.distributed.all_reduce(total)
        rate = learning_rate(step, self.config.steps, self.config.optimizer)
        norm, _ = self.optimizer.step(total, rate)
        self.ema.update(step + 1)
        self.meter.add({"loss": total, "grad_norm": norm})
        profile.mark()

    def snapshot(self) -> dict[str, Tensors]:
        """All that a checkpoint holds: the tensors themselves, to be written before the next step."""
        if isinstance(self.ema, WeightsAverage):
            weights, average = dict(self.optimizer.named), self.ema.averaged
        else:
            weights, average = self.raw.state_dict(), self.ema.module.state_dict()
        files: dict[str, Tensors] = {"model": dict(weights), "optimizer": dict(self.optimizer.tensors())}
        return {**files, "ema": dict(average)} if self.ema.kept else files

    def restore(self, files: dict[str, Tensors], saved: dict[str, Any], where: Path) -> None:
        average = files.get("ema", files["model"])
        if isinstance(self.ema, WeightsAverage) and self.weights is not None:
            self._refuse_misfit(files["model"], where)
            load_weights(self.weights, files["model"])
            for name, value in self.ema.averaged.items():
                value.copy_(average[name])
        else:
            load_model(self.raw, files["model"], where)
            if isinstance(self.ema, MovingAverage) and self.ema.kept:
                load_model(self.ema.module, average, where)
        self.optimizer.load(files["optimizer"].items())
        self.optimizer.restore_counts(saved["skipped"], saved["skipped_in_a_row"])

    def _refuse_misfit(self, tensors: Tensors, where: Path) -> None:
        wrong = [
            n for n, p in self.optimizer.named.items() if n not in tensors or tensors[n].shape != p.shape
        ]
        if wrong or len(tensors) != len(self.optimizer.named):
            raise MieError(
                "the checkpoint is of another architecture",
                where=where,
                expected=f"{len(self.optimizer.named)} tensors",
                found=", ".join(wrong[:4]) or f"{len(tensors)} tensors",
                fix="choose another output folder, or the code and config that the run started with",
            )

    def out_of_memory(self, step: int, found: str) -> MieError:
        """Return the error for a step out of memory, with the batch that fits. Ends the use of this state."""

        def attempt(share: int) -> None:
            # By contract a process among `share` times as many gets that part of the batch.
            batch = to_device(self.trainee.batch(step, 0, self.world * share), self.device)
            for part in self.trainee.split(batch):
                loss, _ = self.trainee.loss(self.raw, part, step)
                loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.adamw.step()

        self.optimizer.adamw.zero_grad(set_to_none=True)
        # Compiling anew for each size would take minutes; eager needs more memory, so the answer is safe.
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else contextlib.nullcontext()
        with eager:
            return out_of_memory(attempt, self.config.batch, self.world, self.device, found)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the training is, each time a line is logged, or what it is doing (`note`)."""

    step: int
    steps: int
    first: int  # the step this run started at
    loss: float | None = None
    images_per_second: float | None = None
    memory_gib: float | None = None
    note: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training, finished or not: `info` is `train.json`."""

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
    """Train what `config` names into the folder `out`, or resume it.

    After `stop_after` seconds the loop stops at the end of a step, with a checkpoint. `profile` steps are
    timed by phase after a warm-up.
    """
    folder = TrainingFolder(out)
    folder.refuse_foreign()
    main = machine.rank() == 0
    with folder_lock(out) if main else contextlib.nullcontext(), _lost_processes(out):
        return _Training(config, folder, main, progress).run(device, stop_after, profile)


@contextlib.contextmanager
def _lost_processes(out: Path) -> Iterator[None]:
    """Say in words that another process of this training is gone: the libraries say it in their own."""
    try:
        yield
    except RuntimeError as error:
        if machine.world() == 1 or not _LOST.search(str(error)):
            raise
        raise MieError(
            "another process of this training has ended",
            where=out,
            found=str(error).split("\n")[0][:200],
            fix="its own error says why; run the same command again to resume from the last checkpoint",
        ) from error


class _Training:
    """One run of the command. Only the main process writes; the others step along."""

    def __init__(self, config: TrainConfig, folder: TrainingFolder, main: bool, progress: Show) -> None:
        self.config = config
        self.folder = folder
        self.main = main
        self.show = progress if main else lambda _: None
        self.started = time.monotonic()
        self.first = 0
        self.validated = True  # false where the last run was killed in a validation

    def run(self, device: str | None, stop_after: float | None, profile: int) -> Trained:
        self._notify("checking the data")
        self.trainee = make_trainee(self.config)
        body = self._identify(self.trainee.check())
        if (info := self.folder.info()) is not None and info["status"] == "complete":
            return Trained(self.folder.path, info)
        self.accelerator = accelerator = machine.open_accelerator(self.config, device)
        accelerator.wait_for_everyone()  # until the main process has checked the folder
        self.recorder = Recorder(self.config, self.folder, {**body, **machine.facts(accelerator.device)})
        self._notify("reading the data")
        self.trainee.notify = self._notify
        self.trainee.prepare(accelerator.device)
        self.state = TrainingState(self.config, self.trainee, accelerator)
        self._resume()
        self.stop_at = None if stop_after is None else self.started + stop_after
        self.profile = Profile(profile, accelerator.device)
        self.profiled: dict[str, Any] | None = None
        with contextlib.ExitStack() as stack:
            if self.main:
                self.recorder.open(stack, self.first)
            try:
                if not self.validated and (self.main or self.state.sharded):
                    self._validate(self.first)
                if self._steps() and self.main:
                    self.recorder.ship(self.trainee)
            except BaseException:
                with contextlib.suppress(OSError, MieError):  # the first error is the one to report
                    if self.main:
                        self.recorder.status("interrupted")
                raise
        accelerator.end_training()
        return Trained(self.folder.path, self.recorder.body, self.profiled)

    def _identify(self, checked: Mapping[str, Any]) -> dict[str, Any]:
        """What is known before the first step; a folder that holds another training is refused."""
        world = machine.world()
        if self.config.batch % world:
            raise ConfigError(
                "the batch cannot be shared out", expected=f"a multiple of {world}", found=self.config.batch
            )
        if not self.main:
            return {}
        known = (self.folder.info() or {}).get("datasets", {})
        datasets = check_datasets(self.config, known, self._notify)
        decisive = {
            **self.config.decisive(),
            **({} if self.trainee.shares else {"processes": world}),
            "data_digests": {**checked, **{name: fact["digest"] for name, fact in datasets.items()}},
        }
        self.folder.refuse_other(decisive)
        return {"config": self.config.document(), "decisive": decisive, "datasets": datasets}

    def _resume(self) -> None:
        last = newest(self.folder.checkpoints)
        if last is not None:
            part = (self.state.rank, self.state.world) if self.state.sharded else (0, 1)
            saved, files = read_checkpoint(last, *part)
            self.state.restore(files, saved, last)
            self.first, self.validated = saved["step"], saved.get("validated", True)
            self.recorder.best, self.recorder.seconds = saved["best"], saved["seconds"]

    def _steps(self) -> bool:
        """Step until the end, or until the time is up; true at the end."""
        config, state = self.config, self.state
        make = lambda step: self.trainee.batch(step, state.rank, state.world)
        prefetch = Prefetch(make, self.first, config.steps, pin=state.device.type == "cuda")
        batches = iter(prefetch)
        self.clock, self.logged = time.monotonic(), self.first
        self.watch = Watch(self.trainee, state.device, state.world)
        if config.compile:
            self._notify("compiling: the first step takes minutes")
        try:
            for step in range(self.first, config.steps):
                ran_out = None
                try:
                    with self.watch.waiting():
                        batch = next(batches)[1]
                    self.watch.count(batch)
                    state.step(step, batch, self.profile)
                except torch.OutOfMemoryError as error:
                    ran_out = str(error)
                if ran_out is not None:  # outside `except`, whose traceback would keep the tensors
                    prefetch.close()
                    raise state.out_of_memory(step, ran_out)
                if self.profile.step_done():
                    self._profile(step + 1)
                if self._after(step + 1) and step + 1 < config.steps:
                    return False
        finally:
            prefetch.close()
        return True

    def _after(self, done: int) -> bool:
        """Log, validate, save what is due after `done` steps; true when the time is up."""
        config = self.config
        last = done == config.steps
        log = done % config.log_every == 0
        stop = self._time_is_up(log)
        validate = last or done % config.validation.every == 0
        # Before a validation too: it takes long, and what is killed in it resumes from there.
        save = validate or stop or done % config.checkpoint.every == 0
        if log or save:
            # Also before a checkpoint: a run that resumes from it logs the same means.
            counts = self._log(done)
        if save and (self.main or self.state.sharded):
            self._save(done, {**counts, "validated": not validate})
        if validate and (self.main or self.state.sharded):
            self._validate(done)
        if save:
            self.accelerator.wait_for_everyone()
            self.clock, self.logged = time.monotonic(), done
        if stop and not last and self.main:
            self.recorder.status("stopped", done)
        return stop

    def _save(self, done: int, extra: Mapping[str, Any]) -> None:
        """Write a checkpoint first, then what follows from it."""
        self._notify("saving", done)
        state, recorder = self.state, self.recorder
        body = {
            **extra,
            "random": {"seed": self.config.seed, "next_step": done, "processes": state.world},
            "seconds": round(recorder.spent(), 3),
            "best": recorder.best,
        }
        part = (state.rank, state.world) if state.sharded else (0, 1)
        write_checkpoint(self.folder.checkpoints, done, state.snapshot(), body, *part)
        if self.main:
            recorder.written(done)

    def _time_is_up(self, log: bool) -> bool:
        if self.stop_at is None:
            return False
        late = time.monotonic() >= self.stop_at
        if self.state.world == 1:
            return late
        if not log:  # the processes agree when they wait for the device anyway
            return False
        flag = torch.tensor(float(late), device=self.state.device)
        torch.distributed.broadcast(flag, 0)
        return bool(flag.item())

    def _log(self, done: int) -> dict[str, int]:
        """A line of the log. The counts of skipped steps, which a checkpoint stores."""
        state, optimizer = self.state, self.state.optimizer
        means, (skipped, in_a_row) = state.meter.read(optimizer.skipped, optimizer.in_a_row)
        now = time.monotonic()
        rate = self.config.batch * (done - self.logged) / max(now - self.clock, 1e-9)
        watched = self.watch.read(now - self.clock)
        self.clock, self.logged = now, done
        if self.main:
            memory = peak_gib(state.device)
            facts = {
                **watched,
                **{name: _rounded(value) for name, value in means.items()},
                "lr": _rounded(learning_rate(done - 1, self.config.steps, self.config.optimizer)),
                "images_per_second": round(rate, 1),
                "memory_gib": memory,
                "skipped": int(skipped),
                "seconds": round(self.recorder.spent(), 2),
            }
            self.recorder.line("train", done, facts)
            self.show(Progress(done, self.config.steps, self.first, means["loss"], rate, memory))
            for warning in self.watch.warnings(done, self.config.steps, facts):
                self.recorder.line("warning", done, {"warning": warning})
                self.show(Progress(done, self.config.steps, self.first, note=warning, warning=warning))
        if in_a_row >= PATIENCE:
            last = newest(self.folder.checkpoints)
            raise MieError(
                f"the gradient was not finite in {in_a_row:.0f} steps in a row",
                where=f"step {done}",
                found=f"{skipped:.0f} skipped steps in all; the weights are those before them",
                fix=f"the last checkpoint is {last or 'not written yet'}; lower optimizer.lr or look at the "
                "loss, and train in another folder",
            )
        return {"skipped": int(skipped), "skipped_in_a_row": int(in_a_row)}

    def _validate(self, done: int) -> None:
        """Figures and a grid of the averaged weights, whose checkpoint is on disk."""
        self._notify("validating", done)
        before = time.monotonic()
        seed_step(self.config.seed, done)
        timed = torch.backends.cudnn.benchmark
        # Images of many sizes: to time cuDNN's algorithms for each anew would take longer than they save.
        torch.backends.cudnn.benchmark = False
        average, ema = self.state.average, self.state.ema
        lent = ema.lent() if isinstance(ema, WeightsAverage) else contextlib.nullcontext()
        average.eval()
        with torch.no_grad(), lent:
            figures = self.trainee.validate(average)
            pixels = self.trainee.grid(average)
        self.state.raw.train()
        torch.backends.cudnn.benchmark = timed
        if not self.main:
            return
        if pixels is not None:
            self.recorder.grid(done, pixels)
        self.recorder.validation(done, self.trainee.score, figures, time.monotonic() - before)

    def _profile(self, done: int) -> None:
        peak = matmul_peak(self.state.device)
        self.profiled = self.profile.report(self.config.batch, self.trainee.flops_per_image, peak)
        if self.main:
            self.recorder.line("profile", done, self.profiled)

    def _notify(self, note: str, step: int | None = None) -> None:
        self.show(Progress(self.first if step is None else step, self.config.steps, self.first, note=note))


def _rounded(value: float | None) -> float | None:
    """Six significant digits are enough for a log."""
    return None if value is None else float(f"{value:.6g}")
