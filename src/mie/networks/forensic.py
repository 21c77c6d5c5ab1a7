"""A small forensic detector: how likely it is that a picture, or a part of it, was generated.

It looks at high-pass residuals, where generated texture differs from an acquisition's noise, and takes the
parts that look most like it: an edit may be small. `train` it on pairs (`mie.training.forensic`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mie.networks import weights
from mie.records import Pixels

FORMAT: Final = "forensic detector 1"
LEAST: Final = 32  # pixels a side; a smaller picture is mirrored at its border
# Differences of first and second order along both axes, and the one of Ker's square (all with sum 0).
_FILTERS: Final = (
    ((0, 0, 0), (0, -1, 1), (0, 0, 0)),
    ((0, 0, 0), (0, -1, 0), (0, 1, 0)),
    ((0, 0, 0), (0.5, -1, 0.5), (0, 0, 0)),
    ((0, 0.5, 0), (0, -1, 0), (0, 0.5, 0)),
    ((-0.25, 0.5, -0.25), (0.5, -1, 0.5), (-0.25, 0.5, -0.25)),
)


@dataclass(frozen=True, slots=True)
class ForensicConfig:
    widths: tuple[int, ...] = (24, 48, 96)
    sharpness: int = 4  # of the pooling: from the mean of all parts (0) towards their maximum

    def __post_init__(self) -> None:
        if not self.widths or any(width < 8 or width % 8 for width in self.widths) or self.sharpness < 1:
            raise ValueError("widths are multiples of 8, sharpness is at least 1")


class ForensicNet(nn.Module):
    """`(B, 3, H, W)` in [0, 1] to logits `(B,)`; positive for generated."""

    filters: Tensor

    def __init__(self, config: ForensicConfig) -> None:
        super().__init__()
        self.config = config
        kernels = torch.tensor(_FILTERS, dtype=torch.float32)[:, None]
        self.register_buffer("filters", kernels, persistent=False)
        channels, blocks = 3 * len(_FILTERS), []
        for width in config.widths:
            blocks += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.GroupNorm(8, width), nn.SiLU()]
            channels = width
        self.body = nn.Sequential(*blocks)
        self.head = nn.Conv2d(channels, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        planes = images.flatten(0, 1)[:, None]
        padded = functional.pad(planes, (1, 1, 1, 1), mode="reflect")
        residuals = functional.conv2d(padded, self.filters.to(padded.dtype))
        # Twenty grey levels are an edge of the anatomy, not a trace of how it was made.
        residuals = (residuals * (255 / 8)).tanh().reshape(len(images), -1, *images.shape[2:])
        logits = self.head(self.body(residuals)).float().flatten(1)
        sharp = float(self.config.sharpness)
        return (torch.logsumexp(sharp * logits, 1) - np.log(logits.shape[1])) / sharp

    def document(self) -> dict[str, Any]:
        return {**asdict(self.config), "widths": list(self.config.widths)}


def load_forensic(path: Path) -> ForensicNet:
    """The detector in a file that `mie train` wrote."""
    stored = weights.load(path, format=FORMAT)

    def make() -> ForensicNet:
        body = {**stored.config, "widths": tuple(stored.config["widths"])}
        return ForensicNet(ForensicConfig(**body))

    return weights.build(make, stored, path).eval()


@torch.no_grad()
def fake_probability(net: ForensicNet, image: Pixels) -> float:
    """How likely the picture `(H, W, 3)` uint8 is generated, at its own size."""
    missing = [max(0, LEAST - side) for side in image.shape[:2]]
    if any(missing):
        image = np.pad(image, [(0, missing[0]), (0, missing[1]), (0, 0)], mode="symmetric")
    tensor = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255
    return float(net(tensor.to(next(net.parameters()).device)).sigmoid())
