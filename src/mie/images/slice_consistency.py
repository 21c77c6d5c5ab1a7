"""How much a volume changes from slice to slice: what flickers when each slice is edited by itself.

Volumes are `(S, H, W)`, slices along the first axis. `mie edit` reports these numbers for its own output,
`mie score` compares them with the reference's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import MetricError
from mie.images.overlay import dice
from mie.records import Mask

_SHARED: Final = 20  # pixels that the holes of two slices share, before their change says anything
_RING: Final = 15  # pixels, twice the width of the ring around a hole
_STEADY: Final = 8.0  # grey levels of change from slice to slice that nobody sees, in tissue with noise


def neighbour_dice(mask: Mask) -> NDArray[np.float64]:
    """DICE of each slice with the next one, `(S - 1,)`; 1 where both are empty."""
    return np.array([dice(a, b) for a, b in pairwise(mask)], np.float64)


def neighbour_change(image: NDArray[Any]) -> NDArray[np.float64]:
    """Mean absolute difference of each slice and the next one in grey levels, `(S - 1,)`."""
    pairs = pairwise(image)
    return np.array([np.abs(a.astype(np.float32) - b).mean(dtype=np.float64) for a, b in pairs], np.float64)


def mask_consistency(mask: Mask, reference: Mask) -> float:
    """1 minus the mean difference of the two volumes' `neighbour_dice`, over pairs where one is marked.

    1: the output changes from slice to slice as much as the reference does. A structure that vanishes in one
    slice and is back in the next costs two whole pairs.
    """
    _check(mask, reference)
    marked = np.asarray((mask | reference).any(axis=(1, 2)))
    pairs = marked[:-1] | marked[1:]
    if not pairs.any():
        raise MetricError("neither volume marks anything")
    apart = np.abs(neighbour_dice(mask) - neighbour_dice(reference))
    return float(1 - apart[pairs].mean())


def image_consistency(image: NDArray[Any], reference: NDArray[Any]) -> float:
    """The smaller of the two volumes' `neighbour_change` over the larger, mean over the pairs of slices.

    1: the same amount of change. Flicker adds change, smearing through the slices takes it away.
    """
    _check(image, reference)
    a, b = neighbour_change(image), neighbour_change(reference)
    larger = np.maximum(a, b)
    ratio = np.divide(np.minimum(a, b), larger, out=np.ones_like(larger), where=larger > 0)
    return float(ratio.mean())


def fill_flicker(filled: NDArray[Any], original: NDArray[Any], holes: Mask) -> list[float]:
    """How much a filled hole changes from slice to slice, over how much its surroundings do.

    All are `(S, H, W)`. One number for each pair of neighbouring slices whose holes share `_SHARED` pixels:
    the mean absolute change inside both holes, over that in a ring around them. Above 1 the fill is less
    steady than the tissue beside it.
    """
    ratios = []
    for at in range(len(holes) - 1):
        both, either = holes[at] & holes[at + 1], holes[at] | holes[at + 1]
        ring = cv2.dilate(either.view(np.uint8), np.ones((_RING, _RING), np.uint8)).view(np.bool_) & ~either
        if both.sum() >= _SHARED and ring.any():
            inside = np.abs(filled[at][both].astype(np.float64) - filled[at + 1][both]).mean()
            around = np.abs(original[at][ring].astype(np.float64) - original[at + 1][ring]).mean()
            ratios.append(float(inside / max(around, _STEADY)))
    return ratios


def _check(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.shape != b.shape:
        raise MetricError("the two volumes differ in size", expected=b.shape, found=a.shape)
    if len(a) < 2:
        raise MetricError("slice consistency needs two slices", found=len(a))


def gaps(marked: NDArray[np.bool_]) -> list[int]:
    """The slices without a mark that lie between marked ones; `marked` is `(S,)`."""
    there = np.flatnonzero(marked)
    if not there.size:
        return []
    inside = np.arange(there[0], there[-1] + 1)
    return [int(index) for index in inside[~marked[inside]]]


class ThroughPlane:
    """Collects the numbers slice by slice, so that a volume need not be in memory.

    `add` takes a slice of labels (0: nothing) or of the change in grey levels that the edit made, and how
    much the input itself changes from the slice before.
    """

    def __init__(self, *, labels: bool) -> None:
        self._labels = labels
        self._before: NDArray[Any] | None = None
        self._input: NDArray[Any] | None = None
        self._pairs: list[float] = []
        self._marked: list[bool] = []

    def add(self, shown: NDArray[Any], edited: NDArray[Any]) -> None:
        """A slice as the editor saw it, and the slice that came out: its labels or its grey levels."""
        if self._before is not None and self._input is not None:
            if self._labels:
                self._pairs.append(dice(self._before > 0, edited > 0))
            else:
                pair = (np.stack([self._before, edited]), np.stack([self._input, shown]))
                self._pairs.append(image_consistency(*pair))
        self._marked.append(bool((edited > 0).any() if self._labels else (edited != shown).any()))
        self._before, self._input = edited, shown

    def summary(self) -> Mapping[str, Any]:
        """What `mie edit` reports."""
        marked = np.array(self._marked, np.bool_)
        pairs = np.array(self._pairs, np.float64)
        if self._labels:
            pairs = pairs[marked[:-1] & marked[1:]]
        name = "neighbour_dice" if self._labels else "change_ratio"
        return {
            "measure": name,
            "mean": round(float(pairs.mean()), 4) if pairs.size else None,
            "lowest": round(float(pairs.min()), 4) if pairs.size else None,
            "pairs": int(pairs.size),
            "marked_slices": int(marked.sum()),
            "gaps": gaps(marked) if self._labels else [],
        }
