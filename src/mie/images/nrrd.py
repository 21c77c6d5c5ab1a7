"""The header of a NRRD file (https://teem.sourceforge.net/nrrd/format.html), read strictly.

A field may be given once, and must be one that the format knows. Lines `key:=value` are not read.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from mie.images.volume_headers import VolumeHeader, bad_header, file_beside, header_lines, numbers, whole

_AXES: Final = 8  # more axes than any volume has
_TYPES: Final = {
    name: kind
    for kind, names in {
        "i1": "char|signed char|int8|int8_t",
        "u1": "uchar|unsigned char|uint8|uint8_t",
        "i2": "short|short int|signed short|signed short int|int16|int16_t",
        "u2": "ushort|unsigned short|unsigned short int|uint16|uint16_t",
        "i4": "int|signed int|int32|int32_t",
        "u4": "uint|unsigned int|uint32|uint32_t",
        "i8": "longlong|long long|long long int|signed long long|signed long long int|int64|int64_t",
        "u8": "ulonglong|unsigned long long|unsigned long long int|uint64|uint64_t",
        "f4": "float",
        "f8": "double",
    }.items()
    for name in names.split("|")
}
_ENCODINGS: Final = {
    "raw": "raw",
    "gzip": "gzip",
    "gz": "gzip",
    "hex": "hex",
    **dict.fromkeys(("text", "txt", "ascii"), "text"),
}
# Fields by their name without spaces, and what else they are called. Those we use, and those that we pass.
_ALIASES: Final = {"centerings": "centers", "numbers": "number"}
_FIELDS: Final = frozenset(
    [
        *("dimension", "type", "sizes", "encoding", "endian", "datafile", "lineskip", "byteskip"),
        *("spacings", "axismins", "axismaxs", "centers", "kinds"),
        *("space", "spacedimension", "spaceorigin", "spacedirections"),
        *("number", "content", "thicknesses", "labels", "units", "spaceunits", "sampleunits"),
        *("measurementframe", "min", "max", "oldmin", "oldmax", "blocksize"),
    ]
)
# Which axes of the world must be turned round to become LPS+.
_SPACES: Final = {
    "left-posterior-superior": (1, 1, 1),
    "right-anterior-superior": (-1, -1, 1),
    "left-anterior-superior": (1, -1, 1),
    "lps": (1, 1, 1),
    "ras": (-1, -1, 1),
    "las": (1, -1, 1),
}
_SPATIAL: Final = ("domain", "space", "time", "???", "none")


def read_nrrd_header(path: Path) -> VolumeHeader:
    with path.open("rb") as file:
        fields, ended = _fields(file, path)
        start = file.tell()
        name = fields.get("datafile")
        if name is None and not ended:
            raise bad_header(path, "an empty line at the header's end", "the end of the file")
        data = path if name is None else file_beside(path, name)
    start = start if name is None else 0
    for needed in ("dimension", "type", "sizes", "encoding"):
        if needed not in fields:
            raise bad_header(path, needed, "no such line")
    axes = whole(fields["dimension"], path, "dimension", 1)
    sizes = [whole(word, path, "sizes", 1) for word in fields["sizes"].split()]
    kind = _TYPES.get(" ".join(fields["type"].lower().split()))
    encoding = _ENCODINGS.get(fields["encoding"].lower())
    if axes > _AXES or len(sizes) != axes:
        raise bad_header(path, f"as many sizes as `dimension` says, at most {_AXES}", fields["sizes"])
    if kind is None or encoding is None:
        raise bad_header(
            path,
            "a type of plain numbers, encoding raw, gzip, text or hex",
            f"{fields['type']}, {fields['encoding']}",
        )
    order = {"little": "<", "big": ">"}.get(fields.get("endian", "").lower(), "")
    if not order and kind[1] != "1" and encoding != "text":
        raise bad_header(path, "endian: little or big", fields.get("endian", "no such line"))
    spatial = _spatial_axes(fields, axes, path)
    affine, oriented = _affine(fields, axes, spatial, [sizes[a] for a in spatial], path)
    start = _after_lines(data, start, whole(fields.get("lineskip", "0"), path, "line skip"))
    return VolumeHeader(
        shape=tuple(sizes[a] for a in spatial),
        dtype=np.dtype(order + kind if encoding != "text" else kind),
        components=math.prod(size for a, size in enumerate(sizes) if a not in spatial),
        affine=affine,
        oriented=oriented,
        data=data,
        start=start,
        encoding=encoding,
        skip=whole(fields.get("byteskip", "0"), path, "byte skip", -1 if encoding == "raw" else 0),
    )


def _fields(file: BinaryIO, path: Path) -> tuple[dict[str, str], bool]:
    """The fields, and whether an empty line ended them."""
    lines = header_lines(file, path)
    magic = next(lines, "")
    if not re.fullmatch(r"NRRD(000[1-5]|00\.01)", magic):
        raise bad_header(path, "NRRD0001 to NRRD0005 in the first line", repr(magic[:20]))
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            return fields, True
        if line.startswith("#"):
            continue
        field, sign, value = re.fullmatch(r"(.*?)(:=|: |$)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
        if sign == ":=" and field:
            continue
        key = field.lower().replace(" ", "")
        key = _ALIASES.get(key, key)
        if sign != ": " or key not in _FIELDS or field != field.strip():
            raise bad_header(path, "a field of the format", line)
        if key in fields:
            raise bad_header(path, f"{field} once", "twice")
        fields[key] = value.strip()
    return fields, False


def _spatial_axes(fields: dict[str, str], axes: int, path: Path) -> list[int]:
    """The axes of the grid; the others hold the components of a voxel."""
    kinds = fields.get("kinds", " ".join(["???"] * axes)).lower().split()
    if len(kinds) != axes:
        raise bad_header(path, f"{axes} kinds", fields["kinds"])
    return [a for a, kind in enumerate(kinds) if kind in _SPATIAL]


def _affine(
    fields: dict[str, str], axes: int, spatial: list[int], sizes: list[int], path: Path
) -> tuple[NDArray[np.float64], bool]:
    """LPS+ by stored axis, and whether the header says what its world's axes are."""
    space = fields.get("space", "").lower()
    turn = np.array(_SPACES.get(space.removesuffix("-time").removesuffix("t"), (1, 1, 1)), np.float64)
    oriented = space.removesuffix("-time").removesuffix("t") in _SPACES
    affine, count = np.eye(4), min(3, len(spatial))
    origin, world = np.zeros(3), len(spatial)
    if "space" in fields and "spacings" in fields:
        raise bad_header(path, "`space directions` in a space", "spacings")
    if "spacedirections" in fields:
        vectors = re.findall(r"none|\([^()]*\)", fields["spacedirections"].lower())
        if len(vectors) != axes or re.sub(r"none|\([^()]*\)|\s", "", fields["spacedirections"].lower()):
            raise bad_header(path, f"{axes} directions (x,y,z) or none", fields["spacedirections"])
        for column, axis in enumerate(spatial[:count]):
            if vectors[axis] != "none":
                vector = _vector(vectors[axis], world, path)
                # As teem: a unit vector and its length, so that a file reads as it did through ITK.
                length = float(np.sqrt(sum(v * v for v in vector.tolist())))
                if not length > 0:
                    raise bad_header(path, "directions with a length", vectors[axis])
                affine[:3, column] = 0
                affine[:count, column] = vector[:count] * (1.0 / length) * length
    elif "spacings" in fields:
        steps = numbers(fields["spacings"], axes, path, "spacings")[spatial[:count]]
        affine[:count, :count] = np.diag(np.where(np.isnan(steps), 1.0, steps))
    if "spaceorigin" in fields:
        origin[:count] = _vector(fields["spaceorigin"], world, path)[:count]
    elif "axismins" in fields:
        origin[:count] = _first_centres(fields, axes, spatial, sizes, path)[:count]
    affine[:3, 3] = origin
    affine[:3] *= turn[:, None]
    return affine, oriented


