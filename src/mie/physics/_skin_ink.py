"""Marks of a surgeon's skin pen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mie.physics._skin_layer import blur, cloud, fill, ribbon

# Optical density of the dye by colour channel (red, green, blue): gentian violet, blue, and black-blue.
_DYES = ((1.05, 1.35, 0.45), (1.25, 0.75, 0.22), (1.1, 1.05, 0.7))


def draw_ink(picture: NDArray[np.float32], rng: np.random.Generator) -> None:
    """One to three pen strokes over `picture` `(H, W, 3)` float32 0..255, in place.

    Ink is a filter: it multiplies the light by `10 ** -density`, so skin and lesion show through. It sits in
    the furrows and leaves the ridges, hence its grain, and its edges bleed.
    """
    shape = picture.shape[:2]
    side = min(shape)
    dye = np.array(_DYES[rng.integers(len(_DYES))], np.float32)
    # Furrows run one way over a patch of skin, with a second, weaker set across them.
    furrow = rng.uniform(0, np.pi)
    fine = max(1.5, 0.006 * side)
    grain = cloud(shape, (5 * fine, fine), furrow, rng) + 0.6 * cloud(
        shape, (4 * fine, fine), furrow + 1.2, rng
    )
    patchy = cloud(shape, (0.06 * side, 0.06 * side), 0.0, rng)
    cover = np.zeros(shape, np.float32)
    for path in _strokes(shape, int(rng.integers(1, 4)), rng):
        pen = side * rng.uniform(0.03, 0.07)
        along = np.linspace(0, 1, len(path))
        wobble = 1 + 0.15 * np.sin(rng.uniform(6, 16) * along + rng.uniform(0, 6))
        # Set down and lifted: both ends run thin.
        ends = np.minimum(1, np.minimum(along + 0.04, 1.04 - along) * 8) ** 0.5
        stroke = fill(shape, [ribbon(path, pen * wobble * ends)])
        cover = np.maximum(cover, 0.6 * blur(stroke, 0.1 * pen) + 0.4 * blur(stroke, 0.35 * pen))
    amount = cover * np.clip(0.6 + 0.28 * grain + 0.3 * patchy, 0.08, 1.2) * rng.uniform(0.3, 0.75)
    picture *= 10.0 ** (-amount[..., None] * dye)


def _strokes(shape: tuple[int, int], count: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """Arcs drawn around the middle, where the lesion is, at some distance from it."""
    size = np.array([shape[1], shape[0]], np.float64)
    start = rng.uniform(0, 2 * np.pi)
    out = []
    for n in range(count):
        middle = start + n * rng.uniform(1.3, 2.4)
        at = middle + np.linspace(-0.5, 0.5, 60) * rng.uniform(0.4, 1.3)
        far = rng.uniform(0.4, 0.5) * (1 + 0.04 * np.sin(4 * at + rng.uniform(0, 6)))
        out.append(size / 2 + far[:, None] * size * np.stack([np.cos(at), np.sin(at)], axis=1))
    return out
