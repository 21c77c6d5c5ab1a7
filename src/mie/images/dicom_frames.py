"""Compressed DICOM frames before they are decoded: what the code stream itself says about its size.

Decoders believe the stream, not the DICOM header: a few hundred bytes can ask for gigabytes. So both must say
the same, and the header has passed our limits.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames, get_frame
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.utils import as_pixel_options
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEG2000TransferSyntaxes,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
    RLELossless,
)

from mie.errors import ImageError
from mie.images.child import Reply, decode_limited
from mie.images.limits import Limits, check_decoded

_WIDTH: Final = 4  # bytes of a sample while it is decoded: JPEG's and JPEG 2000's decoders work on 32 bits
_PLAIN_PIXELS: Final = 2**26  # above, a frame must have some bytes for its pixels
_PIXELS_PER_BYTE: Final = 1000
_RLE_GROWTH: Final = 64  # a run of 128 bytes takes two
_RLE_PLAIN: Final = 2**25  # longer streams are counted before they are decoded
_SOF: Final = frozenset({*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC})  # frame headers; F7 is JPEG-LS
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xDA)})  # markers without a length


class _Size(NamedTuple):
    height: int
    width: int
    samples: int


def check_frames(dataset: Dataset, frame: int | None, *, where: object, limits: Limits) -> None:
    """Raise unless a compressed frame (None: every one) is complete and of the size that the header says."""
    syntax = UID(str(dataset.file_meta.TransferSyntaxUID))
    frames = int(dataset.get("NumberOfFrames") or 1)
    expected = _Size(int(dataset.Rows), int(dataset.Columns), int(dataset.get("SamplesPerPixel") or 1))
    pixels = expected.height * expected.width
    bits = int(dataset.get("BitsAllocated") or 8)
    if "PixelData" not in dataset or not syntax.is_compressed or not syntax.is_encapsulated:
        check_decoded(pixels, expected.samples * max(1, bits // 8), where=where, limits=limits)
        return
    check_decoded(pixels, expected.samples * _WIDTH, where=where, limits=limits)
    table = dataset.get("ExtendedOffsetTable")
    offsets = None if table is None else (table, dataset.ExtendedOffsetTableLengths)
    data = dataset.PixelData
    if frame is None:
        streams = generate_frames(data, number_of_frames=frames, extended_offsets=offsets)
    else:
        streams = iter([get_frame(data, frame, number_of_frames=frames, extended_offsets=offsets)])
    for stream in streams:
        if pixels > _PLAIN_PIXELS and pixels > _PIXELS_PER_BYTE * len(stream):
            raise _rejection(
                where, f"at least {pixels // _PIXELS_PER_BYTE} bytes for {pixels} pixels", len(stream)
            )
        if syntax in (*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes):
            _check_end(stream, where)
            found = _jpeg_size(stream)
        elif syntax in JPEG2000TransferSyntaxes or str(syntax).startswith("1.2.840.10008.1.2.4.20"):
            found = _jpeg2000_size(stream)
        elif syntax == RLELossless:
            _check_rle(stream, pixels, where)
            continue
        else:
            continue  # pydicom has no decoder for it, and says so
        if found != expected:
            raise _rejection(where, _text(expected), "no size" if found is None else _text(found))


def frame_values(dataset: Dataset, frame: int, *, where: object) -> tuple[NDArray[Any], str]:
    """A frame's values and photometric interpretation; a compressed one is decoded in a limited process."""
    syntax = UID(str(dataset.file_meta.TransferSyntaxUID))
    if "PixelData" not in dataset or not syntax.is_encapsulated or syntax == RLELossless:
        values, image = get_decoder(syntax).as_array(dataset, index=frame)
        return values, str(image["photometric_interpretation"])
    options = as_pixel_options(dataset)
    frames, offsets = options["number_of_frames"], options.pop("extended_offsets", None)
    stream = get_frame(dataset.PixelData, frame, number_of_frames=frames, extended_offsets=offsets)
    pixels = options["rows"] * options["columns"]
    options["number_of_frames"] = 1
    facts = {"syntax": str(syntax), "options": options}
    said, (values,) = decode_limited("frame", facts, stream, pixels=pixels, kind="DICOM", where=where)
    return values, str(said["photometric"])


