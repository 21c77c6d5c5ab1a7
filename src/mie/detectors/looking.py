"""How a network sees an image of any size, and what it says about each of its pixels."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
import torch
from torch import nn

from mie.detectors.network import STRIDE
from mie.images.resize import fitted_size, resize_image, resize_values
from mie.records import Mask, Pixels, Values

_SURE: Final = 0.0005  # the share of the pixels whose probabilities make the score
_SMALLEST: Final = 8  # pixels as the network sees them: smaller findings are dropped


@torch.inference_mode()
def probabilities(net: nn.Module, image: Pixels, side: int, device: torch.device) -> Values:
    """`(H, W)` in [0, 1], for an image `(H, W, 3) uint8` that is looked at with its longer side at `side`.

    The image lies in the upper left corner; its last row and column are repeated up to the stride.
    """
    size = fitted_size(image.shape[0], image.shape[1], side)
    edges = [-length % STRIDE for length in size]
    seen = cv2.copyMakeBorder(resize_image(image, size), 0, edges[0], 0, edges[1], cv2.BORDER_REPLICATE)
    batch = torch.from_numpy(np.asarray(seen)).to(device).permute(2, 0, 1)[None].float() / 255
    found = net(batch)[0, 0, : size[0], : size[1]].float().sigmoid().cpu().numpy()
    return resize_values(np.ascontiguousarray(found), image.shape[:2])


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
