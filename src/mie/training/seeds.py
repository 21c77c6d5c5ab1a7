"""All randomness is a function of (seed, step, rank): there is no random state to lose."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


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
