"""Fingerprints of images: exact (of the pixels) and perceptual (survives re-encoding and scaling)."""

from __future__ import annotations

from collections.abc import Iterator
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
_BLOCK = 2**18  # pairs compared at a time, so that they stay in the cache
# Unit vectors u, v with u·v >= c are at most sqrt(2 - 2c) apart, also in their parts along any direction.
_REACH = (2 - 2 * CORRELATION) ** 0.5 + 1e-3  # and some, because floats are rounded
_DIRECTIONS = 16
_PAIRS = 2**20  # so few are compared faster than cut once more
_WORTH = 0.9  # a cut is made where it leaves less than this of the pairs
_SAMPLE = 2048  # rows that decide where to cut
_ROWS = 2**14  # thumbnails that are floats at a time


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
    for rows_a, rows_b in _neighbourhoods(thumbs_a, thumbs_b):
        near = _within(hashes_a[rows_a], hashes_b[rows_b], HASH_DISTANCE)
        found.append(np.stack([rows_a[near[:, 0]], rows_b[near[:, 1]]], axis=1))
    candidates = np.concatenate(found)
    candidates = candidates[np.lexsort((candidates[:, 1], candidates[:, 0]))]
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(candidates), _ROWS):
        a, b = candidates[start : start + _ROWS].T
        alike = np.einsum("ij,ij->i", _unit(thumbs_a[a]), _unit(thumbs_b[b])) >= CORRELATION
        pairs += zip(a[alike].tolist(), b[alike].tolist(), strict=True)
    return pairs


def _neighbourhoods(
    thumbs_a: NDArray[np.uint8], thumbs_b: NDArray[np.uint8]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows of a, and all rows of b that may correlate with one of them at CORRELATION or more.

    Every row of a is in one neighbourhood; a row of b may be in several. Thumbnails without contrast, which
    correlate with nothing, are in none.
    """
    basis = _directions(thumbs_a, thumbs_b)
    places_a, places_b = _places(thumbs_a, basis), _places(thumbs_b, basis)
    rows = tuple(np.flatnonzero(np.ptp(t, axis=1) > 0) for t in (thumbs_a, thumbs_b))
    stack = [rows]
    while stack:
        a, b = stack.pop()
        if not len(a) or not len(b):
            continue
        cut = None
        if len(a) * len(b) > _PAIRS:
            cut = _best_cut(places_a[:, _some(a)], places_b[:, _some(b)])
        if cut is None:
            yield a, b
            continue
        direction, place = cut
        below, other = places_a[direction, a] <= place, places_b[direction, b]
        stack.append((a[~below], b[other >= place - _REACH]))
        stack.append((a[below], b[other <= place + _REACH]))


def _best_cut(a: NDArray[np.float32], b: NDArray[np.float32]) -> tuple[int, float] | None:
    """(direction, place) after which the fewest pairs are left to compare; None where no cut helps much."""
    middles = np.median(a, axis=1, keepdims=True)
    below = (a <= middles).mean(axis=1)
    left = below * (b <= middles + _REACH).mean(axis=1) + (1 - below) * (b >= middles - _REACH).mean(axis=1)
    best = int(left.argmin())
    return (best, float(middles[best, 0])) if left[best] < _WORTH else None


def _some(rows: NDArray[Any]) -> NDArray[Any]:
    """At most `_SAMPLE` of them, spread evenly."""
    return rows[:: len(rows) // _SAMPLE + 1]


def _directions(*thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The principal directions `(256, D)` of some of the thumbnails, as unit vectors."""
    some = np.concatenate([_unit(_some(t)) for t in thumbs])
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


def _within(a: NDArray[np.uint64], b: NDArray[np.uint64], distance: int) -> NDArray[np.int64]:
    """Index pairs (N, 2), in order, of hashes that differ in at most `distance` bits."""
    rows = max(1, _BLOCK // max(1, len(b)))
    found = [np.empty(0, np.int64)]
    for start in range(0, len(a), rows):
        near = np.bitwise_count(a[start : start + rows, None] ^ b) <= distance
        if near.any():  # searching costs more than looking, and there is mostly nothing to find
            found.append(np.flatnonzero(near) + start * len(b))
    return np.stack(np.divmod(np.concatenate(found), max(1, len(b))), axis=1)
