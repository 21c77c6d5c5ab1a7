"""The machine: device and processes through Accelerate, versions, GPU memory, and a profile of steps."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import mie
from mie.core.environment import environment
from mie.errors import ConfigError, MieError
from mie.training.config import TrainConfig

_PACKAGES: Final = ("torch", "accelerate", "safetensors", "transformers", "numpy")
_PHASES: Final = ("data wait", "forward", "backward", "optimizer")
_MATRIX: Final = 8192  # rows and columns
_TRIALS: Final = 8
T = TypeVar("T")
_WARM: Final = 10  # the first steps of a run compile, tune and allocate


def rank() -> int:
    """Return the rank of this process; known before any device is touched."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all(processes: int | None = None) -> None:
    """Wait until every process is here; nothing where there is one."""
    if processes != 1 and torch.distributed.is_initialized():
        torch.distributed.barrier()


def gather(value: Any, processes: int | None = None) -> list[Any]:
    """Return the value of every process, in order of rank."""
    if processes == 1 or not torch.distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def whose_turn(items: Sequence[T]) -> Sequence[T]:
    """Return this process's part of work that all processes list in the same order."""
    return items[rank() :: world()]


def open_accelerator(config: TrainConfig, device: str | None) -> Accelerator:
    """Accelerate on `device` ("cpu", "cuda"; None: a GPU where there is one) at the config's precision."""
    if device not in (None, "cpu", "cuda"):
        raise ConfigError("no such device", expected="cpu or cuda", found=device)
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("no GPU that torch can use", expected="cuda", fix="use --device cpu")
    if config.precision == "bf16" and device != "cpu" and cuda and not torch.cuda.is_bf16_supported():
        raise ConfigError("this GPU has no bfloat16", expected="precision: fp32", found="precision: bf16")
    # Accelerate keeps one state per process; a second training in it may have another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    precision = "bf16" if config.precision == "bf16" else "no"
    accelerator = Accelerator(mixed_precision=precision, cpu=device == "cpu" or not cuda)
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where float32 is left
        torch.backends.cudnn.benchmark = True
    return accelerator


def versions() -> dict[str, str]:
    """Return the versions that the weights depend on; a package that is not installed is left out."""
    numbers = {"mie": mie.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            numbers[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return numbers


def facts(device: torch.device) -> dict[str, Any]:
    """Versions and the machine, for `train.json`."""
    return {"versions": versions(), "environment": {**environment(), "device": device.type}}


def peak_gib(device: torch.device) -> float | None:
    """The most memory that tensors have held since the last reset, None on a CPU."""
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else None


def out_of_memory(
    attempt: Callable[[int], None], batch: int, world: int, device: torch.device, found: str
) -> MieError:
    """The error to raise: `attempt(share)` runs one step on a `share`th of the batch and may run out again.

    Nothing is changed silently: the batch that fits is only named.
    """
    peak = peak_gib(device)
    share, fits = 2, None
    while fits is None and batch % (world * share) == 0:
        release(device)
        try:
            attempt(share)
            fits = batch // share
        except torch.OutOfMemoryError:
            share *= 2
    used = "" if peak is None else f"; the peak was {peak} GiB"
    total = None
    if device.type == "cuda":
        total = f"at most {torch.cuda.get_device_properties(device).total_memory / 2**30:.1f} GiB"
    return MieError(
        f"out of memory at batch {batch}",
        where=device,
        expected=total,
        found=found.split("\n")[0][:200] + used,
        fix=f"batch: {fits} fits; set it, or gradient_checkpointing: true"
        if fits
        else "no smaller batch fits either: make the model or the images smaller",
    )


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Profile:
    """The shares of data wait, forward, backward and optimizer over `steps` steps after a warm-up.

    It sets marks on the device's own clock, without waiting for it. On a GPU "data wait" is the time
    that it was idle between two steps, whatever the reason.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self._steps = steps
        self._cuda = device.type == "cuda"
        self._seen = 0
        self._marks: list[Any] = []

    @property
    def running(self) -> bool:
        return self._steps > 0 and _WARM <= self._seen < _WARM + self._steps

    def mark(self) -> None:
        """Called at the end of each phase, and once before the first."""
        if not self.running:
            return
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def step_done(self) -> bool:
        """Count a step; true when the last one to be measured is done."""
        self._seen += 1
        if self._steps and self._seen == _WARM:
            self.mark()
        return self._steps > 0 and self._seen == _WARM + self._steps

    def report(
        self, images_per_step: int, flops_per_image: float | None, peak: float | None = None
    ) -> dict[str, Any]:
        """Milliseconds and share of each phase, images/s, and TFLOP/s where the trainee knows its cost.

        `peak` is the device's, in TFLOP/s (`matmul_peak`): `utilisation` is the share of it.
        """
        if self._cuda:
            torch.cuda.synchronize()
        gaps = [_milliseconds(a, b) for a, b in zip(self._marks[:-1], self._marks[1:], strict=True)]
        phases = [sum(gaps[at :: len(_PHASES)]) / self._steps for at in range(len(_PHASES))]
        rate = images_per_step / sum(phases) * 1000
        tflops = None if flops_per_image is None else flops_per_image * rate / 1e12
        return {
            "steps": self._steps,
            "phases": {
                name: {"ms": round(ms, 3), "share": round(ms / sum(phases), 4)}
                for name, ms in zip(_PHASES, phases, strict=True)
            },
            "images_per_second": round(rate, 1),
            "tflops": None if tflops is None else round(tflops, 2),
            "peak_tflops": None if peak is None else round(peak, 1),
            "utilisation": None if tflops is None or peak is None else round(tflops / peak, 4),
        }


def matmul_peak(device: torch.device) -> float | None:
    """TFLOP/s of a large product of bfloat16 matrices, the best of a few; None without a GPU."""
    if device.type != "cuda":
        return None
    a, b = (torch.randn(_MATRIX, _MATRIX, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for turn in range(_TRIALS + 2):  # two to warm up
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(4):
            a @ b
        end.record()
        torch.cuda.synchronize()
        if turn >= 2:
            best = min(best, start.elapsed_time(end) / 4)
    return 2 * _MATRIX**3 / best / 1e9


def _milliseconds(first: Any, second: Any) -> float:
    return first.elapsed_time(second) if hasattr(first, "elapsed_time") else (second - first) * 1000
