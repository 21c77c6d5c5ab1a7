"""The flow expert: one network for all families that draws tissue, or a lesion by name, into a hole.

Flow matching in pixels (Lipman et al. 2023): x_t = (1 - t) noise + t x inside the hole, and the network says
x - noise. Drawn is not the image but what it adds to a smooth fill, in units of the grain around the hole: so
noise and picture are of one size whatever the contrast, and a few steps suffice.

Colours are luma and two differences; those of a grey image are zero and stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mie.images.families import GREY
from mie.networks.fill import gaussian_blur, pull_push

FORMAT: Final = "flow 1"
STRIDE: Final = 8  # the sides of what the network sees are multiples of it
SIDE: Final = 128  # what it was trained on
HEALTHY: Final = "healthy"
_DETAIL: Final = 6.0  # standard deviation in pixels: what changes faster is grain
_NEAR: Final = 10.0  # standard deviation in pixels: how near to the hole grain is measured
_LEAST: Final = (4 / 255, 2 / 255, 2 / 255)  # grain of a flat image: of luma and of both differences
_MOST: Final = 6.0  # of the grain: the context's detail is cut off there
_SEEN: Final = 11  # channels: what is drawn, smooth fill and detail (3 each), hole, lesion
_FREQUENCIES: Final = 32


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """`targets`: the names of the lesions; "healthy" is not among them. Widths at strides 2, 4 and 8."""

    targets: tuple[str, ...]
    families: tuple[str, ...]
    widths: tuple[int, int, int] = (64, 160, 256)
    down: tuple[int, int, int] = (1, 2, 2)
    up: tuple[int, int, int] = (2, 2, 2)
    embedding: int = 256

    def as_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FlowConfig:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items()}
        return cls(**fields)

    def target(self, name: str | None) -> int:
        """The number of a target: 0 is none (dropped for guidance), 1 is healthy."""
        return 0 if name is None else 1 if name == HEALTHY else 2 + self.targets.index(name)


class Conditions(NamedTuple):
    """What is to be drawn, `(B,)` each. `contrast` is a lesion's mean luma above its surroundings' in
    [-1, 1], NaN where it is not given.
    """

    family: Tensor
    target: Tensor
    contrast: Tensor


class Scene(NamedTuple):
    """What surrounds a hole; float32."""

    hole: Tensor  # (B, 1, H, W) of 0 and 1
    smooth: Tensor  # (B, 3, H, W) in colour differences; outside the hole it is the image
    scale: Tensor  # (B, 3, 1, 1): the grain's strength around the hole
    context: Tensor  # (B, 8, H, W): what the network sees besides what it draws

    def residual(self, image: Tensor) -> Tensor:
        """What `image` (RGB) adds to the smooth fill, in units of the grain; zero outside the hole."""
        return self.hole * (differences(image) - self.smooth) / self.scale

    def compose(self, drawn: Tensor) -> Tensor:
        """RGB in [0, 1] with `drawn` in the hole."""
        return colours(self.smooth + self.hole * self.scale * drawn).clamp(0, 1)


def differences(image: Tensor) -> Tensor:
    """RGB as mean, (R - B) / 2 and (2 G - R - B) / 4; the last two of grey are exactly zero."""
    red, green, blue = image.unbind(1)
    return torch.stack([(red + green + blue) / 3, (red - blue) / 2, green / 2 - (red + blue) / 4], 1)


def colours(values: Tensor) -> Tensor:
    """The inverse of `differences`."""
    mean, across, green = values.unbind(1)
    rest = mean - 2 / 3 * green
    return torch.stack([rest + across, mean + 4 / 3 * green, rest - across], 1)


def scene(image: Tensor, hole: Tensor, lesion: Tensor) -> Scene:
    """`image (B, 3, H, W)` in [0, 1], `hole` and `lesion (B, 1, H, W)` of 0 and 1.

    What the image shows under the hole has no influence.
    """
    known = 1 - hole
    smooth = pull_push(differences(image * known), known)
    detail = smooth - gaussian_blur(smooth, _DETAIL)
    # A hole's own smooth fill says nothing of the grain; the nearest tissue says most.
    weight = known * (gaussian_blur(hole, _NEAR) + 1e-4)
    power = (weight * detail**2).sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp(min=1e-9)
    least = torch.tensor(_LEAST, device=image.device).view(1, 3, 1, 1)
    scale = torch.maximum(power.sqrt(), least)
    shown = (detail / scale).clamp(-_MOST, _MOST)
    middle = torch.tensor([0.5, 0.0, 0.0], device=image.device).view(1, 3, 1, 1)
    return Scene(hole, smooth, scale, torch.cat([4 * (smooth - middle), shown, hole, lesion], 1))


class FlowNet(nn.Module):
    """`(x, t, context, conditions)` to the velocity `(B, 3, H, W)`; a U-Net on 2x2 pixel blocks."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        a, b, c = config.widths
        e = config.embedding
        self.family = nn.Embedding(len(config.families), e)
        self.target = nn.Embedding(2 + len(config.targets), e)
        # Channels that are drawn, by family: a grey image has no colour differences.
        drawn = [[1.0, 0.0, 0.0] if name in GREY else [1.0, 1.0, 1.0] for name in config.families]
        self.register_buffer("drawn", torch.tensor(drawn), persistent=False)
        self.time = nn.Sequential(nn.Linear(2 * _FREQUENCIES + 2, e), nn.SiLU(), nn.Linear(e, e))
        for table in (self.family, self.target):
            nn.init.normal_(table.weight, std=0.3)
        self.stem = nn.Conv2d(4 * _SEEN, a, 3, padding=1)
        widths = (a, b, c)
        self.encode = nn.ModuleList(_stack(w, n, e) for w, n in zip(widths, config.down, strict=True))
        self.shrink = nn.ModuleList([nn.Conv2d(a, b, 2, 2), nn.Conv2d(b, c, 2, 2)])
        self.middle = nn.ModuleList([_Block(c, e), _Attention(c), _Block(c, e)])
        self.join = nn.ModuleList(nn.Conv2d(2 * w, w, 1) for w in widths)
        self.decode = nn.ModuleList(_stack(w, n, e) for w, n in zip(widths, config.up, strict=True))
        self.grow = nn.ModuleList([nn.Conv2d(b, 4 * a, 1), nn.Conv2d(c, 4 * b, 1)])
        self.norm = nn.GroupNorm(8, a)
        self.last = nn.Conv2d(a, 12, 3, padding=1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, t: Tensor, context: Tensor, conditions: Conditions) -> Tensor:
        e = F.silu(self._embedding(t, conditions))
        y = self.stem(F.pixel_unshuffle(torch.cat([x, context], 1), 2))
        skips: list[Tensor] = []
        for level, blocks in enumerate(self.encode):
            if level:
                y = self.shrink[level - 1](y)
            for block in cast("nn.ModuleList", blocks):
                y = block(y, e)
            skips.append(y)
        first, attention, second = self.middle
        y = second(attention(first(y, e)), e)
        for level in (2, 1, 0):
            y = self.join[level](torch.cat([y, skips[level]], 1))
            for block in cast("nn.ModuleList", self.decode[level]):
                y = block(y, e)
            if level:
                y = F.pixel_shuffle(self.grow[level - 1](y), 2)
        velocity: Tensor = F.pixel_shuffle(self.last(F.silu(self.norm(y))), 2)
        return velocity

    def channels(self, family: Tensor) -> Tensor:
        """`(B, 3, 1, 1)`: 1 for the channels that are drawn, 0 for those that stay the smooth fill's."""
        drawn: Tensor = self.drawn[family][:, :, None, None]  # type: ignore[index]
        return drawn

    def _embedding(self, t: Tensor, conditions: Conditions) -> Tensor:
        rates = torch.exp(torch.linspace(0, math.log(200.0), _FREQUENCIES, device=t.device))
        waves = t[:, None] * rates
        given = ~conditions.contrast.isnan()
        contrast = torch.stack([torch.where(given, conditions.contrast, 0.0), given.float()], 1)
        numbers = self.time(torch.cat([waves.sin(), waves.cos(), contrast], 1))
        embedded: Tensor = numbers + self.family(conditions.family) + self.target(conditions.target)
        return embedded


