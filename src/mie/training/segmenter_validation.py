"""Validation of a segmenter inside the loop: held-out patients, the detector's own path and measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import cv2
import numpy as np
import torch
from torch import nn

from mie.detectors.looking import mask_of, probabilities, score_of
from mie.detectors.quality import count
from mie.detectors.thresholds import DEFAULT, LEVELS, Chosen, Measured, choose, worth
from mie.engines import cores
from mie.images.overlay import paint
from mie.records import Pixels, Values
from mie.training.pack import as_rgb
from mie.training.segmenter_data import Marked

_SHOWN: Final = 24
_CELL: Final = 160


class SegmenterValidation:
    """Held-out images; `by` is what the threshold is chosen by (`thresholds.worth`)."""

    def __init__(self, images: Sequence[Marked], side: int, device: torch.device, by: str) -> None:
        self.images, self.side, self.device, self.by = images, side, device, by
        self._threshold = DEFAULT  # the last one chosen, for the grid

    def choose(self, model: nn.Module) -> Chosen:
        """The threshold, and the quality by cross-fitting over two halves of the patients."""
        with ThreadPoolExecutor(cores()) as pool:
            return choose(list(pool.map(self._measured, self.images, self._maps(model))), by=self.by)

    def figures(self, model: nn.Module) -> dict[str, float | None]:
        chosen = self.choose(model)
        self._threshold = chosen.threshold
        if chosen.quality is None:
            return {"score": None}
        sources: dict[str, list[float]] = defaultdict(list)
        for one, counts in zip(self.images, chosen.counts, strict=True):
            if counts.dice is not None:
                sources[one.source].append(counts.dice)
        return {
            "score": worth(chosen.quality, self.by),
            **chosen.quality.as_json(),
            "threshold": chosen.threshold,
            **{f"dice/{name}": float(np.mean(values)) for name, values in sorted(sources.items())},
        }

    def grid(self, model: nn.Module) -> Pixels | None:
        """Input | found | reference of images from all over the fold, four to a line."""
        shown = list(self.images[:: max(1, len(self.images) // _SHOWN)][:_SHOWN])
        if not shown:
            return None
        rows = []
        for one, found in zip(shown, self._maps(model, shown), strict=True):
            image = as_rgb(one.image)
            painted = [
                paint(image, mask_of(found, self._threshold, self.side), "red"),
                paint(image, one.mask, "green"),
            ]
            rows.append(np.hstack([_cell(part) for part in (image, *painted)]))
        rows += [np.zeros_like(rows[0])] * (-len(rows) % 4)
        return np.vstack([np.hstack(rows[k : k + 4]) for k in range(0, len(rows), 4)])

    def _maps(self, model: nn.Module, images: Sequence[Marked] | None = None) -> list[Values]:
        some = self.images if images is None else images
        return [probabilities(model, as_rgb(one.image), self.side, self.device) for one in some]

    def _measured(self, one: Marked, found: Values) -> Measured:
        counts = tuple(count(mask_of(found, level, self.side), one.mask) for level in LEVELS)
        return Measured(one.patient, score_of(found), counts)


def _cell(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (_CELL, _CELL), interpolation=cv2.INTER_AREA), np.uint8)
