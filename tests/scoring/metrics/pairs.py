"""Image pairs on which metrics are compared with their references."""

from __future__ import annotations

import cv2
import numpy as np

from tests.conftest import crop


def random_pair(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return tuple(draw.integers(0, 256, (2, height, width, 3), np.uint8))  # type: ignore[return-value]


def smooth_pair(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return tuple(cv2.GaussianBlur(p, (0, 0), 5) for p in random_pair(height, width, seed))  # type: ignore[return-value]


def real_pair(height: int, width: int, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A real crop and the same after noise: what an editor's output looks like."""
    image = crop(number, height, width)
    noise = np.random.default_rng(number).normal(0, 12, image.shape)
    return image, np.clip(image + noise, 0, 255).astype(np.uint8)


def constant_pair(height: int, width: int, a: int = 90, b: int = 91) -> tuple[np.ndarray, np.ndarray]:
    return np.full((height, width, 3), a, np.uint8), np.full((height, width, 3), b, np.uint8)


KINDS = {"random": random_pair, "smooth": smooth_pair, "real": real_pair, "constant": constant_pair}
