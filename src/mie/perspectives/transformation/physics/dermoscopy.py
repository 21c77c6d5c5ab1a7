"""What lies between a dermatoscope and the skin: hair, bubbles, pen marks, rulers, the lens's dark frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.severity import (
    Ranges,
    as_params,
    check_fields,
    check_ranges,
    draw_ranges,
)
from mie.records import Pixels

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


KINDS = ("hairs", "ruler", "bubbles", "frame", "ink")


@dataclass(frozen=True, slots=True)
class SkinArtifacts:
    """Hair, ruler marks, gel bubbles, a dark frame and pen marks over a dermoscopic image.

    Drawn from the skin outwards: ink, hair, bubbles, ruler, frame; each anti-aliased and composited over what
    lies below it, lesion included. All sizes follow the picture's shorter side. At least one kind is on.
    """

    hairs: int = 0  # strands; 0 .. 100
    light_hairs: float = 0.1  # share of light strands; 0 .. 1
    ruler: bool = False
    bubbles: int = 0  # 0 .. 30
    frame: float = 0.0  # vignetting, with a black rim from 0.5; 0 .. 1
    ink: bool = False

    RANGES: ClassVar[Ranges] = {
        "hairs": (0, 100), "light_hairs": (0.0, 1.0), "bubbles": (0, 30), "frame": (0.0, 1.0)
    }  # fmt: skip
    DRAWN: ClassVar[Ranges] = {
        "hairs": (5, 40), "light_hairs": (0.0, 0.3), "bubbles": (1, 8), "frame": (0.3, 0.8)
    }  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        if not self.kinds:
            raise ConfigError(
                "SkinArtifacts: nothing to draw", expected=f"one of {', '.join(KINDS)}", found="none"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is on, e.g. `("hairs", "ruler")`."""
        return tuple(kind for kind in KINDS if getattr(self, kind))

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        """One to three kinds that `fixed` does not name, hair the most often, with severities from DRAWN.

        Where `fixed` turns kinds on, the others are left off: `draw(rng, ruler=True)` draws a ruler alone.
        """
        check_fields(cls, fixed)
        order = rng.permutation(["hairs", "hairs", "hairs", "ruler", "bubbles", "frame", "ink"])
        on = list(dict.fromkeys(map(str, order)))[: rng.integers(1, 4)]
        numbers: dict[str, Any] = {**draw_ranges(rng, cls.DRAWN), "ruler": True, "ink": True}
        open_kinds = [kind for kind in KINDS if kind not in fixed]
        chosen: list[str] = []
        if not any(fixed.get(kind) for kind in KINDS):
            chosen = [kind for kind in on if kind in open_kinds] or open_kinds[:1]
        for kind in open_kinds:
            if kind not in chosen:
                del numbers[kind]
        return cls(**numbers | fixed)

    def apply(self, image: Pixels, rng: np.random.Generator) -> Pixels:
        """`(H, W, 3)` uint8 RGB -> the same with artefacts."""
        if image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < 2 or image.dtype != np.uint8:
            raise ImageError(
                "not a dermoscopic picture",
                expected="(H, W, 3) uint8, at least 2 by 2 pixels",
                found=f"{image.shape} {image.dtype}",
            )
        picture: NDArray[np.float32] = image.astype(np.float32)
        if self.ink:
            draw_ink(picture, rng)
        if self.hairs:
            draw_hairs(picture, self.hairs, self.light_hairs, rng)
        if self.bubbles:
            draw_bubbles(picture, self.bubbles, rng)
        if self.ruler:
            draw_ruler(picture, rng)
        if self.frame:
            draw_frame(picture, self.frame, rng)
        return np.clip(np.rint(picture), 0, 255).astype(np.uint8)

    def params(self) -> dict[str, Any]:
        return as_params(self)
