"""Pixels for scoring. What remains of a score's cost once the metrics are fast is decoding PNG.

Our own files are one kind of PNG (8 bits, grey or RGB, one IDAT chunk, filter Up): ISA-L inflates them and
one pass adds the rows up, in a third of the time that a general decoder takes. Every other file goes to one.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import cv2
import numba
import numpy as np
from isal import igzip_lib, isal_zlib

from mie.core.files import read_regular
from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes, check_pixels
from mie.images.png import decode_png
from mie.images.raster import check_header, read_raster
from mie.records import Pixels

_HEAD: Final = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END: Final = b"\0\0\0\0IEND\xaeB`\x82"
_CHANNELS: Final = {0: 1, 2: 3}  # PNG colour type -> channels
_IDAT_AT: Final = 33
_IsalError: Any = igzip_lib.IsalError  # its type stub does not say that it is an exception


def read_stored(data: bytes) -> Pixels:
    """An image out of a dataset's shard: `(H, W)` or `(H, W, 3) uint8`."""
    pixels = decode_plain(data) if isinstance(data, bytes) else None  # a stranger's row may hold no bytes
    return decode_png(data) if pixels is None else pixels


def read_output(path: Path, variant: str, *, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """A model's output as `(H, W, 3) uint8`; `ImageError` when there is no picture in it.

    `paper` reads it as every other picture of this package: damage is an error, what is transparent lies on
    black, more than 8 bits are scaled. `as_released` takes what `cv2.imread` makes of it: transparency is
    dropped, 16 bits are cut to 8, and half a file may be half a picture.
    """
    try:
        data = read_regular(path, limits.max_bytes)
    except OSError as error:
        raise ImageError("output cannot be read", where=path, found=error.strerror) from None
    check_bytes(len(data), where=path, limits=limits)
    pixels = decode_plain(data, limits)
    if pixels is not None:
        return pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)
    if variant != "as_released":
        return read_raster(data, where=path, limits=limits).pixels
    check_header(data, where=path, limits=limits)
    try:
        found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise ImageError("output cannot be decoded", where=path, found=error.err) from None
    if found is None:
        raise ImageError("output cannot be decoded", where=path, expected="a picture", found=data[:8])
    return cv2.cvtColor(found, cv2.COLOR_BGR2RGB)


def in_colour(image: Pixels) -> Pixels:
    """`(H, W, 3)`, for a stored image that is grey."""
    return image if image.ndim == 3 else np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2RGB), np.uint8)


def decode_plain(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Pixels | None:
    """The pixels of a PNG as `encode_png` writes it, or None for any other file, damaged ones included.

    The zlib checksum covers every pixel, so the chunks' own need no look.
    """
    if not (data.startswith(_HEAD) and data.endswith(_END) and len(data) > _IDAT_AT + 20):
        return None
    width, height, *form = struct.unpack_from(">IIBBBBB", data, 16)
    depth, colour, *rest = form
    length, kind = struct.unpack_from(">I4s", data, _IDAT_AT)
    if (depth, kind, *rest) != (8, b"IDAT", 0, 0, 0) or colour not in _CHANNELS:
        return None
    if length != len(data) - _IDAT_AT - 12 - len(_END):
        return None
    check_pixels(height, width, where=None, limits=limits)
    columns = width * _CHANNELS[colour]
    size = height * (columns + 1)
    inflater = isal_zlib.decompressobj()
    try:
        # At most one byte more than the header promises: a bomb stops there.
        filtered = inflater.decompress(memoryview(data)[_IDAT_AT + 8 : _IDAT_AT + 8 + length], size + 1)
    except _IsalError:
        return None
    if len(filtered) != size or not inflater.eof:
        return None
    rows = np.empty((height, columns), np.uint8)
    if not _unfilter(np.frombuffer(filtered, np.uint8).reshape(height, columns + 1), rows):
        return None
    return rows if colour == 0 else rows.reshape(height, width, 3)


@numba.njit(cache=True)
def _unfilter(filtered, rows):  # type: ignore[no-untyped-def]
    """Undo the filters None and Up; False if a row has another one."""
    height, columns = rows.shape
    for y in range(height):
        kind = filtered[y, 0]
        if kind == 0 or (kind == 2 and y == 0):
            for x in range(columns):
                rows[y, x] = filtered[y, x + 1]
        elif kind == 2:
            for x in range(columns):
                rows[y, x] = filtered[y, x + 1] + rows[y - 1, x]
        else:
            return False
    return True
