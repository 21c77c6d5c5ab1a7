"""Everyday picture files (PNG, JPEG, TIFF, WebP, BMP, GIF) to RGB pixels or to label values.

The format is told by the first bytes, never by the file's name. Sizes are checked in the header,
before a pixel is decoded, against our own limits: the plug-in classes of Pillow are called directly,
because `Image.open` adds Pillow's own (global, lower) bomb check.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from mie.errors import ImageError
from mie.images.child import Reply, decode_limited
from mie.images.limits import (
    DEFAULT_LIMITS,
    Limits,
    check_decoded,
    check_pixels,
    decoding,
    png_chunks,
    png_picture,
)
from mie.images.windows import in_blocks, to_8bit
from mie.records import Picture, Step

_PLUGINS: Final[dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),  # BigTIFF
    (b"MM\0+", "TIFF"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_CV2_FLAGS: Final = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
_ORIENTATION: Final = 274  # EXIF and TIFF tag
_MODE_BYTES: Final = {"I": 4, "F": 4}  # of a channel, where it is not one
_MOST_SCANS: Final = 200
_MOST_PASSES: Final = 2**32  # pixels x scans: some seconds
_MOST_PAGES: Final = 10_000
_BITS, _COMPRESSION, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 258, 259, 262, 284, 339  # TIFF tags


@dataclass(frozen=True, slots=True)
class _Raster:
    """What the decoder gave, the right way up, before any choice about intensities."""

    values: NDArray[Any]  # (H, W) grey or palette index, (H, W, 3) RGB or (H, W, 4) RGBA, in the file's depth
    palette: NDArray[np.uint8] | None = None  # (256, 4) RGBA
    steps: tuple[Step, ...] = ()
    white_is_zero: bool = False


def raster_format(head: bytes) -> str | None:
    """Which of our formats a file's first 12 bytes belong to: "PNG", "JPEG", ..., or None."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)


def read_raster(
    data: bytes,
    *,
    where: object,
    limits: Limits = DEFAULT_LIMITS,
    low: float | None = None,
    high: float | None = None,
    percentiles: tuple[float, float] | None = None,
    frame: int = 0,
) -> Picture:
    """The file `data` as (H, W, 3) uint8 RGB, upright, with the steps that were needed.

    More than 8 bits go through `to_8bit`, all channels with one common range. Transparent pixels are
    laid on black. `frame` is a page of a TIFF or a frame of an animation.
    """
    raster = _decode(data, where=where, limits=limits, frame=frame)
    values, steps = raster.values, list(raster.steps)
    if raster.palette is not None:
        values, opaque = _through_palette(values, raster.palette)
        steps.append({"step": "palette"})
        if not opaque:
            steps.append({"step": "alpha", "background": "black"})
    if values.ndim == 3 and values.shape[2] == 4:
        opaque = _is_opaque(values)
        values = values[..., :3] if opaque else _on_black(values)
        if not opaque:
            steps.append({"step": "alpha", "background": "black"})
    pixels, window = to_8bit(values, low=low, high=high, percentiles=percentiles, where=where)
    if window is not None:
        steps.append(window)
    if raster.white_is_zero:
        pixels = 255 - pixels
        steps.append({"step": "invert"})
    if pixels.ndim == 2:
        pixels = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_GRAY2RGB)
    return Picture(np.ascontiguousarray(pixels), tuple(steps))


def read_raster_labels(
    data: bytes, *, where: object, limits: Limits = DEFAULT_LIMITS, as_colour: bool = False
) -> NDArray[Any]:
    """The mask file `data`: (H, W) integers, or (H, W, 3) uint8 colours when `as_colour`.

    A palette gives its indices, or its colours when `as_colour`. One bit gives 0 and 255.
    """
    raster = _decode(data, where=where, limits=limits, frame=0)
    values = raster.values
    if raster.palette is not None and as_colour:
        values, opaque = _through_palette(values, raster.palette)
        if not opaque:
            raise _transparent(where)
    return label_values(values, where=where, as_colour=as_colour)


