"""WebDataset: tar files in which the files of a sample stand together under one key.

Equal datasets give equal bytes: no time, no owner, files of a sample sorted by name.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from typing import Final

from mie.core.files import atomic_path
from mie.core.hashing import file_stem
from mie.datasets.exports.target import ExportFolder, Row, fields, json_line, png

TAR_BYTES: Final = 10**9  # at most, unless a single sample is larger
_PLACES: Final = {"input": "input.png", "target_image": "target.png", "mask": "mask.png"}


def write(rows: Iterable[Row], out: ExportFolder) -> None:
    """`{split}-00000.tar`, ... with `<id>.input.png`, `<id>.target.png`, `<id>.mask.png` and `<id>.json`."""
    for split, group in groupby(rows, key=lambda row: str(row["split"])):
        with ExitStack() as stack:
            number, size = 0, TAR_BYTES
            for row in group:
                members = sorted(_members(row))
                wanted = sum(_room(data) for _, data in members)
                if size + wanted > TAR_BYTES:
                    stack.close()
                    path = out.root / f"{split}-{number:05d}.tar"
                    temporary = stack.enter_context(atomic_path(path))
                    tar = stack.enter_context(tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT))
                    number, size = number + 1, 0
                for name, data in members:
                    header = tarfile.TarInfo(name)  # mtime, uid and gid are 0, owner names empty
                    header.size = len(data)
                    tar.addfile(header, io.BytesIO(data))
                size += wanted


def _members(row: Row) -> Iterator[tuple[str, bytes]]:
    key = file_stem(row["id"])
    for column, extension in _PLACES.items():
        data = png(row, column)
        if data is not None:
            yield f"{key}.{extension}", data
    yield f"{key}.json", json_line(fields(row)).encode()


def _room(data: bytes) -> int:
    """A member's bytes in the tar: a header and the content in whole blocks."""
    return tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
