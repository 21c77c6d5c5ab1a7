"""Exemplar-based fill: the hole closes patch by patch with texture copied from the tissue around it.

After Criminisi, Perez and Toyama 2004, with two additions. The hole is filled coarse to fine, and what a
coarser level drew guides the finer one: patches are chosen by how well they continue what is known and by how
well they agree with the guide. If several patches fit about equally well, the seed picks one. Values are `(H,
W, C) float32`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import cv2
import numba
import numpy as np
from numpy.typing import NDArray

from mie.images.overlay import is_grey
from mie.perspectives.modification.inpainters import Inpainter, check_hole, refuse_arguments
from mie.records import Mask, Pixels


def halved(values: NDArray[np.float32], known: Mask) -> tuple[NDArray[np.float32], Mask]:
    """Half the size; a pixel is the mean of those of its four that are known, and known if any is."""
    height, width = (-(-side // 2) for side in known.shape)
    weight = np.zeros((2 * height, 2 * width, 1), np.float32)
    weight[: known.shape[0], : known.shape[1], 0] = known
    padded = np.zeros((2 * height, 2 * width, values.shape[2]), np.float32)
    padded[: known.shape[0], : known.shape[1]] = values * known[..., None]
    total = padded.reshape(height, 2, width, 2, -1).sum((1, 3))
    count = weight.reshape(height, 2, width, 2, 1).sum((1, 3))
    return total / np.maximum(count, 1), np.asarray(count[..., 0] > 0)


def doubled(small: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    size = (2 * small.shape[1], 2 * small.shape[0])
    large = cv2.resize(small, size, interpolation=cv2.INTER_LINEAR).reshape(*size[::-1], small.shape[2])
    return np.ascontiguousarray(large[: shape[0], : shape[1]])


def pulled(values: NDArray[np.float32], known: Mask) -> NDArray[np.float32]:
    """The hole filled smoothly, from ever coarser means (pull-push)."""
    if known.all():
        return values
    return np.where(known[..., None], values, doubled(pulled(*halved(values, known)), known.shape))


_HALF: Final = 4  # half the side of a patch: 9 x 9
_PASTE: Final = 3  # half the side of what is copied of it
_AROUND: Final = 40  # pixels around the hole's box, at least, that patches are taken from
_SOURCES: Final = 12_000  # patches looked at, at most; drawn by the seed where there are more
_SHALLOW: Final = 3.0  # pixels: a hole this deep needs no coarser level
_GUIDE: Final = 2.0  # weight of the guide against the known pixels
_CHOICE: Final = 4  # patches that the seed chooses from,
_ABOUT: Final = 1.15  # if they are worse than the best by no more than this factor
_NEAREST: Final = 16  # patches compared first, those whose guide is nearest
_GLANCE: Final = 16  # values compared before it is asked whether it is worth while


class Exemplar:
    """Texture from elsewhere in the same image."""

    name = "exemplar"
    weights = None

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        check_hole(image, mask)
        if not mask.any():
            return image.copy()
        box = _around(mask)
        known = ~mask[box]
        grey = is_grey(image[~mask][None])
        part = image[box][..., :1] if grey else image[box]
        values = np.where(known[..., None], part, 0).astype(np.float32)
        drawn = _filled(values, known, np.random.default_rng(seed))
        filled = image.copy()
        filled[box] = np.where(known[..., None], image[box], np.clip(drawn.round(), 0, 255).astype(np.uint8))
        return filled


def open_exemplar(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    refuse_arguments("exemplar", argument, options)
    return Exemplar()


def _around(mask: Mask) -> tuple[slice, slice]:
    """The hole's box, widened by its own size on each side so that there is tissue to copy."""
    places = [np.flatnonzero(mask.any(axis)) for axis in (1, 0)]
    wide = max(_AROUND, *(int(p[-1] - p[0]) + 1 for p in places))
    rows, columns = (slice(max(int(p[0]) - wide, 0), int(p[-1]) + wide + 1) for p in places)
    return rows, columns


