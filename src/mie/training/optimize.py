"""All randomness is a function of (seed, step, rank): there is no random state to lose."""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from mie.training.config import OptimizerConfig


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """64 - 1 bits for the generators of one step.

    >>> step_seed(1, 0) == step_seed(1, 0), step_seed(1, 0) == step_seed(1, 1)
    (True, False)
    """
    digest = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed the global generators of torch (all devices), NumPy and Python."""
    value = step_seed(seed, step, rank)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 (it is the global one that others may draw from)
    random.seed(value)


# Means of losses between two lines of the log, summed on the device and read all at once.


class Meter:
    """Sums of named scalars over the steps where they were finite. A step may lack some names."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}  # (2, names): sums and counts

    def add(self, values: Mapping[str, Tensor]) -> None:
        now = torch.stack([value.detach().float().reshape(()) for value in values.values()])
        finite = torch.isfinite(now)
        both = torch.stack([torch.where(finite, now, 0.0), finite.float()])
        names = tuple(values)
        self._sums[names] = self._sums[names] + both if names in self._sums else both

    def read(self, *others: Tensor) -> tuple[dict[str, float | None], list[float]]:
        """Means since the last reading, None where nothing was finite; and the values of `others`.

        This is the one place where the host waits for the device.
        """
        parts = [s.reshape(-1) for s in self._sums.values()] + [o.detach().float().reshape(1) for o in others]
        flat = torch.cat(parts).tolist() if parts else []
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        at = 0
        for names in self._sums:
            middle, end = at + len(names), at + 2 * len(names)
            for name, value, count in zip(names, flat[at:middle], flat[middle:end], strict=True):
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0.0) + count
            at = end
        self._sums.clear()
        return {name: sums[name] / counts[name] if counts[name] else None for name in sums}, flat[at:]


# AdamW with clipping, and a guard: a step whose loss or gradient is not finite changes nothing.
#
# The guard lives on the device. The fused kernel reads `found_inf` there and leaves the weights as they
# are, so
# no step waits for the host; the counts are read when a line is logged.

BETAS = (0.9, 0.99)


class Optimizer:
    """Descends the gradients that a backward pass has left on `model`."""

    def __init__(
        self, model: nn.Module, config: OptimizerConfig, slower: Mapping[str, float] | None = None
    ) -> None:
        """`slower`: by the beginning of a parameter's name, the share of the rate that it learns at."""
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, p in self.named.items():
            # Norms and biases are not weights of a map: decay would only shrink what they scale.
            decay = config.weight_decay if p.ndim > 1 else 0.0
            share = next((v for start, v in (slower or {}).items() if name.startswith(start)), 1.0)
            groups.setdefault((decay, share), []).append(p)
        self._shares = [share for _, share in groups]
        made = [{"params": params, "weight_decay": decay} for (decay, _), params in groups.items()]
        self.adamw = torch.optim.AdamW(made, lr=config.lr, betas=BETAS, fused=True)
        self._clip = config.clip
        # Batch norm takes a bad batch into its running mean during the forward pass.
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._kept = [b.clone() for b in self._buffers]
        device = next(iter(self.named.values())).device
        self.skipped = torch.zeros((), device=device)
        self.in_a_row = torch.zeros((), device=device)

    def step(self, loss: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """One step at rate `lr`, or none; the gradient's norm and whether the step was skipped (0 or 1)."""
        params = list(self.named.values())
        norm = nn.utils.clip_grad_norm_(params, self._clip, foreach=True)
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss.detach()))
        skip = _any_rank(bad.float())
        for group, share in zip(self.adamw.param_groups, self._shares, strict=True):
            group["lr"] = lr * share
        self.adamw.found_inf = skip  # type: ignore[attr-defined]
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        with torch.no_grad():
            for kept, buffer in zip(self._kept, self._buffers, strict=True):
                buffer.copy_(torch.where(skip > 0, kept, buffer))
                kept.copy_(buffer)
            self.skipped += skip
            self.in_a_row = (self.in_a_row + 1) * skip
        return norm, skip

    def remember(self, skipped: int, in_a_row: int) -> None:
        """Go on counting, with the model's buffers as they have been loaded."""
        self.skipped.fill_(skipped)
        self.in_a_row.fill_(in_a_row)
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            kept.copy_(buffer)

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """The state as `exp_avg/<parameter>` and so on."""
        for name, parameter in self.named.items():
            for key, value in self.adamw.state.get(parameter, {}).items():
                yield f"{key}/{name}", value

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, value in tensors:
            key, _, parameter = name.partition("/")
            p = self.named[parameter]
            # In the parameter's own memory format: the fused kernel wants the same strides everywhere.
            mine = (
                torch.empty_like(p) if value.shape == p.shape else torch.empty(value.shape, device=p.device)
            )
            self.adamw.state[p][key] = mine.copy_(value)


def _any_rank(skip: Tensor) -> Tensor:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(skip, op=torch.distributed.ReduceOp.MAX)
    return skip


# The next batches, made in a background thread while the device works on this one.

_DEPTH: Final = 3


class Prefetch:
    """Yields `make(step)` for each step in order; an exception in the thread is raised by the iterator."""

    def __init__(self, make: Callable[[int], Any], first: int, last: int, *, pin: bool) -> None:
        self._make = make
        self._steps = range(first, last)
        self._pin = pin
        self._queue: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(_DEPTH)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        item: tuple[Any, BaseException | None]
        for step in self._steps:
            try:
                batch = self._make(step)
                item = (mapped(Tensor.pin_memory, batch, cpu_only=True) if self._pin else batch, None)
            except BaseException as error:
                item = (None, error)
            while not self._stopped.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._stopped.is_set() or item[1] is not None:
                return

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for step in self._steps:
            batch, error = self._queue.get()
            if error is not None:
                raise error
            yield step, batch

    def close(self) -> None:
        """End the thread; waits for the batch it is making."""
        self._stopped.set()
        self._thread.join()


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`, copied without waiting."""
    return mapped(lambda t: t.to(device, non_blocking=True), batch)


def mapped(function: Callable[[Tensor], Tensor], value: Any, *, cpu_only: bool = False) -> Any:
    """`value` with `function` of each tensor inside tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return value if cpu_only and value.device.type != "cpu" else function(value)
    if isinstance(value, dict):
        return {key: mapped(function, item, cpu_only=cpu_only) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [mapped(function, item, cpu_only=cpu_only) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        changed = {key: mapped(function, item, cpu_only=cpu_only) for key, item in fields.items()}
        return dataclasses.replace(value, **changed)
    return value
