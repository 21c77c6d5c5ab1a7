"""The physics that CT effects share: projection, reconstruction, and attenuation by energy.

Parallel-beam projection and filtered back-projection follow scikit-image's convention, several times faster.
Angles are degrees; the axis of rotation is the pixel `(n // 2, n // 2)`; the detector has as many bins as the
image has columns, one pixel apart; a sinogram is `(n, views)`. Lengths are in pixels: multiply a projection
by the pixel spacing to integrate over millimetres. Only the inscribed circle (the field of view) is
reconstructed, and what is projected must be zero outside it: `embed` pads a slice so that it is.

Mass attenuation coefficients (with coherent scattering) are those of NIST, Standard Reference Databases 8
(XCOM) and 126 (Hubbell and Seltzer); 70, 90, 110 and 120 keV, which database 126 leaves out, are from the
Elam, Ravel and Sieber tables, which agree with it to 0.2 % elsewhere. Bone is ICRU-44 cortical bone. Amalgam
is a set dental alloy of 50 % mercury, 35 % silver, 9 % tin and 6 % copper by mass: mercury's K edge at 83.1
keV makes it the only material here that attenuates more at 90 than at 80 keV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from mie.errors import ConfigError, ImageError

Slice = NDArray[np.float32]
Sinogram = NDArray[np.float32]

# From sharp to soft: the ramp up to Nyquist, times sinc, times a Hann window.
KERNELS: Final = ("ramp", "shepp-logan", "hann")


def even_angles(views: int) -> NDArray[np.float64]:
    """`views` angles spread evenly over 180 degrees, from 0."""
    return np.arange(views, dtype=np.float64) * (180 / views)


def enough_views(size: int) -> int:
    """Views after which an n x n reconstruction gains nothing: then they are a pixel apart on the edge."""
    return math.ceil(math.pi / 2 * size)


def project(image: Slice, angles: NDArray[np.float64]) -> Sinogram:
    """Line integrals `(n, views)` of a square image `(n, n)` that is zero outside its inscribed circle.

    Equal to `skimage.transform.radon(image, angles, circle=True)`: the image is rotated (bilinear, zero
    outside) and its columns are added up. Needs OpenCV 5: version 4 rounds positions to 1/32 pixel, an
    error of 2e-3.
    """
    if image.ndim != 2 or image.shape[0] != image.shape[1]:
        raise ImageError(
            "only square images are projected", expected="(n, n)", found=image.shape, fix="embed"
        )
    size = image.shape[0]
    centre = size // 2
    source = np.ascontiguousarray(image, np.float32)
    views = np.empty((len(angles), size), np.float32)
    rotated = np.empty((size, size), np.float32)
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    for view, angle in zip(views, np.deg2rad(angles), strict=True):
        c, s = math.cos(angle), math.sin(angle)
        back = np.array([[c, s, centre * (1 - c - s)], [-s, c, centre * (1 - c + s)]])
        cv2.warpAffine(source, back, (size, size), rotated, how, cv2.BORDER_CONSTANT, 0)
        cv2.reduce(rotated, 0, cv2.REDUCE_SUM, view[None], cv2.CV_32F)
    return views.T


def filter_sinogram(sinogram: Sinogram, kernel: str) -> Sinogram:
    """Each view convolved with a reconstruction kernel of `KERNELS`: `(n, views)` to `(n + 3, views)`.

    One more bin before the first and two after the last, where the tails of the kernel lie: the edge of the
    circle may fall on or just beyond the outermost bins.
    """
    bins = sinogram.shape[0]
    # Padded as iradon does: the ramp's kernel is endless, and half the length must be free of wrap-around.
    length = max(64, 1 << math.ceil(math.log2(2 * math.ceil(math.sqrt(2) * bins))))
    padded = np.zeros((sinogram.shape[1], length), np.float32)
    padded[:, 1 : bins + 1] = sinogram.T
    spectrum = scipy.fft.rfft(padded, overwrite_x=True)
    spectrum *= _response(length, kernel)
    return scipy.fft.irfft(spectrum, length, overwrite_x=True)[:, : bins + 3].T


def _response(length: int, kernel: str) -> NDArray[np.float32]:
    """The kernel's frequency response `(length // 2 + 1)`.

    The ramp is the transform of its band-limited kernel (Kak and Slaney, chapter 3, equation 61), not |f|,
    which would lose the mean.
    """
    if kernel not in KERNELS:
        raise ConfigError("unknown reconstruction kernel", expected=" or ".join(KERNELS), found=kernel)
    offsets = scipy.fft.fftfreq(length, 1 / length)
    impulse = np.zeros(length)
    impulse[0] = 0.25
    impulse[1::2] = -1 / (np.pi * offsets[1::2]) ** 2
    ramp = 2 * scipy.fft.rfft(impulse).real
    if kernel == "shepp-logan":
        ramp *= np.sinc(scipy.fft.rfftfreq(length))
    elif kernel == "hann":
        # As iradon: numpy.hanning is symmetric about half a step, so both signs of frequency are averaged.
        window = scipy.fft.fftshift(np.hanning(length))
        ramp *= ((window + np.roll(window[::-1], 1)) / 2)[: len(ramp)]
    return ramp.astype(np.float32)


def backproject(filtered: Sinogram, angles: NDArray[np.float64], size: int) -> Slice:
    """Smear the views `(n + 3, views)` of `filter_sinogram` back over `(size, size)`, size at most n.

    Interpolates linearly, and scales by pi / (2 views), which makes it the image; zero outside the circle.
    """
    bins = filtered.shape[0] - 3
    if not 0 < size <= bins:
        raise ConfigError("no detector sees all of the reconstruction", expected=f"1 .. {bins}", found=size)
    if filtered.shape[1] != len(angles):
        raise ConfigError(
            "views and angles differ", expected=f"{filtered.shape[1]} angles", found=len(angles)
        )
    radians = np.deg2rad(np.asarray(angles, np.float64))
    views = np.ascontiguousarray(filtered.T, np.float32)
    # Between two bins a view is a line, `height + slope * position`: half the reads of an interpolation.
    slopes = np.diff(views, axis=1)
    heights = views[:, :-1] - slopes * np.arange(bins + 2, dtype=np.float32)
    total = _smear(heights, slopes, np.cos(radians), np.sin(radians), size, bins // 2 + 1)
    total *= np.float32(math.pi / (2 * len(radians)))
    return total


def fbp(sinogram: Sinogram, angles: NDArray[np.float64], kernel: str, size: int | None = None) -> Slice:
    """Filtered back-projection of `(n, views)` to `(size, size)`, by default `(n, n)`.

    Equal to `skimage.transform.iradon(sinogram, angles, filter_name=kernel, circle=True)` to 1e-5.
    """
    return backproject(filter_sinogram(sinogram, kernel), angles, size or sinogram.shape[0])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _smear(heights, slopes, cosines, sines, size, axis):  # type: ignore[no-untyped-def]
    centre = size // 2
    total = np.zeros((size, size), np.float32)
    for row in range(size):
        up = row - centre
        half = int(math.sqrt(centre * centre - up * up))  # half the chord of the circle in this row
        first, last = centre - half, min(centre + half, size - 1)
        line = total[row]
        for k in range(cosines.size):
            height, slope = heights[k], slopes[k]
            step = np.float32(cosines[k])
            # In double once a row: the position's error must stay far below a bin.
            start = np.float32(axis - up * sines[k] - centre * cosines[k])
            for column in range(first, last + 1):
                position = start + step * np.float32(np.int32(column))
                left = np.uint32(np.int32(position))  # unsigned: no test for negative indices
                line[column] += height[left] + position * slope[left]
    return total


def embed(image: Slice, faint: float) -> tuple[Slice, tuple[slice, slice]]:
    """A square slice `(n, n)` that is zero outside its inscribed circle, and the place of `image` in it.

    Scanners show the body inside the circle, so mostly this only squares the picture; a crop that fills its
    corners grows, by up to sqrt(2), until every value above `faint` is inside. What is fainter (noise in air)
    is set to zero outside the circle. `big[place]` is the image again.
    """
    height, width = image.shape
    rows, columns = np.nonzero(image > faint)
    far = np.hypot(rows - height // 2, columns - width // 2).max(initial=0)
    # Two pixels to spare: bilinear interpolation reaches 1.4 pixels further.
    size = max(height, width, 2 * (math.ceil(far) + 2))
    centre = size // 2
    top, left = centre - height // 2, centre - width // 2
    place = (slice(top, top + height), slice(left, left + width))
    big = np.zeros((size, size), np.float32)
    big[place] = image
    along = np.arange(size) - centre
    big[along[:, None] ** 2 + along**2 > (centre - 2) ** 2] = 0
    return big, place


ENERGIES: Final = (30, 40, 50, 60, 70, 80, 90, 100, 110, 120)  # keV
# The energy whose attenuation 120 kVp CT numbers stand for.
REFERENCE: Final = 70

# g / cm^3
DENSITY: Final = {"water": 1.0, "bone": 1.92, "iron": 7.874, "titanium": 4.506, "amalgam": 11.6}
# cm^2 / g at ENERGIES
MASS_ATTENUATION: Final = {
    "water": (0.3756, 0.2683, 0.2269, 0.2059, 0.1929, 0.1837, 0.1766, 0.1707, 0.1657, 0.1614),
    "bone": (1.331, 0.6655, 0.4242, 0.3148, 0.2570, 0.2229, 0.2008, 0.1855, 0.1743, 0.1656),
    "iron": (8.176, 3.629, 1.958, 1.205, 0.8164, 0.5952, 0.4597, 0.3717, 0.3118, 0.2693),
    "titanium": (4.972, 2.214, 1.213, 0.7661, 0.5361, 0.4052, 0.3247, 0.2721, 0.2360, 0.2102),
    "amalgam": (31.41, 14.77, 8.177, 5.046, 3.362, 2.376, 4.363, 3.331, 2.616, 2.103),
}
_ALUMINIUM: Final = (1.128, 0.5685, 0.3681, 0.2778, 0.2301, 0.2018, 0.1833, 0.1704, 0.1608, 0.1533)

# HU above which part of a pixel is taken for bone: above muscle and organs, below contrast-filled vessels.
_BONE_FROM: Final = 100.0


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Photons by energy: `energies` in keV out of ENERGIES, `weights` that add up to 1."""

    energies: tuple[int, ...]
    weights: tuple[float, ...]

    def attenuation(self, material: str) -> NDArray[np.float64]:
        """Linear attenuation (1/mm) of the material at each energy."""
        return np.array([linear_attenuation(material, kev) for kev in self.energies])