def _filled(values: NDArray[np.float32], known: Mask, rng: np.random.Generator) -> NDArray[np.float32]:
    """`values` `(H, W, C)` with every pixel that is not `known` drawn."""
    if known.all():
        return values
    small, small_known = halved(values, known)
    depth = cv2.distanceTransform((~known).astype(np.uint8), cv2.DIST_L2, 3).max()
    coarse = pulled(small, small_known) if depth <= _SHALLOW else _filled(small, small_known, rng)
    guide = doubled(coarse, known.shape)
    for half in range(_HALF, -1, -1):
        centres = _whole_patches(known, half)
        if len(centres):
            break
    if len(centres) > _SOURCES:
        centres = centres[rng.choice(len(centres), _SOURCES, replace=False)]
    drawn, draws = values.copy(), rng.random(int((~known).sum()))
    _close(drawn, known.copy(), guide, centres.astype(np.int32), draws, half, min(half, _PASTE))
    return drawn


def _whole_patches(known: Mask, half: int) -> NDArray[np.int64]:
    """Centres of patches that lie in the image and hold known pixels only."""
    side = 2 * half + 1
    if min(known.shape) < side:
        return np.zeros((0, 2), np.int64)
    sums = cv2.integral(known.astype(np.uint8))
    full = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    return np.argwhere(full == side * side) + half


@numba.njit(cache=True, nogil=True)
def _close(values, known, guide, centres, draws, half, paste):  # type: ignore[no-untyped-def]
    """Draws into `values` `(H, W, C) float32` until all is `known`; both are changed.

    `centres` `(M, 2)` are the patches to copy from, `draws` random numbers in [0, 1), one a step is enough.
    """
    height, width, channels = values.shape
    trust = known.astype(np.float32)  # 1 where given; less and less towards the middle of the hole
    flat = values.reshape(-1)
    starts = (centres[:, 0].astype(np.int64) * width + centres[:, 1]) * channels
    guides = _guides(guide, centres, half)
    far = np.empty(centres.shape[0], np.float64)
    steps = np.empty((2 * half + 1) ** 2 * channels, np.int64)  # from a patch's centre to its known values,
    wanted = np.empty(steps.size, np.float32)  # and those values
    best, found = np.empty(_CHOICE, np.float32), np.empty(_CHOICE, np.int64)
    rim = np.full(known.shape, np.float32(-1))  # how far a pixel at the hole's rim is trusted
    _trust_rim(rim, known, trust, half, 0, height, 0, width)
    for draw in draws:
        y, x = _most_trusted(rim)
        if y < 0:
            break
        sure = rim[y, x] / np.float32((2 * half + 1) ** 2)
        _guide_distances(far, guides, guide, y, x, half)
        pixels = 0
        for dy in range(max(-half, -y), min(half, height - 1 - y) + 1):
            for dx in range(max(-half, -x), min(half, width - 1 - x) + 1):
                if known[y + dy, x + dx]:
                    for c in range(channels):
                        steps[pixels * channels + c] = (dy * width + dx) * channels + c
                        wanted[pixels * channels + c] = values[y + dy, x + dx, c]
                    pixels += 1
        worst = _enough(far, flat, starts, steps, wanted, pixels, channels)
        best[:] = np.inf
        for m in range(far.size):
            limit = best[_CHOICE - 1]
            if far[m] > worst or far[m] > limit:
                continue
            worse = _distance(far[m], flat, starts[m], steps, wanted, pixels, channels, limit)
            if worse < limit:
                _insert(best, found, worse, m)
        fit = 1
        while fit < _CHOICE and best[fit] <= best[0] * _ABOUT:
            fit += 1
        v, u = centres[found[int(draw * fit)]]
        top, bottom = max(y - paste, 0), min(y + paste + 1, height)
        left, right = max(x - paste, 0), min(x + paste + 1, width)
        for i in range(top, bottom):
            for j in range(left, right):
                if not known[i, j]:
                    values[i, j] = values[v + i - y, u + j - x]
                    known[i, j] = True
                    trust[i, j] = sure
        near = max(half, 1)
        top, bottom = max(top - near, 0), min(bottom + near, height)
        _trust_rim(rim, known, trust, half, top, bottom, max(left - near, 0), min(right + near, width))


