"""Coarser and finer images where only some pixels are known. Values are `(H, W, C) float32`."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.records import Mask


def halved(values: NDArray[np.float32], known: Mask) -> tuple[NDArray[np.float32], Mask]:
    """Half the size; a pixel is the mean of those of its four that are known, and known if any is."""
    height, width = (-(-side // 2) for side in known.shape)
    weight = np.zeros((2 * height, 2 * width, 1), np.float32)
    weight[: known.shape[0], : known.shape[1], 0] = known
    padded = np.zeros((2 * height, 2 * width, values.shape[2]), np.float32)
    padded[: known.shape[0], : known.shape[1]] = values * known[..., None]
    total = padded.reshape(height, 2, width, 2, -1).sum((1, 3))
    count = weight.reshape(height, 2, width, 2, 1).sum((1, 3))
    return total / np.maximum(count, 1), np.asarray(count[..., 0] > 0)


def doubled(small: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    size = (2 * small.shape[1], 2 * small.shape[0])
    large = cv2.resize(small, size, interpolation=cv2.INTER_LINEAR).reshape(*size[::-1], small.shape[2])
    return np.ascontiguousarray(large[: shape[0], : shape[1]])


def pulled(values: NDArray[np.float32], known: Mask) -> NDArray[np.float32]:
    """The hole filled smoothly, from ever coarser means (pull-push)."""
    if known.all():
        return values
    return np.where(known[..., None], values, doubled(pulled(*halved(values, known)), known.shape))
