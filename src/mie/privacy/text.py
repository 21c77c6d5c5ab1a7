"""Find text burned into an image by a small U-Net; `examples/text-detector` trains and measures it.

It finds lines of three characters or more, 8 to 80 pixels high. A single side marker (R, L), a ruler or
callipers are no text. What the text says is not read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from mie.errors import ConfigError
from mie.records import Pixels, Values

if TYPE_CHECKING:
    from torch import nn

FORMAT: Final = "text detector 1"
FILE: Final = "text-detector.safetensors"
# Chosen on data sets that were neither trained on nor measured on (examples/text-detector/README.md).
THRESHOLD: Final = 0.95
SMALLEST: Final = 60  # pixels of a finding, at the scale where it was found
_COVER: Final = 0.5  # the probability down to which a finding is outlined
_SCALES: Final = (1.0, 0.5)
_TILE: Final = 512
_OVERLAP: Final = 64
_STRIDE: Final = 32
_PAD: Final = 3

Box = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom are excluded


def can_look() -> bool:
    """Whether the network can run here: torch is an optional extra."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def text_boxes(image: Pixels) -> list[Box]:
    """Return a box around each piece of text in an image `(H, W)` or `(H, W, 3) uint8`, top to bottom."""
    if image.ndim == 2:
        image = np.repeat(image[..., np.newaxis], 3, axis=2)
    boxes: list[Box] = []
    for scale in _SCALES:
        seen = image
        if scale != 1:
            size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
            seen = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
        boxes += [_enlarged(box, scale, image.shape) for box in _found(_probability(seen))]
    return sorted(set(boxes), key=lambda box: (box[1], box[0]))


def _found(probability: Values) -> list[Box]:
    """Boxes of the regions that hold enough pixels above the threshold."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(
        (probability >= _COVER).astype(np.uint8), connectivity=8
    )
    sure = np.bincount(labels[probability >= THRESHOLD], minlength=len(stats))
    boxes = []
    for label in np.flatnonzero(sure >= SMALLEST):
        x, y, width, height, _ = (int(value) for value in stats[label])
        boxes.append((x, y, x + width, y + height))
    return boxes


def _enlarged(box: Box, scale: float, shape: tuple[int, ...]) -> Box:
    left, top, right, bottom = (round(edge / scale) for edge in box)
    height, width = shape[:2]
    return max(0, left - _PAD), max(0, top - _PAD), min(width, right + _PAD), min(height, bottom + _PAD)


def _probability(image: Pixels) -> Values:
    """`(H, W)` in [0, 1], from overlapping tiles, so that memory does not grow with the image."""
    import torch

    net = _network()
    height, width = image.shape[:2]
    out = np.zeros((height, width), np.float32)
    step = _TILE - _OVERLAP
    for top in range(0, max(1, height - _OVERLAP), step):
        for left in range(0, max(1, width - _OVERLAP), step):
            tile = image[top : top + _TILE, left : left + _TILE]
            h, w = tile.shape[:2]
            padded: Any = cv2.copyMakeBorder(tile, 0, -h % _STRIDE, 0, -w % _STRIDE, cv2.BORDER_REPLICATE)
            with torch.inference_mode():
                batch = torch.from_numpy(np.asarray(padded)).permute(2, 0, 1)[None].float() / 255
                values = net(batch)[0, 0, :h, :w].sigmoid().numpy()
            part = out[top : top + h, left : left + w]
            np.maximum(part, values, out=part)
    return out


@lru_cache(maxsize=1)
def _network() -> nn.Module:
    from mie.networks import weights
    from mie.networks.shipped import shipped_weights
    from mie.networks.unet import NetConfig, UNet

    path = shipped_weights(FILE, fix="install mie again")
    found = weights.load(path, format=FORMAT)
    if set(found.config) != set(NetConfig().as_json()):
        raise ConfigError("the weights are those of another architecture", where=path)
    net = UNet(NetConfig.from_json(found.config))
    weights.fit(net, found.state, path)
    return net.eval().requires_grad_(False)
