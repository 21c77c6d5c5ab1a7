"""Where a step's time goes, for `--profile`: marks on the device's own clock, without waiting for it."""

from __future__ import annotations

import time
from typing import Any, Final

import torch

_PHASES: Final = ("data wait", "forward", "backward", "optimizer")
_MATRIX: Final = 8192  # rows and columns
_TRIALS: Final = 8
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
    """TFLOP/s of a large product of bfloat16 matrices, the best of a few; None but on a GPU."""
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
