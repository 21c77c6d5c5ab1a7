"""Means of losses between two lines of the log, summed on the device and read all at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


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
