"""What must be seen in a NRRD or MetaImage header before ITK is let near the file.

A header may name any file on the disk as its data, and MetaIO ends the whole process with a segmentation
fault on some broken headers and on damaged compressed data. Both are caught here, as errors.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from mie.errors import ImageError

_NRRD_SPACES: Final = re.compile(
    r"(left|right)-(anterior|posterior)-superior(-time)?|LPS|RAS|LAS|LPST|RAST|LAST", re.IGNORECASE
)
_BLOCK: Final = 1 << 20


class ItkHeader(NamedTuple):
    """Whether the header says how the patient lies, and where a compressed MetaImage has its zlib stream."""

    oriented: bool
    zlib_file: Path | None = None
    zlib_start: int = 0


def check_nrrd(path: Path) -> ItkHeader:
    oriented = False
    with path.open("rb") as file:
        for key, value in _lines(file, ":"):
            if not key:
                break
            # teem takes the names in any case.
            if key.lower() in ("data file", "datafile"):
                _beside(path, value)
            elif key.lower() == "space":
                oriented = _NRRD_SPACES.fullmatch(value) is not None
    return ItkHeader(oriented)


def check_meta(path: Path) -> ItkHeader:
    header: dict[str, str] = {}
    with path.open("rb") as file:
        for key, value in _lines(file, "[=:]"):
            header[key] = value
            if key == "ElementDataFile":
                break
        start = file.tell()
    axes, sizes = header.get("NDims", "missing"), header.get("DimSize", "missing").split()
    if not re.fullmatch("[1-9]", axes) or len(sizes) != int(axes) or "ElementDataFile" not in header:
        raise ImageError(
            "broken MetaImage header",
            where=path,
            expected="NDims, as many numbers in DimSize, and ElementDataFile",
            found=f"NDims = {axes}, DimSize = {' '.join(sizes)}",
        )
    data, name = path, header["ElementDataFile"]
    if name.upper() != "LOCAL":
        data, start = _beside(path, name), 0
    oriented = not {"TransformMatrix", "Orientation", "Rotation"}.isdisjoint(header)
    compressed = header.get("CompressedData", "F")[:1] in "Tt1"
    return ItkHeader(oriented, data if compressed else None, start)


def check_zlib(header: ItkHeader, expected: int) -> None:
    """Raise unless the compressed data of a MetaImage is a whole zlib stream of `expected` bytes."""
    if header.zlib_file is None:
        return
    stream, size = zlib.decompressobj(zlib.MAX_WBITS | 32), 0
    try:
        with header.zlib_file.open("rb") as file:
            file.seek(header.zlib_start)
            while not stream.eof and size <= expected and (block := file.read(_BLOCK)):
                while block and size <= expected:
                    size += len(stream.decompress(block, _BLOCK))
                    block = stream.unconsumed_tail
    except zlib.error as error:
        raise ImageError("damaged compressed data", where=header.zlib_file, found=error) from error
    if size != expected or not stream.eof:
        raise ImageError(
            "damaged compressed data",
            where=header.zlib_file,
            expected=f"{expected} bytes once decompressed",
            found=f"{size} bytes" if stream.eof else f"{size} bytes and no end",
        )


def _lines(file: BinaryIO, sign: str) -> Iterator[tuple[str, str]]:
    """(key, value) of each line of a text header; an empty line is ("", ""). At most 1000 lines."""
    for _ in range(1000):
        line = file.readline(65536)
        if not line:
            return
        key, *value = re.split(sign, line.decode("utf-8", "replace"), maxsplit=1)
        yield key.strip(), value[0].lstrip("=").strip() if value else ""


def _beside(path: Path, name: str) -> Path:
    # LIST and name%03d are part of both formats, but through them one could name any file on the disk.
    beside = path.with_name(name) if name not in ("", "..") and not re.search(r"[/\\%\0]", name) else None
    if beside is None or beside.resolve().parent != path.resolve().parent or not beside.is_file():
        raise ImageError(
            "the header's data file is not beside it",
            where=path,
            expected=f"one file in {path.parent}",
            found=name,
            fix="convert the volume to .nii.gz, .nrrd or .mha",
        )
    return beside
