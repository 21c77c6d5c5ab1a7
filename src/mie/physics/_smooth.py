"""A smooth random surface from a few low-order cosines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cosine_surface(shape: tuple[int, int], order: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """`(H, W)` sum of `w_ij cos(pi i y / H) cos(pi j x / W)`, 1 <= i + j <= order, largest size 1.

    Weights fall off as 1 / (i + j), so the lowest waves rule; the constant is left out. Each factor is a half
    wave at most `order` times across the image: the gradient stays below `pi order sum|w_ij| / side`.
    """
    height, width = shape
    i, j = np.meshgrid(np.arange(order + 1), np.arange(order + 1), indexing="ij")
    total = i + j
    weights = np.where(
        (total >= 1) & (total <= order), rng.standard_normal(total.shape) / np.maximum(total, 1), 0
    )
    down = np.cos(np.pi * np.outer((np.arange(height) + 0.5) / height, np.arange(order + 1)))
    across = np.cos(np.pi * np.outer(np.arange(order + 1), (np.arange(width) + 0.5) / width))
    surface = (down @ weights @ across).astype(np.float32)
    largest = float(np.abs(surface).max())
    return surface / np.float32(max(largest, 1e-30))
