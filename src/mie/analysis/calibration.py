"""A judge's scores brought to the scale of people: isotonic regression, and how well it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]

FOLDS: Final = 5


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A rising curve through knots `(K,)`; straight between them, flat beyond the first and the last."""

    x: Floats
    y: Floats

    def __call__(self, values: ArrayLike) -> Floats:
        return np.interp(np.asarray(values, np.float64), self.x, self.y)


def fit_isotonic(x: ArrayLike, y: ArrayLike) -> Isotonic:
    """The curve that never falls with the least squared error, by pooling adjacent violators.

    Values of equal `x` count as one with their mean. For a metric where lower is better give `-x`.

    >>> fit_isotonic([1, 2, 3, 4], [1, 3, 2, 4])([1, 2, 3, 4]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    places, inverse, times = np.unique(np.asarray(x, np.float64), return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=np.asarray(y, np.float64)) / times
    blocks: list[tuple[float, int, int]] = []  # mean, weight, how many places
    for mean, weight in zip(means.tolist(), times.tolist(), strict=True):
        blocks.append((mean, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (m1, w1, n1), (m2, w2, n2) = blocks[-2:]
            blocks[-2:] = [((m1 * w1 + m2 * w2) / (w1 + w2), w1 + w2, n1 + n2)]
    levels = np.repeat([block[0] for block in blocks], [block[2] for block in blocks])
    # Only the ends of a level are needed to draw it.
    inner = np.zeros(len(levels), bool)
    inner[1:-1] = (levels[1:-1] == levels[:-2]) & (levels[1:-1] == levels[2:])
    return Isotonic(places[~inner], levels[~inner])


@dataclass(frozen=True, slots=True)
class Held:
    """Predictions for what was held out: `(N,)` errors of the curve, and of the mean alone."""

    errors: Floats
    errors_of_mean: Floats
    folds: int


def cross_validated(
    x: ArrayLike, y: ArrayLike, groups: ArrayLike, *, folds: int = FOLDS, seed: int = 0
) -> Held | None:
    """Fit on all folds but one, predict that one, in turn. Values of one group (a patient) share a fold.

    None for fewer than two groups: there is nothing to hold out.
    """
    scores, wanted = np.asarray(x, np.float64), np.asarray(y, np.float64)
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    folds = min(folds, len(names))
    if folds < 2:
        return None
    fold = (np.random.default_rng(seed).permutation(len(names)) % folds)[codes]
    errors, of_mean = np.empty(len(wanted)), np.empty(len(wanted))
    for number in range(folds):
        out = fold == number
        errors[out] = fit_isotonic(scores[~out], wanted[~out])(scores[out]) - wanted[out]
        of_mean[out] = wanted[~out].mean() - wanted[out]
    return Held(errors, of_mean, folds)
