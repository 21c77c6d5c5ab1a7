"""The L through every raster format and mode, each compared with Pillow or a formula by hand."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from skimage import data as skimage_data

from mie.errors import ImageError
from mie.images.limits import Limits
from mie.images.raster import read_raster, read_raster_labels
from tests.images.phantom import l_phantom

L = l_phantom()
RGB = np.stack([L, 255 - L, L // 2], axis=-1)
DEEP = L.astype(np.uint16) * 200 + 1000
ALPHA = np.where(np.arange(53) < 20, 255, 100).astype(np.uint8) * np.ones((37, 1), np.uint8)


def saved(image, kind, **options):
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_file(header, lines, extra=b""):
    chunks = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def png(values, depth, colour, extra=b"", rows=None):
    """A PNG by hand, for the kinds Pillow cannot write. `values` is (H, W) or (H, W, C)."""
    height, width = values.shape[:2]
    values = values.reshape(height, -1)
    if depth < 8:
        bits = np.unpackbits(values[..., None], axis=-1)[..., 8 - depth :]
        lines = [np.packbits(line).tobytes() for line in bits.reshape(height, -1)]
    else:
        lines = [line.astype(">u2" if depth == 16 else "u1").tobytes() for line in values]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + line for line in lines[:rows]))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def tiff(values, tags):
    """An uncompressed little-endian TIFF by hand. `tags` are SHORT values by number."""
    body = values.tobytes()
    height, width = values.shape[:2]
    entries = {256: width, 257: height, 259: 1, 273: 8, 278: height, 279: len(body)} | tags
    several = {tag: value for tag, value in entries.items() if isinstance(value, tuple)}
    ifd = 8 + len(body)
    tail_at, tail = ifd + 2 + 12 * len(entries) + 4, b""
    out = struct.pack("<H", len(entries))
    for tag, value in sorted(entries.items()):
        if tag in several:
            out += struct.pack("<HHII", tag, 3, len(value), tail_at + len(tail))
            tail += struct.pack(f"<{len(value)}H", *value)
        elif tag in (273, 279):
            out += struct.pack("<HHII", tag, 4, 1, value)
        else:
            out += struct.pack("<HHIHH", tag, 3, 1, value, 0)
    return b"II*\0" + struct.pack("<I", ifd) + body + out + b"\0\0\0\0" + tail


def grey(image):
    return np.repeat(np.asarray(image)[..., None], 3, axis=-1)


def window(values):
    low, high = float(values.min()), float(values.max())
    return np.floor((values.astype(float) - low) / (high - low) * 255 + 0.5).astype(np.uint8)


def read(data, **options):
    picture = read_raster(data, where="x", **options)
    assert picture.pixels.dtype == np.uint8
    assert picture.pixels.flags.c_contiguous
    assert picture.pixels.flags.writeable
    assert picture.spacing is None
    return picture.pixels, list(picture.steps)


# Eight bits, nothing to do


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF"])
def test_8bit_grey(kind):
    pixels, steps = read(saved(L, kind))
    assert (pixels == grey(L)).all()
    assert [s for s in steps if s["step"] != "palette"] == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("BMP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_8bit_colour(kind, options):
    pixels, steps = read(saved(RGB, kind, **options))
    assert (pixels == RGB).all()
    assert steps == []


def test_a_real_photograph_is_what_pillow_reads():
    retina = skimage_data.retina()[300:500, 300:600]
    for kind in ("PNG", "JPEG"):
        file = saved(retina, kind)
        assert (read(file)[0] == np.asarray(Image.open(io.BytesIO(file)))).all()


def test_8bit_png_with_a_given_range():
    pixels, steps = read(saved(L, "PNG"), low=10, high=100)
    assert pixels.max() == 255
    assert steps == [{"step": "window", "low": 10, "high": 100, "from": "given"}]


def test_interlaced_png():
    passes = [
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ]
    lines = [line.tobytes() for y, x, dy, dx in passes for line in L[y::dy, x::dx]]
    header = struct.pack(">IIBBBBB", 53, 37, 8, 0, 0, 0, 1)
    assert (read(png_file(header, b"".join(b"\0" + line for line in lines)))[0] == grey(L)).all()


# Palettes, bits, alpha


def test_one_bit():
    for file in (saved(L > 128, "PNG"), saved(L > 128, "TIFF", compression="group4"), saved(L > 128, "BMP")):
        assert (read(file)[0] == grey((L > 128) * np.uint8(255))).all()
        assert (read_raster_labels(file, where="x") == (L > 128) * 255).all()


def test_two_bit_grey_png_spans_the_range():
    levels = (L // 64).astype(np.uint8)
    assert (read(png(levels, 2, 0))[0] == grey(levels * 85)).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP"])
def test_palette(kind):
    indices = (L // 64).astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 10, 20, 30])
    colours = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [10, 20, 30]], np.uint8)
    file = saved(image, kind)
    pixels, steps = read(file)
    assert (pixels == colours[indices]).all()
    assert steps == [{"step": "palette"}]
    assert (read_raster_labels(file, where="x", as_colour=True) == colours[indices]).all()
    labels = read_raster_labels(file, where="x")
    if kind == "GIF":  # its writer leaves out the unused entry
        indices = np.asarray(Image.open(io.BytesIO(file)))
    assert (labels == indices).all()


def test_palette_with_transparency():
    indices = (L // 64).astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette([50, 50, 50, 255, 0, 0, 0, 255, 0, 10, 20, 30])
    file = saved(image, "PNG", transparency=bytes([0, 255, 51, 255]))
    colours = np.array([[0, 0, 0], [255, 0, 0], [0, 51, 0], [10, 20, 30]], np.uint8)
    pixels, steps = read(file)
    assert (pixels == colours[indices]).all()
    assert {"step": "alpha", "background": "black"} in steps
    assert (read_raster_labels(file, where="x") == indices).all()
    with pytest.raises(ImageError, match="transparent"):
        read_raster_labels(file, where="x", as_colour=True)


def on_black(values, alpha):
    return np.floor(values.astype(float) * alpha[..., None] / 255 + 0.5).astype(np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_alpha_is_laid_on_black(kind):
    file = saved(
        np.dstack([RGB, ALPHA]), kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})
    )
    pixels, steps = read(file)
    assert (pixels == on_black(RGB, ALPHA)).all()
    assert steps == [{"step": "alpha", "background": "black"}]
    with pytest.raises(ImageError, match="transparent"):
        read_raster_labels(file, where="x")


def test_grey_with_alpha():
    file = saved(Image.merge("LA", [Image.fromarray(L), Image.fromarray(ALPHA)]), "PNG")
    pixels, steps = read(file)
    assert (pixels == on_black(grey(L), ALPHA)).all()
    assert steps == [{"step": "alpha", "background": "black"}]


def test_opaque_alpha_is_dropped_without_a_step():
    opaque = np.full_like(ALPHA, 255)
    pixels, steps = read(saved(np.dstack([RGB, opaque]), "PNG"))
    assert (pixels == RGB).all()
    assert steps == []
    file = saved(Image.merge("LA", [Image.fromarray(L), Image.fromarray(opaque)]), "PNG")
    assert (read_raster_labels(file, where="x") == L).all()


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_one_transparent_grey_value(depth):
    values = {4: (L // 16).astype(np.uint8), 8: L, 16: DEEP}[depth]
    key = int(values[20, 30])
    assert 0 < key < values.max()
    pixels, steps = read(png(values, depth, 0, chunk(b"tRNS", struct.pack(">H", key))))
    expected = np.where(values == key, 0, values * 17 if depth == 4 else values)
    assert (pixels == grey(window(expected) if depth == 16 else expected)).all()
    assert steps[0] == {"step": "alpha", "background": "black"}


def test_one_transparent_colour():
    key = RGB[0, 0]
    pixels, _ = read(saved(RGB, "PNG", transparency=tuple(int(v) for v in key)))
    assert (pixels == np.where((key == RGB).all(axis=-1, keepdims=True), 0, RGB)).all()


# More than eight bits


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16bit_grey(kind):
    pixels, steps = read(saved(DEEP, kind))
    assert (pixels == grey(window(DEEP))).all()
    assert steps == [{"step": "window", "low": int(DEEP.min()), "high": int(DEEP.max()), "from": "min-max"}]
    labels = read_raster_labels(saved(DEEP, kind), where="x")
    assert labels.dtype == np.uint16
    assert (labels == DEEP).all()


def test_big_endian_16bit_tiff():
    swapped = Image.frombytes("I;16B", (53, 37), DEEP.astype(">u2").tobytes())
    labels = read_raster_labels(saved(swapped, "TIFF"), where="x")
    assert labels.dtype == np.dtype(np.uint16)
    assert (labels == DEEP).all()


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_16bit_colour_has_one_common_range(suffix):
    deep = RGB.astype(np.uint16) * 200 + 500
    file = cv2.imencode(suffix, deep[..., ::-1])[1].tobytes()
    pixels, steps = read(file)
    assert (pixels == window(deep)).all()
    assert steps[0]["low"] == deep.min()
    assert steps[0]["high"] == deep.max()


def test_16bit_alpha():
    deep, alpha = RGB.astype(np.uint16) * 257, ALPHA.astype(np.uint16) * 257
    pixels, steps = read(png(np.dstack([deep, alpha]), 16, 6), low=0, high=65535)
    assert np.abs(pixels.astype(int) - on_black(RGB, ALPHA)).max() == 0
    assert [s["step"] for s in steps] == ["alpha", "window"]
    pixels, _ = read(png(np.dstack([deep[..., 0], alpha]), 16, 4), low=0, high=65535)
    assert (pixels == on_black(grey(L), ALPHA)).all()


def test_float_tiff():
    values = L.astype(np.float32) / 7 - 3
    pixels, steps = read(saved(values, "TIFF"))
    assert (pixels == grey(window(values))).all()
    assert steps[0]["low"] == values.min()
    pixels, steps = read(saved(values, "TIFF"), percentiles=(5, 95))
    assert steps[0]["from"] == "percentiles"
    with pytest.raises(ImageError, match="not whole"):
        read_raster_labels(saved(values, "TIFF"), where="x")
    labels = read_raster_labels(saved(L.astype(np.float32), "TIFF"), where="x")
    assert labels.dtype == np.int32
    assert (labels == L).all()


def test_float_tiff_with_nan():
    values = L.astype(np.float32)
    values[2, 3:5] = np.nan
    with pytest.raises(ImageError, match="2 NaN and 0 infinite"):
        read(saved(values, "TIFF"))


def test_32bit_tiff_above_the_signed_range():
    values = L.astype(np.uint32) + np.uint32(2**31)
    labels = read_raster_labels(tiff(values, {258: 32, 262: 1, 277: 1, 339: 1}), where="x")
    assert (labels == values).all()


def test_white_is_zero():
    eight = tiff(L, {258: 8, 262: 0, 277: 1})
    assert (read(eight)[0] == grey(255 - L)).all()
    pixels, steps = read(tiff(DEEP, {258: 16, 262: 0, 277: 1}))
    assert (pixels == grey(255 - window(DEEP))).all()
    assert steps[-1] == {"step": "invert"}


def test_separate_planes_of_16bit_colour_are_refused_not_mixed_up():
    planes = np.moveaxis(RGB.astype(np.uint16), 2, 0).reshape(111, 53)
    file = tiff(planes, {257: 37, 258: (16, 16, 16), 262: 2, 277: 3, 284: 2})
    with pytest.raises(ImageError, match="separate planes"):
        read(file)


def test_pages():
    pages = [Image.fromarray(L), Image.fromarray(255 - L), Image.fromarray(DEEP)]
    file = saved(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    assert (read(file)[0] == grey(L)).all()
    assert (read(file, frame=1)[0] == grey(255 - L)).all()
    assert (read(file, frame=2)[0] == grey(window(DEEP))).all()
    for frame in (3, -1):
        with pytest.raises(ImageError, match="no such frame") as caught:
            read(file, frame=frame)
        assert caught.value.expected == "a frame from 0 to 2"
    for kind in ("PNG", "JPEG", "BMP"):
        with pytest.raises(ImageError, match="no such frame"):
            read(saved(L, kind), frame=1)


def test_pages_of_16bit_colour():
    deep = RGB.astype(np.uint16) * 200
    file = cv2.imencodemulti(".tiff", [deep[..., ::-1], deep[..., ::-1] // 2])[1].tobytes()
    assert (read(file, frame=1, low=0, high=65535)[0] == np.floor((deep // 2) / 257 + 0.5)).all()


def test_animations_give_their_first_picture():
    frames = [Image.fromarray(L), Image.fromarray(255 - L), Image.fromarray(L // 2)]
    gif = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (read(gif)[0] == grey(L)).all()
    apng = saved(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)
    assert (read(apng)[0] == grey(L)).all()


# Orientation


def exif(orientation):
    tags = Image.Exif()
    tags[274] = orientation
    return tags


# How an upright picture is stored under each value: EXIF 2.3, tag 274.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: np.rot90(a, 2),
    4: lambda a: a[::-1],
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.swapaxes(np.rot90(a, 2), 0, 1),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_orientation(kind, orientation):
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](RGB)))
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    pixels, steps = read(saved(stored, kind, exif=exif(orientation), **options))
    assert pixels.shape == RGB.shape
    assert np.abs(pixels.astype(int) - RGB).max() <= (6 if kind == "JPEG" else 0)
    assert steps == ([] if orientation == 1 else [{"step": "orientation", "exif": orientation}])


@pytest.mark.parametrize("orientation", range(2, 9))
def test_orientation_of_deep_colour_tiff_and_of_masks(orientation):
    deep = np.ascontiguousarray(STORED[orientation](RGB)).astype(np.uint16) * 257
    tags = {258: (16, 16, 16), 262: 2, 277: 3, 274: orientation}
    pixels, steps = read(tiff(deep, tags), low=0, high=65535)
    assert (pixels == RGB).all()
    assert steps[0] == {"step": "orientation", "exif": orientation}
    mask = saved(np.ascontiguousarray(STORED[orientation](L)), "PNG", exif=exif(orientation))
    assert (read_raster_labels(mask, where="x") == L).all()


def test_orientation_that_does_not_exist_is_ignored():
    assert read(saved(L, "PNG", exif=exif(9)))[1] == []


# CMYK


def test_cmyk_jpeg_as_pillow_writes_it_adobe_inverted():
    retina = skimage_data.retina()[300:400, 300:420]
    file = saved(Image.fromarray(retina).convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert b"Adobe" in file
    pixels, steps = read(file)
    assert np.abs(pixels.astype(int) - retina).max() <= 8
    assert steps == [{"step": "colour", "from": "CMYK"}]


def test_cmyk_tiff():
    pixels, _ = read(saved(Image.fromarray(RGB).convert("CMYK"), "TIFF"))
    assert (pixels == RGB).all()


# Masks


def test_mask_with_equal_channels_is_grey():
    file = saved(grey(L), "PNG")
    assert (read_raster_labels(file, where="x") == L).all()
    assert (read_raster_labels(file, where="x", as_colour=True) == grey(L)).all()


def test_grey_mask_as_colour():
    assert (read_raster_labels(saved(L, "PNG"), where="x", as_colour=True) == grey(L)).all()
    with pytest.raises(ImageError, match="8-bit"):
        read_raster_labels(saved(DEEP, "PNG"), where="x", as_colour=True)


def test_coloured_mask_needs_as_colour():
    file = saved(RGB, "PNG")
    with pytest.raises(ImageError, match="mask is coloured") as caught:
        read_raster_labels(file, where="m.png")
    assert caught.value.where == "m.png"
    assert (read_raster_labels(file, where="x", as_colour=True) == RGB).all()


# Bad input


def test_empty_text_and_unknown_files():
    with pytest.raises(ImageError, match="empty"):
        read(b"")
    with pytest.raises(ImageError, match="not a picture") as caught:
        read(b"This is not an image.\n")
    assert "This is not" in caught.value.found


def bomb_png(side=60000):
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return png_file(header, b"")


def test_bombs_are_refused_from_the_header(monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("decoded")

    monkeypatch.setattr(cv2, "imdecode", never)
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    small_tiff = bytearray(tiff(L, {258: 8, 262: 1, 277: 1}))
    at = small_tiff.index(struct.pack("<HHIHH", 256, 3, 1, 53, 0))
    small_tiff[at : at + 12] = struct.pack("<HHIHH", 256, 3, 1, 60000, 0)
    small_tiff[at + 12 : at + 24] = struct.pack("<HHIHH", 257, 3, 1, 60000, 0)
    jpeg = bytearray(saved(L, "JPEG"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60000, 60000)
    gif = bytearray(saved(L, "GIF"))
    gif[6:10] = struct.pack("<HH", 60000, 60000)
    bmp = bytearray(saved(L, "BMP"))
    bmp[18:26] = struct.pack("<ii", 60000, 60000)
    for file in (bomb_png(), small_tiff, jpeg, gif, bmp):
        with pytest.raises(ImageError, match="too large") as caught:
            read(bytes(file))
        assert "3,600,000,000 pixels (60000x60000)" in caught.value.found
        with pytest.raises(ImageError, match="too large"):
            read_raster_labels(bytes(file), where="x")


def test_our_limit_counts_and_pillows_does_not(monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for kind in ("PNG", "JPEG", "TIFF", "BMP", "GIF"):
        read(saved(L, kind))
        with pytest.raises(ImageError, match="too large"):
            read(saved(L, kind), limits=Limits(max_pixels=37 * 53 - 1))
    assert not recwarn.list
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_truncated_files(kind, share):
    file = saved(skimage_data.retina()[300:400, 300:400], kind)
    with pytest.raises(ImageError, match="cannot be decoded") as caught:
        read(file[: int(len(file) * share)])
    assert caught.value.where == "x"


def test_truncated_and_damaged_png_say_what_is_wrong():
    file = saved(L, "PNG")
    with pytest.raises(ImageError, match="truncated"):
        read(file[: len(file) // 2])
    with pytest.raises(ImageError, match="truncated"):
        read(file[:-12])
    damaged = bytearray(file)
    damaged[len(file) // 2] ^= 1
    with pytest.raises(ImageError, match="checksum"):
        read(bytes(damaged))


@pytest.mark.parametrize("colour", [0, 3])
def test_png_with_rows_missing_behind_right_checksums(colour):
    palette = chunk(b"PLTE", bytes(range(256)) * 3) if colour == 3 else b""
    read(png(L, 8, colour, palette))
    for rows in (36, 20):
        with pytest.raises(ImageError, match="cannot be decoded"):
            read(png(L, 8, colour, palette, rows=rows))


PNGS = [
    saved(L, "PNG"),
    saved(RGB, "PNG"),
    saved(DEEP, "PNG"),
    saved(Image.fromarray(RGB).quantize(8), "PNG"),
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PNGS), st.data())
def test_a_damaged_png_is_refused_or_unharmed(file, choose):
    damaged = bytearray(file[: choose.draw(st.integers(len(file) // 2, len(file)))])
    for _ in range(choose.draw(st.integers(0, 3))):
        at = choose.draw(st.integers(0, len(damaged) - 1))
        damaged[at] ^= choose.draw(st.integers(1, 255))
    try:
        pixels = read_raster(bytes(damaged), where="x").pixels
    except ImageError:
        return
    assert (pixels == read_raster(file, where="x").pixels).all()


HEADS = [saved(RGB, kind) for kind in ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")]


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(HEADS), st.binary(max_size=40), st.integers(2, 200), st.booleans())
def test_no_other_exception_ever_escapes(file, noise, at, as_mask):
    damaged = file[:at] + noise + file[at + len(noise) :]
    try:
        if as_mask:
            read_raster_labels(damaged, where="x", limits=Limits(max_pixels=10**6), as_colour=True)
        else:
            read_raster(damaged, where="x", limits=Limits(max_pixels=10**6))
    except ImageError:
        pass
