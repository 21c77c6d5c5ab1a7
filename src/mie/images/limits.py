"""Guards around decoders: sizes refused before any pixel is read, and one kind of error after."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from isal import isal_zlib

from mie.core.files import FULL
from mie.errors import ImageError, MieError


@dataclass(frozen=True, slots=True)
class Limits:
    """A guard against decompression bombs; raise it for whole-slide images.

    `max_pixels` holds for one frame or slice. `max_decoded` holds for its bytes while it is worked on: pixels
    x channels x bytes of a channel. `max_bytes` holds for the file, and for all the pixels of a multi-frame
    file or volume together (a pixel takes at least a byte once decoded).
    """

    max_pixels: int = 250_000_000
    max_bytes: int = 4 * 2**30
    max_decoded: int = 2**30


DEFAULT_LIMITS: Final = Limits()
_DEFLATE: Final = 1032
_SMALL: Final = 1 << 16
# By colour type, as decoded: a palette becomes RGB, and grey with alpha RGBA.
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 3}
_PNG_CHUNKS: Final = 500_000
# Chunks of a PNG that are no part of its picture, and may be bombs of their own.
_NOT_PIXELS: Final = (b"acTL", b"fcTL", b"fdAT", b"tEXt", b"zTXt", b"iTXt", b"iCCP")


def check_pixels(height: int, width: int, frames: int = 1, *, where: object, limits: Limits) -> None:
    """Refuse, from the numbers in a file's header alone, what is too large to decode (or has no pixels)."""
    size = f"{width}x{height}" + (f", {frames} frames" if frames != 1 else "")
    if min(height, width, frames) < 1:
        raise ImageError("picture has no pixels", where=where, expected="at least 1x1", found=size)
    if height * width > limits.max_pixels:
        raise ImageError(
            "picture is too large to decode safely",
            where=where,
            expected=f"at most {limits.max_pixels:,} pixels",
            found=f"{height * width:,} pixels ({size})",
            fix="scale it down, or raise Limits.max_pixels if you trust the file",
        )
    if height * width * frames > limits.max_bytes:
        raise ImageError(
            "frames are too large together to decode safely",
            where=where,
            expected=f"at most {limits.max_bytes:,} pixels in all frames",
            found=f"{height * width * frames:,} pixels ({size})",
            fix="split the file, or raise Limits.max_bytes if you trust it",
        )


def check_decoded(pixels: int, width: int, *, where: object, limits: Limits) -> None:
    """Refuse a picture whose pixels, of `width` bytes each, would fill the memory."""
    if pixels * width > limits.max_decoded:
        raise ImageError(
            "picture is too large to decode safely",
            where=where,
            expected=f"at most {limits.max_decoded:,} bytes once decoded",
            found=f"{pixels:,} pixels of {width} bytes",
            fix="scale it down, or raise Limits.max_decoded if you trust the file",
        )


def check_bytes(size: int, *, where: object, limits: Limits) -> None:
    """Refuse an empty file and one above `max_bytes`."""
    if size == 0:
        raise ImageError("file is empty", where=where, expected="an image", found="0 bytes")
    if size > limits.max_bytes:
        raise ImageError(
            "file is too large to read safely",
            where=where,
            expected=f"at most {limits.max_bytes:,} bytes",
            found=f"{size:,} bytes",
            fix="raise Limits.max_bytes if you trust the file",
        )


def check_promise(size: int, held: int, *, where: object) -> None:
    """Refuse a header that promises more than its deflated bytes can hold: deflate reaches 1,032 to 1."""
    if size > _DEFLATE * held + _SMALL:
        raise ImageError(
            "file is too small for what its header promises",
            where=where,
            expected=f"at least {size // _DEFLATE:,} compressed bytes for {size:,}",
            found=f"{held:,}",
        )


@contextmanager
def decoding(kind: str, *, where: object) -> Iterator[None]:
    """Turn whatever a decoder raises on a damaged file into an `ImageError` that names the file.

    Decoders raise anything: OSError, SyntaxError, struct.error, IndexError, their own classes.
    """
    try:
        yield
    except MieError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # not the file's fault: the disk has no space for its values
        raise ImageError(
            f"{kind} file cannot be decoded",
            where=where,
            expected=f"a complete {kind} file of a supported kind",
            found=f"{type(error).__name__}: {error}",
        ) from error


def png_chunks(data: bytes, *, where: object, limits: Limits) -> list[tuple[bytes, int, int]]:
    """(type, start, end) of every chunk of a PNG file up to IEND, each one's checksum verified.

    Decoders differ in what they forgive: some return half a picture for half a file. The size in the
    header is checked before anything behind it is looked at.
    """
    view = memoryview(data)
    chunks: list[tuple[bytes, int, int]] = []
    start = 8
    while not chunks or chunks[-1][0] != b"IEND":
        if start + 12 > len(data):
            raise _bad_png("the file ends before its IEND chunk: it is truncated", where)
        (length,) = struct.unpack_from(">I", data, start)
        kind, end = data[start + 4 : start + 8], start + 12 + length
        if end > len(data):
            raise _bad_png(f"the file ends inside a {kind!r} chunk: it is truncated", where)
        if isal_zlib.crc32(view[start + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise _bad_png(f"the checksum of a {kind!r} chunk at byte {start} is wrong: it is damaged", where)
        if not chunks:
            if kind != b"IHDR" or length != 13:
                raise _bad_png(f"the first chunk is {kind!r} of {length} bytes, not a header", where)
            width, height, depth, colour = struct.unpack_from(">IIBB", data, start + 8)
            check_pixels(height, width, where=where, limits=limits)
            channels = _PNG_CHANNELS.get(colour, 4)
            check_decoded(height * width, channels * (2 if depth == 16 else 1), where=where, limits=limits)
        chunks.append((kind, start, end))
        start = end
        if len(chunks) > _PNG_CHUNKS:
            raise _bad_png(f"more than {_PNG_CHUNKS:,} chunks", where)
    return chunks


def png_picture(data: bytes, chunks: list[tuple[bytes, int, int]]) -> bytes:
    """The file without animation, texts and profile: the picture is the one that every viewer can show."""
    if all(kind not in _NOT_PIXELS for kind, _, _ in chunks):
        return data
    return data[:8] + b"".join(data[start:end] for kind, start, end in chunks if kind not in _NOT_PIXELS)


def _bad_png(found: str, where: object) -> ImageError:
    return ImageError("PNG file is damaged", where=where, expected="a complete PNG file", found=found)
