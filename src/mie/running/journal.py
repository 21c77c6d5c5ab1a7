"""`edits.jsonl`: appended to, never rewritten. A line is written after its output is safe on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mie.records import Edit
from mie.store.runs import edit_line

_BLOCK: Final = 1 << 16


class Journal:
    """The file, open for appending. A last line torn by a kill is cut off first: its edit is made again."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._handle).st_size
        whole = _end_of_last_line(self._handle, size)
        if whole != size:
            os.ftruncate(self._handle, whole)
        os.fsync(self._handle)

    def append(self, edits: Sequence[Edit]) -> None:
        """One write and one sync for all of them."""
        data = memoryview(b"".join(map(edit_line, edits)))
        while data:
            data = data[os.write(self._handle, data) :]
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def _end_of_last_line(handle: int, size: int) -> int:
    """The offset behind the last newline, 0 without any."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
