"""DICOM images: stored values -> modality values (Hounsfield units) -> window -> 8-bit RGB.

The order is that of PS3.4 N.2: modality LUT or rescale, VOI LUT or window, and only then the
inversion of MONOCHROME1. Nothing but image attributes is ever read: no patient text can reach a step.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filereader import read_dataset, read_file_meta_info
from pydicom.pixels.processing import apply_color_lut
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from mie.errors import ImageError
from mie.images.dicom_frames import check_frames, frame_values
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes, check_pixels, decoding
from mie.images.windows import (
    FUNCTIONS,
    apply_window,
    find_window,
    holds_air,
    in_blocks,
    through_ct_window,
    to_8bit,
)
from mie.records import Picture, Step

_GREY: Final = ("MONOCHROME1", "MONOCHROME2")
_LONG_VALUE: Final = 1 << 16
_PIXEL_DATA: Final = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")


def read_dicom(
    path: Path,
    *,
    frame: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    low: float | None = None,
    high: float | None = None,
    percentiles: tuple[float, float] | None = None,
) -> Picture:
    """One frame as (H, W, 3) uint8 RGB.

    Grey values are shown through the given range or percentiles (of modality values, so Hounsfield
    units for CT), else through the file's own VOI LUT or first window, else from minimum to maximum
    without the padding pixels. 8-bit grey without a window stays as it is. CT that was rescaled, or that
    holds air, brings its Hounsfield units along.
    """
    dataset = open_dicom(path, limits=limits)
    with decoding("DICOM", where=path):
        stored, photometric = stored_values(dataset, frame, where=path, limits=limits)
        steps: list[Step] = [
            {
                "step": "dicom",
                "transfer_syntax": str(dataset.file_meta.TransferSyntaxUID),
                "photometric": str(dataset.PhotometricInterpretation),
                "frame": frame,
            }
        ]
        given: dict[str, Any] = {"low": low, "high": high, "percentiles": percentiles}
        hounsfield = None
        if photometric in _GREY:
            values, rescale = _modality_values(stored, dataset, frame)
            pixels, window = _to_window(values, stored, dataset, frame, given, path)
            if str(dataset.get("Modality", "")) == "CT" and (rescale is not None or holds_air(values)):
                hounsfield = values.astype(np.float32)
            steps += [step for step in (rescale, window) if step is not None]
            if photometric == "MONOCHROME1":  # after the window, never before
                pixels = 255 - pixels
                steps.append({"step": "invert"})
            pixels = np.repeat(pixels[..., np.newaxis], 3, axis=-1)
        else:
            if photometric == "PALETTE COLOR":
                stored = apply_color_lut(stored, dataset)
                if stored.dtype == np.uint16:  # 16-bit entries, though some writers fill only the low byte
                    stored = (stored >> 8 if stored.max() > 255 else stored).astype(np.uint8)
                steps.append({"step": "palette"})
            pixels, colour_window = to_8bit(stored, **given, where=path)
            steps += [] if colour_window is None else [colour_window]
        spacing = _spacing(dataset, frame)
    return Picture(np.ascontiguousarray(pixels), tuple(steps), spacing, hounsfield)


def dicom_values(dataset: Dataset, frame: int = 0) -> NDArray[Any]:
    """(H, W) integer or float32 values of a grey frame after modality LUT or rescale."""
    where = getattr(dataset, "filename", None)
    with decoding("DICOM", where=where):
        stored, photometric = stored_values(dataset, frame, where=where)
        if photometric not in _GREY:
            raise ImageError(
                "DICOM image is not grey", where=where, expected=" or ".join(_GREY), found=photometric
            )
        return _modality_values(stored, dataset, frame)[0]


def open_dicom(path: Path, *, limits: Limits = DEFAULT_LIMITS) -> Dataset:
    """The data set in `path`, with or without preamble, its size checked and its pixels not yet decoded."""
    with decoding("DICOM", where=path):
        check_file(path, limits=limits)
        dataset = pydicom.dcmread(path, force=True)
        if len(dataset) == 0:  # what pydicom returns when the file ends inside compressed pixel data
            raise ImageError(
                "DICOM file is truncated", where=path, expected="a complete DICOM file", found="its beginning"
            )
        if not any(keyword in dataset for keyword in _PIXEL_DATA):
            raise ImageError(
                "DICOM file has no pixel data",
                where=path,
                expected="an image",
                found=f"SOP class {UID(str(dataset.get('SOPClassUID', 'unknown'))).name}",
            )
        frames = int(dataset.get("NumberOfFrames") or 1)
        check_pixels(
            int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0), frames, where=path, limits=limits
        )
        if "TransferSyntaxUID" not in dataset.file_meta:
            implicit, little = dataset.original_encoding
            dataset.file_meta.TransferSyntaxUID = (
                ImplicitVRLittleEndian
                if implicit
                else (ExplicitVRLittleEndian if little else ExplicitVRBigEndian)
            )
        return dataset


def read_header(path: Path, tags: Sequence[str] | None, *, limits: Limits = DEFAULT_LIMITS) -> Dataset:
    """Only these attributes, by keyword, of a file with a preamble; what else there is takes no memory.

    None gives all of them but the pixels; long values stay in the file until they are asked for.
    """
    with decoding("DICOM", where=path):
        check_file(path, limits=limits)
        specific = None if tags is None else list(tags)
        return pydicom.dcmread(path, _LONG_VALUE, stop_before_pixels=True, specific_tags=specific)


def check_file(path: Path, *, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse a file that is too large, also once it is inflated."""
    if not path.is_file():
        raise ImageError("not a file", where=path, expected="a DICOM file")
    check_bytes(path.stat().st_size, where=path, limits=limits)
    meta = read_file_meta_info(path) if _has_preamble(path) else FileMetaDataset()
    if meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        _check_inflated(path, min(limits.max_bytes, limits.max_decoded // 2))  # pydicom holds them twice


def stored_values(
    dataset: Dataset, frame: int, *, where: object, limits: Limits = DEFAULT_LIMITS
) -> tuple[NDArray[Any], str]:
    """One decoded frame, (H, W) or (H, W, 3), and its photometric interpretation (YBR is RGB by now)."""
    frames = int(dataset.get("NumberOfFrames") or 1)
    if not 0 <= frame < frames:
        raise ImageError(
            "file has no such frame",
            where=where,
            expected=f"a frame from 0 to {frames - 1}",
            found=f"frame {frame}",
        )
    check_frames(dataset, frame, where=where, limits=limits)
    values, photometric = frame_values(dataset, frame, where=where)
    if photometric not in (*_GREY, "PALETTE COLOR", "RGB"):
        raise ImageError(
            "DICOM colours are of an unsupported kind",
            where=where,
            expected="MONOCHROME1, MONOCHROME2, PALETTE COLOR, RGB or YBR",
            found=photometric[:16],
        )
    return values, photometric


def _has_preamble(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _check_inflated(path: Path, most: int) -> None:
    """Refuse a deflated data set that would grow beyond `most` bytes: pydicom inflates it in one go."""
    with path.open("rb") as file:
        file.seek(132)
        read_dataset(file, False, True, stop_when=lambda tag, *_: tag >> 16 != 2)  # the header is plain
        rest = file.read()
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    while rest and not inflater.eof:
        size += len(inflater.decompress(rest, 1 << 24))
        rest = inflater.unconsumed_tail
        if size > most:
            raise ImageError(
                "deflated DICOM file is too large to inflate safely",
                where=path,
                expected=f"at most {most:,} bytes",
                found="more",
            )


def _group(dataset: Dataset, frame: int, keyword: str) -> Dataset:
    """The functional group of an enhanced multi-frame image, the frame's own first; else the data set."""
    per_frame = dataset.get("PerFrameFunctionalGroupsSequence") or []
    shared = dataset.get("SharedFunctionalGroupsSequence") or []
    for groups in (*per_frame[frame : frame + 1], *shared[:1]):
        if groups.get(keyword):
            return groups[keyword][0]
    return dataset


def _first(value: Any) -> float | None:
    """The first of one or several numbers; None for an empty attribute."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    return None if value is None or value == "" else float(value)


def _modality_values(stored: NDArray[Any], dataset: Dataset, frame: int) -> tuple[NDArray[Any], Step | None]:
    group = _group(dataset, frame, "PixelValueTransformationSequence")
    if dataset.get("ModalityLUTSequence"):
        values, _ = _look_up(stored, dataset.ModalityLUTSequence[0], dataset)
        return values, {"step": "rescale", "function": "table"}
    slope, intercept = _first(group.get("RescaleSlope")), _first(group.get("RescaleIntercept"))
    if slope is None or intercept is None or (slope, intercept) == (1.0, 0.0):
        return stored, None
    step = {"step": "rescale", "slope": slope, "intercept": intercept}
    small = (
        stored.dtype.kind in "iu" and stored.dtype.itemsize <= 2 and max(abs(slope), abs(intercept)) < 2**14
    )
    if small and slope.is_integer() and intercept.is_integer():
        return stored.astype(np.int32) * int(slope) + int(intercept), step
    values = np.empty(stored.shape, np.float32)
    for source, target in in_blocks(stored, values):
        target[...] = source * np.float64(slope) + intercept
    return values, step


def _look_up(values: NDArray[Any], item: Dataset, dataset: Dataset) -> tuple[NDArray[np.uint16], int]:
    """`values` through a Modality or VOI LUT item, and the bits of its entries (PS3.3 C.11.1.1.1).

    Not pydicom's `apply_voi`: that one wraps its index where entries have 8 bits and there are more
    than 256 of them, and wraps int16 values where the first mapped value is far below zero.
    """
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    count = count & 0xFFFF or 2**16
    data = item.LUTData
    if isinstance(data, bytes):
        little = dataset.original_encoding[1] is not False
        kind = np.dtype(np.uint8) if len(data) < 2 * count else np.dtype("<u2" if little else ">u2")
        table = np.frombuffer(data, kind)[:count].astype(np.uint16)
    else:
        table = (np.asarray(data, np.int64) & 0xFFFF).astype(np.uint16)
    shown = np.empty(values.shape, np.uint16)
    for source, target in in_blocks(values, shown):
        index = np.rint(source).astype(np.int64) - first
        target[...] = table[np.clip(index, 0, len(table) - 1)]
    return shown, bits


def _to_window(
    values: NDArray[Any],
    stored: NDArray[Any],
    dataset: Dataset,
    frame: int,
    given: dict[str, Any],
    where: object,
) -> tuple[NDArray[np.uint8], Step | None]:
    """Grey modality values to 8 bits: given range, else the file's LUT or window, else min..max."""
    if all(value is None for value in given.values()):
        if dataset.get("VOILUTSequence"):
            shown, bits = _look_up(values, dataset.VOILUTSequence[0], dataset)
            step = {"step": "window", "low": 0, "high": 2**bits - 1, "from": "file", "function": "table"}
            return apply_window(shown, step), step
        group = _group(dataset, frame, "FrameVOILUTSequence")
        centre, width = _first(group.get("WindowCenter")), _first(group.get("WindowWidth"))
        function = str(group.get("VOILUTFunction") or "LINEAR").upper()
        if centre is not None and width is not None and width >= (1 if function == "LINEAR" else 1e-9):
            return _through_window(values, centre, width, function, where)
        if stored.dtype == np.uint8 and values is stored and dataset.BitsStored == 8:
            return stored, None
    window = find_window(_without_padding(values, stored, dataset), **given, where=where)
    return apply_window(values, window), window


def _through_window(
    values: NDArray[Any], centre: float, width: float, function: str, where: object
) -> tuple[NDArray[np.uint8], Step]:
    """The file's own window and the step that records it; a sigmoid has no ends to record."""
    kind = function.lower()
    if kind not in FUNCTIONS:
        raise ImageError(
            "unknown VOI LUT function",
            where=where,
            expected="LINEAR, LINEAR_EXACT or SIGMOID",
            found=function[:16],
        )
    step = {"step": "window", "centre": centre, "width": width, "from": "file", "function": kind}
    if kind == "linear":
        step |= {"low": centre - 0.5 - (width - 1) / 2, "high": centre - 0.5 + (width - 1) / 2}
    elif kind == "linear_exact":
        step |= {"low": centre - width / 2, "high": centre + width / 2}
    return through_ct_window(values, centre, width, kind, where=where), step


def _without_padding(values: NDArray[Any], stored: NDArray[Any], dataset: Dataset) -> NDArray[Any]:
    """The values of pixels that were imaged; all of them where nothing else is left."""
    padding = dataset.get("PixelPaddingValue")
    if padding is None or stored.dtype.kind not in "iu":
        return values
    # The attribute may be written unsigned beside signed pixels: wrap it as the pixels are.
    ends = np.array([padding, dataset.get("PixelPaddingRangeLimit", padding)]).astype(stored.dtype)
    imaged = values[(stored < ends.min()) | (stored > ends.max())]
    return imaged if imaged.size else values


def _spacing(dataset: Dataset, frame: int) -> tuple[float, float] | None:
    """(row, column) millimetres between pixel centres; at the detector for projection X-ray."""
    group = _group(dataset, frame, "PixelMeasuresSequence")
    both = group.get("PixelSpacing") or dataset.get("ImagerPixelSpacing")
    if not both or len(both) != 2 or any(not number or float(number) <= 0 for number in both):
        return None
    return float(both[0]), float(both[1])
