"""Fingerprints of images: exact (of the pixels) and perceptual (survives re-encoding and scaling)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import xxhash
from isal import isal_zlib
from numpy.typing import NDArray

from mie.records import Pixels

# Two images are near-duplicates when their hashes differ in at most HASH_DISTANCE of 64 bits and their
# 16x16 thumbnails correlate at CORRELATION or more; both were found by measurement, see
# docs/explanation/architecture.md.
HASH_DISTANCE = 10
CORRELATION = 0.99
_BLOCK = 2**16  # pairs compared at a time, so that they stay in the cache
# Unit vectors u, v with u·v >= c are at most sqrt(2 - 2c) apart, also in their parts along any direction.
_REACH = (2 - 2 * CORRELATION) ** 0.5 + 1e-3  # and some, because floats are rounded
_DIRECTIONS = 12
_PAIRS = 2**23  # so few are compared faster than cut once more
_WORTH = 0.9  # a cut is made where it leaves less than this of the pairs
_SAMPLE = 2048  # rows whose principal directions are taken
_CUT_SAMPLE = 256  # rows that decide where to cut
_STRIP = 64  # rows of a that are compared with the same rows of b
_ROWS = 2**10  # thumbnails that are floats at a time: more take memory, and leave the cache


def pixel_digest(pixels: NDArray[Any]) -> bytes:
    """XXH3-128 over shape, type and values: equal for equal pixels, whatever file they came in.

    Guards against accidents, not against forgers; SHA-256 of every pixel would cost a build a tenth more.
    """
    digest = xxhash.xxh3_128(f"{pixels.shape}{pixels.dtype}".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def checksum(pixels: NDArray[Any]) -> int:
    """A quick 32-bit checksum: part of a sample's name, where nothing rests on it being unforgeable."""
    return int(isal_zlib.crc32(np.ascontiguousarray(pixels)))


def perceptual(pixels: Pixels) -> tuple[int, bytes]:
    """(64-bit hash, 16x16 grey thumbnail) of an RGB image.

    The hash holds the signs of the 8x8 lowest cosine coefficients, without the mean, against their median.
    """
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (32, 32), interpolation=cv2.INTER_AREA)
    low = cv2.dct(small.astype(np.float32))[:8, :8].ravel()
    bits = low > np.sort(low[1:])[31]  # their median; np.median takes several times as long
    bits[0] = False
    value = int.from_bytes(np.packbits(bits).tobytes(), "big")
    thumbnail = cv2.resize(small, (16, 16), interpolation=cv2.INTER_AREA)
    return value, thumbnail.tobytes()


def near_pairs(
    hashes_a: NDArray[np.uint64],
    thumbs_a: NDArray[np.uint8],
    hashes_b: NDArray[np.uint64],
    thumbs_b: NDArray[np.uint8],
) -> list[tuple[int, int]]:
    """Index pairs (a, b) of near-duplicates, in order. `thumbs` are `(N, 256) uint8`.

    Exact, and far from comparing all with all: thumbnails that correlate at .99 lie close together, so both
    sides are cut along the directions in which thumbnails differ most until few are left to compare.
    """
    found = [np.empty((0, 2), np.int64)]
    for a, b in _close(thumbs_a, thumbs_b):
        near = np.bitwise_count(hashes_a[a] ^ hashes_b[b]) <= HASH_DISTANCE
        found.append(np.stack([a[near], b[near]], axis=1))
    candidates = np.concatenate(found)
    candidates = candidates[np.lexsort((candidates[:, 1], candidates[:, 0]))]
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(candidates), _ROWS):
        a, b = candidates[start : start + _ROWS].T
        alike = np.einsum("ij,ij->i", _unit(thumbs_a[a]), _unit(thumbs_b[b])) >= CORRELATION
        pairs += zip(a[alike].tolist(), b[alike].tolist(), strict=True)
    return pairs


