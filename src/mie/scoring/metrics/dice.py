"""DICE of the region that an output paints, read back by de-blending, in one pass over the pixels.

The mask is `mie.images.overlay.deblend`'s: alpha = (M - I).(C - I) / (|C - I|^2 + 1e-6) > 0.5. In integers
that is 2 (M - I).(C - I) > |C - I|^2, or (C - I).(2 M - I - C) > 0: no division, no mask in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numba
import numpy as np

from mie.images import kernels as _pair
from mie.records import Mask, Pixels
from mie.scoring.metric import SHARE, Metric
from mie.vocabulary import COLOURS


def deblend_dice(image: Pixels, output: Pixels, reference: Mask, colour: str) -> float:
    """DICE of `reference` `(H, W) bool` and the region of `output` painted in `colour`: 0 to 1.

    (2 |X and Y| + 1e-6) / (|X| + |Y| + 1e-6), so 1 when both are empty.
    """
    image, output = _pair.pixels(image, output)
    reference = _pair.mask(reference, image)
    return dice_from(*_count(image.reshape(-1), output.reshape(-1), reference.reshape(-1), *COLOURS[colour]))


def deblend_dice_any(image: Pixels, output: Pixels, reference: Mask) -> float:
    """The same with the union of the three colours' regions: `Multiclasses` samples of MieDB."""
    image, output = _pair.pixels(image, output)
    reference = _pair.mask(reference, image)
    return dice_from(*_count_any(image.reshape(-1), output.reshape(-1), reference.reshape(-1)))


def class_dice(image: Pixels, output: Pixels, masks: Mapping[str, Mask]) -> dict[str, float]:
    """Colour -> DICE of its own reference mask, for holistic samples that paint several classes."""
    return {colour: deblend_dice(image, output, mask, colour) for colour, mask in masks.items()}


def dice_from(both: int, painted: int, marked: int) -> float:
    """DICE from the numbers of pixels in both masks, in the output's, in the reference."""
    return (2 * both + 1e-6) / (painted + marked + 1e-6)


@numba.njit(cache=True, nogil=True)
def is_painted(i0, i1, i2, m0, m1, m2, red, green, blue):  # type: ignore[no-untyped-def]
    """Alpha > 0.5 for one pixel; all arguments int32, the largest sum 3 * 255 * 510."""
    dot = (red - i0) * (2 * m0 - i0 - red)
    dot += (green - i1) * (2 * m1 - i1 - green)
    dot += (blue - i2) * (2 * m2 - i2 - blue)
    return np.int32(dot) > 0


@numba.njit(cache=True, nogil=True)
def _count(image, output, reference, red, green, blue):  # type: ignore[no-untyped-def]
    """Pixels in both masks, in the painted one, in the reference; flat arrays.

    With C of 0 or 255 a channel's term (C - I) (2 M - I - C) is x (x - 2 y) for x = I xor C, y = M xor C.
    In blocks, the terms first and the sums of three after: each loop is contiguous or nearly so, and SIMD.
    """
    block = 1024
    colour = np.empty(3 * block, np.uint8)
    colour[0::3], colour[1::3], colour[2::3] = red, green, blue
    terms = np.empty(3 * block, np.int32)
    both, painted, marked = np.int64(0), np.int64(0), np.int64(0)
    for start in range(0, reference.shape[0], block):
        stop = start + block
        i_part, m_part, r_part = (
            image[3 * start : 3 * stop],
            output[3 * start : 3 * stop],
            reference[start:stop],
        )
        for k in range(i_part.shape[0]):
            x, y = np.int32(i_part[k] ^ colour[k]), np.int32(m_part[k] ^ colour[k])
            terms[k] = np.int32(x * (x - 2 * y))
        # 32-bit counts inside a block: 64 bits would double the work.
        n_both, n_painted, n_marked = np.int32(0), np.int32(0), np.int32(0)
        for k in range(r_part.shape[0]):
            hit = np.int32(terms[3 * k] + terms[3 * k + 1] + terms[3 * k + 2]) > 0
            n_both = np.int32(n_both + np.int32(hit & r_part[k]))
            n_painted = np.int32(n_painted + np.int32(hit))
            n_marked = np.int32(n_marked + np.int32(r_part[k]))
        both += n_both
        painted += n_painted
        marked += n_marked
    return both, painted, marked


