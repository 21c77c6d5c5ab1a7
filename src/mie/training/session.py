"""Model, average and optimizer on their device: a step, a snapshot, and the way back to one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mie.errors import MieError
from mie.training.checkpoint import Tensors, host, load_model
from mie.training.config import TrainConfig
from mie.training.ema import Ema
from mie.training.memory import out_of_memory
from mie.training.meter import Meter
from mie.training.optimize import Optimizer
from mie.training.prefetch import to_device
from mie.training.schedule import learning_rate
from mie.training.seeds import seed_step
from mie.training.timing import Profile
from mie.training.trainee import Trainee


class Session:
    """What changes from step to step."""

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
        # The average is copied first: Accelerate binds its bf16 forward to the very module it is given.
        self.ema = Ema(self.raw, config.ema)
        self.optimizer = Optimizer(self.raw, config.optimizer, trainee.slower)
        self.meter = Meter()
        if config.compile:
            # In place: the names in the state dict stay. Sizes are few, each deserves kernels of its own.
            self.raw.compile(dynamic=False)
        self.model = accelerator.prepare_model(self.raw)
        self.average = accelerator.prepare_model(self.ema.module, evaluation_mode=True)

    def step(self, step: int, batch: Any, profile: Profile) -> None:
        """One step on a batch; nothing here waits for the device."""
        seed_step(self.config.seed, step, self.rank)
        batch = to_device(batch, self.device)
        profile.mark()
        loss, parts = self.trainee.loss(self.model, batch, step)
        profile.mark()
        self._accelerator.backward(loss)
        profile.mark()
        rate = learning_rate(step, self.config.steps, self.config.optimizer)
        norm, _ = self.optimizer.step(loss, rate)
        self.ema.update(step + 1)
        self.meter.add({**parts, "loss": loss, "grad_norm": norm})
        profile.mark()

    def snapshot(self) -> dict[str, Tensors]:
        """Copies on the CPU of all that a checkpoint holds."""
        return {
            "model": host(self.raw.state_dict()),
            "ema": host(self.ema.module.state_dict()),
            "optimizer": host(dict(self.optimizer.tensors())),
        }

    def restore(self, files: dict[str, Tensors], state: dict[str, Any], where: Path) -> None:
        load_model(self.raw, files["model"], where)
        load_model(self.ema.module, files["ema"], where)
        self.optimizer.load(files["optimizer"].items())
        self.optimizer.remember(state["skipped"], state["skipped_in_a_row"])

    def out_of_memory(self, step: int, found: str) -> MieError:
        """What to say when a step ran out of memory, with the batch that fits. Spends the session."""

        def attempt(share: int) -> None:
            # By contract a process among `share` times as many gets that part of the batch.
            batch = to_device(self.trainee.batch(step, 0, self.world * share), self.device)
            loss, _ = self.trainee.loss(self.raw, batch, step)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.adamw.step()

        self.optimizer.adamw.zero_grad(set_to_none=True)
        # Compiling anew for each size would take minutes; eager needs more memory, so the answer is safe.
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else contextlib.nullcontext()
        with eager:
            return out_of_memory(attempt, self.config.batch, self.world, self.device, found)
