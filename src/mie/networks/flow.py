"""The flow expert: one network for all families that draws tissue, or a lesion by name, into a hole.

Flow matching in pixels (Lipman et al. 2023), in two stages. What an image adds to a smooth fill of a hole is
split into two bands: means over cells of 8 x 8 pixels (colour, brightness, shape), and the rest (texture).
The first stage draws the coarse band, the second the fine one on top of it: x_t = (1 - t) noise + t band, and
the network says band - noise. Each band is in units of its usual strength for the family and target, the fine
one also of the grain around the hole. So noise and picture are of one size whatever is drawn, and a few steps
suffice. In one band and in units of the grain alone, a pigmented lesion is 25 times as strong as the noise:
its colour would have to be settled within the first step.

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

FORMAT: Final = "flow 2"
STRIDE: Final = 8  # the sides of what the network sees are multiples of it; also the side of a cell
SIDE: Final = 128  # what it was trained on
HEALTHY: Final = "healthy"
_DETAIL: Final = 6.0  # standard deviation in pixels: what changes faster is grain
_NEAR: Final = 10.0  # standard deviation in pixels: how near to the hole grain is measured
_LEAST: Final = (4 / 255, 2 / 255, 2 / 255)  # grain of a flat image: of luma and of both differences
_MOST: Final = 6.0  # of the grain: the context's detail is cut off there
_SEEN: Final = 15  # channels: both bands, smooth fill and detail (3 each), hole, beyond the image, lesion
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
    dropout: float = 0.1  # in training, below the finest level: lesions are few

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


class Bands(NamedTuple):
    """`coarse (B, 3, H / 8, W / 8)` and `fine (B, 3, H, W)`; of strengths, `(B, 3, 1, 1)` each."""

    coarse: Tensor
    fine: Tensor


class Scene(NamedTuple):
    """What surrounds a hole; float32."""

    hole: Tensor  # (B, 1, H, W) of 0 and 1: what is drawn
    smooth: Tensor  # (B, 3, H, W) in colour differences; outside the hole it is the image
    strength: Bands
    context: Tensor  # (B, 9, H, W): what the network sees besides what it draws

    @property
    def covered(self) -> Tensor:
        """`(B, 1, H / 8, W / 8)`: the share of each cell that is drawn."""
        return F.avg_pool2d(self.hole, STRIDE)

    def added(self, image: Tensor) -> Tensor:
        """What `image` (RGB) adds to the smooth fill; zero outside the hole."""
        return self.hole * (differences(image) - self.smooth)

    def coarse(self, added: Tensor) -> Tensor:
        return F.avg_pool2d(added, STRIDE) / self.strength.coarse

    def fine(self, added: Tensor, coarse: Tensor) -> Tensor:
        """What `added` is beyond the coarse band; zero outside the hole."""
        return self.hole * (added - self.strength.coarse * enlarged(coarse)) / self.strength.fine

    def compose(self, bands: Bands) -> Tensor:
        """RGB in [0, 1] with the bands in the hole."""
        added = self.strength.coarse * enlarged(bands.coarse) + self.strength.fine * bands.fine
        return colours(self.smooth + self.hole * added).clamp(0, 1)


def enlarged(coarse: Tensor) -> Tensor:
    return F.interpolate(coarse, scale_factor=float(STRIDE), mode="bilinear", align_corners=False)


def differences(image: Tensor) -> Tensor:
    """RGB as mean, (R - B) / 2 and (2 G - R - B) / 4; the last two of grey are exactly zero."""
    red, green, blue = image.unbind(1)
    return torch.stack([(red + green + blue) / 3, (red - blue) / 2, green / 2 - (red + blue) / 4], 1)


def colours(values: Tensor) -> Tensor:
    """The inverse of `differences`."""
    mean, across, green = values.unbind(1)
    rest = mean - 2 / 3 * green
    return torch.stack([rest + across, mean + 4 / 3 * green, rest - across], 1)


def scene(image: Tensor, hole: Tensor, beyond: Tensor, lesion: Tensor, spread: Tensor) -> Scene:
    """`image (B, 3, H, W)` in [0, 1]; `hole`, what lies `beyond` the image, and `lesion (B, 1, H, W)` of 0
    and 1; `spread (B, 2, 3)` as of `FlowNet.spread`.

    What the image shows under the hole has no influence.
    """
    known = 1 - torch.maximum(hole, beyond)
    smooth = pull_push(differences(image * known), known)
    detail = smooth - gaussian_blur(smooth, _DETAIL)
    # A hole's own smooth fill says nothing of the grain; the nearest tissue says most.
    weight = known * (gaussian_blur(hole, _NEAR) + 1e-4)
    power = (weight * detail**2).sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp(min=1e-9)
    least = torch.tensor(_LEAST, device=image.device).view(1, 3, 1, 1)
    grain = torch.maximum(power.sqrt(), least)
    shown = (detail / grain).clamp(-_MOST, _MOST)
    middle = torch.tensor([0.5, 0.0, 0.0], device=image.device).view(1, 3, 1, 1)
    coarse, fine = spread[..., None, None].unbind(1)
    context = torch.cat([4 * (smooth - middle), shown, hole, beyond, lesion], 1)
    return Scene(hole, smooth, Bands(coarse, fine * grain), context)


class FlowNet(nn.Module):
    """`(coarse, fine, t, context, conditions)` to a velocity; a U-Net on 2x2 pixel blocks.

    Without `fine` it is the coarse band's, from the lowest level; with it the fine band's. It is zero in
    channels that the family does not have.
    """

    strengths: Tensor
    drawn: Tensor

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        a, b, c = config.widths
        e = config.embedding
        self.family = nn.Embedding(len(config.families), e)
        self.target = nn.Embedding(2 + len(config.targets), e)
        # The usual strength of each band and channel, by family and target; measured before training.
        self.register_buffer("strengths", torch.ones(len(config.families), 2 + len(config.targets), 2, 3))
        # Channels that are drawn, by family: a grey image has no colour differences.
        drawn = [[1.0, 0.0, 0.0] if name in GREY else [1.0, 1.0, 1.0] for name in config.families]
        self.register_buffer("drawn", torch.tensor(drawn), persistent=False)
        self.time = nn.Sequential(nn.Linear(2 * _FREQUENCIES + 3, e), nn.SiLU(), nn.Linear(e, e))
        for table in (self.family, self.target):
            nn.init.normal_(table.weight, std=0.3)
        self.stem = nn.Conv2d(4 * _SEEN, a, 3, padding=1)
        widths = (a, b, c)
        drops = (0.0, config.dropout, config.dropout)
        levels = list(zip(widths, drops, strict=True))
        self.encode = nn.ModuleList(_stack(w, n, e, p) for (w, p), n in zip(levels, config.down, strict=True))
        self.shrink = nn.ModuleList([nn.Conv2d(a, b, 2, 2), nn.Conv2d(b, c, 2, 2)])
        self.given = nn.Conv2d(3, c, 1)
        self.middle = nn.ModuleList([_Block(c, e, drops[2]), _Attention(c), _Block(c, e, drops[2])])
        self.join = nn.ModuleList(nn.Conv2d(2 * w, w, 1) for w in widths)
        self.decode = nn.ModuleList(_stack(w, n, e, p) for (w, p), n in zip(levels, config.up, strict=True))
        self.grow = nn.ModuleList([nn.Conv2d(b, 4 * a, 1), nn.Conv2d(c, 4 * b, 1)])
        self.norms = nn.ModuleList([nn.GroupNorm(8, c), nn.GroupNorm(8, a)])
        self.last = nn.ModuleList([nn.Conv2d(c, 3, 3, padding=1), nn.Conv2d(a, 12, 3, padding=1)])
        for layer in self.last:
            nn.init.zeros_(cast("nn.Conv2d", layer).weight)

    def forward(
        self, coarse: Tensor, fine: Tensor | None, t: Tensor, context: Tensor, conditions: Conditions
    ) -> Tensor:
        e = F.silu(self._embedding(t, conditions, fine is not None))
        large = enlarged(coarse)
        pixels = torch.cat([large, torch.zeros_like(large) if fine is None else fine, context], 1)
        y = self.stem(F.pixel_unshuffle(pixels, 2))
        skips: list[Tensor] = []
        for level, blocks in enumerate(self.encode):
            if level:
                y = self.shrink[level - 1](y)
            if level == 2:
                y = y + self.given(coarse)
            for block in cast("nn.ModuleList", blocks):
                y = block(y, e)
            skips.append(y)
        first, attention, second = self.middle
        y = second(attention(first(y, e)), e)
        for level in (2, 1, 0):
            y = self.join[level](torch.cat([y, skips[level]], 1))
            for block in cast("nn.ModuleList", self.decode[level]):
                y = block(y, e)
            if fine is None:
                broad: Tensor = self.last[0](F.silu(self.norms[0](y)))
                return broad * self.channels(conditions.family)
            if level:
                y = F.pixel_shuffle(self.grow[level - 1](y), 2)
        velocity: Tensor = F.pixel_shuffle(self.last[1](F.silu(self.norms[1](y))), 2)
        return velocity * self.channels(conditions.family)

    def spread(self, family: Tensor, target: Tensor) -> Tensor:
        """`(B, 2, 3)`: the usual strength of both bands."""
        return self.strengths[family, target]

    def channels(self, family: Tensor) -> Tensor:
        """`(B, 3, 1, 1)`: 1 for the channels that are drawn, 0 for those that stay the smooth fill's."""
        return self.drawn[family][:, :, None, None]

    def _embedding(self, t: Tensor, conditions: Conditions, fine: bool) -> Tensor:
        rates = torch.exp(torch.linspace(0, math.log(200.0), _FREQUENCIES, device=t.device))
        waves = t[:, None] * rates
        given = ~conditions.contrast.isnan()
        contrast = torch.where(given, conditions.contrast, 0.0)
        stage = torch.full_like(t, float(fine))
        numbers = torch.cat([waves.sin(), waves.cos(), torch.stack([contrast, given.float(), stage], 1)], 1)
        embedded: Tensor = (
            self.time(numbers) + self.family(conditions.family) + self.target(conditions.target)
        )
        return embedded


