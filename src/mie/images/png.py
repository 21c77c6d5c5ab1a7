"""PNG in and out, fast: the `Up` filter and ISA-L's deflate, chosen by measurement (`bench/png.py`).

The pixels are what counts: two machines may compress to different bytes, never to different pixels.
"""

from __future__ import annotations

import struct

import cv2
import numpy as np
from isal import isal_zlib

from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, decoding, png_chunks, png_picture
from mie.records import Pixels

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LEVEL = 2  # ISA-L's second of four levels: near Pillow's size at a fraction of its time


def encode_png(pixels: Pixels) -> bytes:
    """An 8-bit PNG of `(H, W)` grey or `(H, W, 3)` RGB pixels."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ImageError(
            "cannot write this array as PNG", expected="(H, W) or (H, W, 3) uint8", found=_shape(pixels)
        )
    height, width = pixels.shape[:2]
    if not height or not width:
        raise ImageError("cannot write an empty image", found=_shape(pixels))
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = 2  # filter type Up: each row minus the row above, modulo 256
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    colour_type = 0 if pixels.ndim == 2 else 2
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    body = isal_zlib.compress(filtered, _LEVEL)
    return b"".join((_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b"")))


def decode_png(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """The pixels of an 8-bit PNG that we wrote: `(H, W)` or `(H, W, 3)` RGB.

    `ImageError` for anything else: a dataset or a run may come from a stranger.
    """
    png_size(data)
    # OpenCV takes the memory that a chunk's length asks for, before it looks whether the file has it.
    data = png_picture(data, png_chunks(data, where=None, limits=limits))
    with decoding("PNG", where=None):
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint8 or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ImageError("not an 8-bit grey or RGB PNG", found=f"{len(data)} bytes")
    if pixels.ndim == 3:
        cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
    return pixels


def png_size(data: bytes) -> tuple[int, int]:
    """(height, width) from a PNG's header, without decoding it."""
    if not isinstance(data, bytes) or not data.startswith(_SIGNATURE) or len(data) < 33:
        found = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise ImageError("not a PNG", found=found)
    width, height = struct.unpack_from(">II", data, 16)
    return height, width


def insert_text(data: bytes, keyword: str, text: str) -> bytes:
    """A PNG with one text chunk more (iTXt, UTF-8, not compressed), before its pixels."""
    png_size(data)
    body = keyword.encode("latin-1") + b"\0\0\0\0\0" + text.encode()
    end = len(_SIGNATURE) + 25  # behind IHDR, which is always first and has 13 bytes
    return b"".join((data[:end], _chunk(b"iTXt", body), data[end:]))


def _chunk(kind: bytes, body: bytes) -> bytes:
    crc = isal_zlib.crc32(body, isal_zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(body)), kind, body, struct.pack(">I", crc)))


def _shape(pixels: Pixels) -> str:
    return f"{pixels.shape} {pixels.dtype}"
