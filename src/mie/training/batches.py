"""Where a step's batch comes from: seeds, a background thread, and the way to the device.

All randomness is a function of (seed, step, rank): there is no random state to lose. A few thousand
letterboxed images fit on a GPU as bytes (`Pool`), so a step moves only indices to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import random
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
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


def letterbox(
    image: NDArray[np.uint8], side: int, *, enlarge: bool = True
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Put the image in the middle of a square, its edges repeated outwards; return its (height, width) too.

    It is scaled so that its longer side fills the square. Without `enlarge`, a smaller one keeps its pixels.
    """
    height, width = image.shape[:2]
    scale = side / max(height, width)
    if scale < 1 or (enlarge and scale > 1):
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        image = np.asarray(cv2.resize(image, (width, height), interpolation=how), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    edges = (top, side - height - top, left, side - width - left)
    return np.asarray(cv2.copyMakeBorder(image, *edges, cv2.BORDER_REPLICATE), np.uint8), (height, width)


def letterbox_mask(mask: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Put class indices where `letterbox` puts the image; 0 around it."""
    height, width = mask.shape
    scale = side / max(height, width)
    if scale != 1:
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
        mask = np.asarray(cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    out = np.zeros((side, side), np.uint8)
    out[top : top + height, left : left + width] = mask
    return out


def to_tensor(values: Any, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Copy a few numbers to the device from pinned memory, without waiting for it."""
    pinned = torch.device(device).type == "cuda"
    tensor = torch.tensor(values, dtype=dtype)
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=True)


class Pool:
    """`(n, 3, S, S)` or, for grey images and masks, `(n, 1, S, S)` bytes."""

    def __init__(self, arrays: Sequence[NDArray[np.uint8]], device: torch.device | str) -> None:
        values = torch.from_numpy(np.stack(arrays)).to(device)
        self.values = values[:, None] if values.ndim == 3 else values.permute(0, 3, 1, 2).contiguous()

    def __len__(self) -> int:
        return len(self.values)

    def gather(self, index: Tensor) -> Tensor:
        """Bytes of these images."""
        return self.values.index_select(0, index)


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups (a data set's target, a kind of pair). A group of n rows is drawn by n to the `power`.

    Power 1 draws every row alike, so large data sets dominate; 0 draws every group alike, so a group of
    three is memorised.
    """

    rows: tuple[NDArray[np.int64], ...]
    share: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        keys: Sequence[Hashable],
        power: float,
        emphasis: Mapping[Any, float] | None = None,
        patients: Sequence[Hashable] | None = None,
    ) -> Groups:
        """`emphasis`: by the key of a group, how many times more often than that it is drawn.

        With `patients`, one for each row, n is the geometric mean of a group's rows and patients: fifty
        slices of one patient teach less than fifty patients.
        """
        members: dict[Hashable, list[int]] = {}
        for row, key in enumerate(keys):
            members.setdefault(key, []).append(row)
        more = emphasis or {}
        size = {key: float(len(m)) for key, m in members.items()}
        if patients is not None:
            size = {key: (n * len({patients[row] for row in members[key]})) ** 0.5 for key, n in size.items()}
        weight = np.array([n**power * more.get(key, 1.0) for key, n in size.items()])
        return cls(tuple(np.array(m) for m in members.values()), weight / weight.sum())

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        groups = rng.choice(len(self.rows), count, p=self.share)
        places = rng.random(count)
        drawn = [self.rows[g][int(u * len(self.rows[g]))] for g, u in zip(groups, places, strict=True)]
        return np.array(drawn, np.int64)


def counts(batch: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return how many of a batch each kind gets: the same in every batch, so ratios hold exactly."""
    whole = sum(shares.values())
    exact = {name: batch * share / whole for name, share in shares.items()}
    number = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: (number[name] - exact[name], name))
    for name in by_rest[: batch - sum(number.values())]:
        number[name] += 1
    return number
