"""The moving average of the weights: what is validated, shown and shipped."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Ema:
    """A copy of `model` on its device whose weights follow; buffers are copied, not averaged."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self._pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
        self._buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self, done: int) -> None:
        """Follow the model after its `done`th step. The first steps count less: they soon are far off."""
        weight = 1 - min(self.decay, (1 + done) / (10 + done))
        torch._foreach_lerp_([mean for mean, _ in self._pairs], [now for _, now in self._pairs], weight)
        for mine, its in self._buffers:
            mine.copy_(its)
