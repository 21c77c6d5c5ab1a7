"""Parquet files of strangers, read within a budget of memory.

A page says itself how large it becomes, a dictionary repeats a value without end, and a run of nulls takes no
bytes: 300 bytes can ask for any memory, and the sizes in the footer need not be true. So the headers of the
pages are read before Arrow reads the pages, and what may grow beyond the budget is read in small batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mie.errors import MieError
from mie.vocabulary import SPLITS

_SHARD: Final = re.compile(r"(train|val|test)-(\d{5})-of-(\d{5})\.parquet")
BUDGET: Final = 2**31  # bytes of one read, once decoded
_BATCH: Final = 2**28  # the most that one batch of rows can add
_MOST_ROWS: Final = 4096  # of a batch
_VALUE: Final = 64  # bytes that a value takes at least as a Python object
_HEADER: Final = 2**16  # of a page; one with long statistics is read again
_LONGEST_HEADER: Final = 2**24
_DEPTH: Final = 16
_DICTIONARY_PAGE: Final = 2
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


def shard_files(folder: Path, split: str | None = None) -> list[Path]:
    """The shards of a dataset or a question set in order: train, val, test, then by number."""
    found = []
    for path in (folder / "data").glob("*.parquet"):
        match = _SHARD.fullmatch(path.name)
        if match and split in (None, match[1]):
            found.append((SPLITS.index(match[1]), int(match[2]), path))
    return [path for _, _, path in sorted(found)]


class ShardFile(pq.ParquetFile):
    """A `ParquetFile` whose reads raise `MieError` where they would take more memory than the budget."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All row groups as one table."""
        return self._bounded(range(self.num_row_groups), columns, use_threads=True)

    def read_row_group(
        self, i: int, columns: Sequence[str] | None = None, use_threads: bool = True
    ) -> pa.Table:
        """One row group as a table."""
        return self._bounded([i], columns, use_threads=use_threads)

    def _bounded(
        self, groups: Sequence[int], columns: Sequence[str] | None, *, use_threads: bool
    ) -> pa.Table:
        names = None if columns is None else list(columns)
        pages = [chunk for group in groups for chunk in self._chunks(group, names)]
        plain = sum(chunk.plain for chunk in pages)
        if plain > BUDGET:
            raise self._refusal(plain)
        if sum(chunk.most for chunk in pages) <= BUDGET:
            return super().read_row_groups(groups, columns=names, use_threads=use_threads)
        rows = max(1, min(_MOST_ROWS, _BATCH // max(chunk.dictionary for chunk in pages)))
        batches, size = [], 0
        for batch in self.iter_batches(rows, row_groups=groups, columns=names, use_threads=use_threads):
            size += batch.nbytes + _VALUE * batch.num_rows * batch.num_columns
            if size > BUDGET:
                raise self._refusal(size)
            batches.append(batch)
        return pa.Table.from_batches(batches)

    def _chunks(self, group: int, names: Sequence[str] | None) -> Iterator[_Chunk]:
        chosen = self.metadata.row_group(group)
        with self._path.open("rb") as file:
            for at in range(chosen.num_columns):
                column = chosen.column(at)
                if names is None or column.path_in_schema.partition(".")[0] in names:
                    yield _chunk(file, column, max(chosen.num_rows, column.num_values))

    def _refusal(self, size: int) -> MieError:
        return MieError(
            "Parquet file is too large to read safely",
            where=self._path,
            expected=f"at most {BUDGET:,} bytes of a row group, once decoded",
            found=f"{size:,} or more",
        )


class _Chunk(NamedTuple):
    """What one column of a row group takes in memory."""

    plain: int  # its pages, decompressed
    dictionary: int  # its dictionary page
    most: int  # if every value is the whole dictionary


def _chunk(file: BinaryIO, column: Any, values: int) -> _Chunk:
    if not values:
        return _Chunk(0, 1, 0)  # of an empty table, without a page
    at = column.data_page_offset
    if column.dictionary_page_offset:
        at = min(at, column.dictionary_page_offset)
    end = at + column.total_compressed_size
    plain = dictionary = 0
    while at < end:
        kind, size, held, length = _page(file, at)
        plain += size
        if kind == _DICTIONARY_PAGE:
            dictionary = max(dictionary, size)
        at += length + held
    return _Chunk(plain, max(1, dictionary), plain + values * (dictionary + _VALUE))


def _page(file: BinaryIO, at: int) -> tuple[int, int, int, int]:
    """(kind, size decompressed, size in the file, length of the header) of the page at a place."""
    for most in (_HEADER, _LONGEST_HEADER):
        file.seek(at)
        data = file.read(most)
        try:
            fields, end = _struct(data, 0, 0)
            kind, size, held = (fields[number] for number in (1, 2, 3))
        except (IndexError, KeyError):
            continue
        if size < 0 or held < 0:
            break
        return kind, size, held, end
    raise ValueError(f"no page header at byte {at}")


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, int], int]:
    """The whole numbers of a structure in Thrift's compact protocol, by field, and where it ends."""
    if depth > _DEPTH:
        raise ValueError("too deep")
    fields: dict[int, int] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        value, at = _value(data, at, kind, depth)
        fields[number] = value
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[int, int]:
    if kind in (_TRUE, _FALSE):
        return int(kind == _TRUE), at
    if kind == _BYTE:
        return data[at], at + 1
    if kind < _DOUBLE:
        return _integer(data, at)
    if kind == _DOUBLE:
        return 0, at + 8
    if kind == _BINARY:
        length, at = _varint(data, at)
        return 0, at + length
    if kind in (_LIST, _SET):
        count, item = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        for _ in range(count):
            # A truth value takes a byte in a list, and none in a structure.
            at = at + 1 if item in (_TRUE, _FALSE) else _value(data, at, item, depth + 1)[1]
            if at > len(data):
                raise IndexError
        return 0, at
    if kind == _STRUCT:
        return 0, _struct(data, at, depth + 1)[1]
    raise ValueError("not a page header")  # no map stands in one


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("not a number")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
