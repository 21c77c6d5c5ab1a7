"""DICE that plain brightening or darkening cannot win: `dice_guarded`, reported beside DICE.

De-blending looks only along C - I, so a grey pixel that goes from 30 to 200 has alpha 0.535 for red, green
and blue alike, and one that goes from white to black has alpha 1. A pixel counts here only if its colour
shift d = M - I also points at the colour, c = C - I:

    alpha > 0.5   and   |d - (d.c / |c|^2) c| <= 1/2 (d.c) / |c|

The chroma residual, the part of the shift across c, is at most half the part along it: the shift lies within
26.6 degrees of c. A change along the grey axis of a grey pixel lies 35.3 degrees or more away from every
colour (white to black comes nearest), so no brightening, darkening or inversion of a grey image counts.
A true overlay has residual 0 at any opacity; compression, soft edges and a slightly wrong hue leave it far
below the limit, 60 or more levels for an opacity of 0.6 on grey images. The limit shrinks where the image
already has nearly the colour; there brightening a saturated red pixel cannot be told from painting it red.

In integers the second condition is 5 (d.c)^2 >= 4 |d|^2 |c|^2.
"""

from __future__ import annotations

import numba
import numpy as np

from mie.metrics import _pair
from mie.metrics.overlay_dice import dice_from, is_painted
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS


def dice_guarded(image: Pixels, output: Pixels, reference: Mask, colour: str) -> float:
    """DICE of `reference` and the pixels of `output` whose shift points at `colour`: 0 to 1."""
    return dice_and_guarded(image, output, reference, colour)[1]


def dice_guarded_any(image: Pixels, output: Pixels, reference: Mask) -> float:
    """The same with the union of the three colours."""
    return dice_and_guarded_any(image, output, reference)[1]


def dice_and_guarded(image: Pixels, output: Pixels, reference: Mask, colour: str) -> tuple[float, float]:
    """`(deblend_dice, dice_guarded)` in one pass over the pixels."""
    image, output = _pair.pixels(image, output)
    reference = _pair.mask(reference, image)
    counts = _count(image.reshape(-1), output.reshape(-1), reference.reshape(-1), *COLOURS[colour])
    return _two(*counts)


def dice_and_guarded_any(image: Pixels, output: Pixels, reference: Mask) -> tuple[float, float]:
    """`(deblend_dice_any, dice_guarded_any)` in one pass over the pixels."""
    image, output = _pair.pixels(image, output)
    reference = _pair.mask(reference, image)
    return _two(*_count_any(image.reshape(-1), output.reshape(-1), reference.reshape(-1)))


def _two(
    both: int, painted: int, both_guarded: int, painted_guarded: int, marked: int
) -> tuple[float, float]:
    return dice_from(both, painted, marked), dice_from(both_guarded, painted_guarded, marked)


@numba.njit(cache=True, nogil=True)
def _points_at(i0, i1, i2, m0, m1, m2, red, green, blue):  # type: ignore[no-untyped-def]
    """5 (d.c)^2 >= 4 |d|^2 |c|^2 for one pixel: below 2^38, so exact in float64 (faster than int64 here)."""
    d0, d1, d2 = np.int32(m0 - i0), np.int32(m1 - i1), np.int32(m2 - i2)
    c0, c1, c2 = np.int32(red - i0), np.int32(green - i1), np.int32(blue - i2)
    dot = np.float64(np.int32(d0 * c0 + d1 * c1 + d2 * c2))
    shift = np.float64(np.int32(d0 * d0 + d1 * d1 + d2 * d2))
    way = np.float64(np.int32(c0 * c0 + c1 * c1 + c2 * c2))
    return 5.0 * dot * dot >= 4.0 * shift * way


@numba.njit(cache=True, nogil=True)
def _count(image, output, reference, red, green, blue):  # type: ignore[no-untyped-def]
    both, painted, both_guarded, painted_guarded, marked = 0, 0, 0, 0, 0
    red, green, blue = np.int32(red), np.int32(green), np.int32(blue)
    for i in range(reference.shape[0]):
        i0, i1, i2 = np.int32(image[3 * i]), np.int32(image[3 * i + 1]), np.int32(image[3 * i + 2])
        m0, m1, m2 = np.int32(output[3 * i]), np.int32(output[3 * i + 1]), np.int32(output[3 * i + 2])
        hit = is_painted(i0, i1, i2, m0, m1, m2, red, green, blue)
        sure = hit & _points_at(i0, i1, i2, m0, m1, m2, red, green, blue)
        both += hit & reference[i]
        painted += hit
        both_guarded += sure & reference[i]
        painted_guarded += sure
        marked += reference[i]
    return both, painted, both_guarded, painted_guarded, marked


@numba.njit(cache=True, nogil=True)
def _count_any(image, output, reference):  # type: ignore[no-untyped-def]
    both, painted, both_guarded, painted_guarded, marked = 0, 0, 0, 0, 0
    none, full = np.int32(0), np.int32(255)
    for i in range(reference.shape[0]):
        i0, i1, i2 = np.int32(image[3 * i]), np.int32(image[3 * i + 1]), np.int32(image[3 * i + 2])
        m0, m1, m2 = np.int32(output[3 * i]), np.int32(output[3 * i + 1]), np.int32(output[3 * i + 2])
        red = is_painted(i0, i1, i2, m0, m1, m2, full, none, none)
        green = is_painted(i0, i1, i2, m0, m1, m2, none, full, none)
        blue = is_painted(i0, i1, i2, m0, m1, m2, none, none, full)
        hit = red | green | blue
        sure = (
            (red & _points_at(i0, i1, i2, m0, m1, m2, full, none, none))
            | (green & _points_at(i0, i1, i2, m0, m1, m2, none, full, none))
            | (blue & _points_at(i0, i1, i2, m0, m1, m2, none, none, full))
        )
        both += hit & reference[i]
        painted += hit
        both_guarded += sure & reference[i]
        painted_guarded += sure
        marked += reference[i]
    return both, painted, both_guarded, painted_guarded, marked
