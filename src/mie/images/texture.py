"""Texture of a region (mean, variance, gradients, noise-power spectrum) and how visible its seam is.

All but the mean are taken from luma (Rec. 601), so a grey image counts as itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import MetricError
from mie.images.kernels import mask as checked_mask
from mie.images.kernels import pixels as checked_pixels
from mie.records import Mask, Pixels

_PATCHES: Final = (16, 8)  # sides of the patches whose spectra are averaged
_AT_MOST: Final = 256  # patches
_LOCAL: Final = 4.0  # standard deviation in pixels of the window that the local mean is taken over
# Grey levels per pixel; close together, so that the distance between two histograms does not hang on them.
_GRADIENT_EDGES: Final = np.expm1(np.linspace(0, np.log1p(256), 129))
_ROUNDING: Final = 1 / 12  # variance that rounding to whole grey levels adds: keeps flat regions comparable


@dataclass(frozen=True, slots=True)
class Texture:
    """What `compare` needs. Arrays are float64."""

    pixels: int
    mean: tuple[float, float, float]  # per channel, grey levels
    variance: float  # of luma about its local mean, grey levels squared
    gradients: NDArray[np.float64]  # (128,), sums to 1
    spectra: Mapping[int, NDArray[np.float64]]  # patch side n -> (n / 2,): power at radius 1 ... n / 2


def texture(image: Pixels, mask: Mask) -> Texture | None:
    """The texture of `image` `(H, W, 3) uint8` inside `mask`; None where no 8x8 patch lies wholly inside.

    Pixels outside the mask have no influence.
    """
    image, _ = checked_pixels(image, image)
    mask = checked_mask(mask, image)
    box = _bounds(mask)
    if box is None:
        return None
    inside, part = mask[box], image[box]
    grey = luma(part) * inside
    spectra = {side: found for side in _PATCHES if (found := _spectrum(grey, inside, side)) is not None}
    gradients = _gradients(grey, inside)
    if not spectra or gradients is None:
        return None
    residual = (grey - _local_mean(grey, inside))[inside]
    red, green, blue = part[inside].mean(0, dtype=np.float64)
    return Texture(
        pixels=int(inside.sum()),
        mean=(float(red), float(green), float(blue)),
        variance=float(np.mean(residual**2)),
        gradients=gradients,
        spectra=spectra,
    )


def compare(a: Texture, b: Texture) -> dict[str, float]:
    """How far texture `a` (say, a fill) is from `b` (the tissue around it, or the truth).

    mean_shift         root mean square over channels of the difference of the means, grey levels
    variance_ratio     variance of a over that of b; under 1 is smoother
    gradient_distance  largest difference between the two cumulative histograms (Kolmogorov), 0 to 1
    spectrum_distance  mean over radial frequencies of |log(power of a / power of b)|, natural logarithm

    Rounding noise (1/12) is added to variances and powers, so that two flat regions are equal.
    """
    side = max(set(a.spectra) & set(b.spectra))
    power_a, power_b = a.spectra[side] + _ROUNDING, b.spectra[side] + _ROUNDING
    means = np.subtract(a.mean, b.mean)
    return {
        "mean_shift": float(np.sqrt(np.mean(means**2))),
        "variance_ratio": (a.variance + _ROUNDING) / (b.variance + _ROUNDING),
        "gradient_distance": float(np.abs(np.cumsum(a.gradients) - np.cumsum(b.gradients)).max()),
        "spectrum_distance": float(np.abs(np.log(power_a / power_b)).mean()),
    }


def luma(image: Pixels) -> NDArray[np.float64]:
    """`(H, W)` of `(H, W, 3)`: Rec. 601 weights; of a grey image exactly its grey levels."""
    weighted = image.astype(np.float64) @ np.array([299.0, 587.0, 114.0])
    return np.asarray(weighted / 1000)


def _bounds(mask: Mask) -> tuple[slice, slice] | None:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _local_mean(grey: NDArray[np.float64], inside: Mask) -> NDArray[np.float64]:
    """Gaussian mean over the pixels inside only (normalised convolution)."""
    both = np.dstack([grey, inside.astype(np.float64)])
    blurred = cv2.GaussianBlur(both, (0, 0), _LOCAL, borderType=cv2.BORDER_CONSTANT)
    return np.asarray(blurred[..., 0] / np.maximum(blurred[..., 1], 1e-12))


def _gradients(grey: NDArray[np.float64], inside: Mask) -> NDArray[np.float64] | None:
    """Histogram of the gradient's length where all four neighbours are inside; None where that is nowhere."""
    centre = inside[1:-1, 1:-1]
    known = centre & inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    if not known.any():
        return None
    down = (grey[2:, 1:-1] - grey[:-2, 1:-1]) / 2
    across = (grey[1:-1, 2:] - grey[1:-1, :-2]) / 2
    counts, _ = np.histogram(np.hypot(down, across)[known], _GRADIENT_EDGES)
    return np.asarray(counts / known.sum(), np.float64)


