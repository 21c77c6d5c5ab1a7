"""What all skin artefacts share: anti-aliased shapes and compositing."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

# Shapes are filled at this many times the resolution and averaged down.
_FINE = 3
# cv2 takes polygon corners in fixed point: this many fractional bits.
_BITS = 4


def fill(shape: tuple[int, int], polygons: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    """Coverage 0..1 of the union of polygons, `(H, W)` float32; corners are `(n, 2)` (x, y) in pixels."""
    height, width = shape
    canvas = np.zeros((height * _FINE, width * _FINE), np.uint8)
    for corners in polygons:
        # Pixel centres lie at whole numbers, in the fine picture as in the coarse one.
        fine = (np.asarray(corners) + 0.5) * _FINE - 0.5
        cv2.fillPoly(canvas, [np.rint(fine * (1 << _BITS)).astype(np.int32)], 255, cv2.LINE_8, _BITS)
    return cv2.resize(canvas, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def ribbon(path: NDArray[np.float64], width: NDArray[np.float64]) -> NDArray[np.float64]:
    """The outline of a line along `path` `(n, 2)` whose width at each point is `width` `(n,)` pixels."""
    along = np.gradient(path, axis=0)
    along /= np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-9)[:, None]
    # cv2 fills the outline's own fine pixels too, half of one on either side.
    half = np.maximum(width - 1 / _FINE, 0) / 2
    aside = np.stack([-along[:, 1], along[:, 0]], axis=1) * half[:, None]
    return np.concatenate([path + aside, (path - aside)[::-1]])


def blend(
    picture: NDArray[np.float32], alpha: NDArray[np.float32], colour: Sequence[float] | NDArray[np.float32]
) -> None:
    """`picture = alpha colour + (1 - alpha) picture`, in place; picture `(H, W, 3)`, alpha `(H, W)`."""
    picture += alpha[..., None] * (np.asarray(colour, np.float32) - picture)


def around(
    picture: NDArray[np.float32], points: NDArray[np.float64], margin: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The part of the picture (a view, at least one pixel) that holds `points` `(n, 2)` and a margin.

    With it comes its top left corner (x, y). A strand or a bubble touches little of the picture.
    """
    size = np.array([picture.shape[1], picture.shape[0]])
    low = np.clip(np.floor(points.min(axis=0) - margin), 0, size - 1).astype(int)
    high = np.clip(np.ceil(points.max(axis=0) + margin) + 1, low + 1, size).astype(int)
    return picture[low[1] : high[1], low[0] : high[0]], low.astype(np.float64)


def blur(alpha: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    return cv2.GaussianBlur(alpha, (0, 0), max(sigma, 0.3))


def cloud(
    shape: tuple[int, int], grain: tuple[float, float], angle: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Smooth noise with lumps of `grain` (along, across) pixels, turned by `angle`; mean 0."""
    diagonal = float(np.hypot(*shape)) + 2
    small = (max(4, round(diagonal / grain[1]) + 2), max(4, round(diagonal / grain[0]) + 2))
    noise = rng.standard_normal(small, np.float32)
    # From the picture's pixels to those of the small noise, both about their middles.
    c, s = np.cos(angle), np.sin(angle)
    matrix = np.array([[c / grain[0], s / grain[0], 0], [-s / grain[1], c / grain[1], 0]])
    middle = np.array([(shape[1] - 1) / 2, (shape[0] - 1) / 2])
    matrix[:, 2] = (np.array(small[::-1]) - 1) / 2 - matrix[:, :2] @ middle
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(noise, matrix, shape[::-1], flags=flags, borderMode=cv2.BORDER_REFLECT)
