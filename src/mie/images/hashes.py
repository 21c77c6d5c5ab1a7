"""Fingerprints of images: exact (of the pixels) and perceptual (survives re-encoding and scaling)."""

from __future__ import annotations

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
    """Index pairs (a, b) of near-duplicates. `thumbs` are `(N, 256) uint8`."""
    candidates = _within(hashes_a, hashes_b, HASH_DISTANCE)
    if not len(candidates):
        return []
    unit_a, unit_b = _unit(thumbs_a), _unit(thumbs_b)
    pairs = []
    for a, b in candidates:
        if float(unit_a[a] @ unit_b[b]) >= CORRELATION:
            pairs.append((int(a), int(b)))
    return pairs


def _unit(thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    centred = thumbs.astype(np.float32)
    centred -= centred.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred / np.maximum(norm, 1e-6)


def _within(a: NDArray[np.uint64], b: NDArray[np.uint64], distance: int) -> NDArray[np.int64]:
    """Index pairs (N, 2), in order, of hashes that differ in at most `distance` bits."""
    rows = max(1, _BLOCK // max(1, len(b)))
    found = [np.empty((0, 2), np.int64)]
    for start in range(0, len(a), rows):
        near = np.bitwise_count(a[start : start + rows, None] ^ b) <= distance
        found.append(np.argwhere(near) + np.array([start, 0]))
    return np.concatenate(found)