@numba.njit(cache=True, nogil=True)
def _count_any(image, output, reference):  # type: ignore[no-untyped-def]
    both, painted, marked = 0, 0, 0
    none, full = np.int32(0), np.int32(255)
    for i in range(reference.shape[0]):
        i0, i1, i2 = np.int32(image[3 * i]), np.int32(image[3 * i + 1]), np.int32(image[3 * i + 2])
        m0, m1, m2 = np.int32(output[3 * i]), np.int32(output[3 * i + 1]), np.int32(output[3 * i + 2])
        hit = (
            is_painted(i0, i1, i2, m0, m1, m2, full, none, none)
            | is_painted(i0, i1, i2, m0, m1, m2, none, full, none)
            | is_painted(i0, i1, i2, m0, m1, m2, none, none, full)
        )
        both += hit & reference[i]
        painted += hit
        marked += reference[i]
    return both, painted, marked


# DICE that plain brightening or darkening cannot win: `dice_guarded`, reported beside DICE.
#
# De-blending looks only along C - I, so a grey pixel that goes from 30 to 200 has alpha 0.535 for red, green
# and blue alike, and one that goes from white to black has alpha 1. A pixel counts here only if its colour
# shift d = M - I also points at the colour, c = C - I:
#
#     alpha > 0.5   and   |d - (d.c / |c|^2) c| <= 1/2 (d.c) / |c|
#
# The chroma residual, the part of the shift across c, is at most half the part along it: the shift lies
# within 26.6 degrees of c. A change along the grey axis of a grey pixel lies 35.3 degrees or more away from
# every colour (white to black comes nearest), so no brightening, darkening or inversion of a grey image
# counts. A true overlay has residual 0 at any opacity; compression, soft edges and a slightly wrong hue leave
# it far below the limit, 60 or more levels for an opacity of 0.6 on grey images. The limit shrinks where the
# image already has nearly the colour; there brightening a saturated red pixel cannot be told from painting it
# red.
#
# In integers the second condition is 5 (d.c)^2 >= 4 |d|^2 |c|^2.


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
    counts = _count_guarded(image.reshape(-1), output.reshape(-1), reference.reshape(-1), *COLOURS[colour])
    return _two(*counts)


def dice_and_guarded_any(image: Pixels, output: Pixels, reference: Mask) -> tuple[float, float]:
    """`(deblend_dice_any, dice_guarded_any)` in one pass over the pixels."""
    image, output = _pair.pixels(image, output)
    reference = _pair.mask(reference, image)
    return _two(*_count_any_guarded(image.reshape(-1), output.reshape(-1), reference.reshape(-1)))


def overlay_dice(image: Pixels, output: Pixels, region: Mask, colours: Sequence[str]) -> tuple[float, float]:
    """`(dice, guarded)` of the region painted in the colour, or in any colour where there are several."""
    if len(colours) > 1:
        return dice_and_guarded_any(image, output, region)
    return dice_and_guarded(image, output, region, colours[0])


def is_accurate(dice: float) -> float:
    """What a sample adds to P-ACC: 1 above `P_ACC_DICE`, 0 at it and below."""
    return float(dice > P_ACC_DICE)


def mean_class_dice(image: Pixels, output: Pixels, masks: Mapping[str, Mask]) -> float:
    """The mean over the colours of `class_dice`."""
    classes = class_dice(image, output, masks)
    return sum(classes.values()) / len(classes)


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
def _count_guarded(image, output, reference, red, green, blue):  # type: ignore[no-untyped-def]
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
def _count_any_guarded(image, output, reference):  # type: ignore[no-untyped-def]
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


P_ACC_DICE = 0.8  # P-ACC is the share of samples above it
_OVERLAY = {"input", "region", "colours"}

DICE = Metric(
    "dice",
    "DICE",
    "overlap of the painted region with the reference region",
    needs=_OVERLAY,
    function=lambda output, input, region, colours: overlay_dice(input, output, region, colours)[0],
    scale=SHARE,
)
DICE_GUARDED = Metric(
    "dice_guarded",
    "DICE, guarded",
    "DICE where a pixel must also have moved towards the colour",
    needs=_OVERLAY,
    function=lambda output, input, region, colours: overlay_dice(input, output, region, colours)[1],
    scale=SHARE,
)
CLASS_DICE = Metric(
    "class_dice",
    "DICE, per class",
    "mean over the classes of a holistic sample",
    needs={"input", "classes"},
    function=lambda output, input, classes: mean_class_dice(input, output, classes),
    scale=SHARE,
)
P_ACC = Metric(
    "p_acc",
    "P-ACC",
    "share of samples with DICE above .8",
    needs=_OVERLAY,
    function=lambda output, input, region, colours: is_accurate(
        overlay_dice(input, output, region, colours)[0]
    ),
    scale=SHARE,
    binary=True,
)
