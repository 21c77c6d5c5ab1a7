"""At which probability a pixel is called lesion: chosen on some patients, judged on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mie.detectors.quality import Counts, Quality, summarise

LEVELS: Final = tuple(round(0.05 * k, 2) for k in range(1, 20))
DEFAULT: Final = 0.5  # where there is nobody to choose it on


@dataclass(frozen=True, slots=True)
class Measured:
    """One held-out image at every threshold of `LEVELS`."""

    patient: str
    score: float
    counts: tuple[Counts, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A threshold, and what may be expected of it.

    Cross-fitted: the held-out patients are dealt into two halves, and each half is measured at the threshold
    that is best on the other. `threshold` itself is the best on all of them, and is what is used.
    """

    threshold: float
    quality: Quality | None  # None: nobody was held out
    patients: int
    counts: tuple[Counts, ...]  # of each image, at the threshold that it was measured at
    crossed: bool  # False: fewer than two patients, measured at `DEFAULT`

    def as_json(self) -> dict[str, Any] | None:
        """What is kept beside the weights."""
        if self.quality is None:
            return None
        how = "cross-fitted over two halves of the held-out patients" if self.crossed else "not chosen"
        return {
            **self.quality.as_json(),
            "threshold": self.threshold,
            "patients": self.patients,
            "threshold_chosen": how,
        }


def choose(measured: Sequence[Measured], *, by: str) -> Chosen:
    """The threshold for what was measured; `by` is "lesions" (see `worth`) or "dice"."""
    patients = sorted({one.patient for one in measured})
    if len(patients) < 2:
        level = LEVELS.index(DEFAULT)
        counts = tuple(one.counts[level] for one in measured)
        quality = summarise(counts, [one.score for one in measured]) if measured else None
        return Chosen(DEFAULT, quality, len(patients), counts, crossed=False)
    # Names say where a patient comes from, so dealing them out in order gives both halves of every source.
    half = {patient: at % 2 for at, patient in enumerate(patients)}
    halves = [[one for one in measured if half[one.patient] == side] for side in (0, 1)]
    levels = [best_level(some, by) for some in halves]
    counts = tuple(one.counts[levels[1 - half[one.patient]]] for one in measured)
    return Chosen(
        LEVELS[best_level(measured, by)],
        summarise(counts, [one.score for one in measured]),
        len(patients),
        counts,
        crossed=True,
    )


def best_level(measured: Sequence[Measured], by: str) -> int:
    """The place in `LEVELS` that is worth most; among equals the one nearest the middle."""
    scores = [one.score for one in measured]
    found = [worth(summarise([one.counts[at] for one in measured], scores), by) for at in range(len(LEVELS))]
    return max(range(len(LEVELS)), key=lambda at: (round(found[at], 6), -abs(LEVELS[at] - DEFAULT)))


def worth(quality: Quality, by: str) -> float:
    """DICE; by "lesions" its mean with the lesion-wise F score: finding counts as much as outlining."""
    dice = quality.dice or 0.0
    if by == "dice":
        return dice
    sensitivity, precision = quality.sensitivity or 0.0, quality.precision or 0.0
    both = sensitivity + precision
    return float(np.mean([dice, 2 * sensitivity * precision / both if both else 0.0]))
