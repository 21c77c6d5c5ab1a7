"""MR slices for tests: a real one that ships with pydicom, and drawn heads of any size."""

from __future__ import annotations

import cv2
import numpy as np
import pydicom
from hypothesis import strategies as st
from pydicom.data import get_testdata_file

# Odd, prime, even, good and awkward sides (109 and 181 are prime, 218 = 2 * 109).
SIDES = st.sampled_from([2, 3, 7, 13, 31, 48, 64, 97, 109, 128, 181])


def real_slice() -> np.ndarray:
    """`(64, 64)` float32, a real MR slice."""
    pixels = pydicom.dcmread(get_testdata_file("MR_small.dcm")).pixel_array.astype(np.float32)
    return pixels - pixels.min()


def head(height: int = 96, width: int = 80, seed: int = 0) -> np.ndarray:
    """An ellipse with textured tissue on black, `(height, width)` float32, 0..1000."""
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    texture = np.random.default_rng(seed).uniform(0.6, 1, (height, width)).astype(np.float32)
    inside = (y / 0.6) ** 2 + (x / 0.5) ** 2 < 1
    return (1000 * inside * cv2.GaussianBlur(texture, (0, 0), 1)).astype(np.float32)


def noise(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((height, width), np.float32)


def zero_filled(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Enlarged as a scanner does it: its k-space in the middle of zeros."""
    spectrum, larger = np.fft.fft2(image), np.zeros((height, width), complex)
    rows, columns = (np.fft.fftfreq(side, 1 / side).astype(int) for side in image.shape)
    larger[np.ix_(rows % height, columns % width)] = spectrum
    values = np.fft.ifft2(larger).real * (height * width / image.size)
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
