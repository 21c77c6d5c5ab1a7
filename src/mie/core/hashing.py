"""Seeds that depend on what a sample is, never on when or where it is made."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np


def stable_hash(*parts: Any) -> int:
    """A 64-bit number from JSON-able parts, the same on every machine and Python."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def sample_seed(build_seed: int, sample_id: str) -> int:
    """31 bits, so that every library accepts it."""
    return stable_hash("seed", build_seed, sample_id) >> 33


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))
