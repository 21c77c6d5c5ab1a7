"""Where a step's batch comes from: seeds, a background thread, and the way to the device.

All randomness is a function of (seed, step, rank): there is no random state to lose.
"""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_DEPTH: Final = 3  # batches that are made ahead


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return 63 bits for the generators of one step.

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


class Prefetch:
    """Make the next batches in a background thread while the device works on this one.

    Yields `make(step)` for each step in order; an exception in the thread is raised by the iterator.
    """

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
                item = (map_tensors(Tensor.pin_memory, batch, cpu_only=True) if self._pin else batch, None)
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
        """End the thread, after the batch it is making."""
        self._stopped.set()
        self._thread.join()


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`, copied without waiting."""
    return map_tensors(lambda t: t.to(device, non_blocking=True), batch)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any, *, cpu_only: bool = False) -> Any:
    """`value` with `function` of each tensor inside tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return value if cpu_only and value.device.type != "cpu" else function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item, cpu_only=cpu_only) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [map_tensors(function, item, cpu_only=cpu_only) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        changed = {key: map_tensors(function, item, cpu_only=cpu_only) for key, item in fields.items()}
        return dataclasses.replace(value, **changed)
    return value
