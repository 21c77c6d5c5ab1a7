"""Early warnings of a training that goes wrong, and what it makes of its machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from mie.training.trainee import Trainee

# Dense bf16 TFLOP/s that the makers state, by a part of the device's name; the first that fits counts.
PEAKS: Final = (("H200", 989.0), ("H100 PCIe", 756.0), ("H100", 989.0), ("A100", 312.0), ("L40S", 362.0))
SLOW: Final = 0.2  # share of the time that a device may wait for batches
_LEAST_LINES: Final = 8  # of the log, before the loss is judged
_FALL: Final = 0.98  # later losses over the first ones


class Watch:
    """Counts between two lines of the log, and compares the lines."""

    def __init__(self, trainee: Trainee, device: torch.device, world: int) -> None:
        self._trainee, self._world = trainee, world
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self.peak = next((peak for part, peak in PEAKS if part in name), None)
        self._waited = self._flops = 0.0
        self._known = True
        self._losses: list[float] = []
        self._warned: set[str] = set()
        self._skipped = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        self._waited += time.monotonic() - before

    def count(self, batch: Any) -> None:
        flops = self._trainee.flops(batch)
        self._known = self._known and flops is not None
        self._flops += flops or 0.0

    def read(self, seconds: float) -> dict[str, float]:
        """Return the share of the time that was spent waiting, and TFLOP/s where a pass has been counted."""
        seconds = max(seconds, 1e-9)
        figures = {"data_wait": round(min(1.0, self._waited / seconds), 4)}
        if self._known and self._flops:
            rate = self._flops / seconds / 1e12  # of this process
            figures["tflops"] = round(rate * self._world, 4)
            if self.peak is not None:
                figures["share_of_peak"] = round(rate / self.peak, 4)
        self._waited = self._flops = 0.0
        return figures

    def warnings(self, done: int, steps: int, line: Mapping[str, Any]) -> list[str]:
        """Return what to say about this line: each kind once, skipped steps whenever there are more."""
        found = []
        skipped = int(line.get("skipped") or 0)
        if skipped > self._skipped:
            found.append(
                f"{skipped - self._skipped} steps had no finite gradient and were skipped; "
                "if there are more, lower the lr"
            )
            self._skipped = skipped
        if line["data_wait"] > SLOW:
            self._once(
                found,
                "wait",
                f"{line['data_wait']:.0%} of the time was spent waiting for batches: use a faster "
                "disk, or give the process more cores",
            )
        loss = line.get("loss")
        if loss is not None:
            self._losses.append(loss)
        count = len(self._losses)
        if count >= _LEAST_LINES and done >= steps / 10:
            part = max(2, count // 4)
            first, last = sum(self._losses[:part]) / part, sum(self._losses[-part:]) / part
            if last > _FALL * first:
                self._once(
                    found,
                    "loss",
                    f"the loss does not fall: {first:.4g} at first, {last:.4g} now; try another lr, "
                    "and look at grids/",
                )
        return found

    def _once(self, found: list[str], kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            found.append(text)
