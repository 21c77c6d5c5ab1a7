"""Holes in healthy tissue of held-out patients, to validate filling where the packs have no modifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mie.records import Pixels
from mie.training.compact_data import Choices, CompactData
from mie.training.compact_validation import HOLE, Case
from mie.training.pack import VALIDATION, Pack, Wording


def hole_cases(packs: Sequence[Pack], count: int, seed: int) -> list[Case]:
    """`count` views of validation pictures with a hole made as in training; none where there is no lesion."""
    data = CompactData(packs, VALIDATION, torch.device("cpu"), Choices(holes=1.0))
    if data.fresh is None:
        return []
    chosen = data.choose(np.random.default_rng(seed), count, {"modification": 1.0}, 0.0)
    views = data.views(chosen, seed)
    rows = {row.source: row for pack in packs for row in pack.rows}
    cases = []
    for at, item in enumerate(chosen["changed"]):
        row = rows[data.fresh.shown[item.place].source]
        row = replace(row, id=f"hole-{at}", perspective="modification", task=HOLE, key=None)
        text = data.prompts.texts[item.prompt]
        area = views.area[at, 0].bool().numpy()
        cases.append(
            Case(row, Wording(text, text), True, _pixels(views.image[at]), _pixels(views.goal[at]), area)
        )
    return cases


def _pixels(image: Tensor) -> Pixels:
    return (255 * image).round().byte().permute(1, 2, 0).contiguous().numpy()