def velocity_target(residual: Tensor, noise: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """A point between noise and picture at the times `t (B,)`, and the velocity there."""
    at = t.view(-1, 1, 1, 1)
    return (1 - at) * noise + at * residual, residual - noise


@torch.no_grad()
def draw(
    net: Callable[..., Tensor],
    around: Scene,
    conditions: Conditions,
    noise: Tensor,
    *,
    steps: int,
    guidance: float = 1.0,
    start: Tensor | None = None,
    since: float = 0.0,
) -> Tensor:
    """Follow the flow from noise to what is drawn in the hole.

    Two-step Adams-Bashforth, one evaluation a step. With `start`, what was drawn at a coarser scale is noised
    to the time `since` and drawn on from there. `guidance` above 1 exaggerates what the
    target's name changes.
    """
    x = noise if start is None else (1 - since) * noise + since * start
    times = since + (1 - since) * torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    before: Tensor | None = None
    width = 1.0
    for now, after in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        t = torch.full((len(x),), now, device=x.device)
        velocity = net(around.hole * x, t, around.context, conditions)
        if guidance != 1:
            unnamed = conditions._replace(target=torch.zeros_like(conditions.target))
            plain = net(around.hole * x, t, around.context, unnamed)
            velocity = plain + guidance * (velocity - plain)
        step = after - now
        slope = velocity if before is None else velocity + step / (2 * width) * (velocity - before)
        x, before, width = x + step * slope, velocity, step
    return x


class _Block(nn.Module):
    """Two convolutions as a residual; the conditions scale and shift between them."""

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.before, self.first = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.modulate = nn.Linear(embedding, 2 * width)
        self.between, self.second = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        gain, shift = self.modulate(e)[:, :, None, None].chunk(2, 1)
        y = self.between(self.first(F.silu(self.before(x)))) * (1 + gain) + shift
        out: Tensor = x + self.second(F.silu(y))
        return out


class _Attention(nn.Module):
    _HEADS: Final = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.queries, self.last = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, across = x.shape
        parts = self.queries(self.norm(x)).view(batch, 3, self._HEADS, width // self._HEADS, height * across)
        query, key, value = parts.transpose(3, 4).unbind(1)
        seen = F.scaled_dot_product_attention(query, key, value).transpose(2, 3)
        out: Tensor = x + self.last(seen.reshape(batch, width, height, across))
        return out


def _stack(width: int, count: int, embedding: int) -> nn.ModuleList:
    return nn.ModuleList(_Block(width, embedding) for _ in range(count))