def linear_attenuation(material: str, kev: int = REFERENCE) -> float:
    """Attenuation in 1/mm of a material of `MASS_ATTENUATION` at one of `ENERGIES`."""
    return MASS_ATTENUATION[material][ENERGIES.index(kev)] * DENSITY[material] / 10


def one_energy(kev: int = REFERENCE) -> Spectrum:
    return Spectrum((kev,), (1.0,))


def tungsten_120kvp(filtration: float = 7.0) -> Spectrum:
    """A tungsten tube at 120 kVp behind `filtration` mm of aluminium, in steps of 10 keV.

    Kramers' law, photons ~ (120 - E) / E, times the filter, with 12 % of the photons in the K lines (58 and
    59 keV, and a quarter of them at 67 to 69 keV). Mean energy 59.5 keV.
    """
    # The last step reaches from 115 to 120 keV only: half as wide, and centred on 117.5.
    centres = np.array([*ENERGIES[:-1], 117.5])
    widths = np.array([1.0] * (len(ENERGIES) - 1) + [0.5])
    through = np.exp(-np.array(_ALUMINIUM) * 2.699 * filtration / 10)
    photons = (120 - centres) / centres * widths * through
    photons *= 0.88 / photons.sum()
    photons[ENERGIES.index(60)] += 0.09
    photons[ENERGIES.index(70)] += 0.03
    return Spectrum(ENERGIES, tuple(float(p) for p in photons))