@numba.njit(cache=True, nogil=True)
def _trust_rim(rim, known, trust, half, top, bottom, left, right):  # type: ignore[no-untyped-def]
    """Writes into part of `rim` how far the patch of each pixel is trusted, -1 off the rim."""
    height, width = known.shape
    for y in range(top, bottom):
        for x in range(left, right):
            rim[y, x] = -1
            if known[y, x] or not (
                (y > 0 and known[y - 1, x])
                or (y + 1 < height and known[y + 1, x])
                or (x > 0 and known[y, x - 1])
                or (x + 1 < width and known[y, x + 1])
            ):
                continue
            total = np.float32(0)
            for i in range(max(y - half, 0), min(y + half + 1, height)):
                for j in range(max(x - half, 0), min(x + half + 1, width)):
                    total += trust[i, j]
            rim[y, x] = total


@numba.njit(cache=True, nogil=True)
def _most_trusted(rim):  # type: ignore[no-untyped-def]
    """The first pixel of the rim whose patch is trusted most; -1 when nothing is left."""
    at_y, at_x, most = -1, -1, np.float32(-1)
    for y in range(rim.shape[0]):
        for x in range(rim.shape[1]):
            if rim[y, x] > most:
                at_y, at_x, most = y, x, rim[y, x]
    return at_y, at_x


@numba.njit(cache=True, nogil=True)
def _guides(guide, centres, half):  # type: ignore[no-untyped-def]
    """The guide at nine points of every patch, `(9, C, M)`: patches last, to compare all of them at once."""
    guides = np.empty((9, guide.shape[2], centres.shape[0]), np.float32)
    for point in range(9):
        dy, dx = (point // 3 - 1) * half, (point % 3 - 1) * half
        for c in range(guide.shape[2]):
            for m in range(centres.shape[0]):
                guides[point, c, m] = guide[centres[m, 0] + dy, centres[m, 1] + dx, c]
    return guides


@numba.njit(cache=True, nogil=True)
def _guide_distances(far, guides, guide, y, x, half):  # type: ignore[no-untyped-def]
    """Writes into `far` how the guide at (y, x) differs from every patch's, weighted."""
    height, width, channels = guide.shape
    totals, points = np.zeros(far.size, np.float32), 0
    for point in range(9):
        i, j = y + (point // 3 - 1) * half, x + (point % 3 - 1) * half
        if 0 <= i < height and 0 <= j < width:
            points += 1
            for c in range(channels):
                here, there = guide[i, j, c], guides[point, c]
                for m in range(totals.size):
                    step = here - there[m]
                    totals[m] += step * step
    for m in range(far.size):
        far[m] = np.float32(_GUIDE) * totals[m] / points


@numba.njit(cache=True, nogil=True)
def _enough(far, flat, starts, steps, wanted, pixels, channels):  # type: ignore[no-untyped-def]
    """A distance that the patches to choose from do not exceed: the last of those nearest by the guide.

    It only spares comparisons. The margin covers the rounding of what is kept as 32 bits.
    """
    near, found = np.full(_NEAREST, np.inf), np.empty(_NEAREST, np.int64)
    for m in range(far.size):
        if far[m] < near[_NEAREST - 1]:
            _insert(near, found, far[m], m)
    best, unused = np.full(_CHOICE, np.inf), np.empty(_CHOICE, np.int64)
    for k in range(min(_NEAREST, far.size)):
        m, limit = found[k], best[_CHOICE - 1]
        if near[k] < limit:
            worse = _distance(near[k], flat, starts[m], steps, wanted, pixels, channels, limit)
            if worse < limit:
                _insert(best, unused, worse, m)
    return best[_CHOICE - 1] * 1.0001


@numba.njit(cache=True, nogil=True)
def _insert(best, found, value, number):  # type: ignore[no-untyped-def]
    """Puts a value that is below the last one into an ascending list, after its equals."""
    k = best.size - 1
    while k > 0 and best[k - 1] > value:
        best[k], found[k] = best[k - 1], found[k - 1]
        k -= 1
    best[k], found[k] = value, number


@numba.njit(cache=True, nogil=True)
def _distance(far, flat, start, steps, wanted, pixels, channels, limit):  # type: ignore[no-untyped-def]
    """`far` and the mean squared difference of the known pixels; infinite if it is clearly over `limit`."""
    bound = (limit - far) * pixels
    total = np.float32(0)
    for first in range(0, pixels * channels, _GLANCE):
        for k in range(first, min(first + _GLANCE, pixels * channels)):
            step = wanted[k] - flat[start + steps[k]]
            total += step * step
        if total > bound:
            return np.inf
    return far + total / max(pixels, 1)
