"""Validation of the compact editor inside the loop: held-out patients, its own path, miedb's metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
import torch
from torch import nn

from mie.editors.base import Request
from mie.editors.compact.editing import edit_all
from mie.editors.compact.inference import Inference
from mie.editors.compact.network import CompactNet
from mie.editors.compact.text import EmbeddingCache
from mie.images.overlay import paint
from mie.protocols.miedb_sample import Reference, score_output
from mie.records import Pixels
from mie.training.pack import Pack, Row, Wording, as_rgb

_BATCH: Final = 32
_SHOWN: Final = 24
_CELL: Final = 160
_DECIBEL: Final = 1 / 50  # of DICE: what a decibel is worth when checkpoints are compared


@dataclass(frozen=True, slots=True)
class _Case:
    row: Row
    wording: Wording
    seen: bool  # the wording is one of those trained on
    image: Pixels
    target: Pixels


class Validation:
    """Rows of held-out patients, each with one wording; every second one with a wording never trained on."""

    def __init__(
        self,
        rows: Sequence[tuple[Pack, Row]],
        count: int,
        encoder: EmbeddingCache,
        device: torch.device,
        seed: int,
    ) -> None:
        rng = np.random.default_rng(seed)
        chosen = sorted(rng.permutation(len(rows))[:count])
        self.cases = [_case(*rows[i], seen=at % 2 == 0, rng=rng) for at, i in enumerate(chosen)]
        self.encoder, self.device = encoder, device

    def figures(self, model: nn.Module) -> dict[str, float | None]:
        """DICE and decibels gained over the input, as means over groups, and what unseen wordings cost."""
        made = self._outputs(model, self.cases)
        with ThreadPoolExecutor(8) as pool:
            scores = list(pool.map(_score, self.cases, made))
        painted: dict[tuple[str, str], list[float]] = defaultdict(list)
        sources: dict[str, list[float]] = defaultdict(list)
        wordings: dict[bool, list[float]] = defaultdict(list)
        gains: dict[str, list[float]] = defaultdict(list)
        for case, score in zip(self.cases, scores, strict=True):
            row = case.row
            if row.mask is None:
                gains[row.key or ""].append(score)
                continue
            painted[row.source, "" if row.task == "holistic" else row.target].append(score)
            sources[row.source].append(score)
            wordings[case.seen].append(score)
        dice = _mean([_mean(values) for values in painted.values()])
        gain = _mean([_mean(values) for values in gains.values()])
        parts = [value for value in (dice, None if gain is None else gain * _DECIBEL) if value is not None]
        return {
            "score": sum(parts) if parts else None,
            "dice_macro": dice,
            "gain_db": gain,
            "dice_seen_wordings": _mean(wordings[True]),
            "dice_unseen_wordings": _mean(wordings[False]),
            **{f"dice/{source}": _mean(values) for source, values in sorted(sources.items())},
            **{f"gain_db/{key}": _mean(values) for key, values in sorted(gains.items())},
        }

    def grid(self, model: nn.Module) -> Pixels | None:
        """Input | output | reference of cases from all over the fold, four to a line."""
        shown = self.cases[:: max(1, len(self.cases) // _SHOWN)][:_SHOWN]
        if not shown:
            return None
        rows = [
            np.hstack([_cell(image) for image in (case.image, output, case.target)])
            for case, output in zip(shown, self._outputs(model, shown), strict=True)
        ]
        rows += [np.zeros_like(rows[0])] * (-len(rows) % 4)
        return np.vstack([np.hstack(rows[k : k + 4]) for k in range(0, len(rows), 4)])

    def _outputs(self, model: nn.Module, cases: Sequence[_Case]) -> list[Pixels]:
        # The loop has set the model's precision already.
        inference = Inference(cast(CompactNet, model), self.encoder, self.device, half=False)
        made: list[Pixels] = []
        for start in range(0, len(cases), _BATCH):
            requests = [Request(case.image, case.wording.prompt) for case in cases[start : start + _BATCH]]
            made += [edited.image for edited in edit_all(inference, requests)]
        return made


def _case(pack: Pack, row: Row, *, seen: bool, rng: np.random.Generator) -> _Case:
    ask = pack.asks[row.ask]
    seen = seen or not ask.held_out
    ways = ask.wordings if seen else ask.held_out
    wording = ways[int(rng.integers(len(ways)))]
    image = as_rgb(pack.images[row.input])
    if row.mask is None:
        assert row.goal is not None  # noqa: S101 (a row has one or the other)
        return _Case(row, wording, seen, image, as_rgb(pack.images[row.goal]))
    target = image
    for k, colour in enumerate(wording.colours, start=1):
        target = paint(target, pack.masks[row.mask] == k, colour)
    return _Case(row, wording, seen, image, target)


def _score(case: _Case, output: Pixels) -> float:
    """DICE, or decibels gained over the input."""
    row = case.row
    reference = Reference.of(
        row.perspective, row.task, ",".join(case.wording.colours) or None, case.image, case.target
    )
    found = score_output(reference, output, "paper")["metrics"]
    if row.mask is not None:
        return float(found["dice"])
    before = score_output(reference, case.image, "paper")["metrics"]
    return float(found["psnr"] - before["psnr"])


def _mean(values: Sequence[float | None]) -> float | None:
    return float(np.mean(values)) if values else None  # type: ignore[arg-type]


def _cell(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (_CELL, _CELL), interpolation=cv2.INTER_AREA), np.uint8)
