"""The region detector's network: is the tissue inside this outline a lesion, or healthy?

To search a whole image for lesions takes thousands of images to learn. A gate knows where to look: it asks
about one place, before and after an edit. That is a far easier question, and a few hundred images suffice.
The network sees a square around the outline and compares what lies inside with what lies around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mie.networks import weights
from mie.networks.trunk import SHORT_TAPS, Trunk
from mie.records import Mask, Pixels

FORMAT: Final = "region detector 1"
SIDE: Final = 128  # pixels of the square that the network sees
AROUND: Final = 2.3  # the square's side, in extents of the outline
NARROWEST: Final = 40  # pixels of the image that the square shows, at least
_STRIDE: Final = 8  # at which inside and outside are compared
_RING: Final = 3  # cells around the outline that count as its surroundings
_TOGETHER: Final = 7  # pixels: outlines that are nearer to each other are looked at as one
_PARTS: Final = 16  # outlines of one region that are looked at: the largest


@dataclass(frozen=True, slots=True)
class RegionConfig:
    families: tuple[str, ...]
    width: int = 64
    blocks: int = 2
    dropout: float = 0.3

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "families": list(self.families)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RegionConfig:
        fields: dict[str, Any] = {**body, "families": tuple(body["families"])}
        return cls(**fields)


class RegionNet(nn.Module):
    """Images `(B, 3, S, S)` in [0, 1], outlines `(B, 1, S, S)` of 0 and 1 and families `(B,)` to logits
    `(B,)`: positive for a lesion.
    """

    def __init__(self, config: RegionConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.trunk = Trunk(SHORT_TAPS)
        channels = tuple(SHORT_TAPS.values())
        self.near = nn.Conv2d(sum(channels) + 1, w, 1)
        self.blocks = nn.ModuleList(_Block(w) for _ in range(config.blocks))
        self.family = nn.Embedding(len(config.families), w)
        self.head = nn.Sequential(
            nn.LayerNorm(5 * w),
            nn.Dropout(config.dropout),
            nn.Linear(5 * w, 2 * w),
            nn.SiLU(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * w, 1),
        )

    def forward(self, image: Tensor, outline: Tensor, family: Tensor) -> Tensor:
        size = (image.shape[2] // _STRIDE, image.shape[3] // _STRIDE)
        inside = F.adaptive_avg_pool2d(outline, size)
        # Finer maps are averaged down to the cells, coarser ones enlarged.
        seen = [
            F.adaptive_avg_pool2d(x, size)
            if x.shape[2] >= size[0]
            else F.interpolate(x, size=size, mode="bilinear", align_corners=False)
            for x in self.trunk(image)
        ]
        y = self.near(torch.cat([*seen, inside], 1))
        for block in self.blocks:
            y = block(y)
        ring = (F.max_pool2d(inside, 2 * _RING + 1, 1, _RING) - inside).clamp(min=0)
        own, around = _mean(y, inside), _mean(y, ring)
        most = (y + (inside.clamp(min=1e-4)).log()).amax((2, 3))
        parts = [own, around, own - around, most, self.family(family)]
        logits: Tensor = self.head(torch.cat(parts, 1))[:, 0]
        return logits


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.GroupNorm(8, width)
        self.widen, self.narrow = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(3 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(F.silu(self.widen(self.norm(self.around(x)))))
        return x + y


def _mean(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum((2, 3)) / weight.sum((2, 3)).clamp(min=1e-3)


class Square(NamedTuple):
    """What the network sees of an image: `(SIDE, SIDE, 3)` and the outline `(SIDE, SIDE)`."""

    image: Pixels
    outline: Mask


def square(image: Pixels, outline: Mask) -> Square:
    """A square around an outline that has pixels; beyond the image its edge is repeated."""
    x, y, width, height = cv2.boundingRect(outline.view(np.uint8))
    side = max(NARROWEST, round(AROUND * max(width, height)))
    left, top = x + width // 2 - side // 2, y + height // 2 - side // 2
    rows = np.clip(np.arange(top, top + side), 0, image.shape[0] - 1)
    columns = np.clip(np.arange(left, left + side), 0, image.shape[1] - 1)
    how = cv2.INTER_AREA if side >= SIDE else cv2.INTER_LINEAR
    seen = cv2.resize(image[np.ix_(rows, columns)], (SIDE, SIDE), interpolation=how)
    part = outline[np.ix_(rows, columns)].astype(np.float32)
    # An outline that ends at the image's edge must not be repeated beyond it.
    part[(np.arange(top, top + side) != rows)] = 0
    part[:, (np.arange(left, left + side) != columns)] = 0
    small = cv2.resize(part, (SIDE, SIDE), interpolation=how)
    return Square(np.asarray(seen, np.uint8), np.asarray(small >= 0.5) | (small >= small.max()))


def parts_of(region: Mask) -> list[Mask]:
    """The outlines of a region, largest first; those a few pixels apart are one."""
    near = cv2.dilate(region.astype(np.uint8), np.ones((_TOGETHER, _TOGETHER), np.uint8))
    number, labels = cv2.connectedComponents(near, connectivity=8)
    parts = [region & (labels == k) for k in range(1, number)]
    return sorted(parts, key=lambda part: -int(part.sum()))[:_PARTS]


@torch.inference_mode()
def probabilities(net: RegionNet, image: Pixels, outlines: Sequence[Mask], family: str) -> list[float]:
    """How likely each outline of an image `(H, W, 3) uint8` holds a lesion."""
    if not outlines:
        return []
    squares = [square(image, outline) for outline in outlines]
    device = next(net.parameters()).device
    shown = torch.from_numpy(np.stack([s.image for s in squares])).to(device).permute(0, 3, 1, 2) / 255
    masks = torch.from_numpy(np.stack([s.outline for s in squares])).to(device)[:, None].float()
    number = torch.full((len(squares),), net.config.families.index(family), device=device)
    found: list[float] = net(shown, masks, number).float().sigmoid().tolist()
    return found


def load_region(path: Path) -> tuple[RegionNet, dict[str, Any]]:
    """The network of a weights file, ready to use, and the file's meta."""
    found = weights.load(path, format=FORMAT)
    net = weights.build(lambda: RegionNet(RegionConfig.from_json(found.config)), found, path)
    return net.eval().requires_grad_(False), found.meta