def _spectrum(grey: NDArray[np.float64], inside: Mask, side: int) -> NDArray[np.float64] | None:
    """Power at radial frequency 1 ... side / 2 cycles per patch, averaged over patches wholly inside.

    Each patch loses its mean and takes a Hann window; white noise of variance v has power v at each radius.
    """
    if min(inside.shape) < side:
        return None
    sums = cv2.integral(inside.astype(np.uint8))
    full = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    corners = np.argwhere(full == side * side)
    if not len(corners):
        return None
    corners = corners[np.linspace(0, len(corners) - 1, min(len(corners), _AT_MOST)).round().astype(int)]
    patches = np.stack([grey[y : y + side, x : x + side] for y, x in corners])
    patches -= patches.mean((1, 2), keepdims=True)
    window = np.outer(*[0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(side) + 0.5) / side)] * 2)
    power = (np.abs(np.fft.fft2(patches * window)) ** 2).mean(0) / (window**2).sum()
    frequency = np.fft.fftfreq(side, 1 / side)
    radius = np.hypot(frequency[:, None], frequency).round().astype(int)
    return np.array([power[radius == r].mean() for r in range(1, side // 2 + 1)])


_DEPTHS: Final = (3, 4, 5)  # pixels from the outline to the parallel curves, on either side
_FLOOR: Final = 1.0  # grey levels squared: steps that nobody sees in a flat region weigh little


def seam_energy(image: Pixels, mask: Mask) -> float:
    """Root-mean-square step across the outline of `mask`, over that across parallel curves, minus 1.

    About 0 where there is no seam; 1 means that steps across the outline are twice those nearby; under 0 the
    outline is smoother than what lies around it. The steps are differences of neighbouring pixels on either
    side of a curve, squared and averaged over channels. The parallel curves lie 3 to 5 pixels inside and
    outside, and both sides weigh the same. So a smooth fill beside noise has no seam (its texture is wrong,
    which is for `texture` to say), since a step between the two has just the mean of their energies.
    MetricError where the mask has no outline, or nothing lies 3 pixels away from it.
    """
    image, _ = checked_pixels(image, image)
    mask = checked_mask(mask, image)
    if mask.all() or not mask.any():
        raise MetricError("the region has no outline", found="it is empty, or the whole image")
    reach = max(_DEPTHS) + 2
    box = tuple(slice(max(int(at.min()) - reach, 0), int(at.max()) + reach + 1) for at in np.nonzero(mask))
    inside, part = mask[box], image[box].astype(np.float32)
    steps = [np.square(np.diff(part, axis=axis)).mean(2) for axis in (0, 1)]
    # Distances are those to the nearest pixel on the other side: 1 at the outline.
    depth = cv2.distanceTransform(inside.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    height = cv2.distanceTransform((~inside).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    curves = [[depth > d for d in _DEPTHS], [height <= d for d in _DEPTHS]]
    sides = [[found for c in side if (found := _energy(steps, c)) is not None] for side in curves]
    around = [float(np.mean(side)) for side in sides if side]
    across = _energy(steps, inside)
    if not around or across is None:
        raise MetricError("nothing to compare the outline with", expected="pixels 3 away from it")
    return float(np.sqrt((across + _FLOOR) / (np.mean(around) + _FLOOR)) - 1)


def _energy(steps: list[NDArray[np.float32]], inside: Mask) -> float | None:
    """Mean of the squared steps between a pixel inside and a neighbour that is not; None without any."""
    crossing = [inside[1:] != inside[:-1], inside[:, 1:] != inside[:, :-1]]
    found = np.concatenate([step[cross] for step, cross in zip(steps, crossing, strict=True)])
    return float(found.mean(dtype=np.float64)) if found.size else None
