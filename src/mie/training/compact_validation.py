"""Validation of the compact editor inside the loop: held-out patients, its own path, miedb's metrics.

MieDB has no metric from pixels for modification: there it is PSNR inside the area that changes, against the
input itself, or, where that is a white hole, against the hole filled with the mean of the rest.
"""

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
from mie.metrics import MetricError, background_psnr
from mie.protocols.miedb_sample import PSNR_CAP, Reference, score_output
from mie.records import Mask, Pixels
from mie.training.modification_data import mean_filled
from mie.training.pack import Pack, Row, Wording, as_rgb

_BATCH: Final = 32
_SHOWN: Final = 24
_CELL: Final = 160
_DECIBEL: Final = 1 / 50  # of DICE: what a decibel is worth when checkpoints are compared


HOLE: Final = "hole"  # the task of a hole made for validation, in tissue whose truth is known
_HOLES: Final = ("inpainting", "simulation", HOLE)


@dataclass(frozen=True, slots=True)
class Case:
    """A row as it is put to the editor."""

    row: Row
    wording: Wording
    seen: bool  # the wording is one of those trained on
    image: Pixels
    target: Pixels
    area: Mask | None = None  # of a modification


class Validation:
    """Rows of held-out patients, each with one wording; every second one with a wording never trained on."""

    def __init__(
        self,
        rows: Sequence[tuple[Pack, Row]],
        count: int,
        encoder: EmbeddingCache,
        device: torch.device,
        seed: int,
        more: Sequence[Case] = (),
        *,
        half: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        chosen = sorted(rng.permutation(len(rows))[:count])
        self.cases = [make_case(*rows[i], seen=at % 2 == 0, rng=rng) for at, i in enumerate(chosen)]
        self.cases += more
        self.encoder, self.device, self.half = encoder, device, half

    def figures(self, model: nn.Module) -> dict[str, float | None]:
        """DICE and decibels gained over the input, as means over groups, and what unseen wordings cost.

        `dice_macro` is the mean over targets of data sets, `dice_sets` over data sets.
        """
        made = self._outputs(model, self.cases)
        with ThreadPoolExecutor(8) as pool:
            scores = list(pool.map(score_case, self.cases, made))
        painted: dict[tuple[str, str], list[float]] = defaultdict(list)
        sources: dict[str, list[float]] = defaultdict(list)
        wordings: dict[bool, list[float]] = defaultdict(list)
        gains: dict[str, list[float]] = defaultdict(list)
        changes: dict[str, list[float]] = defaultdict(list)
        beside: list[float] = []
        for case, score in zip(self.cases, scores, strict=True):
            row = case.row
            if "dice" in score:
                painted[row.source, "" if row.task == "holistic" else row.target].append(score["dice"])
                sources[row.source].append(score["dice"])
                wordings[case.seen].append(score["dice"])
            elif row.perspective == "transformation" and "gain_db" in score:
                gains[row.key or ""].append(score["gain_db"])
            elif "gain_db" in score:
                changes[row.task].append(score["gain_db"])
            if row.perspective == "modification" and "b_psnr" in score:
                beside.append(score["b_psnr"])
        dice = _mean([_mean(values) for values in painted.values()])
        gain = _mean([_mean(values) for values in gains.values()])
        change = _mean([_mean(values) for values in changes.values()])
        decibels = [value * _DECIBEL for value in (gain, change) if value is not None]
        parts = decibels if dice is None else [dice, *decibels]
        more = {"change_gain_db": change, "change_b_psnr": _mean(beside)} if changes else {}
        return {
            "score": sum(parts) if parts else None,
            "dice_macro": dice,
            "dice_sets": _mean([_mean(values) for values in sources.values()]),
            "gain_db": gain,
            "dice_seen_wordings": _mean(wordings[True]),
            "dice_unseen_wordings": _mean(wordings[False]),
            **{f"dice/{source}": _mean(values) for source, values in sorted(sources.items())},
            **{f"gain_db/{key}": _mean(values) for key, values in sorted(gains.items())},
            **more,
            **{f"change_gain_db/{task}": _mean(values) for task, values in sorted(changes.items())},
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

    def _outputs(self, model: nn.Module, cases: Sequence[Case]) -> list[Pixels]:
        inference = Inference(cast(CompactNet, model), self.encoder, self.device, self.half)
        made: list[Pixels] = []
        for start in range(0, len(cases), _BATCH):
            requests = [Request(case.image, case.wording.prompt) for case in cases[start : start + _BATCH]]
            made += [edited.image for edited in edit_all(inference, requests)]
        return made


def make_case(pack: Pack, row: Row, *, seen: bool, rng: np.random.Generator) -> Case:
    """One wording drawn: of those trained on if `seen`, else of the others, where there are any."""
    ask = pack.asks[row.ask]
    seen = seen or not ask.held_out
    ways = ask.wordings if seen else ask.held_out
    wording = ways[int(rng.integers(len(ways)))]
    image = as_rgb(pack.images[row.input])
    if row.goal is not None:
        area = None if row.mask is None else pack.masks[row.mask] > 0
        return Case(row, wording, seen, image, as_rgb(pack.images[row.goal]), area)
    assert row.mask is not None  # noqa: S101 (a row has a goal or a mask)
    target = image
    for k, colour in enumerate(wording.colours, start=1):
        target = paint(target, pack.masks[row.mask] == k, colour)
    return Case(row, wording, seen, image, target)


def score_case(case: Case, output: Pixels) -> dict[str, float]:
    """What can be measured of one output, by name.

    Perception: `dice`, `p_acc`, `b_psnr`. Transformation: `psnr`, `ssim`, and `gain_db`, `gain_ssim` over the
    input. Modification: `psnr` inside the area, `gain_db` over the input there, or, for a hole, over the mean
    of the rest; `b_psnr` outside.
    """
    row = case.row
    if row.perspective == "modification":
        return _score_change(case, output)
    reference = Reference.of(
        row.perspective, row.task, ",".join(case.wording.colours) or None, case.image, case.target
    )
    found = score_output(reference, output, "paper")["metrics"]
    if row.perspective == "perception":
        return {name: float(found[name]) for name in ("dice", "p_acc", "b_psnr") if name in found}
    before = score_output(reference, case.image, "paper")["metrics"]
    score = {name: float(found[name]) for name in ("psnr", "ssim") if name in found}
    if "psnr" in found and "psnr" in before:
        score["gain_db"] = float(found["psnr"] - before["psnr"])
    if "ssim" in found and "ssim" in before:
        score["gain_ssim"] = float(found["ssim"] - before["ssim"])
    return score


def _score_change(case: Case, output: Pixels) -> dict[str, float]:
    area = case.area
    if area is None:
        return {}
    before = mean_filled(case.image, area) if case.row.task in _HOLES else case.image
    inside, outside = _psnr(case.target, output, ~area), _psnr(case.target, output, area)
    start = _psnr(case.target, before, ~area)
    score = {} if outside is None else {"b_psnr": outside}
    if inside is not None and start is not None:
        score |= {"psnr": inside, "gain_db": inside - start}
    return score


def _psnr(target: Pixels, output: Pixels, left_out: Mask) -> float | None:
    """Over the pixels that are not left out; None where there are none. At most 100 dB, as in `paper`."""
    try:
        return min(float(background_psnr(target, output, left_out)), PSNR_CAP)
    except MetricError:
        return None


def _mean(values: Sequence[float | None]) -> float | None:
    return float(np.mean(values)) if values else None  # type: ignore[arg-type]


def _cell(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (_CELL, _CELL), interpolation=cv2.INTER_AREA), np.uint8)
