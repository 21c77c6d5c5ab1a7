"""Shapes of metal in a slice: fillings, clips, hip prostheses, screws, sized in millimetres.

Each maker returns closed outlines `(points, 2)` in mm, (x, y) about the implant's own origin, x to the right
and y down as in the picture. `place_metal` chooses where they go and renders how much of each pixel is metal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.physics.ct_geometry import Slice

Outline = NDArray[np.float64]

# Side of the sub-pixels in which outlines are filled, in mm: a clip of 1.2 mm must keep its area.
_FINE: Final = 0.1


def fillings(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """One to four lumps of 3 to 7 mm along a jaw-like arc, each with an uneven edge."""
    outlines = []
    arc = rng.uniform(0, 2 * math.pi) + np.cumsum(rng.uniform(0.35, 1.0, rng.integers(1, 5)))
    centres = 28 * np.stack([np.cos(arc), np.sin(arc)], 1)
    for centre in centres - centres[0]:
        outlines.append(_disc(rng.uniform(3, 7), 0.18, rng) + centre)
    return outlines


def clips(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """Two to six surgical clips, 6 to 10 mm long and about 1.3 mm thick, scattered over a resection bed."""
    outlines = []
    for _ in range(rng.integers(2, 7)):
        rod = _rod(rng.uniform(6, 10), rng.uniform(1.1, 1.6))
        outlines.append(_turn(rod, rng.uniform(0, math.pi)) + rng.normal(0, 14, 2))
    return outlines


def hip(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """A femoral head of 28 to 36 mm, half the time with its neck and the start of the stem."""
    diameter = rng.uniform(28, 36)
    outlines = [_disc(diameter, 0.0, rng)]
    if rng.random() < 0.5:
        length, wide, narrow = rng.uniform(35, 55), rng.uniform(13, 17), rng.uniform(9, 12)
        taper = [[0, -wide / 2], [length, -narrow / 2], [length + 4, 0], [length, narrow / 2], [0, wide / 2]]
        outlines.append(_turn(np.array(taper), ahead + math.pi + rng.uniform(-0.7, 0.7)))
    return outlines


def screws(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """A pair of threaded pedicle screws, 35 to 50 mm long, that converge in the direction `ahead`."""
    length, thick = rng.uniform(35, 50), rng.uniform(5.0, 6.5)
    apart, lean = rng.uniform(14, 18), rng.uniform(0.15, 0.4)
    outlines = []
    for side in (-1, 1):
        head = np.array([-length / 2, side * apart])
        outlines += [_turn(_turn(part, -side * lean) + head, ahead) for part in _screw(length, thick)]
    return outlines


KINDS: Final[dict[str, Callable[[np.random.Generator, float], list[Outline]]]] = {
    "fillings": fillings,
    "clips": clips,
    "hip": hip,
    "screws": screws,
}


def place_metal(kind: str, hu: Slice, side: float, rng: np.random.Generator) -> Slice:
    """The share 0..1 of each pixel (`side` mm) of the slice `(H, W)` that metal fills, all of it in the body.

    Fillings, hips and screws sit in bone where there is some, clips in soft tissue.
    """
    body = _body(hu, side)
    rows, columns = np.nonzero(_sites(kind, hu, body, side))
    if not rows.size:
        raise ImageError("no body to put metal into", expected="a slice with tissue", found="air only")
    across, down = np.nonzero(body)[::-1]
    centre = np.array([across.mean(), down.mean()])
    best = np.zeros(hu.shape, np.float32)
    for _ in range(20):
        chosen = rng.integers(rows.size)
        at = np.array([columns[chosen], rows[chosen]], np.float64)
        inward = centre - at
        outlines = [o / side + at for o in KINDS[kind](rng, math.atan2(inward[1], inward[0]))]
        if kind == "hip" and rng.random() < 0.35:  # both hips: the second mirrors the first
            outlines += [o * (-1, 1) + (2 * centre[0], 0) for o in outlines]
        share = _render(outlines, hu.shape, side)
        inside = share * body
        if inside.sum() > best.sum():
            best = inside
        if 0 < share.sum() < 1.02 * inside.sum():
            break
    return best


def _body(hu: Slice, side: float) -> NDArray[np.bool_]:
    """The largest thing that is not air, lungs included, the couch left out."""
    radius = max(1, round(4 / side))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    solid = cv2.morphologyEx((hu > -400).astype(np.uint8), cv2.MORPH_OPEN, disc)
    outlines, _ = cv2.findContours(solid, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.zeros(hu.shape, np.uint8)
    if outlines:
        cv2.drawContours(filled, [max(outlines, key=cv2.contourArea)], -1, 1, cv2.FILLED)
    return filled > 0


def _sites(kind: str, hu: Slice, body: NDArray[np.bool_], side: float) -> NDArray[np.bool_]:
    """Pixels where the implant's origin may lie."""
    depth = cv2.distanceTransform(np.pad(body, 1).astype(np.uint8), cv2.DIST_L2, 5)[1:-1, 1:-1] * side
    # Not in lungs or bowel gas; deep inside, but somewhere even in a finger.
    tissue = body & (hu > -150) & (depth > min(15.0, 0.6 * float(depth.max())))
    bone = tissue & (hu > (600 if kind == "fillings" else 250))
    if kind == "clips":
        return tissue & (hu < 150)
    if bone.sum() * side**2 < 30:
        return tissue
    if kind == "fillings":
        return bone
    window = max(3, round(25 / side))
    density = cv2.blur(bone.astype(np.float32), (window, window), borderType=cv2.BORDER_CONSTANT) * tissue
    if kind == "hip":  # to the side: not in the spine, if there is other bone
        columns = np.nonzero(body)[1]
        off = np.abs(np.arange(hu.shape[1]) - columns.mean()) > 0.2 * np.ptp(columns)
        if (bone & off).any():
            density *= off
    return density > (0.9 if kind == "screws" else 0.6) * density.max()


