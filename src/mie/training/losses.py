"""What the compact editor is trained to do, as numbers to make small."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_C1: Final = 0.01**2
_C2: Final = 0.03**2


def overlay_loss(logits: Tensor, wanted: Tensor, counted: Tensor, asked: Tensor) -> Tensor:
    """Cross-entropy per pixel and Dice per asked colour, `(B,)`.

    `logits`, `wanted` are `(B, C, H, W)`, one map per colour; `counted (B, 1, H, W)` leaves out what lies
    beside the image; `asked (B, C)` says which maps have a Dice.
    """
    weight = counted.to(logits.dtype)
    area = weight.sum((1, 2, 3)).clamp(min=1)
    entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    # Small regions would vanish in the mean: painted pixels count by the inverse root of their share.
    share = (wanted * weight).sum((2, 3)) / area[:, None]
    boost = (0.05 / share.clamp(min=1e-4)).sqrt().clamp(1, 8)[:, :, None, None]
    entropy = (entropy * (1 + (boost - 1) * wanted) * weight).sum((1, 2, 3)) / area
    p = torch.sigmoid(logits) * weight
    w = wanted * weight
    dice = 1 - (2 * (p * w).sum((2, 3)) + 1) / (p.sum((2, 3)) + w.sum((2, 3)) + 1)
    dice = (dice * asked).sum(1) / asked.sum(1).clamp(min=1)
    return entropy + dice


def restoration_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """Mean of decibels, structure and edges, `(B,)`. Decibels weigh easy and hard targets alike."""
    error = ((made - wanted) ** 2).mean((1, 2, 3))
    decibels = 10 * torch.log10(error + 1e-5) / 20
    edges = sum((_slope(made, axis) - _slope(wanted, axis)).abs().mean((1, 2, 3)) for axis in (2, 3))
    return 2.0 + decibels + 0.7 * (1 - ssim(made, wanted)) + 2 * edges


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """The protocol's SSIM (7x7 uniform window), of images in [0, 1], as a differentiable mean per image."""
    n = 49 / 48
    mean_a, mean_b = F.avg_pool2d(a, 7, 1), F.avg_pool2d(b, 7, 1)
    var_a = (F.avg_pool2d(a * a, 7, 1) - mean_a**2) * n
    var_b = (F.avg_pool2d(b * b, 7, 1) - mean_b**2) * n
    both = (F.avg_pool2d(a * b, 7, 1) - mean_a * mean_b) * n
    top = (2 * mean_a * mean_b + _C1) * (2 * both + _C2)
    return (top / ((mean_a**2 + mean_b**2 + _C1) * (var_a + var_b + _C2))).mean((1, 2, 3))


def _slope(x: Tensor, axis: int) -> Tensor:
    return x.diff(dim=axis)
