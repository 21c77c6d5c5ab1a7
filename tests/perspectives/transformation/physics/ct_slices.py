"""Slices on which CT physics is tried: a real one in Hounsfield units, and discs of known content."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydicom import dcmread
from pydicom.data import get_testdata_file

REAL_SPACING = (0.661468, 0.661468)


def real_slice() -> NDArray[np.float32]:
    """(128, 128) float32 HU: pydicom's CT_small, a crop that fills its corners."""
    dataset = dcmread(get_testdata_file("CT_small.dcm"))
    stored = dataset.pixel_array.astype(np.float32)
    return stored * np.float32(dataset.RescaleSlope) + np.float32(dataset.RescaleIntercept)


def water_disc(size: int = 96, radius: float = 40) -> NDArray[np.float32]:
    """(size, size) float32 HU: water in air, `radius` in pixels, with a smooth edge."""
    y, x = np.mgrid[:size, :size] - size // 2
    share = np.clip(radius + 0.5 - np.hypot(x, y), 0, 1)
    return (1000 * share - 1000).astype(np.float32)


def inside(size: int, radius: float) -> NDArray[np.bool_]:
    y, x = np.mgrid[:size, :size] - size // 2
    return np.hypot(x, y) <= radius
