"""Append-only files of JSON lines: synced before a line counts, never rewritten, whole after any kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mie.core.files import write_errors

_BLOCK: Final = 1 << 16


class Journal:
    """A file of lines, open for appending. A last line torn by a kill is cut off on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self.size = _end_of_last_line(self._handle)
            os.ftruncate(self._handle, self.size)
            os.fsync(self._handle)

    def append(self, lines: bytes) -> None:
        """Write whole lines and sync. After an error none of them, and no half of one, is in the file."""
        left = memoryview(lines)
        with write_errors(self.path):
            try:
                while left:
                    left = left[os.write(self._handle, left) :]
                os.fsync(self._handle)
            except OSError:
                os.ftruncate(self._handle, self.size)
                raise
        self.size += len(lines)

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._handle, length, offset)

    def lines(self) -> Iterator[bytes]:
        """Every line, with its newline, from the beginning."""
        with self.path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))

    def close(self) -> None:
        os.close(self._handle)


def _end_of_last_line(handle: int) -> int:
    """The offset behind the last newline, 0 without any."""
    end = os.fstat(handle).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(handle, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
