"""Validation of the compact editor inside the loop: held-out patients, the benchmark's metrics, a sheet to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from mie.editors.compact.text import EmbeddingCache
from mie.images.overlay import paint
from mie.protocols.miedb_sample import Reference, score_output
from mie.records import Pixels
from mie.training.compact_data import SIDE, _rgb
from mie.training.pack import Pack, Row, Wording
from mie.training.pools import letterbox
from mie.vocabulary import COLOURS

_BATCH: Final = 32
_SHOWN: Final = 24


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
        chosen = rng.permutation(len(rows))[:count]
        self.cases = [_case(*rows[i], at % 2 == 0, rng) for at, i in enumerate(sorted(chosen))]
        self.device = device
        tokens, mask = encoder.encode([case.wording.prompt for case in self.cases])
        self.tokens, self.mask = tokens.to(device), mask.to(device)

    @torch.no_grad()
    def outputs(self, model: nn.Module, count: int | None = None) -> list[Pixels]:
        made: list[Pixels] = []
        cases = self.cases[:count]
        for start in range(0, len(cases), _BATCH):
            some = cases[start : start + _BATCH]
            boxed = [letterbox(case.image, SIDE) for case in some]
            x = torch.from_numpy(np.stack([b[0] for b in boxed])).to(self.device).permute(0, 3, 1, 2).float() / 255
            at = slice(start, start + len(some))
            heads = model(x, self.tokens[at].float(), self.mask[at])
            for k, (case, (_, (h, w))) in enumerate(zip(some, boxed, strict=True)):
                top, left = (SIDE - h) // 2, (SIDE - w) // 2
                box = (slice(k, k + 1), slice(None), slice(top, top + h), slice(left, left + w))
                size = case.image.shape[:2]
                if case.row.mask is not None:
                    z = F.interpolate(heads.overlay[box].float(), size=size, mode="bilinear")[0].cpu().numpy()
                    made.append(_painted(case.image, z))
                else:
                    r = F.interpolate(heads.residual[box].float(), size=size, mode="bilinear")[0]
                    made.append(_mended(case.image, r.permute(1, 2, 0).cpu().numpy()))
        return made

    def figures(self, model: nn.Module) -> dict[str, float | None]:
        if not self.cases:
            return {"score": None}
        made = self.outputs(model)
        with ThreadPoolExecutor(8) as pool:
            scores = list(pool.map(_score, self.cases, made))
        painted = defaultdict(list)
        wordings = defaultdict(list)
        gains = defaultdict(list)
        for case, score in zip(self.cases, scores, strict=True):
            if case.row.mask is not None:
                painted[case.row.source, case.row.target if case.row.task != "holistic" else "all"].append(score)
                wordings[case.seen].append(score)
            else:
                gains[case.row.key].append(score)
        dice = float(np.mean([np.mean(v) for v in painted.values()])) if painted else None
        gain = float(np.mean([np.mean(v) for v in gains.values()])) if gains else None
        found: dict[str, float | None] = {
            "score": (dice or 0.0) + (gain or 0.0) / 50,
            "dice_macro": dice,
            "gain_db": gain,
            "dice_seen_wordings": float(np.mean(wordings[True])) if wordings[True] else None,
            "dice_unseen_wordings": float(np.mean(wordings[False])) if wordings[False] else None,
        }
        by_source = defaultdict(list)
        for (source, _), values in painted.items():
            by_source[source] += values
        found |= {f"dice/{source}": float(np.mean(v)) for source, v in sorted(by_source.items())}
        return found | {f"gain_db/{key}": float(np.mean(v)) for key, v in sorted(gains.items())}

    def grid(self, model: nn.Module) -> Pixels | None:
        every = max(1, len(self.cases) // _SHOWN)
        chosen = self.cases[::every][:_SHOWN]
        if not chosen:
            return None
        made = self.outputs(model)[::every][:_SHOWN]
        rows = [
            np.hstack([cv2.resize(half, (160, 160), interpolation=cv2.INTER_AREA) for half in (c.image, m, c.target)])
            for c, m in zip(chosen, made, strict=True)
        ]
        rows += [np.zeros_like(rows[0])] * (-len(rows) % 4)
        return np.vstack([np.hstack(rows[k : k + 4]) for k in range(0, len(rows), 4)])


def _case(pack: Pack, row: Row, seen: bool, rng: np.random.Generator) -> _Case:
    ask = pack.asks[row.ask]
    seen = seen or not ask.held_out
    ways = ask.wordings if seen else ask.held_out
    wording = ways[int(rng.integers(len(ways)))]
    image = _rgb(pack.images[row.input])
    if row.mask is None:
        assert row.goal is not None  # noqa: S101 (a row has one or the other)
        return _Case(row, wording, seen, image, _rgb(pack.images[row.goal]))
    target = image
    for k, colour in enumerate(wording.colours, start=1):
        target = paint(target, pack.masks[row.mask] == k, colour)
    return _Case(row, wording, seen, image, target)


def _score(case: _Case, output: Pixels) -> float:
    """DICE, or decibels gained over the input."""
    row = case.row
    colour = ",".join(case.wording.colours) or None
    reference = Reference.of(row.perspective, row.task, colour, case.image, case.target)
    found = score_output(reference, output, "paper")["metrics"]
    if row.mask is not None:
        return float(found["dice"])
    before = score_output(reference, case.image, "paper")["metrics"]
    return float(found["psnr"] - before["psnr"])


def _painted(image: Pixels, logits: np.ndarray) -> Pixels:
    best = logits.argmax(0)
    open_ = logits.max(0) > 0
    for c, colour in enumerate(COLOURS):
        region = open_ & (best == c)
        if region.any():
            image = paint(image, region, colour)
    return image


def _mended(image: Pixels, residual: np.ndarray) -> Pixels:
    if (np.ptp(image, axis=2) == 0).all():
        residual = residual.mean(2, keepdims=True)
    return np.clip(np.rint(image + 255 * residual), 0, 255).astype(np.uint8)