def label_values(values: NDArray[Any], *, where: object, as_colour: bool) -> NDArray[Any]:
    """Decoded mask `values`, (H, W) or (H, W, 3 or 4), as `read_raster_labels` promises them."""
    if values.ndim == 3 and values.shape[2] == 4:
        if not _is_opaque(values):
            raise _transparent(where)
        values = values[..., :3]
    if as_colour:
        if values.dtype != np.uint8:
            raise ImageError(
                "mask has no 8-bit colours", where=where, expected="8 bits a channel", found=values.dtype
            )
        return np.ascontiguousarray(values if values.ndim == 3 else np.stack([values] * 3, axis=-1))
    if values.ndim == 3:
        if (values != values[..., :1]).any():
            raise ImageError(
                "mask is coloured, and a label needs one number a pixel",
                where=where,
                expected="one channel, or three equal ones",
                found="three different channels",
                fix="say which colour stands for which class",
            )
        values = values[..., 0]
    if values.dtype.kind == "f":
        whole = np.abs(values) < 2**31
        if not whole.all() or (values != np.rint(values)).any():
            raise ImageError(
                "mask has values that are not whole numbers",
                where=where,
                expected="integer labels",
                found=f"{values.dtype} with fractions, NaN or infinity",
            )
        values = values.astype(np.int32)
    return np.ascontiguousarray(values)


def _transparent(where: object) -> ImageError:
    return ImageError(
        "mask has transparent pixels",
        where=where,
        expected="labels in grey, palette or colour",
        found="an alpha channel that is not opaque",
        fix="save the mask without transparency",
    )


def _through_palette(
    indices: NDArray[np.uint8], palette: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], bool]:
    """(H, W, 3) RGB on black, and whether all pixels are opaque.

    Blended by the 256 colours, never by the pixels: RGBA of a large picture would fill the memory.
    """
    indices = np.ascontiguousarray(indices)
    used = cv2.calcHist([indices], [0], None, [256], [0, 256]).ravel() > 0
    colours = _on_black(palette[None])
    return np.asarray(cv2.LUT(cv2.merge([indices] * 3), colours), np.uint8), _is_opaque(palette[used])


def _is_opaque(rgba: NDArray[Any]) -> bool:
    return bool((rgba[..., 3] == np.iinfo(rgba.dtype).max).all())


