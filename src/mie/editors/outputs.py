"""An editor's output before it counts: decoded within limits, checked, and written as PNG."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from PIL import Image

from mie.editors.base import Edited, EditError
from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes
from mie.images.raster import raster_format, read_raster
from mie.records import Pixels

# An output may be this many times as high and as wide as the input, or as small.
MAX_SCALE: Final = 8
MIN_SIDE: Final = 8  # pixels, unless the input is smaller itself
MAX_BYTES: Final = 256 * 2**20


def read_output(path: Path, *, like: tuple[int, ...]) -> Edited:
    """Read the picture file at `path`, an edit of an image of shape `like`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise EditError("the output is not a file", where=path.name)
        check_bytes(status.st_size, where=path.name, limits=Limits(max_bytes=MAX_BYTES))
        data = path.read_bytes()
    except OSError as error:
        raise EditError("the output cannot be read", where=path.name, found=error.strerror) from None
    except ImageError as error:
        raise EditError(f"the output {error.what}", expected=error.expected, found=error.found) from None
    return decode_output(data, like=like, where=path.name)


def decode_output(data: bytes, *, like: tuple[int, ...], where: object) -> Edited:
    """Decode a picture file's bytes to RGB. `meta` records its format unless it was an 8-bit RGB PNG.

    A 16-bit PNG is scaled from its full range, never stretched to its own minimum and maximum: that would
    change the brightness that is being measured. Transparent pixels are blended with black.
    """
    kind = raster_format(data)
    deep = kind == "PNG" and data[24:25] == b"\x10"
    limits = Limits(max_pixels=min(DEFAULT_LIMITS.max_pixels, MAX_SCALE**2 * like[0] * like[1]))
    window: dict[str, Any] = {"low": 0, "high": 65535} if deep else {}
    try:
        picture = read_raster(data, where=where, limits=limits, **window)
    except ImageError as error:
        raise EditError(
            f"the output cannot be used: {error.what}", expected=error.expected, found=error.found
        ) from None
    steps = [dict(step) for step in picture.steps]
    if not deep and any(step["step"] == "window" for step in steps):
        raise EditError(
            "the output has more than 8 bits per channel", expected="8 bits, or a 16-bit PNG", found=kind
        )
    mode = _mode(data)
    meta = {
        **({} if kind == "PNG" else {"format": kind}),
        **({} if mode == "RGB" else {"mode": mode}),
        **({"steps": steps} if steps else {}),
    }
    return Edited(picture.pixels, meta)


def check_output(edited: Edited, size: tuple[int, int]) -> Edited:
    """Return the output as `(H, W, 3) uint8`; `EditError` unless it can be an edit of an image of `size`.

    Grey becomes RGB and alpha is blended with black; `meta["mode"]` then records the original mode. Each side
    may differ from the input's (height, width) by a factor of `MAX_SCALE`: benchmarks scale outputs back,
    and record that they did.
    """
    image: Any = edited.image
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3):
        found = f"{image.shape} {image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise EditError("the editor returned no image", expected="(H, W, 3) uint8", found=found)
    _check_size(image.shape[:2], size)
    channels = 1 if image.ndim == 2 else image.shape[2]
    meta = dict(edited.meta)
    if channels == 1:
        meta.setdefault("mode", "L")
        image = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_GRAY2RGB)
    elif channels == 4:
        meta.setdefault("mode", "RGBA")
        product = image[..., :3].astype(np.uint16) * image[..., 3:] + np.uint16(127)
        image = (product // np.uint16(255)).astype(np.uint8)
    elif channels != 3:
        raise EditError("the editor returned no image", expected="1, 3 or 4 channels", found=channels)
    return Edited(image, meta)


def write_output(path: Path, data: bytes) -> None:
    """Write the whole file and sync it. Sync the folder afterwards, once for many files."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp")  # noqa: PTH118 (pathlib takes a fifth of the time)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)


def as_rgb(image: Pixels) -> Pixels:
    """Return `(H, W, 3)` pixels of a grey or RGB image."""
    return image if image.ndim == 3 else np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2RGB), np.uint8)


def _mode(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data)) as image:  # reads only the header
            return image.mode
    except Image.DecompressionBombError:  # Pillow's own limit, lower than the one the picture has passed
        return "unknown"


def _check_size(found: tuple[int, ...], wanted: tuple[int, int]) -> None:
    for side, expected in zip(found, wanted, strict=True):
        least = min(expected, max(MIN_SIDE, -(-expected // MAX_SCALE)))
        if not least <= side <= MAX_SCALE * expected:
            raise EditError(
                "the output has an implausible size",
                expected=f"1/{MAX_SCALE} to {MAX_SCALE} times {_size(wanted)}, at least {MIN_SIDE} px",
                found=_size(found),
            )


def _size(size: tuple[int, ...]) -> str:
    return f"{size[1]}x{size[0]}"
