"""Colour clustering: three clusters in Lab, the one least like the image's border is painted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.editors.base import Edited, Editor, Turn
from mie.editors.otsu import named_colour
from mie.images.overlay import paint
from mie.images.resize import fitted_size, resize_image
from mie.records import Mask, Pixels

_CLUSTERS: Final = 3
_SAMPLE: Final = 160  # pixels of the longer side that the centres are found at
_ROUNDS: Final = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 30, 0.2)


class Kmeans(Editor):
    """A baseline that sees colour: it reads the overlay's, and knows nothing of anatomy."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        colour = named_colour(instruction)
        mask = distinct_cluster(image)
        return Edited(paint(image, mask, colour), {"region": float(mask.mean())})


def distinct_cluster(image: Pixels) -> Mask:
    """`(H, W)`: the pixels of the cluster whose centre is farthest in Lab from the border's mean colour."""
    small = _lab(resize_image(image, fitted_size(image.shape[0], image.shape[1], _SAMPLE)))
    points = small.reshape(-1, 3)
    # By lightness to begin with, dark, middle and bright: OpenCV's random start would differ from run to run.
    start = np.empty(len(points), np.int32)
    start[np.argsort(points[:, 0], kind="stable")] = np.arange(len(points)) * _CLUSTERS // len(points)
    _, _, centres = cv2.kmeans(points, _CLUSTERS, start, _ROUNDS, 1, cv2.KMEANS_USE_INITIAL_LABELS)
    border = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]]).mean(0)
    chosen = int(np.linalg.norm(centres - border, axis=1).argmax())
    whole = _lab(cv2.GaussianBlur(image, (0, 0), 1.5))
    distances = np.stack([((whole - centre) ** 2).sum(2) for centre in centres])
    return np.asarray(distances.argmin(0) == chosen)


def _lab(image: Pixels) -> NDArray[np.float32]:
    return np.asarray(cv2.cvtColor(np.float32(image) / 255, cv2.COLOR_RGB2Lab), np.float32)