class Steps(NamedTuple):
    """How many evaluations of the network each band gets."""

    coarse: int
    fine: int


@torch.no_grad()
def draw(
    net: Callable[..., Tensor],
    around: Scene,
    conditions: Conditions,
    noise: Bands,
    *,
    steps: Steps,
    guidance: float = 1.0,
    coarse: Tensor | None = None,
) -> Bands:
    """Follow the flow from noise to what is drawn in the hole: the coarse band unless it is given, then the
    fine one. `guidance` above 1 exaggerates what the target's name changes in the coarse band.
    """
    if coarse is None:
        cells = (around.covered > 0).float()

        def broad(x: Tensor, t: Tensor) -> Tensor:
            velocity = net(x, None, t, around.context, conditions)
            if guidance != 1:
                unnamed = conditions._replace(target=torch.zeros_like(conditions.target))
                plain = net(x, None, t, around.context, unnamed)
                velocity = plain + guidance * (velocity - plain)
            return cells * velocity

        coarse = _followed(broad, cells * noise.coarse, steps.coarse)
    band = coarse

    def narrow(x: Tensor, t: Tensor) -> Tensor:
        return around.hole * net(band, x, t, around.context, conditions)

    return Bands(band, _followed(narrow, around.hole * noise.fine, steps.fine))


def _followed(velocity_at: Callable[[Tensor, Tensor], Tensor], x: Tensor, steps: int) -> Tensor:
    """Two-step Adams-Bashforth from time 0 to 1, one evaluation a step."""
    before: Tensor | None = None
    for number in range(steps):
        velocity = velocity_at(x, torch.full((len(x),), number / steps, device=x.device)).float()
        slope = velocity if before is None else 1.5 * velocity - 0.5 * before
        x, before = x + slope / steps, velocity
    return x


class _Block(nn.Module):
    """Two convolutions as a residual; the conditions scale and shift between them."""

    def __init__(self, width: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.before, self.first = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.modulate = nn.Linear(embedding, 2 * width)
        self.dropout = nn.Dropout(dropout)
        self.between, self.second = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        gain, shift = self.modulate(e)[:, :, None, None].chunk(2, 1)
        y = self.between(self.first(F.silu(self.before(x)))) * (1 + gain) + shift
        out: Tensor = x + self.second(self.dropout(F.silu(y)))
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


def _stack(width: int, count: int, embedding: int, dropout: float) -> nn.ModuleList:
    return nn.ModuleList(_Block(width, embedding, dropout) for _ in range(count))
