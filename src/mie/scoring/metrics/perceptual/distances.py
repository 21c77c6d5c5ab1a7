"""Fréchet inception distance (Heusel et al. 2017) from means and covariances that grow batch by batch.

    FID = |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2))

It is biased: with few images it is large even for images of one kind. Compare it only between sets of the
same size, and read `n` beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.core.files import atomic_path
from mie.errors import MetricError

Floats: TypeAlias = NDArray[np.float64]


class FeatureStatistics:
    """Mean `(D,)` and covariance `(D, D)` in float64 of features that come in batches `(B, D)`.

    A batch is joined to what was there by Chan's update, which loses no digits however large the mean.
    """

    def __init__(self) -> None:
        self.n = 0
        self._mean: Floats = np.zeros(0)
        self._scatter: Floats = np.zeros((0, 0))

    def add(self, features: ArrayLike) -> None:
        batch = np.asarray(features, np.float64)
        if batch.ndim != 2 or (self.n and batch.shape[1] != len(self._mean)):
            expected = f"(B, {len(self._mean)})" if self.n else "(B, D)"
            raise MetricError("features of another shape", expected=expected, found=batch.shape)
        if not len(batch):
            return
        if not np.isfinite(batch).all():
            raise MetricError("features are not finite", expected="finite features", found="nan or inf")
        mean = batch.mean(axis=0)
        centred = batch - mean
        if not self.n:
            self._mean, self._scatter = np.zeros(len(mean)), np.zeros((len(mean), len(mean)))
        total = self.n + len(batch)
        shift = mean - self._mean
        self._scatter += centred.T @ centred
        self._scatter += np.outer(shift, shift) * (self.n * len(batch) / total)
        self._mean = self._mean + shift * (len(batch) / total)
        self.n = total

    @property
    def mean(self) -> Floats:
        return self._mean

    @property
    def covariance(self) -> Floats:
        """With n - 1, as `numpy.cov`."""
        if self.n < 2:
            raise MetricError("too few images for a covariance", expected="at least 2", found=self.n)
        return self._scatter / (self.n - 1)


def fid(a: FeatureStatistics, b: FeatureStatistics) -> float:
    """The distance of two sets; lower is better, 0 for sets with equal mean and covariance."""
    covariance_a, covariance_b = a.covariance, b.covariance
    if covariance_a.shape != covariance_b.shape:
        raise MetricError("features of another shape", expected=covariance_a.shape, found=covariance_b.shape)
    difference = a.mean - b.mean
    # (S_a S_b) has the eigenvalues of the symmetric S_a^(1/2) S_b S_a^(1/2), which are real and not negative
    # whatever the rank. A general matrix root of the product is neither sure nor needed: only its trace is.
    values, vectors = np.linalg.eigh(covariance_a)
    half = vectors * np.sqrt(np.clip(values, 0, None))
    shared = np.linalg.eigvalsh(half.T @ covariance_b @ half)
    root = np.sqrt(np.clip(shared, 0, None)).sum()
    distance = difference @ difference + np.trace(covariance_a) + np.trace(covariance_b) - 2 * root
    return max(0.0, float(distance))  # rounding leaves equal sets a little below 0


# Kernel inception distance (Bińkowski et al. 2018): the unbiased squared MMD, k(x, y) = (x.y / D + 1)^3.

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
