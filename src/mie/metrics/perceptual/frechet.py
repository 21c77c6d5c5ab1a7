"""Fréchet inception distance (Heusel et al. 2017) from means and covariances that grow batch by batch.

    FID = |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2))

It is biased: with few images it is large even for images of one kind. Compare it only between sets of the
same size, and read `n` beside it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.metrics.errors import MetricError

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
