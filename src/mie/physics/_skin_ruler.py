"""The scale of a dermatoscope."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.physics._skin_layer import blend, blur, fill


def draw_ruler(picture: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Millimetre marks over `picture` `(H, W, 3)` float32 0..255, in place.

    Two makes: marks on the contact plate (every fifth longer, sometimes numbered), and a printed scale with a
    base line, half-millimetre marks and "MM".
    """
    shape = picture.shape[:2]
    side = min(shape)
    printed = bool(rng.random() < 0.4)
    turn = rng.normal(0, 0.05) + rng.integers(4) * np.pi / 2
    unit = side * (rng.uniform(0.035, 0.06) if printed else rng.uniform(0.05, 0.1))
    marks = int(rng.integers(8, 16))
    thick = max(0.8, side * rng.uniform(0.003, 0.0075))
    length = unit * rng.uniform(0.3, 0.55)
    ends = (np.arange(marks * 2 + 1) / 2 if printed else np.arange(marks + 1, dtype=float)) * unit
    polygons = [_bar(0, ends[-1], thick)] if printed else []
    for n, x in enumerate(ends):
        step = n / 2 if printed else n
        tall = length * (1.0 if step % 1 == 0 else 0.5) * (1.8 if step % 5 == 0 else 1.0)
        polygons.append(_bar(x - thick / 2, x + thick / 2, tall))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    place = _place(shape, rotation, ends[-1], rng)
    lines = fill(shape, [(p - [ends[-1] / 2, 0]) @ rotation.T + place for p in polygons])
    alpha = np.maximum(lines, _letters(shape, printed, unit, ends, rotation, place, thick, rng))
    soft = blur(alpha, rng.uniform(0.3, 0.6) * side / 400)
    ink = rng.uniform(8, 60)
    blend(picture, rng.uniform(0.65, 0.97) * soft, (ink, ink * 0.85, ink * 0.95))


def _bar(x0: float, x1: float, depth: float) -> NDArray[np.float64]:
    """A rectangle that hangs from the scale's line."""
    return np.array([[x0, 0], [x1, 0], [x1, depth], [x0, depth]], np.float64)


def _place(
    shape: tuple[int, int], rotation: NDArray[np.float64], length: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The scale's middle: near an edge, seldom over the middle of the picture."""
    size = np.array([shape[1], shape[0]], np.float64)
    outward = rotation @ np.array([0.0, -1.0])
    reach = np.abs(outward) @ size / 2 - np.abs(outward) @ size * rng.uniform(0.06, 0.3)
    slide = rotation @ np.array([1.0, 0.0]) * rng.normal(0, 0.12) * length
    return size / 2 + rng.choice([-1, 1]) * outward * reach + slide


def _letters(
    shape: tuple[int, int], printed: bool, unit: float, ends: NDArray[np.float64],
    rotation: NDArray[np.float64], place: NDArray[np.float64], thick: float, rng: np.random.Generator,
) -> NDArray[np.float32]:  # fmt: skip
    """Numbers below every fifth mark, or "MM" below the first, turned with the scale."""
    upright = np.zeros(shape, np.uint8)
    # Written at the picture's top left, then turned into place; lettering half a unit high.
    height = unit * (0.55 if printed else 0.35)
    scale = height / 21  # Hershey capitals are 21 units high
    words: list[tuple[str, float]] = []
    if printed:
        words = [("MM", 0.0)]
    elif rng.random() < 0.5:
        words = [(str(n), float(x)) for n, x in enumerate(ends) if n % 5 == 0]
    out = np.zeros(shape, np.float32)
    for word, x in words:
        upright[:] = 0
        cv2.putText(
            upright, word, (4, int(height) + 4), cv2.FONT_HERSHEY_SIMPLEX, scale,
            255, max(1, round(thick * 0.8)), cv2.LINE_AA,
        )  # fmt: skip
        corner = rotation @ np.array([x - ends[-1] / 2 - height / 3, unit * 1.05]) + place
        matrix = np.column_stack([rotation, corner - rotation @ np.array([4.0, 4.0])])
        turned = cv2.warpAffine(upright, matrix, (shape[1], shape[0]), flags=cv2.INTER_LINEAR)
        out = np.maximum(out, turned.astype(np.float32) / 255)
    return out
