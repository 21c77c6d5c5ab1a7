"""Pixels for scoring. What remains of a score's cost once the metrics are fast is decoding PNG.

Our own files are one kind of PNG (8 bits, grey or RGB, one IDAT chunk, filter Up): ISA-L inflates them and
one pass adds the rows up, in a third of the time that a general decoder takes. Every other file goes to one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import cv2
import numba
import numpy as np
import pyarrow.parquet as pq
from isal import igzip_lib, isal_zlib

from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset
from mie.editors.runs import Run
from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes, check_pixels
from mie.images.png import decode_png
from mie.images.raster import read_raster
from mie.records import Pixels

_HEAD: Final = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END: Final = b"\0\0\0\0IEND\xaeB`\x82"
_CHANNELS: Final = {0: 1, 2: 3}  # PNG colour type -> channels
_IDAT_AT: Final = 33
_IsalError: Any = igzip_lib.IsalError  # its type stub does not say that it is an exception


def read_stored(data: bytes) -> Pixels:
    """An image out of a dataset's shard: `(H, W)` or `(H, W, 3) uint8`."""
    pixels = decode_plain(data)
    return decode_png(data) if pixels is None else pixels


def read_output(path: Path, variant: str, *, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """A model's output as `(H, W, 3) uint8`; `ImageError` when there is no picture in it.

    `paper` reads it as every other picture of this package: damage is an error, what is transparent lies on
    black, more than 8 bits are scaled. `as_released` takes what `cv2.imread` makes of it: transparency is
    dropped, 16 bits are cut to 8, and half a file may be half a picture.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImageError("output cannot be read", where=path, found=error.strerror) from None
    check_bytes(len(data), where=path, limits=limits)
    pixels = decode_plain(data, limits)
    if pixels is not None:
        return pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)
    if variant != "as_released":
        return read_raster(data, where=path, limits=limits).pixels
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


# A run cut into chunks that are scored on their own: a few row groups of the dataset with their outputs.

# Outputs in a chunk: some hundred milliseconds of work, which is what an interruption may cost.
_PAIRS: Final = 48


@dataclass(frozen=True, slots=True)
class Output:
    """Where an attempt's output lies, or why there is none."""

    k: int
    path: str | None
    reason: str = ""
    stamp: tuple[int, int] = (0, 0)  # size and time of change: a file that was replaced is scored again


@dataclass(frozen=True, slots=True)
class Chunk:
    """Row groups `groups` of a shard; `outputs` lists (sample id, attempts) for their rows, in order.

    A run that was limited may leave out the last rows.
    """

    number: int
    shard: Path
    groups: tuple[int, ...]
    outputs: tuple[tuple[str, tuple[Output, ...]], ...]

    @property
    def pairs(self) -> int:
        return sum(len(attempts) for _, attempts in self.outputs)

    def key(self, header: Mapping[str, Any]) -> str:
        """Changes with anything that the chunk's scores depend on."""
        attempts = [
            [sample, [[o.k, o.path is not None, o.reason, o.stamp] for o in outputs]]
            for sample, outputs in self.outputs
        ]
        return hashlib.sha256(canonical([header, attempts]).encode()).hexdigest()[:16]

    def rows(self, columns: list[str]) -> Iterator[tuple[dict[str, Any], tuple[Output, ...]]]:
        """Each row with its attempts. One row group is in memory, and one row of it as Python objects."""
        with pq.ParquetFile(self.shard) as file:
            rows = chain.from_iterable(_rows(file, group, columns) for group in self.groups)
            for row, (_, attempts) in zip(rows, self.outputs, strict=False):
                if attempts:  # none where the run's filters left the sample out
                    yield row, attempts


def _rows(file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[dict[str, Any]]:
    table = file.read_row_group(
        group, columns=columns, use_threads=False
    )  # each thread keeps memory of its own
    for at in range(table.num_rows):
        yield table.slice(at, 1).to_pylist()[0]


def make_chunks(run: Run, dataset: Dataset) -> list[Chunk]:
    """The samples that the run was made for, in dataset order."""
    edits = run.edits()
    config = run.info["config"]
    chosen = set(run.sample_ids(dataset)) if config.get("where") else None
    left = len(dataset) if chosen is not None else config.get("limit") or len(dataset)
    chunks: list[Chunk] = []

    def output(sample: str, k: int) -> Output:
        edit = edits.get((sample, k))
        if edit is None:
            return Output(k, None, "no output")
        if edit.state != "done":
            return Output(k, None, f"edit failed: {edit.reason}")
        path = run.output_path(sample, k)
        try:
            status = path.stat()
        except OSError:
            return Output(k, None, "output file is gone")
        return Output(k, str(path), stamp=(status.st_size, status.st_mtime_ns))

    for shard in dataset.shards(config.get("split")):
        with pq.ParquetFile(shard) as file:
            ids = iter(file.read(columns=["id"]).column("id").to_pylist()[:left])
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        groups: list[int] = []
        outputs: list[tuple[str, tuple[Output, ...]]] = []
        for group, size in enumerate(sizes):
            groups.append(group)
            for _, sample in zip(range(size), ids, strict=False):
                attempts = range(run.attempts if chosen is None or sample in chosen else 0)
                outputs.append((sample, tuple(output(sample, k) for k in attempts)))
                left -= 1
            if outputs and (len(outputs) * run.attempts >= _PAIRS or group == len(sizes) - 1 or not left):
                chunks.append(Chunk(len(chunks), shard, tuple(groups), tuple(outputs)))
                groups, outputs = [], []
        if not left:
            break
    return chunks
