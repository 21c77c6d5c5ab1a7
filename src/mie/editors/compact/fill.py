"""A smooth surface over a hole, the network's starting point: what lies around it, averaged more and more."""

from __future__ import annotations

from typing import Final

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_LEVELS: Final = 5  # each halves the image: its sides are multiples of 32


def smooth_fill(image: Tensor, hole: Tensor) -> Tensor:
    """`(B, 3, H, W)` with the hole `(B, 1, H, W)`, 1 inside, filled; outside every pixel is as it was.

    Push-pull: known pixels are averaged down a pyramid, and what is missing at a level comes from the level
    above it; from the mean of all known pixels where even the coarsest knows nothing. What lay under the hole
    has no influence.
    """
    known = 1 - hole
    levels = [(image * known, known)]
    for _ in range(_LEVELS):
        levels.append((F.avg_pool2d(levels[-1][0], 2), F.avg_pool2d(levels[-1][1], 2)))
    value, share = levels[-1]
    mean = value.mean((2, 3), keepdim=True) / share.mean((2, 3), keepdim=True).clamp(min=1e-6)
    value = value + (1 - share) * mean
    for part, share in reversed(levels[:-1]):
        above = F.interpolate(value, scale_factor=2.0, mode="bilinear", align_corners=False)
        value = part + (1 - share) * above
    return value