def _render(outlines: list[Outline], shape: tuple[int, ...], side: float) -> Slice:
    """The share of each pixel that the outlines (in pixels, centres at whole numbers) cover together."""
    share = np.zeros(shape, np.float32)
    points = np.concatenate(outlines)
    left, top = np.clip(np.floor(points.min(0)), 0, None).astype(int)
    right, bottom = np.minimum(np.ceil(points.max(0)).astype(int) + 1, shape[::-1])
    if left >= right or top >= bottom:
        return share
    parts = math.ceil(side / _FINE)
    fine = np.zeros(((bottom - top) * parts, (right - left) * parts), np.uint8)
    for outline in outlines:
        # The middle of pixel 0 is that of `parts` sub-pixels; fillPoly counts in their 1/16.
        sub = (outline - (left, top) + 0.5) * parts - 0.5
        cv2.fillPoly(fine, [np.rint(sub * 16).astype(np.int32)], 255, shift=4)
    covered = cv2.resize(fine, (right - left, bottom - top), interpolation=cv2.INTER_AREA)
    share[top:bottom, left:right] = covered / np.float32(255)
    return share


def _disc(diameter: float, uneven: float, rng: np.random.Generator) -> Outline:
    """A disc whose radius varies smoothly by the share `uneven`."""
    turn = np.linspace(0, 2 * math.pi, 72, endpoint=False)
    radius = np.full(72, diameter / 2)
    for waves in (2, 3, 5):
        radius *= 1 + uneven * rng.uniform(-1, 1) * np.cos(waves * turn + rng.uniform(0, 2 * math.pi))
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], 1)


def _rod(length: float, thick: float) -> Outline:
    x, y = length / 2, thick / 2
    return np.array([[-x, -y], [x, -y], [x, y], [-x, y]])


def _screw(length: float, thick: float) -> list[Outline]:
    """Head and threaded shaft (pitch 2.5 mm, 0.6 mm deep) along x, from the head at 0 to the tip."""
    along = np.arange(0, length - 5, 1.25)
    edge = thick / 2 - 0.6 * (np.arange(len(along)) % 2)
    upper, lower = np.stack([along, -edge], 1), np.stack([along, edge], 1)
    shaft = np.concatenate([upper, [[length, 0]], lower[::-1]])
    return [shaft, _rod(10, 1.9 * thick) - np.array([4, 0])]


def _turn(points: Outline, angle: float) -> Outline:
    c, s = math.cos(angle), math.sin(angle)
    return points @ np.array([[c, s], [-s, c]])
