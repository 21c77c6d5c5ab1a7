"""The header of a MetaImage file (.mha, or .mhd with its data beside it), read strictly.

A key may be given once. Keys that do not matter to the voxels are not read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mie.images.volume_headers import VolumeHeader, bad_header, file_beside, header_lines, numbers, whole

_TYPES: Final = {
    "MET_CHAR": "i1",
    "MET_ASCII_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",  # four bytes, whatever the machine calls long
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
_DIRECTIONS: Final = ("TransformMatrix", "Rotation", "Orientation")
_ORIGINS: Final = ("Offset", "Position", "Origin")
_BYTE_ORDERS: Final = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")


def read_meta_header(path: Path) -> VolumeHeader:
    fields, start = _fields(path)
    axes, sizes = fields.get("NDims", "missing"), fields.get("DimSize", "missing").split()
    if not re.fullmatch("[1-8]", axes) or len(sizes) != int(axes) or "ElementDataFile" not in fields:
        raise bad_header(
            path,
            "NDims, as many numbers in DimSize, and ElementDataFile at the end",
            f"NDims = {axes}, DimSize = {' '.join(sizes)}",
        )
    shape = tuple(whole(word, path, "DimSize", 1) for word in sizes)
    kind = _TYPES.get(fields.get("ElementType", ""))
    if kind is None:
        raise bad_header(path, "an ElementType of plain numbers", fields.get("ElementType", "missing"))
    if not _flag(fields, "BinaryData", path, default=True):
        raise bad_header(path, "binary data", "BinaryData = False")
    data, name = path, fields["ElementDataFile"]
    local = name.upper() == "LOCAL"
    if not local:
        data, start = file_beside(path, name), 0
    compressed = _flag(fields, "CompressedData", path)
    skip = whole(fields.get("HeaderSize", "0"), path, "HeaderSize", -1)
    if skip and (compressed or (local and skip > 0)):
        raise bad_header(path, "HeaderSize only with raw data in a file of its own", f"HeaderSize = {skip}")
    big = any(_flag(fields, key, path) for key in _BYTE_ORDERS)
    return VolumeHeader(
        shape=shape,
        dtype=np.dtype((">" if big else "<") + kind),
        components=whole(fields.get("ElementNumberOfChannels", "1"), path, "ElementNumberOfChannels", 1),
        affine=_affine(fields, len(shape), path),
        oriented=any(key in fields for key in _DIRECTIONS),
        data=data,
        start=start,
        encoding="gzip" if compressed else "raw",
        skip=skip,
    )


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The keys up to ElementDataFile, which ends the header, and the byte after it."""
    fields: dict[str, str] = {}
    with path.open("rb") as file:
        for line in header_lines(file, path):
            if not line.strip():
                continue
            key, sign, value = re.fullmatch(r"(.*?)([=:]|$)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
            key = key.strip()
            if not sign or not key:
                raise bad_header(path, "Key = value", line)
            if key in fields:
                raise bad_header(path, f"{key} once", "twice")
            fields[key] = value.strip()
            if key == "ElementDataFile":
                break
        return fields, file.tell()


def _flag(fields: dict[str, str], key: str, path: Path, *, default: bool = False) -> bool:
    text = fields.get(key, str(default)).lower()
    if text not in ("true", "t", "1", "false", "f", "0"):
        raise bad_header(path, f"{key} = True or False", text)
    return text[0] in "t1"


def _one_of(fields: dict[str, str], keys: tuple[str, ...], path: Path) -> str | None:
    """The value of keys that mean the same."""
    values = {" ".join(fields[key].split()) for key in keys if key in fields}
    if len(values) > 1:
        raise bad_header(path, f"one of {', '.join(keys)}", " and ".join(sorted(values)))
    return values.pop() if values else None


def _affine(fields: dict[str, str], axes: int, path: Path) -> NDArray[np.float64]:
    """LPS+ by stored axis: each row of the file's matrix is the direction of one axis."""
    affine, count = np.eye(4), min(3, axes)
    matrix, origin = _one_of(fields, _DIRECTIONS, path), _one_of(fields, _ORIGINS, path)
    spacing = fields.get("ElementSpacing") or fields.get("ElementSize")
    if matrix is not None:
        rows = numbers(matrix, axes * axes, path, "TransformMatrix").reshape(axes, axes)
        affine[:count, :count] = rows.T[:count, :count]
    if spacing is not None:
        affine[:3, :count] *= numbers(spacing, axes, path, "ElementSpacing")[:count]
    if origin is not None:
        affine[:count, 3] = numbers(origin, axes, path, "Offset")[:count]
    return affine
