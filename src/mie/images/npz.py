"""Arrays inside `.npz` archives, row by row, without pickle and without the whole array in memory."""

from __future__ import annotations

import mmap
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mie.errors import ImageError

_LOCAL_HEADER = 30
_MAX_BYTES = 64 * 2**30


class NpzArrays:
    """The arrays of one archive. Stored ones are mapped in place; deflated ones are unpacked once per process
    to a nameless temporary file, so that reading any rows costs the same and nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._members = {
                    i.filename.removesuffix(".npy"): i
                    for i in archive.infolist()
                    if i.filename.endswith(".npy")
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise ImageError("not a readable .npz archive", where=path, found=error) from None
        self._mapped: dict[str, NDArray[Any]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._members)

    def shape(self, name: str) -> tuple[int, ...]:
        with zipfile.ZipFile(self.path) as archive, archive.open(self._member(name)) as stream:
            return self._header(stream, name)[0]

    def rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop of the named array, as a view."""
        if name not in self._mapped:
            self._mapped[name] = self._map(name)
        return self._mapped[name][start:stop]

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise ImageError(
                "array missing from the archive",
                where=self.path,
                expected=name,
                found=", ".join(self.names[:8]) or "no arrays",
            )
        return self._members[name]

    def _header(self, stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        try:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise ImageError("damaged array header", where=f"{self.path}:{name}", found=error) from None
        if dtype.hasobject:
            raise ImageError(
                "array holds Python objects, which only pickle could read",
                where=f"{self.path}:{name}",
                expected="a numeric array",
                found=dtype,
            )
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size > _MAX_BYTES:
            raise ImageError("array is too large", where=f"{self.path}:{name}", found=f"{size} bytes")
        return shape, fortran, dtype

    def _map(self, name: str) -> NDArray[Any]:
        member = self._member(name)
        if member.compress_type == zipfile.ZIP_STORED:
            with self.path.open("rb") as file:
                file.seek(member.header_offset)
                local = file.read(_LOCAL_HEADER)
                extra = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
                file.seek(member.header_offset + _LOCAL_HEADER + extra)
                return self._memmap(file, name)
        with tempfile.TemporaryFile(prefix="mie-npz-") as file:
            self._unpack(member, file)
            return self._memmap(file, name)

    def _memmap(self, file: IO[bytes], name: str) -> NDArray[Any]:
        shape, fortran, dtype = self._header(file, name)
        if 0 in shape:
            return np.empty(shape, dtype)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if file.tell() + size > len(mapped):
            raise ImageError("array is cut short", where=f"{self.path}:{name}")
        flat = np.frombuffer(mapped, dtype, count=int(np.prod(shape)), offset=file.tell())
        return flat.reshape(shape, order="F" if fortran else "C")

    def _unpack(self, member: zipfile.ZipInfo, file: IO[bytes]) -> None:
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as source:
                while block := source.read(1 << 22):
                    file.write(block)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ImageError("damaged array", where=f"{self.path}:{member.filename}", found=error) from None
        file.flush()
        file.seek(0)
