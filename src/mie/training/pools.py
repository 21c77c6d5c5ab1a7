"""Images in memory, ready to be gathered by index: uint8, letterboxed into squares of one side.

A few thousand images fit on the GPU as bytes, so a step moves only indices to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def letterbox(
    image: NDArray[np.uint8], side: int, *, enlarge: bool = True
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The image in the middle of a square, its edges repeated outwards; and its (height, width) there.

    It is scaled so that its longer side fills the square. Without `enlarge`, a smaller one keeps its pixels.
    """
    height, width = image.shape[:2]
    scale = side / max(height, width)
    if scale < 1 or (enlarge and scale > 1):
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        image = np.asarray(cv2.resize(image, (width, height), interpolation=how), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    edges = (top, side - height - top, left, side - width - left)
    return np.asarray(cv2.copyMakeBorder(image, *edges, cv2.BORDER_REPLICATE), np.uint8), (height, width)


def letterbox_mask(mask: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Class indices at the place where `letterbox` puts the image; 0 around it."""
    height, width = mask.shape
    scale = side / max(height, width)
    if scale != 1:
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
        mask = np.asarray(cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    out = np.zeros((side, side), np.uint8)
    out[top : top + height, left : left + width] = mask
    return out


def sent(values: Any, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A few numbers on the device. Nothing waits for it: they leave from pinned memory."""
    pinned = torch.device(device).type == "cuda"
    made = torch.tensor(values, dtype=dtype)
    return (made.pin_memory() if pinned else made).to(device, non_blocking=True)


class Pool:
    """`(n, 3, S, S)` or, for grey images and masks, `(n, 1, S, S)` bytes."""

    def __init__(self, arrays: Sequence[NDArray[np.uint8]], device: torch.device | str) -> None:
        values = torch.from_numpy(np.stack(arrays)).to(device)
        self.values = values[:, None] if values.ndim == 3 else values.permute(0, 3, 1, 2).contiguous()

    def __len__(self) -> int:
        return len(self.values)

    def gather(self, index: Tensor) -> Tensor:
        """Bytes of these images."""
        return self.values.index_select(0, index)