def hu_to_attenuation(hu: NDArray[Any]) -> Slice:
    """Linear attenuation in 1/mm at REFERENCE; below -1000 HU (fill values, noise in air) it is 0."""
    water = linear_attenuation("water")
    return np.maximum((1 + hu / 1000) * water, 0).astype(np.float32)


def attenuation_to_hu(attenuation: NDArray[Any]) -> Slice:
    """CT numbers of linear attenuation in 1/mm at REFERENCE."""
    return (1000 * (attenuation / linear_attenuation("water") - 1)).astype(np.float32)


def water_and_bone(attenuation: Slice) -> tuple[Slice, Slice]:
    """Split attenuation at REFERENCE (1/mm) into densities of water and cortical bone (1 where pure).

    Below 100 HU all is water, more or less dense; from there bone takes over in proportion. Whatever the
    split, `water * mu_water + bone * mu_bone` is the attenuation again.
    """
    mu_water, mu_bone = linear_attenuation("water"), linear_attenuation("bone")
    start = (1 + _BONE_FROM / 1000) * mu_water
    bone = np.clip((attenuation - start) / (mu_bone - start), 0, attenuation / mu_bone).astype(np.float32)
    return (attenuation - bone * np.float32(mu_bone)) / np.float32(mu_water), bone


def check_slice(hu: NDArray[Any], spacing: tuple[float, float]) -> float:
    """The pixel's side in mm, once it is sure that `hu` is a slice `(H, W) float32` with square pixels.

    float32 on purpose: 8-bit pictures have no Hounsfield units any more, and would pass unnoticed.
    """
    if hu.ndim != 2:
        raise ImageError(
            "CT physics needs one grey slice",
            expected="(H, W) float32 in Hounsfield units",
            found=f"{hu.shape} {hu.dtype}",
            fix="take one slice; colour images are not CT",
        )
    if hu.dtype != np.float32:
        raise ImageError(
            "CT physics needs Hounsfield units",
            expected="float32, air -1000, water 0",
            found=hu.dtype,
            fix="apply rescale slope and intercept, then astype(np.float32); a windowed picture will not do",
        )
    if min(hu.shape) < 16:
        raise ImageError("slice is too small to project", expected="at least 16x16 pixels", found=hu.shape)
    if not np.isfinite(hu).all():
        raise ImageError(
            "slice has pixels that are not numbers",
            expected="finite values",
            found=f"{int(np.isnan(hu).sum())} NaN and {int(np.isinf(hu).sum())} infinite of {hu.size} pixels",
            fix="replace them in the source file",
        )
    row, column = spacing
    if not (0 < row < 50 and 0 < column < 50 and math.isclose(row, column, rel_tol=0.01)):
        raise ImageError(
            "pixel spacing does not fit parallel beams",
            expected="square pixels, (row, column) in mm",
            found=spacing,
            fix="resample the slice to square pixels",
        )
    return float((row + column) / 2)
