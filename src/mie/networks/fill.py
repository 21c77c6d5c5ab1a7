"""The network that fills a hole with tissue, and the smooth fill that networks start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRIDE: Final = 8
_GRAIN: Final = 3.0  # pixels: what changes more slowly belongs to the mean


def pull_push(image: Tensor, known: Tensor, halvings: int | None = None) -> Tensor:
    """Continue the image smoothly into what is not `known (B, 1, H, W)`, from ever coarser means.

    It is halved until a side is one pixel. With `halvings` it is halved that often whatever its size, so that
    a graph for all sizes can be exported. The hole's content does not matter.
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


@dataclass(frozen=True, slots=True)
class FillConfig:
    widths: tuple[int, int, int, int] = (32, 56, 80, 96)
    dilations: tuple[int, ...] = (1, 2, 4, 8)

    def as_json(self) -> dict[str, Any]:
        return {name: list(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FillConfig:
        a, b, c, d = (int(width) for width in body["widths"])
        return cls((a, b, c, d), tuple(int(step) for step in body["dilations"]))


class FillNet(nn.Module):
    """`(image, hole, noise) -> (mean, detail)`: a small U-Net, fully convolutional, whose sum is the fill.

    `mean` is the tissue to expect; `detail` is grain drawn from noise, which a mean cannot have. Sides are
    multiples of `STRIDE`.

    `image (B, 3, H, W)` in [0, 1], `hole (B, 1, H, W)` of 0 and 1, `noise` like `hole`, normal.
    """

    def __init__(self, config: FillConfig | None = None) -> None:
        super().__init__()
        self.config = config or FillConfig()
        a, b, c, d = self.config.widths
        self.down1 = _block(5, a)
        self.down2 = _block(a, b, stride=2)
        self.down3 = _block(b, c, stride=2)
        self.down4 = _block(c, d, stride=2)
        self.middle = nn.ModuleList([_Dilated(d, step) for step in self.config.dilations])
        self.up3 = _Up(d + c, c)
        self.up2 = _Up(c + b, b)
        self.up1 = _Up(b + a, a)
        self.mean = nn.Conv2d(a, 3, 3, padding=1)
        last = nn.Conv2d(a, 3, 3, padding=1)
        self.grain = nn.Sequential(nn.Conv2d(a + 1, a, 3, padding=1), nn.SiLU(), last)
        nn.init.zeros_(self.mean.weight)
        nn.init.normal_(last.weight, std=0.01)

    def forward(self, image: Tensor, hole: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        # What lies under the hole is gone. A smooth fill replaces it; the network corrects that.
        smooth = pull_push(image, 1 - hole)
        x1 = self.down1(torch.cat([2 * smooth - 1, hole, noise * hole], 1))
        x2 = self.down2(x1)
        x3 = self.down3(x2)
        x = self.down4(x3)
        for layer in self.middle:
            x = layer(x)
        x = self.up3(x, x3, _coarser(noise, 4))
        x = self.up2(x, x2, _coarser(noise, 2))
        x = self.up1(x, x1, noise)
        detail = self.grain(torch.cat([x, noise], 1))
        return self.mean(x) + smooth, detail - gaussian_blur(detail)


def compose(image: Tensor, hole: Tensor, mean: Tensor, detail: Tensor) -> Tensor:
    """Return the image with its hole filled; outside it is the image."""
    return image + hole * ((mean + detail).clamp(0, 1) - image)


def gaussian_blur(x: Tensor, sigma: float = _GRAIN) -> Tensor:
    """Blur `(B, C, H, W)`: what is left changes more slowly than grain."""
    radius = int(3 * sigma)
    at = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    taps = torch.exp(-0.5 * (at / sigma) ** 2)
    taps = taps / taps.sum()
    c = x.shape[1]
    x = F.pad(x, (radius, radius, radius, radius), mode="reflect")
    x = F.conv2d(x, taps.view(1, 1, 1, -1).expand(c, 1, 1, -1), groups=c)
    return F.conv2d(x, taps.view(1, 1, -1, 1).expand(c, 1, -1, 1), groups=c)


def _coarser(noise: Tensor, factor: int) -> Tensor:
    """White noise of unit variance at a lower resolution, whatever the crop."""
    return F.avg_pool2d(noise, factor) * factor


def _block(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1),
        nn.GroupNorm(8, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.SiLU(),
    )


class _Dilated(nn.Module):
    def __init__(self, width: int, step: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv = nn.Conv2d(width, width, 3, padding=step, dilation=step)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv(F.silu(self.norm(x)))
        return out


class _Up(nn.Module):
    """Twice the size, joined with the skip connection; noise is added with a strength per channel."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.strength = nn.Parameter(torch.full((outside, 1, 1), 0.05))
        self.norm = nn.GroupNorm(8, outside)

    def forward(self, x: Tensor, skip: Tensor, noise: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        x = self.first(torch.cat([x, skip], 1))
        return F.silu(self.norm(x + self.strength * noise))
