"""Arrays that need not fit in memory: their values lie in files without a name, on the disk.

A volume's slices, and the samples that are made of them, are put aside here, so that what a build holds in
memory does not grow with a volume. The system reads and writes the pages as they are used. A file has no
name, and its space is free again when the last array in it is gone, also after a kill.

What is computed does not depend on where an array lies. Nor does it depend on the free memory: an array is
on the disk from a fixed size on.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Record = TypeVar("Record")

_IN_MEMORY: Final = 1 << 25  # bytes of an array that is not worth a file
_SHARED: Final = 1 << 24  # bytes of a file that small arrays share
BLOCK: Final = 1 << 20  # bytes that are worked on at a time
_ALIGNED: Final = 64


@dataclasses.dataclass
class _Shared:
    """Where files are made, and the one that small arrays share at the moment."""

    folder: Path | None = None
    process: int = 0  # that made the file: a copy of it would write to the same places
    file: NDArray[np.uint8] | None = None
    used: int = 0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def place(self, size: int) -> tuple[NDArray[np.uint8], int]:
        """A file and where in it there is space for so many bytes."""
        if self.process != os.getpid():
            self.process, self.file, self.lock = os.getpid(), None, threading.Lock()
        with self.lock:
            if self.file is None or self.used + size > self.file.size:
                most = max(size, _SHARED)
                self.file, self.used = np.ndarray(most, np.uint8, _file(most)), 0
            self.used += size
            return self.file, self.used - size


_shared: ContextVar[_Shared] = ContextVar("shared", default=_Shared())  # noqa: B039 (one for the process)
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


@contextmanager
def scratch_folder(folder: Path) -> Iterator[None]:
    """Make the files in `folder`; else the system's folder for temporary files is used, which may be memory.

    A full disk is an `OSError` when an array is made, never later.
    """
    before = _shared.set(_Shared(folder))
    try:
        yield
    finally:
        _shared.reset(before)


def zeros(
    shape: int | tuple[int, ...], dtype: DTypeLike = np.float64, order: Literal["C", "F"] = "C"
) -> NDArray[Any]:
    """An array of zeros, on the disk where it is large."""
    kind, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
    size = math.prod(shape) * kind.itemsize
    if size < _IN_MEMORY or not size:
        return np.zeros(shape, kind, order)
    return np.ndarray(shape, kind, _file(size), order=order)


def put_aside(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of a slice or of something as small on the disk; the array itself where it lies there."""
    if array.size == 0 or _lies_on_disk(array):
        return array
    file, at = _shared.get().place(-(-array.nbytes // _ALIGNED) * _ALIGNED)
    copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, file, at)
    copy[...] = array
    return copy


def aside(record: Record) -> Record:
    """The record (a dataclass) with its arrays, and those in its mappings, put aside."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            changes[field.name] = put_aside(value)
        elif isinstance(value, Mapping) and any(isinstance(v, np.ndarray) for v in value.values()):
            changes[field.name] = {k: put_aside(v) for k, v in value.items()}
    return dataclasses.replace(record, **changes) if changes else record  # type: ignore[type-var]


def blocks(array: NDArray[Any]) -> Iterator[tuple[slice, ...]]:
    """Where the pieces of an array are, of some megabytes each: all that is worked on at a time.

    Cut along the axis whose neighbours are farthest apart in the file. Other arrays may be cut alike.
    """
    if not array.size:
        return
    axis = int(np.argmax(np.abs(array.strides)))
    count = max(1, BLOCK * array.shape[axis] // array.nbytes)
    for start in range(0, array.shape[axis], count):
        yield (*[slice(None)] * axis, slice(start, start + count))
        give_back()


def chosen(
    array: NDArray[Any],
    which: Callable[[NDArray[Any]], NDArray[np.bool_]] | None,
    by: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`array[which(by)]` (by itself; or all) as a new array; those of an array in C order in its order."""
    by = array if by is None else by
    counts = (by[at].size if which is None else np.count_nonzero(which(by[at])) for at in blocks(array))
    found = zeros(sum(int(count) for count in counts), array.dtype)
    start = 0
    for at in blocks(array):
        values = array[at].ravel() if which is None else array[at][which(by[at])]
        found[start : start + values.size] = values
        start += values.size
    return found


def counted(which: Callable[..., Any], *arrays: NDArray[Any]) -> int:
    """For how many elements of arrays of one height `which(*arrays)` holds."""
    return sum(int(np.count_nonzero(which(*(one[at] for one in arrays)))) for at in blocks(arrays[0]))


def give_back() -> None:
    """Count no page of any file to this process until it is used again."""
    for pages in list(_mapped):
        pages.madvise(mmap.MADV_DONTNEED)


def _file(size: int) -> mmap.mmap:
    give_back()
    with tempfile.TemporaryFile(dir=_shared.get().folder) as file:
        # A page of a file with holes that finds no space when it is written ends the process.
        os.posix_fallocate(file.fileno(), 0, size)
        pages = mmap.mmap(file.fileno(), size)
    _mapped.add(pages)
    return pages


def _lies_on_disk(array: NDArray[Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