def _vector(text: str, count: int, path: Path) -> NDArray[np.float64]:
    inner = text.strip()
    if not inner.startswith("(") or not inner.endswith(")"):
        raise bad_header(path, f"a vector of {count} numbers", text)
    return numbers(inner[1:-1].replace(",", " "), count, path, "vector")


def _first_centres(
    fields: dict[str, str], axes: int, spatial: list[int], sizes: list[int], path: Path
) -> NDArray[np.float64]:
    """Where the first voxel's centre lies along each axis: half a step from the axis's end, unless on it."""
    low = numbers(fields["axismins"], axes, path, "axis mins")[spatial]
    nodes = np.array([word.lower() == "node" for word in fields.get("centers", "").split()] or [False] * axes)
    if len(nodes) != axes:
        raise bad_header(path, f"{axes} centers", fields["centers"])
    node = nodes[spatial]
    if "spacings" in fields:
        step = numbers(fields["spacings"], axes, path, "spacings")[spatial]
    elif "axismaxs" in fields:
        high = numbers(fields["axismaxs"], axes, path, "axis maxs")[spatial]
        step = (high - low) / np.maximum(1, np.array(sizes) - node)
    else:
        return np.zeros(len(spatial))
    first = low + np.where(node, 0.0, step / 2)
    return first if np.isfinite(first).all() else np.zeros(len(spatial))


def _after_lines(data: Path, start: int, count: int) -> int:
    if not count:
        return start
    with data.open("rb") as file:
        file.seek(start)
        lines = header_lines(file, data)
        for _ in range(count):
            if next(lines, None) is None:
                raise bad_header(data, f"{count} lines before the voxels", "the end of the file")
        return file.tell()
