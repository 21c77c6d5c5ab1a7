"""Kernel inception distance (Bińkowski et al. 2018): the unbiased squared MMD, k(x, y) = (x.y / D + 1)^3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mie.images.files import atomic_path
from mie.metrics.errors import MetricError

Features: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Kid:
    """Mean and standard deviation over the subsets. Unbiased, so it may lie a little below 0."""

    mean: float
    std: float
    subsets: int
    size: int


def kid(a: Features, b: Features, *, subsets: int = 100, size: int = 1000, seed: int = 0) -> Kid:
    """KID of two sets of features `(N, D)` and `(M, D)`; lower is better.

    Each of `subsets` draws `size` images of either set without replacement (fewer where a set is smaller;
    the result says how many). The draws depend on the seed and on the sizes alone. `a` and `b` may be
    memory-mapped (`store_features`): only one subset is read at a time.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise MetricError("features of another shape", expected=a.shape, found=b.shape)
    size = min(size, len(a), len(b))
    if size < 2:
        raise MetricError("too few images for KID", expected="at least 2 of each", found=(len(a), len(b)))
    draw = np.random.default_rng(seed)
    values = np.empty(subsets)
    for at in range(subsets):
        rows_a = np.sort(draw.choice(len(a), size, replace=False))
        rows_b = np.sort(draw.choice(len(b), size, replace=False))
        values[at] = squared_mmd(a[rows_a], b[rows_b])
    return Kid(float(values.mean()), float(values.std()), subsets, size)


def squared_mmd(a: Features, b: Features) -> float:
    """The unbiased estimate from all pairs of two sets `(N, D)` and `(M, D)`."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    within = sum((k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in (_kernel(x, x), _kernel(y, y)))
    return float(within - 2 * _kernel(x, y).mean())


def _kernel(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    out: NDArray[np.float64] = (x @ y.T / x.shape[1] + 1) ** 3
    return out


def store_features(batches: Iterable[Features], path: Path) -> Features:
    """Write batches `(B, D)` to a file of raw float32, one after another; all of it, `(N, D)`, mapped.

    20,000 images are 160 MB on disk and none in memory.
    """
    width = count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for batch in batches:
            file.write(np.ascontiguousarray(batch, np.float32).tobytes())
            width, count = batch.shape[1], count + len(batch)
    if not count:
        raise MetricError("no features", expected="at least one image", found=0)
    mapped: Features = np.memmap(path, np.float32, "r", shape=(count, width))
    return mapped
