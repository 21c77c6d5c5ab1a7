"""The dark frame of a dermatoscope's lens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mie.physics._skin_layer import blend


def draw_frame(picture: NDArray[np.float32], strength: float, rng: np.random.Generator) -> None:
    """Light that falls off towards the corners and, from a strength of 0.5, the lens's black rim, in place.

    `picture` is `(H, W, 3)` float32 0..255. The fall-off is `1 - a r^2 - b r^4` in the distance `r` from a
    centre that is seldom quite the picture's; the rim is a circle with a soft edge.
    """
    height, width = picture.shape[:2]
    centre = rng.normal(0, 0.03, 2)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None] * (height / width) - np.float32(centre[0])
    x = np.linspace(-1, 1, width, dtype=np.float32)[None] - np.float32(centre[1])
    corner = np.hypot(1, height / width)
    r = np.hypot(x, y) / np.float32(corner)
    picture *= (1 - strength * (0.22 * r**2 + 0.38 * r**4))[..., None]
    if strength >= 0.5:
        # From just inside the corners (0.95) towards the sides of a square picture (0.71).
        edge = 0.95 - 0.3 * (strength - 0.5) / 0.5 + rng.uniform(-0.02, 0.02)
        softness = rng.uniform(0.006, 0.025)
        rim = 1 / (1 + np.exp(-np.clip((r - edge) / softness, -30, 30)))
        black = rng.uniform(0, 14)
        blend(picture, rim.astype(np.float32), (black, black * 0.9, black))
