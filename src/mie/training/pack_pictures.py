"""The pictures of a pack: a Parquet file of encoded images or masks, written exactly and read within limits.

A stranger's pack has a stranger's checksums. So no picture is decoded before its header was looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.files import atomic_path
from mie.datasets.engine import cores
from mie.datasets.parquet import ShardFile
from mie.errors import ImageError, MieError
from mie.images.limits import DEFAULT_LIMITS, decoding, png_chunks, png_picture
from mie.images.png import encode_png
from mie.images.raster import check_header, raster_format
from mie.records import Pixels

LOSSLESS: Final = 101  # OpenCV: a WebP quality above 100
_GROUP: Final = 64
_SMALLEST: Final = 20  # bytes: no encoded picture takes less
_PICTURES: Final = pa.schema([("bytes", pa.binary()), ("channels", pa.int8()), ("base", pa.int32())])


def one_channel_if_grey(image: Pixels) -> Pixels:
    """`(H, W)` where the three channels are equal."""
    if image.ndim == 3 and (image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all():
        return np.ascontiguousarray(image[..., 0])
    return image


def as_rgb(image: Pixels) -> Pixels:
    """`(H, W, 3)` of an image of the pack."""
    return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image


def encode_part(picture: Pixels, base: Pixels) -> bytes:
    """A PNG whose alpha is 255 where the picture differs from its base; nothing is kept elsewhere."""
    rgb, other = as_rgb(picture), as_rgb(base)
    differs = (rgb != other).any(2)
    shown = np.dstack([np.where(differs[..., None], rgb[..., ::-1], 0), 255 * differs]).astype(np.uint8)
    done, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    if not done:
        raise MieError("a picture of the pack cannot be encoded", found=picture.shape)
    return data.tobytes()


def with_part(base: Pixels, part: Pixels) -> Pixels:
    """`part (H, W, 4)` over its base; grey where the base is, since only pictures of one shape share."""
    rgb = np.where(part[..., 3:] > 0, part[..., :3], as_rgb(base))
    return one_channel_if_grey(rgb) if base.ndim == 2 else rgb


def write_pictures(
    path: Path, pictures: Sequence[Pixels], qualities: Sequence[int], bases: Mapping[int, int]
) -> Iterator[int]:
    """Write in groups, and yield how many pictures each had; the file appears at the end."""
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, _PICTURES, compression="none", use_dictionary=False) as writer,
        ThreadPoolExecutor(cores()) as pool,
    ):
        for start in range(0, len(pictures), _GROUP):
            some = range(start, min(start + _GROUP, len(pictures)))
            whole = [pictures[bases[at]] if at in bases else None for at in some]
            shown = [pictures[at] for at in some]
            columns = [
                pa.array(pool.map(encode, shown, [qualities[at] for at in some], whole), pa.binary()),
                pa.array([1 if picture.ndim == 2 else 3 for picture in shown], pa.int8()),
                pa.array([bases.get(at) for at in some], pa.int32()),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=_PICTURES))
            yield len(columns[0])


@dataclass(frozen=True, slots=True)
class StoredPicture:
    """A picture as it lies in the file, looked at but not decoded."""

    data: bytes
    channels: int
    base: int | None
    size: tuple[int, int]


def stored_pictures(path: Path) -> list[StoredPicture]:
    """Every picture of the file. They are stored as they are, so they cannot be larger than the file."""
    most = path.stat().st_size
    pictures: list[StoredPicture] = []
    held = 0
    with ShardFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            held += max(table.column("bytes").nbytes, _SMALLEST * len(table))
            if held > 2 * most:
                raise MieError(
                    "the pictures are larger than their file",
                    where=path,
                    expected=f"at most {most:,} bytes",
                    found=f"{held:,} or more",
                )
            columns = [table.column(name).to_pylist() for name in ("bytes", "channels")]
            has_base = "base" in table.column_names  # version 1 has none
            bases = table.column("base").to_pylist() if has_base else [None] * len(table)
            pictures += [_looked_at(*row, where=path) for row in zip(*columns, bases, strict=True)]
    return pictures


def _looked_at(data: bytes, channels: int, base: int | None, *, where: Path) -> StoredPicture:
    kind = raster_format(data)
    if kind not in ("PNG", "WebP") or channels not in (1, 3):
        raise ImageError(
            "not a picture of a pack", where=where, expected="PNG or WebP, 1 or 3 channels", found=data[:12]
        )
    size = check_header(data, where=where)
    if kind == "PNG":
        # OpenCV takes the memory that a chunk's length asks for, before it looks whether the file has it.
        data = png_picture(data, png_chunks(data, where=where, limits=DEFAULT_LIMITS))
    return StoredPicture(data, channels, base, size)


def refuse_larger_than_memory(path: Path, pictures: Iterable[StoredPicture]) -> None:
    """A pack is held decoded: what does not fit is refused before the first picture is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = sum(one.size[0] * one.size[1] * (one.channels if one.base is None else 4) for one in pictures)
    if needed > memory:
        raise MieError(
            "the pack does not fit into memory",
            where=path,
            expected=f"at most {memory / 2**30:.1f} GiB of pixels, this machine's memory",
            found=f"{needed / 2**30:,.1f} GiB",
            fix="make a smaller one: `mie pack --longest`",
        )


def decoded(stored: Sequence[StoredPicture], workers: int | None) -> list[Pixels]:
    with ThreadPoolExecutor(workers or cores()) as pool:
        pictures = list(pool.map(lambda one: decode(one.data, one.channels, one.base), stored))
    for at, one in enumerate(stored):
        if one.base is not None:
            whole = 0 <= one.base < len(stored) and stored[one.base].base is None
            if not whole or stored[one.base].size != one.size:
                raise MieError(f"picture {at} of the pack has no base", found=one.base)
            pictures[at] = with_part(pictures[one.base], pictures[at])
    return pictures


def encode(picture: Pixels, quality: int, base: Pixels | None = None) -> bytes:
    if base is not None:
        return encode_part(picture, base)
    shown = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".webp", shown, [cv2.IMWRITE_WEBP_QUALITY, quality])
    webp = data.tobytes() if done else b""
    if webp and quality != LOSSLESS:
        return webp
    # WebP ends at 16,383 pixels a side; what OpenCV calls lossless is, for pictures without transparency.
    png = encode_png(picture)
    return webp if webp and len(webp) < len(png) else png


def decode(data: bytes, channels: int, base: int | None = None) -> Pixels:
    how = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
    with decoding("picture", where=None):
        array = np.frombuffer(data, np.uint8)
        picture = cv2.imdecode(array, cv2.IMREAD_UNCHANGED if base is not None else how)
    if picture is None or picture.dtype != np.uint8 or (base is not None and picture.shape[2:] != (4,)):
        raise MieError("a picture of the pack cannot be decoded", found=f"{len(data)} bytes")
    if base is not None:
        return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGRA2RGBA), np.uint8)
    return picture if channels == 1 else cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
