"""Read any 2-D file as a picture, or as labels: its content says what it is.

Headerless float images, 32-bit little-endian, are the exception: their size is in the name,
`NAME_512x512x1.raw`.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes, check_pixels, decoding
from mie.images.raster import label_values, raster_format, read_raster, read_raster_labels
from mie.images.windows import to_8bit
from mie.records import Picture

# A data set without preamble begins with an element of group 0002 or 0008, in either byte order.
_BARE_DICOM: Final = (b"\x02\x00", b"\x08\x00", b"\x00\x02", b"\x00\x08")
_RAW_SIZE: Final = re.compile(r"_(\d{1,5})x(\d{1,5})(?:x1)?\.raw$", re.IGNORECASE)


def read_picture(
    path: Path | str,
    *,
    limits: Limits = DEFAULT_LIMITS,
    frame: int = 0,
    low: float | None = None,
    high: float | None = None,
    percentiles: tuple[float, float] | None = None,
) -> Picture:
    """A PNG, JPEG, TIFF, WebP, BMP, GIF, DICOM or raw file as (H, W, 3) uint8 RGB with its steps.

    `low` and `high`, or `percentiles`, choose the intensity range; see `to_8bit`.
    """
    path = Path(path)
    with _opening(path):
        size = _RAW_SIZE.search(path.name)
        if size is not None:
            values = _raw_values(path, int(size[2]), int(size[1]), limits)
            grey, step = to_8bit(values, low=low, high=high, percentiles=percentiles, where=path)
            pixels = np.ascontiguousarray(np.repeat(grey[..., None], 3, axis=2))
            return Picture(pixels, () if step is None else (step,), None, values)
        data = _raster_bytes(path, limits)
        if data is None:
            from mie.images.dicom import read_dicom  # a folder of PNG files never needs pydicom

            return read_dicom(path, limits=limits, frame=frame, low=low, high=high, percentiles=percentiles)
        return read_raster(
            data,
            where=path,
            limits=limits,
            frame=frame,
            low=low,
            high=high,
            percentiles=percentiles,
        )


def read_labels(path: Path, *, as_colour: bool = False, limits: Limits = DEFAULT_LIMITS) -> NDArray[Any]:
    """A mask file as (H, W) integers, or as (H, W, 3) uint8 colours when `as_colour`.

    A DICOM file gives its stored values, without rescale, window or palette.
    """
    with _opening(path):
        data = _raster_bytes(path, limits)
        if data is not None:
            return read_raster_labels(data, where=path, limits=limits, as_colour=as_colour)
        from mie.images.dicom import open_dicom, stored_values

        dataset = open_dicom(path, limits=limits)
        if int(dataset.get("NumberOfFrames") or 1) != 1:
            raise ImageError(
                "DICOM mask has several frames",
                where=path,
                expected="one frame",
                found=f"{dataset.NumberOfFrames} frames",
                fix="read it as a volume or as DICOM-SEG",
            )
        with decoding("DICOM", where=path):
            values, _ = stored_values(dataset, 0, where=path)
        return label_values(values, where=path, as_colour=as_colour)


def _raster_bytes(path: Path, limits: Limits) -> bytes | None:
    """The whole file if it has a raster format, None for DICOM; raises for everything else."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(
            "not a file",
            where=path,
            expected="an image file",
            found="a folder" if stat.S_ISDIR(status.st_mode) else "a device or pipe",
        )
    check_bytes(status.st_size, where=path, limits=limits)
    with path.open("rb", buffering=0) as file:
        head = file.read(132)
        if _is_dicom(head, path):
            return None
        if raster_format(head) is None:
            raise ImageError(
                "not a picture file we know",
                where=path,
                expected="PNG, JPEG, TIFF, WebP, BMP, GIF or DICOM",
                found=f"a file that begins with {head[:12]!r}",
            )
        file.seek(0)
        return file.readall()


def picture_kind(path: Path) -> str | None:
    """The format by the first bytes: "DICOM", "PNG" and so on; None for any other file."""
    with _opening(path), path.open("rb", buffering=0) as file:
        head = file.read(132)
        return "DICOM" if _is_dicom(head, path) else raster_format(head)


def _is_dicom(head: bytes, path: Path) -> bool:
    return head[128:] == b"DICM" or (head[:2] in _BARE_DICOM and _has_sop_class(path))


def _has_sop_class(path: Path) -> bool:
    import pydicom
    from pydicom.errors import InvalidDicomError

    with decoding("DICOM", where=path):
        try:
            dataset = pydicom.dcmread(
                path, force=True, stop_before_pixels=True, specific_tags=["SOPClassUID"]
            )
        except InvalidDicomError:
            return False
        return str(dataset.get("SOPClassUID", "")).startswith("1.2.840.10008.")


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Missing, locked and impossible paths as `ImageError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise ImageError(
            "file does not exist", where=path, expected="an image file", found="nothing"
        ) from error
    except PermissionError as error:
        raise ImageError(
            "file may not be read", where=path, found="permission denied", fix="change the file's permissions"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(
            "file cannot be read", where=path, found=f"{type(error).__name__}: {error}"
        ) from error


def _raw_values(path: Path, height: int, width: int, limits: Limits) -> NDArray[np.float32]:
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
    return np.frombuffer(path.read_bytes(), "<f4").reshape(height, width).astype(np.float32)
