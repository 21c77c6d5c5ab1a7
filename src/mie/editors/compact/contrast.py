"""An image as far as it differs from its surroundings: faint lesions stand out, whatever the window was."""

from __future__ import annotations

from typing import Final

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_AROUND: Final = 31  # pixels, the window's side
_FAINT: Final = 0.01  # of the range of grey: smaller differences are noise
_MOST: Final = 3.0  # standard deviations


def local_contrast(image: Tensor) -> Tensor:
    """`(B, 1, H, W)` in [-1, 1] of `(B, 3, H, W)` in [0, 1]: grey minus its mean around, by its deviation.

    In a brain CT whose window is wide enough for bone, a stroke is one or two grey levels of 255; that is
    less than bfloat16 keeps of a grey near one half, so this is computed in float32.
    """
    grey = image.float().mean(1, keepdim=True)
    away = grey - _around(grey)
    deviation = (_around(away.square()) + _FAINT**2).sqrt()
    return (away / deviation).clamp(-_MOST, _MOST) / _MOST


def _around(x: Tensor) -> Tensor:
    """The mean over a square window; beyond the edge nothing counts."""
    half = _AROUND // 2
    x = F.avg_pool2d(x, (_AROUND, 1), 1, (half, 0), count_include_pad=False)
    return F.avg_pool2d(x, (1, _AROUND), 1, (0, half), count_include_pad=False)
