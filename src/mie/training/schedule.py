"""Linear warm-up, then a cosine."""

from __future__ import annotations

import math

from mie.training.config import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The rate of a step from 0: up to `lr` over `warmup` steps, down to `floor * lr` at the last one."""
    if step < config.warmup:
        return config.lr * (step + 1) / (config.warmup + 1)
    way = (step - config.warmup) / max(1, steps - 1 - config.warmup)
    return config.lr * (config.floor + (1 - config.floor) * (1 + math.cos(math.pi * min(1.0, way))) / 2)
