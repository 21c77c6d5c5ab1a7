"""The detector's U-Net with one map out, small enough to ship one per kind of image, and how to apply it.

The finest level works on 2x2 pixel blocks (nothing is lost, four times less to compute). A pretrained trunk
feeds every scale: with a few hundred images, what it has seen elsewhere is worth more than more weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mie.images.resize import fitted_size, resize_image, resize_values
from mie.networks.trunk import SHORT_TAPS, TAPS, Trunk
from mie.records import Mask, Pixels, Values

STRIDE: Final = 32  # the sides of an image must be multiples of it
TRUNKS: Final[dict[str, Mapping[int, int]]] = {"none": {}, "short": SHORT_TAPS, "whole": TAPS}
_WIDER: Final = 3  # a block's inner width
_SURE: Final = 0.0005  # the share of the pixels whose probabilities make the score
_SMALLEST: Final = 8  # pixels as the network sees them: smaller findings are dropped


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Widths at strides 2, 4, 8, 16 and 32, blocks at each on the way down, and on the way up from 16."""

    widths: tuple[int, int, int, int, int] = (16, 24, 40, 72, 104)
    down: tuple[int, int, int, int, int] = (0, 0, 0, 0, 1)
    up: tuple[int, int, int, int] = (1, 1, 1, 1)
    pixel: int = 8  # width at full resolution
    trunk: str = "short"
    side: int = 256  # the longer side of an image as the network sees it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NetConfig:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**fields)


class UNet(nn.Module):
    """`(B, 3, H, W)` in [0, 1] to logits `(B, 1, H, W)`: is this pixel a lesion."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        w, taps = config.widths, TRUNKS[config.trunk]
        self.trunk = Trunk(taps) if taps else None
        self.from_trunk = nn.ModuleList(
            nn.Conv2d(c, width, 1) for c, width in zip(taps.values(), w, strict=False)
        )
        self.stem = nn.Conv2d(12, w[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(w[k], w[k + 1], 2, 2) for k in range(4))
        self.encode = nn.ModuleList(_blocks(w[k], config.down[k]) for k in range(5))
        self.join = nn.ModuleList(nn.Conv2d(w[k + 1] + w[k], w[k], 1) for k in range(4))
        self.decode = nn.ModuleList(_blocks(w[k], config.up[k]) for k in range(4))
        self.unfold = nn.Conv2d(w[0], 4 * config.pixel, 1)
        self.fine = nn.Conv2d(config.pixel + 3, config.pixel, 3, padding=1)
        self.logit = nn.Conv2d(config.pixel, 1, 1)
        assert self.logit.bias is not None  # noqa: S101
        nn.init.constant_(self.logit.bias, -2.0)  # lesions are rare

    def forward(self, image: Tensor) -> Tensor:
        seen = self.trunk(image) if self.trunk is not None else []
        x = self.stem(F.pixel_unshuffle(image - 0.5, 2))
        skips: list[Tensor] = []
        for k in range(5):
            if k:
                x = self.down[k - 1](x)
            if k < len(seen):
                x = x + self.from_trunk[k](seen[k])
            x = self.encode[k](x)
            skips.append(x)
        for k in (3, 2, 1, 0):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self.decode[k](self.join[k](torch.cat([x, skips[k]], 1)))
        x = F.pixel_shuffle(self.unfold(x), 2)
        x = x + F.silu(self.fine(torch.cat([x, image - 0.5], 1)))
        logits: Tensor = self.logit(x)
        return logits


class _Block(nn.Module):
    """A depthwise convolution, then a mix of the channels, as a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.GroupNorm(8 if width % 8 == 0 else 1, width)
        self.widen, self.narrow = nn.Conv2d(width, _WIDER * width, 1), nn.Conv2d(_WIDER * width, width, 1)
        nn.init.normal_(self.narrow.weight, std=1e-2 / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(F.silu(self.widen(self.norm(self.around(x)))))
        return x + y


def _blocks(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(_Block(width) for _ in range(count)))


@torch.inference_mode()
def probabilities(net: nn.Module, image: Pixels, side: int, device: torch.device) -> Values:
    """`(H, W)` in [0, 1], for an image `(H, W, 3) uint8` that is looked at with its longer side at `side`.

    The image lies in the upper left corner; its last row and column are repeated up to the stride.
    """
    size = fitted_size(image.shape[0], image.shape[1], side)
    edges = [-length % STRIDE for length in size]
    seen = cv2.copyMakeBorder(resize_image(image, size), 0, edges[0], 0, edges[1], cv2.BORDER_REPLICATE)
    batch = torch.from_numpy(np.asarray(seen)).to(device).permute(2, 0, 1)[None].float() / 255
    values = net(batch)[0, 0, : size[0], : size[1]].float().sigmoid().cpu().numpy()
    return resize_values(np.ascontiguousarray(values), image.shape[:2])


def score_of(probability: Values) -> float:
    """How sure the network is of any lesion: the mean of its surest pixels, one in two thousand."""
    count = max(1, round(_SURE * probability.size))
    return float(np.partition(probability, -count, axis=None)[-count:].mean())


def mask_of(probability: Values, threshold: float, side: int) -> Mask:
    """The pixels at or above the threshold, without specks."""
    mask = probability >= threshold
    number, labels, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    if number == 1:
        return mask
    least = _SMALLEST * (max(mask.shape) / side) ** 2
    keep = stats[:, cv2.CC_STAT_AREA] >= least
    keep[0] = False  # the background
    return keep[labels]
