"""Air bubbles in the immersion gel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mie.physics._skin_layer import around, blend, blur, fill, ribbon

_TURN = np.linspace(0, 2 * np.pi, 97)


def draw_bubbles(picture: NDArray[np.float32], count: int, rng: np.random.Generator) -> None:
    """`count` bubbles over `picture` `(H, W, 3)` float32 0..255, in place.

    A thin dark rim (total reflection), bright crescents inside it towards the lamp and opposite, specks of
    light, and skin that looks a little paler through the air. The lamp is on the same side for all.
    """
    shape = picture.shape[:2]
    side = min(shape)
    lamp = rng.uniform(0, 2 * np.pi)
    for _ in range(count):
        radius = side * np.clip(0.03 * np.exp(0.65 * rng.standard_normal()), 0.012, 0.11)
        centre = np.array([rng.uniform(0, shape[1]), rng.uniform(0, shape[0])])
        outline = _outline(radius, rng)
        part, corner = around(picture, outline + centre, 0.1 * radius + 4)
        centre = centre - corner
        area = part.shape[:2]
        pen = max(0.7, 0.07 * radius)
        inside = fill(area, [outline + centre])
        blend(part, rng.uniform(0.04, 0.14) * blur(inside, 1.0), (255, 250, 250))
        # The rim is darker away from the lamp and opens here and there.
        strength = 0.65 - 0.4 * np.cos(_TURN - lamp) + 0.2 * np.sin(3 * _TURN + rng.uniform(0, 6))
        rim = fill(area, [ribbon(outline + centre, pen * np.clip(strength, 0.08, 1.2))])
        blend(part, rng.uniform(0.45, 0.85) * rim, (92, 84, 98))
        for angle, share in ((lamp, 1.0), (lamp + np.pi, 0.55)):
            light = _crescent(outline, angle + rng.normal(0, 0.2), pen * rng.uniform(0.8, 1.6), rng) + centre
            blend(
                part, share * rng.uniform(0.6, 0.95) * blur(fill(area, [light]), 0.15 * pen), (255, 252, 253)
            )
        specks = _specks(outline, int(rng.integers(2, 9)), rng)
        shine = blur(fill(area, [s + centre for s in specks]), 0.012 * radius + 0.3)
        blend(part, rng.uniform(0.5, 0.9) * shine, (255, 252, 254))


def _outline(radius: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """A circle pressed out of shape by the glass, around the origin."""
    uneven = np.ones_like(_TURN)
    for n in (2, 3, 4):
        uneven += rng.normal(0, 0.12 / n) * np.cos(n * _TURN + rng.uniform(0, 6))
    return radius * uneven[:, None] * np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)


def _crescent(
    outline: NDArray[np.float64], angle: float, width: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """A bright arc just inside the rim, thickest at `angle`."""
    spread = rng.uniform(0.35, 0.8)
    at = np.linspace(angle - spread, angle + spread, 25)
    x = np.interp(at, _TURN, outline[:, 0], period=2 * np.pi)
    y = np.interp(at, _TURN, outline[:, 1], period=2 * np.pi)
    bulge = np.cos(np.linspace(-np.pi / 2, np.pi / 2, 25)) ** 0.7
    return ribbon(0.86 * np.stack([x, y], axis=1), width * bulge)


def _specks(outline: NDArray[np.float64], count: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """Small glints anywhere inside, elongated along the skin's furrows."""
    radius = float(np.hypot(*outline[0]))
    furrow = rng.uniform(0, np.pi)
    out = []
    for _ in range(count):
        turn = furrow + rng.normal(0, 0.4)
        a, b = radius * rng.uniform(0.03, 0.09), radius * rng.uniform(0.02, 0.04)
        ellipse = np.stack([a * np.cos(_TURN[::8]), b * np.sin(_TURN[::8])], axis=1)
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        where = 0.75 * np.sqrt(rng.random()) * outline[rng.integers(len(outline))]
        out.append(ellipse @ rotation.T + where)
    return out
