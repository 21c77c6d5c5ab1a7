"""An image continued smoothly into its holes, from ever coarser means (pull-push): where networks begin."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def continued(image: Tensor, known: Tensor, halvings: int | None = None) -> Tensor:
    """The image; where it is not `known (B, 1, H, W)`, what its neighbours give at ever coarser scales.

    It is halved until a side is one pixel. With `halvings` it is halved so often whatever its size, so that a
    graph for all sizes can be exported. The hole's content does not matter.
    """
    levels = [(image * known, known)]
    while min(levels[-1][1].shape[2:]) > 1 if halvings is None else len(levels) <= halvings:
        value, weight = (F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False) for x in levels[-1])
        levels.append(_counted(value, weight))
    # Whatever no halving reached gets the mean of all that is known.
    value, weight = _counted(*(x.mean((2, 3), keepdim=True) for x in levels[-1]))
    coarse = value / weight.clamp(min=1e-6)
    for value, weight in reversed(levels):
        coarse = F.interpolate(coarse, size=weight.shape[2:], mode="bilinear", align_corners=False)
        coarse = value + (1 - weight) * coarse
    return coarse


def _counted(value: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A coarse pixel counts in full as soon as a quarter of it is known."""
    full = (4 * weight).clamp(max=1)
    return value / weight.clamp(min=1e-6) * full, full
