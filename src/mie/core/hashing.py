"""Hashes, seeds and file names that depend on content alone: the same on every machine, in any order."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

import numpy as np

_HEX: Final = re.compile(r"[0-9a-f]{1,64}")


def canonical(value: Any) -> str:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def file_stem(sample_id: str) -> str:
    """A file name for a sample: its id where that is hexadecimal, as ours are; else a digest of the id.

    Such a name means the same on every file system: no case, no separator, no reserved word.
    """
    return sample_id if _HEX.fullmatch(sample_id) else hashlib.sha256(sample_id.encode()).hexdigest()[:32]


def stable_hash(*parts: Any) -> int:
    """A 64-bit number from JSON-able parts, the same on every machine and Python."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def sample_seed(build_seed: int, sample_id: str) -> int:
    """31 bits, so that every library accepts it."""
    return stable_hash("seed", build_seed, sample_id) >> 33


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))
