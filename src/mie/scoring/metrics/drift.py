"""Did the output move? A global shift, zoom or crop of the output against the input.

Editors that resample or crop their input ruin every pixel metric without looking wrong, so each output is
measured. Both images go to grey at no more than 128 px a side; the edited region (grown a little) and slow
shading are replaced by their surroundings: what remains is g minus its local mean over background pixels.

1. Shift: the peak of the phase correlation (Hann window, Gaussian low-pass), sub-pixel by a parabola
   through the logarithm, because the low-pass makes the peak a Gaussian.
2. Large zoom: the magnitude spectra on a log-polar grid, where zoom is a shift along log radius.
   It is believed only if undoing the zoom makes the peak of step 1 higher.
3. Small zoom: what is found is undone, the four quarters are correlated alone, and a line through their
   shifts is the rest of the zoom. Believed on the same condition.

`response` is the height of the peak: 1 for a copy, about 0.1 (0.2 at 64 px) at most for unrelated images.
`flag` is set when the response is high enough and the output is more than 1 px or 1% off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.images import kernels as _pair
from mie.records import Mask, Pixels

MAX_SHIFT = 1.0  # pixels of the input
MAX_ZOOM = 0.01
# Divided by the side. Below 0.22 at 128 px and 0.44 at 64 px lie chance peaks, and zooms that fit noise.
_MIN_RESPONSE = 28.0
_MIN_GAIN = 0.02  # in response, to believe a zoom

_SIDE = 128  # the peak is known to a twentieth of a pixel; 256 px take twice the time and more noise
_BOX = (31, 31)  # shading slower than this is taken away
_SMALLEST = 32  # below this a quarter holds no structure
_LOW_PASS = 0.2  # cycles a pixel; above lie noise and compression
_REACH = 0.25  # of a side: how far a shift is looked for
# The log-polar grid: angles by radii, radii in cycles a pixel, and the zoom looked for.
_ANGLES, _RADII = 90, 128
_INNER, _OUTER = 0.02, 0.45
_ZOOM_REACH = 1.3

Plane: TypeAlias = NDArray[np.float32]
Spectrum: TypeAlias = NDArray[np.complex64]
_Found: TypeAlias = tuple[float, float, float, float]  # response, dx, dy, scale


@dataclass(frozen=True, slots=True)
class Drift:
    """How the output lies on the input: p -> centre + scale (p - centre) + (dx, dy), in input pixels."""

    dx: float  # to the right
    dy: float  # downwards
    scale: float  # above 1: the output is zoomed in
    response: float  # 0 to 1: how sure
    flag: bool


@dataclass(frozen=True, slots=True)
class _Background:
    """What of the small planes is background."""

    weight: Plane  # 1 there, 0 in the region grown by 6 px (paint that moved lies beside it), soft between
    local: Plane  # its local mean, kept off 0

    @classmethod
    def of(cls, region: Mask, size: tuple[int, int]) -> _Background:
        small = cv2.resize(region.view(np.uint8) * np.uint8(255), size[::-1], interpolation=cv2.INTER_AREA)
        outside = 255 - cv2.dilate(small, np.ones((13, 13), np.uint8))
        weight = cv2.blur(outside.astype(np.float32) / 255, (5, 5))
        return cls(weight, np.maximum(cv2.blur(weight, _BOX), np.float32(1e-3)))


def drift(image: Pixels, output: Pixels, region: Mask | None = None) -> Drift:
    """Measure the drift of `output` against `image`, both `(H, W, 3) uint8`, outside `region` `(H, W) bool`.

    Good to 0.3 px (at 512 px a side) and 0.3% on textured images of 128 px and more. Under 32 px nothing is
    measured: response 0. A low response means that the two cannot be compared, not that they lie still.
    """
    image, output = _pair.pixels(image, output)
    height, width = image.shape[:2]
    if min(height, width) < _SMALLEST:
        return Drift(0.0, 0.0, 1.0, 0.0, False)
    shrink = min(1.0, _SIDE / max(height, width))
    size = max(1, round(height * shrink)), max(1, round(width * shrink))
    keep = None if region is None else _Background.of(_pair.mask(region, image), size)
    still, moved = _grey(image, size), _grey(output, size)
    dx, dy, scale, response = _align(still, moved, keep)
    dx, dy = dx * width / size[1], dy * height / size[0]
    off = max(abs(dx), abs(dy)) > MAX_SHIFT or abs(scale - 1) > MAX_ZOOM
    sure = response >= _MIN_RESPONSE / math.sqrt(size[0] * size[1])
    return Drift(dx, dy, scale, response, off and sure)


def _align(still: Plane, moved: Plane, keep: _Background | None) -> tuple[float, float, float, float]:
    """(dx, dy, scale, response) in pixels of the small planes."""
    flat = _flatten(still, keep)
    spectrum, other = _spectrum(flat), _spectrum(_flatten(moved, keep))
    best: _Found = (*_correlate(spectrum, other, flat.shape), 1.0)
    zoom = _zoom(spectrum, other, flat.shape)
    if abs(zoom - 1) > MAX_ZOOM:
        best = _better(best, _undone(spectrum, moved, keep, (0.0, 0.0, 0.0, zoom)))
    undone = _flatten(_undo(moved, *best[1:]), keep)
    rest = _zoom_of_quarters(flat, undone)
    if abs(rest - 1) > MAX_ZOOM / 5:
        best = _better(best, _undone(spectrum, moved, keep, (*best[:3], best[3] * rest)))
    response, dx, dy, scale = best
    return dx, dy, scale, min(max(response, 0.0), 1.0)


def _better(old: _Found, new: _Found) -> _Found:
    """The one with the higher response; "no zoom" must be beaten clearly, as some zoom always fits noise."""
    gain = _MIN_GAIN if old[3] == 1 else 0.0
    return new if new[0] > old[0] + gain else old


def _undone(spectrum: Spectrum, moved: Plane, keep: _Background | None, guess: _Found) -> _Found:
    """Take a guess back and measure what is left."""
    _, dx, dy, scale = guess
    flat = _flatten(_undo(moved, dx, dy, scale), keep)
    response, more_dx, more_dy = _correlate(spectrum, _spectrum(flat), flat.shape)
    return response, dx + scale * more_dx, dy + scale * more_dy, scale


def _undo(moved: Plane, dx: float, dy: float, scale: float) -> Plane:
    if dx == dy == 0 and scale == 1:
        return moved
    height, width = moved.shape
    x, y = (width - 1) / 2, (height - 1) / 2
    # WARP_INVERSE_MAP: the matrix says where each pixel comes from.
    matrix = np.array([[scale, 0, x - scale * x + dx], [0, scale, y - scale * y + dy]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(moved, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _grey(image: Pixels, size: tuple[int, int]) -> Plane:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    if grey.shape != size:
        grey = cv2.resize(grey, size[::-1], interpolation=cv2.INTER_AREA)
    return grey.astype(np.float32)


def _flatten(grey: Plane, keep: _Background | None) -> Plane:
    """Less the local mean over the background, and 0 in the region: as if it were filled from around it."""
    if keep is None:
        return grey - cv2.blur(grey, _BOX)
    mean = cv2.blur(grey * keep.weight, _BOX)
    mean /= keep.local
    return (grey - mean) * keep.weight


def _spectrum(flat: Plane) -> Spectrum:
    return np.fft.rfft2(flat * _hann(*flat.shape[-2:])).astype(np.complex64, copy=False)


def _correlate(still: Spectrum, moved: Spectrum, shape: tuple[int, ...]) -> tuple[float, float, float]:
    """(response, dx, dy) of the highest peak within reach."""
    height, width = shape
    cross = moved * still.conj()
    power = np.abs(cross)
    mean = float(power.mean())
    if mean == 0:
        return 0.0, 0.0, 0.0
    # Frequencies without power have a phase made of rounding: they get little weight.
    cross *= _low_pass(height, width) / (power + np.float32(1e-3 * mean))
    surface = np.fft.irfft2(cross, s=(height, width))
    rows, columns = int(height * _REACH), int(width * _REACH)
    # Negative shifts are at the far end; the middle is out of reach.
    surface[rows + 1 : -rows] = 0
    surface[:, columns + 1 : -columns] = 0
    y, x = divmod(int(surface.argmax()), width)
    y, x = (y - height if y > rows else y), (x - width if x > columns else x)
    top = float(surface[y, x])
    dy = y + _vertex(surface[y - 1, x], top, surface[y + 1, x])
    dx = x + _vertex(surface[y, x - 1], top, surface[y, x + 1])
    return top, dx, dy


def _vertex(left: float, top: float, right: float) -> float:
    """Where between -1/2 and 1/2 the Gaussian through three neighbours has its top."""
    a, b, c = (math.log(max(value, 1e-9)) for value in (left, top, right))
    bend = a - 2 * b + c
    return 0.0 if bend >= 0 else min(max(0.5 * (a - c) / bend, -0.5), 0.5)


def _zoom(still: Spectrum, moved: Spectrum, shape: tuple[int, ...]) -> float:
    """The zoom by phase correlation along log radius, all angles together (an editor does not rotate)."""
    a, b = (np.fft.rfft(_log_polar(s, shape), axis=1) for s in (still, moved))
    power = np.sqrt((np.abs(a) ** 2).sum(0) * (np.abs(b) ** 2).sum(0))
    line = np.fft.irfft((b * a.conj()).sum(0) / (power + 1e-9), _RADII)
    step = math.log(_OUTER / _INNER) / _RADII
    far = int(math.log(_ZOOM_REACH) / step)
    k = int(np.argmax(np.roll(line, far)[: 2 * far + 1])) - far
    # Zooming in spreads the picture and shrinks its spectrum: towards small radii.
    return math.exp(-step * (k + _vertex(line[k - 1], line[k], line[k + 1])))


def _log_polar(spectrum: Spectrum, shape: tuple[int, ...]) -> Plane:
    magnitude = np.fft.fftshift(np.log1p(np.abs(spectrum)), axes=0)
    polar = cv2.remap(magnitude, *_polar_grid(*shape), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    # The fall towards high frequencies is the same in all images and would always answer "no zoom".
    polar -= polar.mean(0)
    polar -= cv2.blur(polar, (31, 1))
    return polar * _hann(1, _RADII)


def _zoom_of_quarters(still: Plane, moved: Plane) -> float:
    """The zoom that explains the shifts of the four quarters, each weighted by its response."""
    height, width = still.shape[0] // 2, still.shape[1] // 2
    corners = [(y, x) for y in (0, height) for x in (0, width)]
    quarters = [np.stack([p[y : y + height, x : x + width] for y, x in corners]) for p in (still, moved)]
    spectra = [_spectrum(q) for q in quarters]
    shifts = np.array([_correlate(a, b, (height, width)) for a, b in zip(*spectra, strict=True)])
    weights = np.maximum(shifts[:, 0], 0) ** 2
    if np.count_nonzero(weights) < 3:
        return 1.0
    along = np.array([(x, y) for y, x in corners], float)
    along -= np.average(along, axis=0, weights=weights)
    moves = shifts[:, 1:] - np.average(shifts[:, 1:], axis=0, weights=weights)
    return 1 + float((weights[:, None] * along * moves).sum() / (weights[:, None] * along**2).sum())


@lru_cache(16)
def _hann(height: int, width: int) -> Plane:
    return np.outer(np.hanning(height), np.hanning(width)).astype(np.float32)


@lru_cache(16)
def _low_pass(height: int, width: int) -> Plane:
    """A Gaussian over the half plane of `rfft2`, scaled so that a perfect match has a peak of 1."""
    radius2 = np.fft.fftfreq(height)[:, None] ** 2 + np.fft.rfftfreq(width)[None] ** 2
    weight = np.exp(-radius2 / (2 * _LOW_PASS**2))
    peak = np.fft.irfft2(weight, s=(height, width))[0, 0]
    return (weight / peak).astype(np.float32)


@lru_cache(16)
def _polar_grid(height: int, width: int) -> tuple[Plane, Plane]:
    """Columns and rows of a shifted half-plane spectrum: angles down, radii (logarithmic) across."""
    radius = _INNER * (_OUTER / _INNER) ** (np.arange(_RADII) / _RADII)
    angle = np.pi * np.arange(_ANGLES)[:, None] / _ANGLES - np.pi / 2
    across, down = radius * np.cos(angle) * width, radius * np.sin(angle) * height + height // 2
    return across.astype(np.float32), down.astype(np.float32)
