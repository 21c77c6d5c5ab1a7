"""Damage that knows the formats: bytes, lengths, chunks, lines and numbers; checksums are put right after."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Callable
from typing import Final

NUMBERS: Final = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    2**31 - 1,
    2**32 - 1,
)
TEXT: Final = (b"nrrd", b"mha", b"yaml", b"jsonl")
TOKENS: Final = (
    *(b"\n", b"\n\n", b"LIST", b"LIST 3", b"%03d", b"../secret", b"/etc/passwd", b":=", b": ", b" = ", b"#"),
    *(
        b"data file: ../secret\n",
        b"ElementDataFile = ../secret\n",
        b"NDims = 3\n",
        b"type: double\n",
        b"nan",
        b"inf",
    ),
    *(
        b"1e308",
        b"-1",
        b"99999999999",
        b"*entry",
        b"&entry",
        b"[",
        b"]",
        b"{",
        b"}",
        b"\xff\xfe",
        b"\0",
        b"null",
    ),
    *(
        b"(a+)+$",
        b'"id":',
        b"!!python/object/apply:os.system",
        b"A" * 70_000,
        b"gzip",
        b"text",
        b"hex",
        b"block",
    ),
)


def mutate(kind: str, data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """The file with one to four kinds of damage."""
    changed = bytearray(data)
    ways: list[Callable[[bytearray, random.Random], bytearray]] = [
        _flip,
        _number,
        _cut,
        _repeat,
        _insert,
        _zero,
    ]
    if kind.encode() in TEXT:
        ways += [_token, _token, _line, _digits, _digits]
    if kind == "png":
        ways += [_png_header, _png_header, _png_chunks]
    if kind in ("nrrd", "mha", "dicom"):
        ways += [_token, _digits]
    if kind in ("jpeg", "dicom"):
        ways.append(_jpeg_size)
    for _ in range(draw.choice((1, 1, 2, 3, 4))):
        changed = draw.choice(ways)(changed, draw)
    if draw.random() < 0.05:
        other = draw.choice(others)
        changed = changed[: draw.randrange(len(changed) + 1)] + other[draw.randrange(len(other)) :]
    result = bytes(changed[: 4 * 2**20])
    return _png_checksums(result) if kind == "png" and draw.random() < 0.9 else result


def _at(data: bytearray, draw: random.Random) -> int:
    """Any place, headers more often than pixels."""
    return draw.randrange(max(1, min(len(data), draw.choice((64, 256, 1024, 2**30)))))


def _flip(data: bytearray, draw: random.Random) -> bytearray:
    for _ in range(draw.choice((1, 1, 4, 16)) if data else 0):
        data[_at(data, draw)] ^= 1 << draw.randrange(8)
    return data


def _number(data: bytearray, draw: random.Random) -> bytearray:
    """A whole number in either order of bytes."""
    kind = draw.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size, at = struct.calcsize(kind), _at(data, draw)
    value = draw.choice(NUMBERS) & (2 ** (8 * size) - 1)
    data[at : at + size] = struct.pack(kind, value)
    return data


def _cut(data: bytearray, draw: random.Random) -> bytearray:
    start = draw.randrange(len(data) + 1)
    return data[:start] if draw.random() < 0.5 else data[:start] + data[start + draw.choice((1, 4, 50)) :]


def _repeat(data: bytearray, draw: random.Random) -> bytearray:
    start = _at(data, draw)
    piece = data[start : start + draw.choice((1, 12, 40, 400))]
    return data[:start] + piece * draw.choice((2, 3, 50)) + data[start:]


def _insert(data: bytearray, draw: random.Random) -> bytearray:
    start = _at(data, draw)
    return data[:start] + draw.randbytes(draw.choice((1, 8, 100))) + data[start:]


def _zero(data: bytearray, draw: random.Random) -> bytearray:
    start = _at(data, draw)
    size = draw.choice((4, 30, 300))
    data[start : start + size] = bytes([draw.choice((0, 255))]) * len(data[start : start + size])
    return data


def _token(data: bytearray, draw: random.Random) -> bytearray:
    start = _at(data, draw)
    return data[:start] + draw.choice(TOKENS) + data[start + draw.choice((0, 0, 5)) :]


def _line(data: bytearray, draw: random.Random) -> bytearray:
    """A line left out, doubled, moved, or made long."""
    lines = bytes(data).split(b"\n")
    at = draw.randrange(len(lines))
    line = lines.pop(at)
    way = draw.randrange(4)
    if way == 1:
        lines[at:at] = [line, line]
    elif way == 2:
        lines.insert(draw.randrange(len(lines) + 1), line)
    elif way == 3:
        lines.insert(at, line + b"A" * draw.choice((300, 1200, 65_536)))
    return bytearray(b"\n".join(lines))


def _digits(data: bytearray, draw: random.Random) -> bytearray:
    places = [match.span() for match in re.finditer(rb"[0-9]+", bytes(data[:4096]))]
    if not places:
        return data
    start, end = draw.choice(places)
    return data[:start] + str(draw.choice((*NUMBERS, -1, 10**15))).encode() + data[end:]


def _jpeg_size(data: bytearray, draw: random.Random) -> bytearray:
    """The size inside a JPEG, JPEG-LS or JPEG 2000 stream."""
    found = [m.start() for m in re.finditer(rb"\xff[\xc0\xc1\xc2\xc3\xf7]\x00|\xff\x4f\xff\x51", bytes(data))]
    if found:
        at = draw.choice(found)
        if data[at + 1] == 0x4F:
            data[at + 8 : at + 16] = struct.pack(">II", draw.choice(NUMBERS), draw.choice(NUMBERS))
        else:
            sides = draw.choice(NUMBERS) & 0xFFFF, draw.choice(NUMBERS) & 0xFFFF
            data[at + 5 : at + 9] = struct.pack(">HH", *sides)
    return data


def _png_header(data: bytearray, draw: random.Random) -> bytearray:
    at = draw.choice((16, 20))
    if draw.random() < 0.6:
        data[at : at + 4] = struct.pack(">I", draw.choice(NUMBERS))
    else:
        data[24 + draw.randrange(5) : 25 + draw.randrange(5)] = bytes(
            [draw.choice((0, 1, 2, 3, 4, 6, 8, 16))]
        )
    return data


def _png_chunks(data: bytearray, draw: random.Random) -> bytearray:
    name = draw.choice((b"tRNS", b"PLTE", b"eXIf", b"acTL", b"zTXt", b"iCCP", b"IDAT", b"IEND", b"sBIT"))
    body = draw.randbytes(draw.choice((0, 3, 20, 768)))
    piece = struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    at = draw.choice((8, 33, max(33, len(data) - 12)))
    return data[:at] + piece + data[at:]


def _png_checksums(data: bytes) -> bytes:
    """The same chunks with right checksums, so that the damage gets past them."""
    whole, at = bytearray(data), 8
    while at + 12 <= len(whole):
        (length,) = struct.unpack_from(">I", whole, at)
        end = at + 8 + length
        if end + 4 > len(whole):
            break
        struct.pack_into(">I", whole, end, zlib.crc32(whole[at + 4 : end]))
        at = end + 4
    return bytes(whole)
