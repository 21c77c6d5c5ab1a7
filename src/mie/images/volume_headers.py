"""NRRD and MetaImage files: the lines of their text headers, and the voxels that a header describes.

Both formats let a header name any file on the disk as its data, in several ways. Here a header is read to its
end, line by line within limits, and its data lie in the same file or in one file beside it.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ImageError
from mie.images.limits import check_promise

_LINE: Final = 1 << 16  # bytes; the serialised parameters in segmentations of 3D Slicer are long lines
_HEADER: Final = 1 << 20
_BLOCK: Final = 1 << 20
_TEXT_PER_VOXEL: Final = 64  # bytes of a number in decimal
_MOST_WORDS: Final = 1 << 24


@dataclass(frozen=True)
class VolumeHeader:
    """What a header says: the grid, and where the voxels are.

    `affine` takes (i, j, k, 1) to LPS+ millimetres. `oriented` is False where the header does not say how
    the patient lies. `skip` bytes come before the voxels once they are decoded; with -1 the voxels end
    the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    components: int
    affine: NDArray[np.float64]
    oriented: bool
    data: Path
    start: int
    encoding: str  # raw, gzip (gzip or zlib), text or hex
    skip: int = 0


def header_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    """Each line without its end, until the caller stops or the file does. A long header is refused."""
    while line := file.readline(_LINE + 1):
        if len(line) > _LINE or file.tell() > _HEADER:
            raise bad_header(path, f"lines of at most {_LINE} bytes, {_HEADER} bytes in all", "a longer one")
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")


def bad_header(path: Path, expected: object, found: object) -> ImageError:
    return ImageError("broken volume header", where=path, expected=expected, found=str(found)[:200])


def whole(text: str, path: Path, name: str, low: int = 0) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,15}", text) or int(text) < low:
        raise bad_header(path, f"{name}: a whole number, {low} or more", text)
    return int(text)


def numbers(text: str, count: int, path: Path, name: str) -> NDArray[np.float64]:
    words = text.split()
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        raise bad_header(path, f"{name}: {count} numbers", text) from None
    if len(values) != count or "_" in text:
        raise bad_header(path, f"{name}: {count} numbers", text)
    return values


def file_beside(path: Path, name: str) -> Path:
    """The data file that a header names: one plain file in the header's own folder, links resolved."""
    # LIST and name%03d are part of both formats, but through them one could name any file on the disk.
    plain = not re.search(r"[%\0]", name) and not name.upper().startswith("LIST")
    beside = path.parent / name if plain else None
    if (
        beside is None
        or Path(os.path.realpath(beside)).parent != Path(os.path.realpath(path)).parent
        or not beside.is_file()
    ):
        raise ImageError(
            "the header's data file is not beside it",
            where=path,
            expected=f"one file in {path.parent}",
            found=name[:200],
            fix="convert the volume to .nii.gz, .nrrd or .mha",
        )
    return beside


def read_voxels(header: VolumeHeader) -> NDArray[Any]:
    """The voxels in the machine's byte order, by stored axis: (X, Y, Z, ...)."""
    size = math.prod(header.shape) * header.dtype.itemsize
    with header.data.open("rb") as file:
        held = os.fstat(file.fileno()).st_size
        if header.encoding == "gzip":
            file.seek(header.start)
            check_promise(size, held - header.start, where=header.data)
            flat = _inflated(file, header, size).view(header.dtype)
        else:
            flat = _plain(file, header, size, held)
    if not header.dtype.isnative:
        for block in scratch.blocks(flat):
            flat[block].byteswap(inplace=True)
        flat = flat.view(header.dtype.newbyteorder("="))
    return flat.reshape(header.shape, order="F")


def _plain(file: BinaryIO, header: VolumeHeader, size: int, held: int) -> NDArray[Any]:
    count = math.prod(header.shape)
    if header.encoding == "raw":
        at = held - size if header.skip < 0 else header.start + header.skip
        if at < header.start or at + size > held:
            raise _short(header, size, held - header.start)
        file.seek(at)
        voxels = scratch.zeros(count, header.dtype)
        for block in scratch.blocks(voxels):
            voxels[block] = np.fromfile(file, header.dtype, voxels[block].size)
        return voxels
    file.seek(header.start + max(0, header.skip))
    if count > _MOST_WORDS:
        raise ImageError(
            "too many voxels in text", where=header.data, expected=f"at most {_MOST_WORDS}", found=count
        )
    longest = 2 * size + size // 8 if header.encoding == "hex" else _TEXT_PER_VOXEL * count
    text = file.read(longest + 1024)
    try:
        if header.encoding == "hex":
            return np.frombuffer(bytes.fromhex(text.decode("ascii"))[:size], header.dtype)[:count].copy()
        words = text.split()[:count]
        if len(words) == count:
            return np.array(words).astype(header.dtype)
    except (ValueError, OverflowError) as error:
        raise ImageError("damaged voxel data", where=header.data, found=str(error)[:200]) from None
    raise _short(header, count, len(words))


def _inflated(file: BinaryIO, header: VolumeHeader, size: int) -> NDArray[np.uint8]:
    """`size` bytes of one or several gzip or zlib streams, the last of them read to its checksum."""
    voxels, at, skip = scratch.zeros(size, np.uint8), 0, max(0, header.skip)
    stream, block = zlib.decompressobj(zlib.MAX_WBITS | 32), b""
    try:
        while True:
            block = block or file.read(_BLOCK)
            if not block:
                break
            piece = stream.decompress(block, _BLOCK)
            block = stream.unconsumed_tail
            dropped = min(skip, len(piece))
            skip -= dropped
            part = np.frombuffer(piece, np.uint8)[dropped : dropped + size - at]
            voxels[at : at + part.size] = part
            at += part.size
            if dropped + part.size < len(piece):
                raise ImageError(
                    "damaged compressed data",
                    where=header.data,
                    expected=f"{size} bytes once decompressed",
                    found="more",
                )
            if stream.eof:
                if at == size:
                    break
                block = stream.unused_data or file.read(_BLOCK)
                stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    except zlib.error as error:
        raise ImageError("damaged compressed data", where=header.data, found=error) from None
    if at != size or not stream.eof:
        raise ImageError(
            "damaged compressed data",
            where=header.data,
            expected=f"{size} bytes once decompressed",
            found=f"{at} bytes" if stream.eof else f"{at} bytes and no end",
        )
    return voxels


def _short(header: VolumeHeader, expected: int, found: object) -> ImageError:
    return ImageError("voxel data are cut short", where=header.data, expected=expected, found=found)
