"""What the input itself says about its restoration: what was measured stays, and without streaks none go.

A scan of low resolution holds the middle of k-space and nothing else. What it holds is right, so a restored
image must give the input back when it is degraded again; only the frequencies beyond are the network's guess.

A CT of few views holds one spoke of k-space for each view, evenly spread over 180 degrees. Where no spokes
are seen there is little to remove, and what the network would remove is anatomy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from mie.editors.compact.understanding import Question
from mie.images.overlay import is_grey
from mie.perspectives.transformation.physics.resolution import LowResolution
from mie.records import Pixels, Values

_WHITE: Final = 255
# Grey levels, root mean square: rounding alone gave up to .48, and images with finer detail 1.4 and more.
_MISFIT: Final = 0.7
_FITTING: Final = 4  # rounds in which the values that black and white cut off are looked for
_ROUNDS: Final = 12
_ANGLES: Final = 1024  # over 180 degrees
_RADII: Final = (0.12, 0.47, 96)  # cycles per pixel from, to, and how many of them
_VIEWS: Final = (20, 260)  # that are looked for
_NEAR: Final = 49  # numbers of views among which one must stand out
# How far it stands out: from here on something is removed, and from there on all that the network says.
_FAINT: Final = 4.0
_PLAIN: Final = 16.0


class Agreed(NamedTuple):
    image: Pixels  # (H, W, 3)
    facts: dict[str, Any]  # for `Edited.meta`


def agree(image: Pixels, residual: Iterable[Values], asked: Question) -> Agreed | None:
    """Return `image + 255 * residual`, `(H, W, 3)`, as far as `image` agrees with it.

    The residual is three maps `(H, W)`, whose mean counts. None where the image has nothing to say: in
    colour, for most transformations, and for super-resolution of an image that is not coarse.
    """
    if not is_grey(image):
        return None
    grey = image[..., 0]
    if asked.asks_for("ct_sparse_view"):
        strength = streak_strength(grey)
        result = grey + 255 * strength * np.mean(list(residual), axis=0)
        return Agreed(_as_image(result), {"strength": round(strength, 4)})
    factor = low_resolution_factor(grey) if asked.asks_for("super_resolution") else None
    if factor is None:
        return None
    result = keep_low_band(grey, grey + 255 * np.mean(list(residual), axis=0), factor)
    return Agreed(_as_image(result), {"factor": factor})


def _as_image(grey: Values) -> Pixels:
    return np.repeat(np.clip(np.rint(grey), 0, _WHITE).astype(np.uint8)[..., None], 3, axis=2)


def low_resolution_factor(image: Pixels) -> int | None:
    """The factor by which the resolution of a grey image `(H, W)` was reduced, 4 or 2; None where it was not.

    k-space must be empty beyond, but for what rounding to 8 bits leaves there.
    """
    values = image.astype(np.float32)
    inside = (image > 0) & (image < _WHITE)
    if min(image.shape) < 2 * max(LowResolution.FACTORS) or not inside.any():
        return None
    for factor in sorted(LowResolution.FACTORS, reverse=True):
        coarse = LowResolution(factor)
        fit = coarse.apply(values)
        for _ in range(_FITTING):
            fit = coarse.apply(_uncut(values, fit))
        if float(np.square(fit - values).mean(where=inside)) < _MISFIT**2:
            return factor
    return None


def keep_low_band(image: Pixels, restored: Values, factor: int) -> Values:
    """The image nearest to `restored` `(H, W)` that is `image` at a resolution lower by `factor`, about.

    Projects in turn onto the images that agree with the measured band and onto those between black and white,
    with Nesterov's momentum. Ringing below black was cut off in the input: there any darker value agrees.
    """
    coarse, measured = LowResolution(factor), image.astype(np.float32)
    result = ahead = np.clip(restored, 0, _WHITE).astype(np.float32)
    pace = 1.0
    for _ in range(_ROUNDS):
        before, band = result, coarse.apply(ahead)
        result = ahead + coarse.apply(_uncut(measured, band) - band)
        np.clip(result, 0, _WHITE, out=result)
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead = result + np.float32((pace - 1) / faster) * (result - before)
        pace = faster
    return result


def _uncut(measured: Values, band: Values) -> Values:
    """`measured`, with the values of `band` where black or white may have cut them off."""
    cut = ((measured == 0) & (band < 0)) | ((measured == _WHITE) & (band > _WHITE))
    return np.where(cut, band, measured)


def streak_strength(image: Pixels) -> float:
    """How much of a change may be made for the streaks of a grey image `(H, W)`, from 0 to 1."""
    strength = math.log(max(spokes(image), _FAINT) / _FAINT) / math.log(_PLAIN / _FAINT)
    return min(1.0, strength)


def spokes(image: Pixels) -> float:
    """How far the spokes of few views stand out in the k-space of a grey image `(H, W)`.

    The mean logarithm of the power along each direction repeats as often over 180 degrees as there are views:
    its spectrum has a peak, here divided by the median of its neighbours. About 3 without streaks.
    """
    power = _power(image.astype(np.float32))
    first, last, count = _RADII
    radii = np.linspace(first, last, count)[:, None] * len(power)
    angles = np.arange(_ANGLES) * (np.pi / _ANGLES) - np.pi / 2
    across, down = radii * np.cos(angles), radii * np.sin(angles) + len(power) // 2
    polar = cv2.remap(power, across.astype(np.float32), down.astype(np.float32), cv2.INTER_LINEAR)
    profile = np.log(polar + 1).mean(0)
    spectrum = np.abs(fft.rfft(profile - profile.mean()))
    usual = ndimage.median_filter(spectrum, _NEAR)
    few, many = _VIEWS
    return float((spectrum[few:many] / np.maximum(usual[few:many], 1e-9)).max())


def _power(values: Values) -> NDArray[np.float32]:
    """`(n, n // 2 + 1)`: rows from the lowest to the highest frequency, columns from zero."""
    height, width = values.shape
    # Twice the size, to read between frequencies; the edges fade, or they would be two spokes of their own.
    side = fft.next_fast_len(2 * max(height, width), real=True)
    fade = np.sqrt(np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])).astype(np.float32)
    half = fft.rfft2((values - values.mean()) * fade, (side, side))
    return np.asarray(fft.fftshift(half.real**2 + half.imag**2, axes=0), np.float32)