def decode_frame(facts: Mapping[str, Any], stream: bytes) -> Reply:
    """In the limited process: one frame's code stream."""
    decoder = get_decoder(facts["syntax"])
    values, image = decoder.as_array(encapsulate([stream]), index=0, **facts["options"])
    return {"photometric": str(image["photometric_interpretation"])}, [values]


def decompressed(dataset: Dataset, *, where: object) -> Dataset:
    """The data set with plain pixels: libraries that are given it have nothing to decode."""
    syntax = UID(str(dataset.file_meta.TransferSyntaxUID))
    if not syntax.is_encapsulated:
        return dataset
    frames, photometric = [], ""
    for index in range(int(dataset.get("NumberOfFrames") or 1)):
        values, photometric = frame_values(dataset, index, where=where)
        frames.append(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
    data = b"".join(frames)
    dataset.PixelData = data + b"\0" * (len(data) % 2)
    dataset["PixelData"].VR = "OW" if int(dataset.BitsAllocated) > 8 else "OB"
    dataset["PixelData"].is_undefined_length = False
    dataset.PhotometricInterpretation = photometric
    if int(dataset.get("SamplesPerPixel") or 1) > 1:
        dataset.PlanarConfiguration = 0
    for keyword in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        if keyword in dataset:
            delattr(dataset, keyword)
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return dataset


def _rejection(where: object, expected: object, found: object) -> ImageError:
    return ImageError(
        "compressed frame is not what the DICOM header says", where=where, expected=expected, found=found
    )


def _text(size: _Size) -> str:
    return f"{size.width}x{size.height}, {size.samples} samples a pixel"


def _check_end(stream: bytes, where: object) -> None:
    """Refuse a frame without the end marker FF D9, which no entropy-coded data can contain.

    The decoders return half a picture, and no error, for half a JPEG or JPEG-LS stream.
    """
    if b"\xff\xd9" not in stream:
        raise ImageError(
            "compressed frame is truncated",
            where=where,
            expected="a JPEG stream with an end marker",
            found=f"{len(stream)} bytes without one",
        )


def _jpeg_size(stream: bytes) -> _Size | None:
    at = 0
    while at + 4 <= len(stream):
        if stream[at] != 0xFF:
            return None
        marker = stream[at + 1]
        if marker == 0xFF:  # a byte of filling
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _SOF and at + 10 <= len(stream):
            return _Size(*struct.unpack_from(">HHB", stream, at + 5))
        else:
            at += 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
    return None


def _jpeg2000_size(stream: bytes) -> _Size | None:
    start = 0
    if stream[4:8] == b"jP  ":  # a JP2 file: the stream is in its first box of that name
        while stream[start + 4 : start + 8] != b"jp2c":
            length = int.from_bytes(stream[start : start + 4], "big")
            if length < 8 or start + length >= len(stream):
                return None
            start += length
        start += 16 if stream[start : start + 4] == b"\0\0\0\1" else 8
    if stream[start : start + 4] != b"\xff\x4f\xff\x51" or len(stream) < start + 42:
        return None
    right, bottom, left, top = struct.unpack_from(">4I", stream, start + 8)
    (samples,) = struct.unpack_from(">H", stream, start + 40)
    return _Size(bottom - top, right - left, samples)


def _check_rle(stream: bytes, pixels: int, where: object) -> None:
    """Each segment is one byte of every pixel; what would decode to more is refused."""
    if len(stream) <= _RLE_PLAIN or len(stream) < 64:
        if _RLE_GROWTH * len(stream) < pixels:
            raise _rejection(where, f"{pixels} pixels", f"{len(stream)} bytes of runs")
        return
    count, *starts = struct.unpack("<16L", stream[:64])
    starts = [*starts[: min(count, 15)], len(stream)]
    for start, end in itertools.pairwise(starts):
        size, at = 0, start
        while at < min(end, len(stream)) and size <= pixels + 1:
            run = stream[at]
            size += run + 1 if run < 128 else (257 - run) % 129
            at += run + 2 if run < 128 else 2 - (run == 128)
        if size > pixels + 1:  # a byte of filling is allowed
            raise _rejection(where, f"{pixels} pixels", "longer runs")
