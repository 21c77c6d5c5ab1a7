"""Random views of images and masks, on the GPU, every number drawn from one generator.

Perception: one affine map with a slow warp moves image and mask together; then the image's contrast, colour,
sharpness and noise change as they do between scanners, stains and cameras. Restoration pairs are only
cropped, flipped and turned by quarters: grain and streaks must stay what they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_TURNED: Final = ("microscopy", "dermoscopy", "endoscopy")  # pictures without an upright
_SIDED: Final = ("left", "right")


def may_turn(modality: str) -> bool:
    """Whether such an image may be turned freely and stood on its head."""
    return modality in _TURNED


def may_flip(target: str) -> bool:
    """Whether an image may be mirrored without giving the target a wrong name."""
    return not any(word in target.split() for word in _SIDED)


@dataclass(frozen=True, slots=True)
class Draw:
    """Numbers per image of a batch, from one generator."""

    count: int
    generator: torch.Generator

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        size = (self.count, *shape)
        u = torch.rand(size, generator=self.generator, device=self.generator.device)
        return low + (high - low) * u

    def normal(self, *shape: int) -> Tensor:
        return torch.randn((self.count, *shape), generator=self.generator, device=self.generator.device)

    def chance(self, share: float | Tensor) -> Tensor:
        return self.uniform(0, 1) < share


def moved(
    draw: Draw,
    images: Tensor,
    masks: Tensor,
    filled: Tensor,
    *,
    side: int,
    window: Tensor,
    flips: Tensor,
    turns: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Images `(B, C, S, S)` and masks `(B, 1, S, S)` seen through random windows of `side` pixels.

    `window` is the share of the square that a view spans (1: all of it), `flips` and `turns` say which images
    may be mirrored and freely turned, `filled (B, 2)` how much of the square the image fills. Third result:
    `(B, 1, side, side)`, where the view shows the image and not its repeated edge.
    """
    b = draw.count
    angle = draw.uniform(-1, 1) * torch.where(turns, math.pi, math.radians(25))
    angle = torch.where(draw.chance(0.75) | turns, angle, torch.zeros_like(angle))
    zoom = window * torch.exp(draw.uniform(-0.3, 0.25))
    stretch = torch.exp(draw.uniform(-0.12, 0.12))
    mirror = torch.where(draw.chance(0.5) & flips, -1.0, 1.0)
    upside = torch.where(draw.chance(0.5) & turns, -1.0, 1.0)
    # A window smaller than the image may lie anywhere in it; a whole view only shifts a little.
    room = (filled.flip(1) - zoom[:, None]).clamp(min=0) + 0.08
    centre = draw.uniform(-1, 1, 2) * room
    cos, sin = torch.cos(angle), torch.sin(angle)
    theta = torch.zeros(b, 2, 3, device=images.device)
    theta[:, 0, 0], theta[:, 0, 1] = cos * zoom * stretch * mirror, -sin * zoom * upside
    theta[:, 1, 0], theta[:, 1, 1] = sin * zoom * stretch * mirror, cos * zoom * upside
    theta[:, :, 2] = centre
    grid = F.affine_grid(theta, [b, 1, side, side], align_corners=False)
    bend = draw.normal(2, 5, 5) * (draw.chance(0.35)[:, None, None, None] * 0.03)
    grid = grid + F.interpolate(bend, size=(side, side), mode="bicubic").permute(0, 2, 3, 1)
    seen = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    mask = F.grid_sample(masks, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    inside = (grid.abs() <= filled.flip(1)[:, None, None, :]).all(-1)[:, None]
    return seen, mask, inside


def recoloured(draw: Draw, images: Tensor, grey: Tensor) -> Tensor:
    """Contrast, gamma, colour, blur, coarse pixels and noise; `grey (B,)` images stay grey."""

    def per(x: Tensor) -> Tensor:
        return x[:, None, None, None]

    x = images
    mean = x.mean((1, 2, 3), keepdim=True)
    gain = torch.exp(draw.uniform(-0.35, 0.35))
    x = (x - mean) * per(gain) + mean + per(draw.uniform(-0.12, 0.12))
    tint = torch.exp(draw.normal(3) * 0.08) * (1 - grey.float()[:, None]) + grey.float()[:, None]
    x = x * tint[:, :, None, None]
    level = x.mean(1, keepdim=True)
    fade = torch.where(grey, torch.ones_like(gain), draw.uniform(0.5, 1.4))
    fade = torch.where(draw.chance(0.05), torch.zeros_like(fade), fade)
    x = level + (x - level) * per(fade)
    gamma = torch.exp(draw.uniform(-0.45, 0.45) * draw.chance(0.7))
    x = x.clamp(1e-4, 1) ** per(gamma)
    blurred = _blur(x)
    amount = draw.uniform(0, 1) * draw.chance(0.2)
    sharper = draw.uniform(0, 0.8) * draw.chance(0.15)
    x = x + per(amount - sharper) * (blurred - x)
    coarse = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
    x = torch.where(per(draw.chance(0.12)), coarse, x)
    noise = draw.normal(3, *x.shape[2:])
    noise = torch.where(per(grey), noise[:, :1], noise)
    x = x + noise * per(draw.uniform(0, 0.05) * draw.chance(0.3))
    return x.clamp(0, 1)


def cropped(draw: Draw, pairs: Tensor, side: int, turns: Tensor) -> Tensor:
    """The same random window, mirror and quarter turn of `(B, C, S, S)`; `turns` may be upside down too."""
    b, _, s, _ = pairs.shape
    if s > side:
        at = (draw.uniform(0, 1, 2) * (s - side + 1)).long().clamp(max=s - side)
        rows = at[:, :1] + torch.arange(side, device=pairs.device)
        columns = at[:, 1:] + torch.arange(side, device=pairs.device)
        each = torch.arange(b, device=pairs.device)[:, None, None]
        pairs = pairs.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    pairs = torch.where(draw.chance(0.5)[:, None, None, None], pairs.flip(3), pairs)
    pairs = torch.where((draw.chance(0.5) & turns)[:, None, None, None], pairs.flip(2), pairs)
    return torch.where((draw.chance(0.5) & turns)[:, None, None, None], pairs.transpose(2, 3), pairs)


def _blur(x: Tensor) -> Tensor:
    taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=x.device) / 16
    c = x.shape[1]
    x = F.conv2d(F.pad(x, (2, 2, 0, 0), mode="replicate"), taps.view(1, 1, 1, 5).expand(c, 1, 1, 5), groups=c)
    return F.conv2d(
        F.pad(x, (0, 0, 2, 2), mode="replicate"), taps.view(1, 1, 5, 1).expand(c, 1, 5, 1), groups=c
    )
