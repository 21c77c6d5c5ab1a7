"""What an output is measured against: a sample's own images and the region that its edit is about.

The region of a painted overlay is read back from the target by the same de-blending that reads the output,
so that a perfect output has DICE 1 exactly. The mask that the dataset stores is not used there; it agrees to
DICE 0.99 at least, which the gates of `mie build` see to. Elsewhere the stored mask is the region.

Once the metrics are fast, decoding PNG is what remains of a score's cost. Our own files are one kind of PNG
(8 bits, grey or RGB, one IDAT chunk, filter Up): ISA-L inflates them and one pass adds the rows up, in a
third of the time that a general decoder takes. Every other file goes to one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import cv2
import numba
import numpy as np
from isal import igzip_lib, isal_zlib

from mie.core.files import read_regular
from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes, check_pixels
from mie.images.overlay import deblend, deblend_any
from mie.images.png import decode_png
from mie.images.raster import check_header, read_raster
from mie.perspectives import PERSPECTIVES, Perspective
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS


@dataclass(frozen=True)
class Reference:
    """What every attempt at a sample is measured against."""

    perspective: str
    image: Pixels  # I
    target: Pixels  # O
    colours: tuple[str, ...] = ()  # as the sample names them
    several: bool = False  # the release's `Multiclasses`: the region is the union over all three colours
    region: Mask | None = None  # R; None where it cannot be known

    @classmethod
    def of(
        cls,
        perspective: str,
        task: str,
        colour: str | None,
        image: Pixels,
        target: Pixels,
        mask: Pixels | None = None,
    ) -> Reference:
        """`colour` as samples store it: "red", or "red,green" for several classes."""
        if not paints(perspective):
            return cls(perspective, image, target, region=None if mask is None else mask > 0)
        colours = tuple(c for c in (colour or "").split(",") if c in COLOURS)
        several = task == "holistic"
        region = None
        if several:
            region = deblend_any(image, target)
        elif colours:
            region = deblend(image, target, colours[0])
        return cls(perspective, image, target, colours, several, region)

    @property
    def painted_in(self) -> tuple[str, ...]:
        """The colours that count as paint: all three where a sample has several classes."""
        return tuple(COLOURS) if self.several else self.colours[:1]

    @cached_property
    def classes(self) -> dict[str, Mask]:
        """The region of each colour of a sample with several classes."""
        if not self.several:
            return {}
        return {colour: deblend(self.image, self.target, colour) for colour in self.colours}

    @property
    def meets(self) -> frozenset[str]:
        """The needs of metrics that the sample meets, or is expected to."""
        return needs_met(self.perspective, has_mask=self.region is not None, several=self.several)

    @property
    def size(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]

    @property
    def facts(self) -> dict[str, Any]:
        """What metrics may need, by the names of `mie.scoring.metric.NEEDS`; None where there is none."""
        return {
            "input": in_colour(self.image),
            "reference": in_colour(self.target),
            "region": self.region,
            "colours": self.painted_in or None,
            "classes": self.classes or None,
        }


# What a sample that paints is expected to have.
_PAINTED: Final = frozenset({"region", "colours"})


@cache
def _find(name: str) -> Perspective | None:
    """None for a perspective of a package that is not installed."""
    if name not in PERSPECTIVES:
        return None
    return PERSPECTIVES[name]


def metrics_of(perspective: str) -> tuple[str, ...]:
    """The metrics that the perspective names; none for one that is not known here."""
    found = _find(perspective)
    return () if found is None else found.metrics


def paints(perspective: str) -> bool:
    """The edit paints a region in a colour, so that the region is read back from the reference."""
    found = _find(perspective)
    return found is not None and found.edit == "overlay"


def changes_content(perspective: str) -> bool:
    """The edit changes what is there, inside an area, rather than painting over it."""
    found = _find(perspective)
    return found is not None and found.edit == "area"


def edits_whole_image(row: Mapping[str, Any]) -> bool:
    """The edit concerns the whole image, so that it has no foreground and no background."""
    found = _find(row["perspective"])
    return row["mask"] is None and (found is None or found.edit == "image")


def facts_of(row: Mapping[str, Any]) -> frozenset[str]:
    """The needs of metrics that a sample meets, from its record alone."""
    several = row["task"] == "holistic"
    return needs_met(row["perspective"], has_mask=row["mask"] is not None, several=several)


def needs_met(perspective: str, *, has_mask: bool, several: bool) -> frozenset[str]:
    """The needs that a sample meets, or is expected to: where it does not, the metric is unscored."""
    facts = {"input", "reference"}
    if paints(perspective):
        facts |= _PAINTED
    elif has_mask:
        facts.add("region")
    return frozenset(facts | {"classes"} if several else facts)


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