def _on_black(rgba: NDArray[Any]) -> NDArray[Any]:
    """Colour times alpha, rounded, in the depth of the file (8 or 16 bits)."""
    full = int(np.iinfo(rgba.dtype).max)
    rgb = np.empty((*rgba.shape[:2], 3), rgba.dtype)
    for source, target in in_blocks(rgba, rgb):
        product = source[..., :3].astype(np.uint32) * source[..., 3:]  # 65535 squared still fits
        target[...] = (product + np.uint32(full // 2)) // np.uint32(full)
    return rgb


def _decode(data: bytes, *, where: object, limits: Limits, frame: int) -> _Raster:
    kind = raster_format(data)
    if kind is None:
        raise ImageError(
            "not a picture file we know" if data else "file is empty",
            where=where,
            expected="PNG, JPEG, TIFF, WebP, BMP or GIF",
            found=f"a file that begins with {data[:12]!r}" if data else "0 bytes",
        )
    with decoding(kind, where=where):
        if kind == "PNG" and frame == 0:
            return _decode_png(data, where=where, limits=limits)
        image = _open(kind, data, where=where, limits=limits)
        if frame:
            _seek(image, frame, where)
            _check_size(image, where, limits)
        # Nothing in the header of a compressed TIFF bounds the work of its decoder.
        if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_COMPRESSION, 1) != 1:
            facts = {"frame": frame, "limits": asdict(limits)}
            pixels = image.height * image.width
            said, arrays = decode_limited("raster", facts, data, pixels=pixels, kind=kind, where=where)
            palette = arrays[1] if len(arrays) > 1 else None
            return _Raster(arrays[0], palette, tuple(said["steps"]), bool(said["white_is_zero"]))
        return _decode_opened(image, data, where=where, frame=frame)


def decode_in_child(facts: Mapping[str, Any], data: bytes) -> Reply:
    """In the limited process: a file whose header has been checked."""
    frame = int(facts["frame"])
    image = _open(str(raster_format(data)), data, where=None, limits=Limits(**facts["limits"]))
    if frame:
        _seek(image, frame, None)
    raster = _decode_opened(image, data, where=None, frame=frame)
    arrays = [raster.values] if raster.palette is None else [raster.values, raster.palette]
    return {"steps": raster.steps, "white_is_zero": raster.white_is_zero}, arrays


def _decode_opened(image: ImageFile.ImageFile, data: bytes, *, where: object, frame: int) -> _Raster:
    orientation = int(image.getexif().get(_ORIENTATION, 1))
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        raster = _decode_tiff(image, data, where=where, frame=frame, orientation=orientation)
        return _oriented(raster, orientation, turn=False)
    return _oriented(_from_pillow(image, where), orientation)


def check_header(data: bytes, *, where: object, limits: Limits = DEFAULT_LIMITS) -> tuple[int, int]:
    """(height, width) from its header alone. `ImageError` for one too large to decode, or none of ours."""
    kind = raster_format(data)
    if kind is None:
        raise ImageError("not a picture file we know", where=where, found=f"it begins with {data[:12]!r}")
    with decoding(kind, where=where):
        image = _open(kind, data, where=where, limits=limits)
    return image.height, image.width


def _open(kind: str, data: bytes, *, where: object, limits: Limits) -> ImageFile.ImageFile:
    """The picture with its header read and its size checked, its pixels not decoded."""
    if kind == "TIFF":
        _check_directories(data, where)
    image = _PLUGINS[kind](io.BytesIO(data))
    _check_size(image, where, limits)
    if kind == "JPEG":
        # Each scan of a progressive JPEG is a pass over all pixels; the marker of one is nothing else.
        most = min(_MOST_SCANS, _MOST_PASSES // (image.height * image.width))
        if (scans := data.count(b"\xff\xda")) > most:
            raise ImageError(
                "JPEG file has too many scans", where=where, expected=f"at most {most}", found=scans
            )
    return image


def _check_size(image: Image.Image, where: object, limits: Limits) -> None:
    check_pixels(image.height, image.width, where=where, limits=limits)
    width = max(1, len(image.getbands())) * _MODE_BYTES.get(image.mode.partition(";")[0], 1)
    check_decoded(image.height * image.width, width, where=where, limits=limits)


def _check_directories(data: bytes, where: object) -> None:
    """Refuse a TIFF with a loop of pages, or with more than anybody stores: Pillow compares each with all."""
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    count_kind, entry, offset_kind = ("Q", 20, "Q") if big else ("H", 12, "I")
    at = struct.unpack_from(order + offset_kind, data, 8 if big else 4)[0]
    seen: set[int] = set()
    while at:
        if at in seen or len(seen) >= _MOST_PAGES:
            found = "a loop" if at in seen else "more"
            raise ImageError("TIFF file has too many pages", where=where, expected=_MOST_PAGES, found=found)
        seen.add(at)
        if at + struct.calcsize(order + count_kind) > len(data):
            return  # the page that is asked for may lie before
        (entries,) = struct.unpack_from(order + count_kind, data, at)
        at += struct.calcsize(order + count_kind) + entry * entries
        if at + struct.calcsize(order + offset_kind) > len(data):
            return
        (at,) = struct.unpack_from(order + offset_kind, data, at)


def _seek(image: Image.Image, frame: int, where: object) -> None:
    frames = getattr(image, "n_frames", 1)
    if image.format == "PNG" or not 0 <= frame < frames:
        raise ImageError(
            "file has no such frame",
            where=where,
            expected="frame 0" if image.format == "PNG" else f"a frame from 0 to {frames - 1}",
            found=f"frame {frame}",
        )
    image.seek(frame)


def _from_pillow(image: Image.Image, where: object) -> _Raster:
    """The pixels of an opened Pillow image, decoded now, by its mode."""
    mode = image.mode
    if mode == "P":
        image.load()
        image.apply_transparency()
        colours = np.array(image.getpalette("RGBA"), np.uint8).reshape(-1, 4)
        palette = np.full((256, 4), (0, 0, 0, 255), np.uint8)  # an index beyond the palette is black
        palette[: len(colours)] = colours
        return _Raster(np.array(image), palette)
    if mode == "1":
        return _Raster(np.array(image, np.uint8) * np.uint8(255))
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return _Raster(np.array(image))
    if mode in ("L", "RGB", "LA", "PA", "RGBA", "RGBa"):
        return _Raster(np.array(image.convert("RGBA")))
    if mode == "RGBX":
        return _Raster(np.array(image.convert("RGB")))
    if mode in ("CMYK", "YCbCr"):
        # Pillow has undone the inversion of Adobe's CMYK and YCCK JPEGs by now.
        return _Raster(np.array(image.convert("RGB")), steps=({"step": "colour", "from": mode},))
    if mode.startswith("I;16") or mode in ("I", "F"):
        values = np.array(image)
        return _Raster(values.astype(values.dtype.newbyteorder("=")))
    raise ImageError(
        "unsupported kind of pixels", where=where, expected="grey, palette, RGB or CMYK", found=f"mode {mode}"
    )


def _decode_tiff(
    image: TiffImagePlugin.TiffImageFile, data: bytes, *, where: object, frame: int, orientation: int
) -> _Raster:
    """One TIFF page. Both decoders turn it upright by themselves."""
    tags = image.tag_v2
    deep = max(tags.get(_BITS, (1,))) > 8
    photometric = tags.get(_PHOTOMETRIC)
    if deep and photometric == 2:
        # Pillow would drop the low byte of 16-bit colour; OpenCV mixes up planes stored separately.
        if tags.get(_PLANAR, 1) != 1:
            raise ImageError(
                "16-bit colour TIFF with separate planes is not supported",
                where=where,
                expected="planar configuration 1",
                found=f"planar configuration {tags.get(_PLANAR)}",
                fix="save it with the channels side by side",
            )
        _, pages = cv2.imdecodemulti(np.frombuffer(data, np.uint8), _CV2_FLAGS, range=(frame, frame + 1))
        if len(pages) != 1:
            raise _bad_pixels("TIFF", where)
        return _Raster(_from_bgr(pages[0]))
    unsigned_32 = image.mode == "I" and tags.get(_BITS) == (32,) and tags.get(_SAMPLE_FORMAT, (1,)) == (1,)
    # Pillow repeats its own bomb check when it makes room for the pixels; the size has passed ours.
    turned = 5 <= orientation <= 8
    image.im = Image.new(image.mode, (image.height, image.width) if turned else image.size).im
    raster = _from_pillow(image, where)
    if unsigned_32:
        raster = replace(raster, values=raster.values.view(np.uint32))
    # Pillow inverts white-is-zero grey of up to 8 bits, and leaves deeper grey as it is stored.
    return replace(raster, white_is_zero=deep and photometric == 0)


def _decode_png(data: bytes, *, where: object, limits: Limits) -> _Raster:
    """OpenCV decodes: it is fast and keeps 16 bits. What it may forgive has been checked before."""
    chunks = png_chunks(data, where=where, limits=limits)
    bodies = {kind: data[start + 8 : end - 4] for kind, start, end in chunks if kind != b"IDAT"}
    depth, colour = bodies[b"IHDR"][8], bodies[b"IHDR"][9]
    data = png_picture(data, chunks)
    values = cv2.imdecode(np.frombuffer(data, np.uint8), _CV2_FLAGS)
    if values is None:
        raise _bad_pixels("PNG", where)
    if colour == 3:
        del values
        # Only Pillow gives the indices. Only OpenCV would have noticed missing rows.
        raster = _from_pillow(PngImagePlugin.PngImageFile(io.BytesIO(data)), where)
    elif colour == 0 and b"tRNS" in bodies:
        # OpenCV leaves out the one transparent grey value of a grey picture.
        key = int.from_bytes(bodies[b"tRNS"][:2], "big") * (255 // (2**depth - 1) if depth < 8 else 1)
        full = np.iinfo(values.dtype).max
        alpha = np.where(values == key, 0, full).astype(values.dtype)
        raster = _Raster(np.stack([values, values, values, alpha], axis=-1))
    else:
        raster = _Raster(_from_bgr(values))
    exif = Image.Exif()
    exif.load(bodies.get(b"eXIf", b""))
    return _oriented(raster, int(exif.get(_ORIENTATION, 1)))


def _from_bgr(values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim == 2:
        return values
    return cv2.cvtColor(values, cv2.COLOR_BGRA2RGBA if values.shape[2] == 4 else cv2.COLOR_BGR2RGB)


def _oriented(raster: _Raster, orientation: int, *, turn: bool = True) -> _Raster:
    """Undo the camera's turn that EXIF orientation 2..8 stands for (unless it is done), and record it."""
    if not 2 <= orientation <= 8:
        return raster
    values = raster.values
    if turn:
        if orientation >= 5:
            values = values.swapaxes(0, 1)
        if orientation in (3, 4, 7, 8):
            values = values[::-1]
        if orientation in (2, 3, 6, 7):
            values = values[:, ::-1]
    return replace(raster, values=values, steps=({"step": "orientation", "exif": orientation}, *raster.steps))


def _bad_pixels(kind: str, where: object) -> ImageError:
    return ImageError(
        f"{kind} file cannot be decoded",
        where=where,
        expected=f"a complete {kind} file",
        found="damaged or missing pixel data",
    )
