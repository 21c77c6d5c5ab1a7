"""Hair over skin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mie.physics._skin_layer import around, blend, blur, fill, ribbon

_POINTS = 80


def draw_hairs(picture: NDArray[np.float32], count: int, light: float, rng: np.random.Generator) -> None:
    """`count` strands over `picture` `(H, W, 3)` float32 0..255, in place; `light` of them are light.

    Strands share a growth direction (a patch of skin), bend, some curl, taper to the tip, are lit along their
    middle and cast a soft shadow beside them, all from one side.
    """
    shape = picture.shape[:2]
    side = min(shape)
    growth = rng.uniform(0, 2 * np.pi)
    tint = rng.normal(0, 8)  # one person's hair has one colour, more or less
    shadow_side = rng.uniform(0, 2 * np.pi)
    for _ in range(count):
        path = strand(shape, growth, rng)
        # Downy hair is thin, terminal hair up to 1 % of the picture.
        thickness = side * min(0.01, 0.0036 * np.exp(0.4 * rng.standard_normal()))
        along = np.linspace(0, 1, _POINTS)
        taper = np.clip(np.minimum(1, 1.6 * (1 - along) ** 0.6) * np.minimum(1, 0.6 + 8 * along), 0.12, 1)
        width = np.maximum(thickness * taper, 0.4)
        offset = thickness * rng.uniform(0.8, 1.6) * np.array([np.cos(shadow_side), np.sin(shadow_side)])
        part, corner = around(picture, path, 4 * thickness + 2)
        path = path - corner
        hair = fill(part.shape[:2], [ribbon(path, width)])
        pale = rng.random() < light
        shadow = blur(fill(part.shape[:2], [ribbon(path + offset, width)]), 0.6 * thickness)
        part *= 1 - (0.08 if pale else 0.2) * shadow[..., None]
        if pale:
            shade = rng.uniform(195, 235)
            blend(part, rng.uniform(0.4, 0.7) * hair, (shade, shade - 6, shade - 16))
            continue
        dark = max(4.0, rng.uniform(14, 55) + tint)
        # Brown more than black: hair lets red light through. Thin hair lets more of the skin through.
        strength = rng.uniform(0.7, 0.95) * min(1.0, 0.7 + 0.15 * thickness)
        blend(part, strength * hair, (1.5 * dark + 10, 1.05 * dark + 3, 0.85 * dark))
        if thickness > 1.8:
            # Light runs along a hair in stretches, not from end to end.
            gleam = np.clip(np.sin(2 * np.pi * (rng.uniform(0.5, 2) * along + rng.random())), 0.02, 1)
            lit = fill(part.shape[:2], [ribbon(path - 0.15 * offset, 0.35 * width * gleam)])
            blend(part, rng.uniform(0.1, 0.45) * lit, (165, 150, 140))


def strand(shape: tuple[int, int], growth: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """The path of one hair, `(n, 2)` (x, y), from root to tip; its middle lies in the picture."""
    side = min(shape)
    length = side * np.clip(0.6 * np.exp(0.5 * rng.standard_normal()), 0.12, 1.5)
    angle = growth + rng.normal(0, 0.5) + np.pi * (rng.random() < 0.1)
    along = np.linspace(0, 1, _POINTS)
    bend = rng.normal(0, 0.5) + rng.normal(0, 1.8) * (rng.random() < 0.2)  # radians over its length
    sway = rng.normal(0, 0.12) * np.sin(2 * np.pi * (rng.uniform(0.5, 1.5) * along + rng.random()))
    heading = angle + bend * along**1.5 + sway
    steps = np.stack([np.cos(heading), np.sin(heading)], axis=1) * (length / _POINTS)
    path = np.cumsum(steps, axis=0)
    middle = np.array([rng.uniform(0, shape[1]), rng.uniform(0, shape[0])])
    return path - path[_POINTS // 2] + middle
