"""An invisible watermark: it says "synthetic" also where a file's text was lost, as on a screenshot.

A faint pattern of 64x64 pixels, repeated over the image, is added to all channels alike, so grey stays grey.
To find it, the image without its coarse content is folded onto one tile and correlated with the pattern at
every shift, so it survives cropping. It carries one bit and no key: it marks honest copies, and cannot prove
anything against somebody who wants it gone. Since it changes pixels it is never put on what is scored.
"""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.records import Pixels

STRENGTH: Final = 2.0  # grey levels, standard deviation of what is added
# In standard deviations: 300 real images have at most 4.7; with the watermark, as JPEG, at least 8.4.
THRESHOLD: Final = 7.0
SMALLEST: Final = 128  # pixels of the shorter side: two tiles each way
_TILE: Final = 64
_LIMIT: Final = 12.0  # grey levels of fine content that count at most: edges say nothing about the pattern


def add_watermark(pixels: Pixels) -> Pixels:
    """The image with the pattern in it; `ImageError` where it is too small to find it again."""
    height, width = pixels.shape[:2]
    if min(height, width) < SMALLEST:
        raise ImageError(
            "the image is too small for a watermark",
            expected=f"at least {SMALLEST} pixels each way",
            found=f"{width}x{height}",
        )
    tiles = (-(-height // _TILE), -(-width // _TILE))
    added = STRENGTH * np.tile(_pattern(), tiles)[:height, :width]
    marked = pixels + (added if pixels.ndim == 2 else added[..., None])
    return np.clip(np.rint(marked), 0, 255).astype(np.uint8)


def watermark_score(pixels: Pixels) -> float:
    """How far the best correlation with the pattern stands out of all shifts, in standard deviations."""
    grey = pixels if pixels.ndim == 2 else pixels.mean(axis=2)
    fine = grey - cv2.GaussianBlur(grey.astype(np.float32), (0, 0), 2.0)
    fine = np.clip(fine, -_LIMIT, _LIMIT)
    height, width = fine.shape
    padded = np.pad(fine, ((0, -height % _TILE), (0, -width % _TILE)))
    folded = padded.reshape(-1, _TILE, padded.shape[1] // _TILE, _TILE).sum(axis=(0, 2))
    spectrum = np.fft.fft2(folded - folded.mean()) * np.conj(np.fft.fft2(_pattern()))
    correlation = np.fft.ifft2(spectrum).real
    spread = float(correlation.std())
    return float(correlation.max() / spread) if spread > 0 else 0.0


def has_watermark(pixels: Pixels) -> bool:
    return watermark_score(pixels) >= THRESHOLD


def _pattern() -> NDArray[np.float32]:
    """Noise between 3 and 8 pixels per period (finer is lost to JPEG, coarser is seen), variance 1."""
    noise = np.random.default_rng(20_26).standard_normal((_TILE, _TILE))
    rows, columns = np.meshgrid(np.fft.fftfreq(_TILE), np.fft.fftfreq(_TILE), indexing="ij")
    frequency = np.hypot(rows, columns)
    band = np.fft.ifft2(np.fft.fft2(noise) * ((frequency > 1 / 8) & (frequency < 1 / 3))).real
    return (band / band.std()).astype(np.float32)
