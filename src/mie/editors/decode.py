"""Image files that an editor wrote or sent: decoded with care, and what had to be done noted."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any, Final

from PIL import Image

from mie.editors.base import Edited, EditError
from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, Limits, check_bytes
from mie.images.raster import raster_format, read_raster

# An output may be this many times as high and as wide as the input, or as small.
MAX_SCALE: Final = 8
MAX_BYTES: Final = 256 * 2**20


def read_output(path: Path, *, like: tuple[int, ...]) -> Edited:
    """The picture file at `path`, an edit of an image of shape `like`."""
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
    """A picture file's bytes as RGB. `meta` says what it was if it was no 8-bit RGB PNG.

    16-bit PNG is scaled from its full range, never stretched to its own minimum and maximum: that would
    change the brightness that is being measured. Transparent pixels are laid on black.
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
            "the output has more than 8 bits a channel", expected="8 bits, or a 16-bit PNG", found=kind
        )
    mode = _mode(data)
    meta = {
        **({} if kind == "PNG" else {"format": kind}),
        **({} if mode == "RGB" else {"mode": mode}),
        **({"steps": steps} if steps else {}),
    }
    return Edited(picture.pixels, meta)


def _mode(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data)) as image:  # reads the header alone
            return image.mode
    except Image.DecompressionBombError:  # Pillow's own limit, lower than the one the picture has passed
        return "unknown"
