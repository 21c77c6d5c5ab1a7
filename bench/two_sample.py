"""Can a small classifier tell filled regions from real ones? Balanced accuracy; 50% is indistinguishable.

Logistic regression (L2) on 28 numbers of a region (band variances, gradients, spectrum, autocorrelation,
local binary patterns, moments), or on 60: the same against the ring around it, colour, step across the
outline. Five folds by patient, so that nobody is in training and test at once; the interval is a bootstrap
over patients.
"""

from __future__ import annotations

import cv2
import numpy as np
from scipy.optimize import minimize
from skimage.feature import local_binary_pattern

from mie.images.texture import luma, seam_energy, texture

RING = 10  # pixels around the hole
OWN = 28  # features of the region alone; then the same against the ring, and the outline
FOLDS = 5


def features(image: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """Numbers of the region, and of the region against its ring; None where it is too small."""
    ring = cv2.dilate(
        mask.astype(np.uint8), cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * RING + 1,) * 2)
    )
    inside, around = texture(image, mask), texture(image, ring.astype(bool) & ~mask)
    if inside is None or around is None:
        return None
    grey = luma(image)
    found = []
    for where in (mask, ring.astype(bool) & ~mask):
        bands = [grey - cv2.GaussianBlur(grey, (0, 0), s) for s in (0.7, 1.5, 3)]
        numbers = [np.log(np.var(b[where]) + 0.1) for b in bands]
        fine = bands[1][where] / (bands[1][where].std() + 0.3)
        numbers += [np.clip(np.mean(fine**3), -5, 5), np.clip(np.mean(fine**4), 0, 20)]
        for axis, lag in ((0, 1), (1, 1), (0, 2), (1, 2)):
            both = where & np.roll(where, lag, axis)
            a, b = bands[2][both], np.roll(bands[2], lag, axis)[both]
            numbers.append(float(np.mean(a * b) / (np.mean(bands[2][where] ** 2) + 0.1)))
        pattern = local_binary_pattern(grey.round().astype(np.uint8), 8, 1, "uniform")[where]
        numbers += list(np.bincount(pattern.astype(int), minlength=10) / pattern.size)
        found.append(np.array(numbers))
    for part in (inside, around):
        cdf = np.cumsum(part.gradients)
        found.append(
            np.array([*np.log(part.spectra[8] + 1 / 12), *np.searchsorted(cdf, (0.1, 0.25, 0.5, 0.75, 0.9))])
        )
    own, ringed = np.concatenate(found[::2]), np.concatenate(found[1::2])
    assert own.size == OWN
    means = np.abs(np.subtract(inside.mean, around.mean))
    return np.concatenate([own, own - ringed, means, [seam_energy(image, mask)]])


def accuracy(real: np.ndarray, made: np.ndarray, patients: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Balanced accuracy of telling `made` `(N, F)` from `real` `(N, F)`, row by row of the same place."""
    rng = np.random.default_rng(seed)
    people = np.unique(patients)
    if len(people) < FOLDS:
        return {}
    fold_of = dict(zip(rng.permutation(people), np.arange(len(people)) % FOLDS, strict=True))
    folds = np.array([fold_of[p] for p in patients])
    right = np.zeros((2, len(real)))
    for fold in range(FOLDS):
        train, test = folds != fold, folds == fold
        x = np.concatenate([real[train], made[train]])
        y = np.concatenate([np.zeros(train.sum()), np.ones(train.sum())])
        centre, spread = x.mean(0), x.std(0) + 1e-6
        weights = _fit((x - centre) / spread, y)
        for k, rows in enumerate((real, made)):
            said = _with_one((rows[test] - centre) / spread) @ weights > 0
            right[k, test] = said == k
    draws = []
    each = [np.flatnonzero(patients == p) for p in people]
    for _ in range(500):
        rows = np.concatenate([each[i] for i in rng.integers(len(people), size=len(people))])
        draws.append(right[:, rows].mean())
    low, high = np.percentile(draws, (2.5, 97.5))
    return {"accuracy": float(right.mean()), "low": float(low), "high": float(high), "patients": len(people)}


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.clip(x, -6, 6), np.ones((len(x), 1))], 1)


def _fit(x: np.ndarray, y: np.ndarray, penalty: float = 3.0) -> np.ndarray:
    x, sign = _with_one(x), 2 * y - 1

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (x @ w)
        value = np.logaddexp(0, -margin).sum() + penalty / 2 * (w[:-1] ** 2).sum()
        slope = -(x * (sign / (1 + np.exp(np.clip(margin, -50, 50))))[:, None]).sum(0)
        return value, slope + penalty * np.append(w[:-1], 0)

    return minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
