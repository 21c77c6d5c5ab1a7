"""Random views of images and masks, on the GPU, every number drawn from one generator.

Images to paint on: one affine map with a smooth warp moves image and mask together; then the image's
contrast, colour, sharpness and noise change as they do between scanners, stains and cameras. Pairs are only
cropped, flipped and turned by quarters: grain and streaks must stay what they are. How far the views of the
first kind go is a `Strength`: `usual`, or `strong` against memorising small data sets.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

_TURNED: Final = ("microscopy", "dermoscopy", "endoscopy")  # pictures without an upright
_SIDED: Final = ("left", "right")


def may_turn(modality: str) -> bool:
    """Whether such an image may be turned freely and upside down."""
    return modality in _TURNED


def may_flip(target: str) -> bool:
    """Whether an image may be mirrored without giving the target a wrong name."""
    return not any(word in target.split() for word in _SIDED)


@dataclass(frozen=True, slots=True)
class Strength:
    """How far a view may go from the picture. Chances are per image; logarithms are of factors."""

    zoom: tuple[float, float] = (-0.3, 0.25)  # log
    turn: float = 25.0  # degrees, of upright pictures
    bend: tuple[float, float] = (0.35, 0.03)  # chance, and its size as a share of half the view
    perspective: float = 0.0  # standard deviation of the change of scale across the view
    contrast: float = 0.35  # log
    brightness: float = 0.12
    gamma: float = 0.45  # log
    curve: float = 0.0  # chance of a random intensity curve
    blur: float = 0.2  # chance
    coarse: tuple[float, float] = (0.12, 0.0)  # chance of half, and of a quarter of the resolution
    noise: tuple[float, float] = (0.3, 0.05)  # chance, and its largest standard deviation
    cutout: float = 0.0  # chance of a hidden rectangle
    mix: float = 0.0  # chance of taking on the histogram of another picture of the modality


STRENGTHS: Final = {
    "usual": Strength(),
    # Noise and coarse pixels must not hide a lesion of ten pixels or ten grey levels: its mask stays.
    "strong": Strength(
        zoom=(-0.5, 0.47),
        turn=40.0,
        bend=(0.5, 0.045),
        perspective=0.08,
        contrast=0.5,
        brightness=0.16,
        gamma=0.6,
        curve=0.35,
        blur=0.3,
        coarse=(0.15, 0.03),
        noise=(0.4, 0.05),
        cutout=0.25,
        mix=0.35,
    ),
}


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


def warp(
    draw: Draw,
    images: Tensor,
    masks: Tensor,
    filled: Tensor,
    *,
    side: int,
    window: Tensor,
    flips: Tensor,
    turns: Tensor,
    strength: Strength = STRENGTHS["usual"],
) -> tuple[Tensor, Tensor, Tensor]:
    """View images `(B, C, S, S)` and masks `(B, 1, S, S)` through random windows of `side` pixels.

    `window` is the share of the square that a view spans (1: all of it), `flips` and `turns` say which images
    may be mirrored and freely turned, `filled (B, 2)` how much of the square the image fills. Third result:
    `(B, 1, side, side)`, where the view shows the image and not its repeated edge.
    """
    b = draw.count
    angle = draw.uniform(-1, 1) * torch.where(turns, math.pi, math.radians(strength.turn))
    angle = torch.where(draw.chance(0.75) | turns, angle, torch.zeros_like(angle))
    zoom = window * torch.exp(draw.uniform(*strength.zoom))
    stretch = torch.exp(draw.uniform(-0.12, 0.12))
    mirror = torch.where(draw.chance(0.5) & flips, -1.0, 1.0)
    # A window smaller than the image may lie anywhere in it; a whole view only shifts a little.
    slack = (filled.flip(1) - zoom[:, None]).clamp(min=0) + 0.08
    centre = draw.uniform(-1, 1, 2) * slack
    cos, sin = torch.cos(angle), torch.sin(angle)
    theta = torch.zeros(b, 2, 3, device=images.device)
    theta[:, 0, 0], theta[:, 0, 1] = cos * zoom * stretch * mirror, -sin * zoom
    theta[:, 1, 0], theta[:, 1, 1] = sin * zoom * stretch * mirror, cos * zoom
    theta[:, :, 2] = centre
    grid = F.affine_grid(theta, [b, 1, side, side], align_corners=False)
    if strength.perspective:
        grid = _tilted(draw, grid, centre, strength.perspective)
    often, far = strength.bend
    bend = draw.normal(2, 5, 5) * (draw.chance(often)[:, None, None, None] * far)
    grid = grid + F.interpolate(bend, size=(side, side), mode="bicubic").permute(0, 2, 3, 1)
    seen = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    mask = F.grid_sample(masks, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    inside = (grid.abs() <= filled.flip(1)[:, None, None, :]).all(-1)[:, None]
    return seen, mask, inside


def _tilted(draw: Draw, grid: Tensor, centre: Tensor, size: float) -> Tensor:
    """The grid `(B, S, S, 2)` as seen at an angle: its scale changes across the view, its middle stays."""
    slope = (draw.normal(2) * size).clamp(-0.3, 0.3)
    at = torch.linspace(-1, 1, grid.shape[1], device=grid.device)
    across = slope[:, 0, None, None] * at[None, None, :] + slope[:, 1, None, None] * at[None, :, None]
    middle = centre[:, None, None, :]
    return middle + (grid - middle) / (1 + across[..., None])


def recolour(draw: Draw, images: Tensor, grey: Tensor, strength: Strength = STRENGTHS["usual"]) -> Tensor:
    """Change contrast, gamma, colour, sharpness, resolution and noise; `grey (B,)` images stay grey."""

    def per(x: Tensor) -> Tensor:
        return x[:, None, None, None]

    x = images
    mean = x.mean((1, 2, 3), keepdim=True)
    gain = torch.exp(draw.uniform(-strength.contrast, strength.contrast))
    x = (x - mean) * per(gain) + mean + per(draw.uniform(-strength.brightness, strength.brightness))
    tint = torch.exp(draw.normal(3) * 0.08) * (1 - grey.float()[:, None]) + grey.float()[:, None]
    x = x * tint[:, :, None, None]
    level = x.mean(1, keepdim=True)
    fade = torch.where(grey, torch.ones_like(gain), draw.uniform(0.5, 1.4))
    fade = torch.where(draw.chance(0.05), torch.zeros_like(fade), fade)
    x = level + (x - level) * per(fade)
    gamma = torch.exp(draw.uniform(-strength.gamma, strength.gamma) * draw.chance(0.7))
    x = x.clamp(1e-4, 1) ** per(gamma)
    if strength.curve:
        x = torch.where(per(draw.chance(strength.curve)), _random_curve(draw, x), x)
    blurred = _blur(x)
    amount = draw.uniform(0, 1) * draw.chance(strength.blur)
    sharper = draw.uniform(0, 0.8) * draw.chance(0.15)
    x = x + per(amount - sharper) * (blurred - x)
    coarse = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
    often, seldom = strength.coarse
    x = torch.where(per(draw.chance(often)), coarse, x)
    if seldom:
        coarser = F.interpolate(F.avg_pool2d(x, 4), scale_factor=4.0, mode="bilinear", align_corners=False)
        x = torch.where(per(draw.chance(seldom)), coarser, x)
    noise = draw.normal(3, *x.shape[2:])
    noise = torch.where(per(grey), noise[:, :1], noise)
    often, loud = strength.noise
    x = x + noise * per(draw.uniform(0, loud) * draw.chance(often))
    return x.clamp(0, 1)


_KNOTS: Final = 8


def _random_curve(draw: Draw, x: Tensor) -> Tensor:
    """Through a rising piecewise linear curve from 0 to 1, the same for all channels."""
    steps = torch.exp(0.7 * draw.normal(_KNOTS))
    curve = F.pad((steps / steps.sum(1, keepdim=True)).cumsum(1), (1, 0))
    return _through(x, torch.linspace(0, 1, _KNOTS + 1, device=x.device).expand_as(curve), curve)


def _through(x: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    """`x (B, ...)` through piecewise linear curves from `given` to `wanted`, both `(B, K)` and rising."""
    flat = x.flatten(1).contiguous()
    at = torch.searchsorted(given.contiguous(), flat).clamp(1, given.shape[1] - 1)
    low, high = given.gather(1, at - 1), given.gather(1, at)
    share = ((flat - low) / (high - low).clamp(min=1e-4)).clamp(0, 1)
    start, end = wanted.gather(1, at - 1), wanted.gather(1, at)
    return (start + share * (end - start)).view_as(x)


def mix_histograms(draw: Draw, images: Tensor, partner: Tensor, chance: float) -> Tensor:
    """Give some images `(B, C, S, S)`, by a random part, the histogram of `images[partner]`.

    Each channel goes through the curve that leads from its own 33 quantiles to its partner's. A partner must
    be grey where the image is.
    """
    b, c = images.shape[:2]
    few = images[:, :, ::4, ::4].flatten(2).sort(2).values
    at = torch.linspace(0, few.shape[2] - 1, 33, device=images.device).long()
    own = few[:, :, at]
    other = own.index_select(0, partner)
    matched = _through(
        images.reshape(b * c, *images.shape[2:]), own.reshape(b * c, -1), other.reshape(b * c, -1)
    ).view_as(images)
    amount = draw.uniform(0, 1) * draw.chance(chance)
    return images + amount[:, None, None, None] * (matched - images)


def cut_out(draw: Draw, images: Tensor, counted: Tensor, chance: float) -> tuple[Tensor, Tensor]:
    """Cut a rectangle out of some images, filled with one grey; there nothing is `counted (B, 1, S, S)`."""
    side = images.shape[-1]
    size = draw.uniform(0.1, 0.35, 2) * side
    start = draw.uniform(0, 1, 2) * (side - size)
    at = torch.arange(side, device=images.device)
    inside = (at >= start[..., None]) & (at < (start + size)[..., None])  # (B, 2, S)
    hidden = (inside[:, 0, :, None] & inside[:, 1, None, :])[:, None]
    hidden = hidden & draw.chance(chance)[:, None, None, None]
    value = draw.uniform(0, 1)[:, None, None, None]
    return torch.where(hidden, value, images), counted & ~hidden


def crop_pairs(
    draw: Draw,
    pairs: Tensor,
    side: int,
    turns: Tensor,
    flips: Tensor | None = None,
    around: Tensor | None = None,
) -> Tensor:
    """Take the same random window, mirror and quarter turn of `(B, C, S, S)`; `turns` may be upside down too.

    `flips (B,)` says which may be mirrored (all by default). A window lies anywhere, or, with `around (B, 2)`
    in pixels (row, column), so that this point is in it and not near its rim.
    """
    b, _, s, _ = pairs.shape
    if s > side:
        at = draw.uniform(0, 1, 2) * (s - side + 1)
        if around is not None:
            at = around - side / 2 + (draw.uniform(-0.25, 0.25, 2) * side)
        at = at.long().clamp(0, s - side)
        rows = at[:, :1] + torch.arange(side, device=pairs.device)
        columns = at[:, 1:] + torch.arange(side, device=pairs.device)
        each = torch.arange(b, device=pairs.device)[:, None, None]
        pairs = pairs.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    mirror = draw.chance(0.5)
    mirror = mirror if flips is None else mirror & flips
    pairs = torch.where(mirror[:, None, None, None], pairs.flip(3), pairs)
    pairs = torch.where((draw.chance(0.5) & turns)[:, None, None, None], pairs.flip(2), pairs)
    return torch.where((draw.chance(0.5) & turns)[:, None, None, None], pairs.transpose(2, 3), pairs)


def milder(draw: Draw, pairs: Tensor, scales: Tensor, chance: float) -> Tensor:
    """Show the input of some pairs `(B, 6, S, S)`, input and goal, with a part of its difference to the goal.

    `scales (B,)` says where that makes sense. From nothing to all of it: where little is wrong, little must
    be done.
    """
    image, goal = pairs[:, :3], pairs[:, 3:]
    amount = torch.where(draw.chance(chance) & scales, draw.uniform(0, 1), 1.0)[:, None, None, None]
    return torch.cat([goal + amount * (image - goal), goal], 1)


@functools.cache
def _taps(device: torch.device) -> Tensor:
    """Copied once, because the host waits for the device meanwhile."""
    return torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=device) / 16


def _blur(x: Tensor) -> Tensor:
    taps = _taps(x.device)
    c = x.shape[1]
    x = F.conv2d(F.pad(x, (2, 2, 0, 0), mode="replicate"), taps.view(1, 1, 1, 5).expand(c, 1, 1, 5), groups=c)
    return F.conv2d(
        F.pad(x, (0, 0, 2, 2), mode="replicate"), taps.view(1, 1, 5, 1).expand(c, 1, 5, 1), groups=c
    )