def _close(
    thumbs_a: NDArray[np.uint8], thumbs_b: NDArray[np.uint8]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows of a and of b, pair by pair: all that correlate at CORRELATION or more, and few others."""
    basis = _directions(thumbs_a, thumbs_b)
    places_a, places_b = _places(thumbs_a, basis), _places(thumbs_b, basis)
    # For places p and q, |p - q| <= r where p·q - |p|²/2 - |q|²/2 >= -r²/2: a product of matrices.
    halves = [-(places**2).sum(axis=0, keepdims=True) / 2 for places in (places_a, places_b)]
    factors_a = np.concatenate([places_a, halves[0], np.ones_like(halves[0])]).T.copy()
    factors_b = np.concatenate([places_b, np.ones_like(halves[1]), halves[1]]).T.copy()
    for cell in _cells(thumbs_a, thumbs_b, places_a, places_b):
        yield from _compared(cell, factors_a[cell.a], factors_b[cell.b])


def _cells(
    thumbs_a: NDArray[np.uint8],
    thumbs_b: NDArray[np.uint8],
    places_a: NDArray[np.float32],
    places_b: NDArray[np.float32],
) -> Iterator[_Cell]:
    """Every row of a is in one cell; a row of b may be in several.

    Thumbnails without contrast, which correlate with nothing, are in none.
    """
    # Along the first direction, which is never cut: there, what is within reach is one stretch.
    rows_a, rows_b = (
        order[np.ptp(thumbs, axis=1)[order] > 0]
        for thumbs, order in ((thumbs_a, places_a[0].argsort()), (thumbs_b, places_b[0].argsort()))
    )
    everywhere = np.full(len(places_a), np.inf, np.float32)
    stack = [_Cell(rows_a, rows_b, np.zeros(len(rows_b), np.float32), -everywhere, everywhere)]
    while stack:
        cell = stack.pop()
        if not len(cell.a) or not len(cell.b):
            continue
        cut = _best_cut(cell, places_a, places_b) if len(cell.a) * len(cell.b) > _PAIRS else None
        if cut is None:
            yield cell
        else:
            stack += cell.halves(*cut, places_a, places_b)


@dataclass(frozen=True, slots=True)
class _Cell:
    """Rows of a inside a box, and the rows of b that are close enough to it."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    apart: NDArray[np.float32]  # squared distance of each row of b from the box
    low: NDArray[np.float32]  # of the box, along each direction
    high: NDArray[np.float32]

    def halves(
        self, direction: int, place: float, places_a: NDArray[np.float32], places_b: NDArray[np.float32]
    ) -> list[_Cell]:
        """The cell cut in two; a row of b that is near both halves goes to both."""
        below = places_a[direction, self.a] <= place
        along = places_b[direction, self.b]
        others = self.apart - _beyond(along, self.low[direction], self.high[direction]) ** 2
        found = []
        for rows, is_low in ((self.a[~below], False), (self.a[below], True)):
            low, high = self.low.copy(), self.high.copy()
            (high if is_low else low)[direction] = place
            apart = others + _beyond(along, low[direction], high[direction]) ** 2
            near = apart <= _REACH**2
            found.append(_Cell(rows, self.b[near], apart[near], low, high))
        return found


def _beyond(along: NDArray[np.float32], low: Any, high: Any) -> NDArray[np.float32]:
    """How far outside `low` to `high`."""
    return np.maximum(np.maximum(low - along, along - high), np.float32(0))


def _best_cut(
    cell: _Cell, places_a: NDArray[np.float32], places_b: NDArray[np.float32]
) -> tuple[int, float] | None:
    """(direction, place) after which the fewest pairs are left to compare; None where no cut helps much."""
    a, b = places_a[1:, _some(cell.a, _CUT_SAMPLE)], places_b[1:, _some(cell.b, _CUT_SAMPLE)]
    low, high = cell.low[1:, None], cell.high[1:, None]
    middles = np.partition(a, a.shape[1] // 2, axis=1)[:, a.shape[1] // 2, None]
    below = (a <= middles).mean(axis=1)
    others = _some(cell.apart, _CUT_SAMPLE) - _beyond(b, low, high) ** 2
    near_low = (others + _beyond(b, low, middles) ** 2 <= _REACH**2).mean(axis=1)
    near_high = (others + _beyond(b, middles, high) ** 2 <= _REACH**2).mean(axis=1)
    left = below * near_low + (1 - below) * near_high
    best = int(left.argmin())
    return (best + 1, float(middles[best, 0])) if left[best] < _WORTH else None


def _compared(
    cell: _Cell, a: NDArray[np.float32], b: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The pairs of a cell whose places are within reach of each other; `a @ b.T` says how close they are.

    A few rows of a at a time, with what of b is within reach along the first direction.
    """
    along = b[:, 0].copy()
    closeness = np.empty(_BLOCK, np.float32)
    width = _BLOCK // _STRIP
    for start in range(0, len(a), _STRIP):
        strip = a[start : start + _STRIP]
        first = int(along.searchsorted(strip[0, 0] - _REACH))
        last = int(along.searchsorted(strip[-1, 0] + _REACH, "right"))
        for at in range(first, last, width):
            part = b[at : min(at + width, last)]
            close = closeness[: len(strip) * len(part)].reshape(len(strip), -1)
            np.matmul(strip, part.T, out=close)
            if close.max() >= -(_REACH**2) / 2:  # searching costs more, and there is mostly nothing to find
                rows, columns = np.nonzero(close >= -(_REACH**2) / 2)
                yield cell.a[start + rows], cell.b[at + columns]


def _some(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """At most so many of them, spread evenly."""
    return rows[:: len(rows) // most + 1]


def _directions(*thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The principal directions `(256, D)` of some of the thumbnails, as unit vectors."""
    some = np.concatenate([_unit(_some(t, _SAMPLE)) for t in thumbs])
    spread = some - some.mean(axis=0) if len(some) else some
    return np.linalg.eigh(spread.T @ spread)[1][:, : -_DIRECTIONS - 1 : -1].astype(np.float32)


def _places(thumbs: NDArray[np.uint8], basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """Where thumbnails lie along the directions, `(D, N)`; a block at a time, because floats are large."""
    out = np.empty((basis.shape[1], len(thumbs)), np.float32)
    for start in range(0, len(thumbs), _ROWS):
        out[:, start : start + _ROWS] = (_unit(thumbs[start : start + _ROWS]) @ basis).T
    return out


def _unit(thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    centred = thumbs.astype(np.float32)
    centred -= centred.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred / np.maximum(norm, 1e-6)
