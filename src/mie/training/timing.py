"""Where a step's time goes, for `--profile`: marks on the device's own clock, without waiting for it."""

from __future__ import annotations

import time
from typing import Any, Final

import torch

_PHASES: Final = ("data wait", "forward", "backward", "optimizer")
_WARM: Final = 10  # the first steps of a sitting compile, tune and allocate


class Profile:
    """The shares of data wait, forward, backward and optimizer over `steps` steps after a warm-up.

    On a GPU "data wait" is the time that it stood idle between two steps, whatever the reason.
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

    def report(self, images_per_step: int, flops_per_image: float | None) -> dict[str, Any]:
        """Milliseconds and share of each phase, images/s, and TFLOP/s where the trainee knows its cost."""
        if self._cuda:
            torch.cuda.synchronize()
        gaps = [_milliseconds(a, b) for a, b in zip(self._marks[:-1], self._marks[1:], strict=True)]
        phases = [sum(gaps[at :: len(_PHASES)]) / self._steps for at in range(len(_PHASES))]
        rate = images_per_step / sum(phases) * 1000
        return {
            "steps": self._steps,
            "phases": {
                name: {"ms": round(ms, 3), "share": round(ms / sum(phases), 4)}
                for name, ms in zip(_PHASES, phases, strict=True)
            },
            "images_per_second": round(rate, 1),
            "tflops": None if flops_per_image is None else round(flops_per_image * rate / 1e12, 2),
        }


def _milliseconds(first: Any, second: Any) -> float:
    return first.elapsed_time(second) if hasattr(first, "elapsed_time") else (second - first) * 1000
