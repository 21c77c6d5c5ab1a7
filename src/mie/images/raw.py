"""Headerless float images: 32-bit little-endian values whose size is in the name, `NAME_512x512x1.raw`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes, check_pixels
from mie.images.windows import to_8bit
from mie.records import Picture

_SIZE: Final = re.compile(r"_(\d{1,5})x(\d{1,5})(?:x1)?\.raw$", re.IGNORECASE)


def is_raw(name: str) -> bool:
    return _SIZE.search(name) is not None


def read_raw(
    path: Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    low: float | None = None,
    high: float | None = None,
    percentiles: tuple[float, float] | None = None,
) -> Picture:
    """The slice as (H, W, 3) uint8, and its values as Hounsfield units."""
    match = _SIZE.search(path.name)
    if match is None:
        raise ImageError("the size is not in the file's name", where=path, expected="NAME_512x512x1.raw")
    width, height = int(match[1]), int(match[2])
    check_pixels(height, width, where=path, limits=limits)
    size = path.stat().st_size
    check_bytes(size, where=path, limits=limits)
    if size != 4 * width * height:
        raise ImageError(
            "the file has another size than its name says",
            where=path,
            expected=f"{4 * width * height} bytes for {width}x{height} 32-bit values",
            found=f"{size} bytes",
        )
    values = np.frombuffer(path.read_bytes(), "<f4").reshape(height, width).astype(np.float32)
    grey, step = to_8bit(values, low=low, high=high, percentiles=percentiles, where=path)
    pixels = np.ascontiguousarray(np.repeat(grey[..., None], 3, axis=2))
    return Picture(pixels, () if step is None else (step,), None, values)
