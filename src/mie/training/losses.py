"""The losses of the compact editor and the segmenter."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

_C1: Final = 0.01**2
_C2: Final = 0.03**2


def overlay_loss(
    logits: Tensor, wanted: Tensor, counted: Tensor, asked: Tensor, smooth: Tensor | None = None
) -> Tensor:
    """Cross-entropy per pixel and Dice per asked colour, `(B,)`.

    `logits`, `wanted` are `(B, C, H, W)`, one map per colour; `counted (B, 1, H, W)` leaves out what lies
    beside the image; `asked (B, C)` says which maps have a Dice. `smooth (B,)` moves the cross-entropy's
    targets that far towards one half.
    """
    weight = counted.to(logits.dtype)
    area = weight.sum((1, 2, 3)).clamp(min=1)
    sure = wanted if smooth is None else wanted + smooth[:, None, None, None] * (0.5 - wanted)
    entropy = F.binary_cross_entropy_with_logits(logits, sure, reduction="none")
    # Small regions would vanish in the mean: painted pixels count by the inverse root of their share.
    share = (wanted * weight).sum((2, 3)) / area[:, None]
    boost = (0.05 / share.clamp(min=1e-4)).sqrt().clamp(1, 8)[:, :, None, None]
    entropy = (entropy * (1 + (boost - 1) * wanted) * weight).sum((1, 2, 3)) / area
    p = torch.sigmoid(logits) * weight
    w = wanted * weight
    dice = 1 - (2 * (p * w).sum((2, 3)) + 1) / (p.sum((2, 3)) + w.sum((2, 3)) + 1)
    dice = (dice * asked).sum(1) / asked.sum(1).clamp(min=1)
    return entropy + dice


def restoration_loss(output: Tensor, wanted: Tensor) -> Tensor:
    """Mean of decibels, structure and edges, `(B,)`. Decibels weigh easy and hard targets alike."""
    error = ((output - wanted) ** 2).mean((1, 2, 3))
    decibels = 10 * torch.log10(error + 1e-5) / 20
    edges = sum((_slope(output, axis) - _slope(wanted, axis)).abs().mean((1, 2, 3)) for axis in (2, 3))
    return 2.0 + decibels + 0.7 * (1 - ssim(output, wanted)) + 2 * edges


def change_loss(output: Tensor, wanted: Tensor, area: Tensor) -> Tensor:
    """Decibels and edges inside the area `(B, 1, H, W)`, `(B,)`; 0 where there is none.

    Outside it nothing counts: there the original's pixels are kept.
    """
    size = area.sum((1, 2, 3))
    error = ((output - wanted) ** 2 * area).sum((1, 2, 3)) / (3 * size).clamp(min=1)
    decibels = 10 * torch.log10(error + 1e-4) / 20
    edges = sum(
        ((_slope(output, axis) - _slope(wanted, axis)).abs() * _both(area, axis)).sum((1, 2, 3))
        for axis in (2, 3)
    ) / (3 * size).clamp(min=1)
    return (2.0 + decibels + 2 * edges) * (size > 0)


class Texture:
    """How much the grain of a fill differs from the truth's, whatever its place.

    A mean is smooth; tissue is not. Random zero-mean filters at two scales are applied, and the logarithm of
    the energy of each inside the area is compared, so that too smooth and too rough cost alike.
    """

    def __init__(self, device: torch.device | str, filters: int = 24, size: int = 5) -> None:
        draw = torch.Generator().manual_seed(0)
        bank = torch.randn(filters, 1, size, size, generator=draw)
        bank = bank - bank.mean((2, 3), keepdim=True)
        self.bank = (bank / bank.square().sum((2, 3), keepdim=True).sqrt()).to(device)

    def __call__(self, output: Tensor, wanted: Tensor, area: Tensor) -> Tensor:
        """`(B,)` of `(B, 3, H, W)` in [0, 1] and `(B, 1, H, W)`; 0 where there is no area."""
        cost = output.new_zeros(len(output))
        a, b = output.mean(1, keepdim=True), wanted.mean(1, keepdim=True)
        inside = area
        for scale in range(2):
            if scale:
                a, b, inside = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2), F.max_pool2d(inside, 2)
            ratio = torch.log((self._energy(a, inside) + 1e-5) / (self._energy(b, inside) + 1e-5))
            cost = cost + ratio.abs().mean(1) / 2
        return cost * (area.sum((1, 2, 3)) > 0)

    def _energy(self, image: Tensor, area: Tensor) -> Tensor:
        """`(B, filters)`: mean square of each filter's response inside the area."""
        responses = F.conv2d(image, self.bank, padding=self.bank.shape[-1] // 2).square()
        return (responses * area).sum((2, 3)) / area.sum((2, 3)).clamp(min=1)


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


def _both(area: Tensor, axis: int) -> Tensor:
    """1 where a pixel and the next along `axis` are both in the area."""
    count = area.shape[axis] - 1
    return area.narrow(axis, 0, count) * area.narrow(axis, 1, count)
