"""Parquet shards: written a few rows at a time, so memory does not grow with the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow.parquet as pq

from mie.core.files import atomic_path
from mie.datasets.schema import IMAGE_COLUMNS, SCHEMA, row_errors, table

# Rows per group: small enough for random access, large enough not to cost space (`bench/store.py`).
ROWS_PER_GROUP: Final = 16
_BYTES_PER_GROUP: Final = 64 * 2**20

_LEAVES: Final = [
    f"{name}.{leaf}" if name in IMAGE_COLUMNS else ("parents.list.element" if name == "parents" else name)
    for name in SCHEMA.names
    for leaf in (("bytes", "path") if name in IMAGE_COLUMNS else ("",))
]
_TEXT: Final = [leaf for leaf in _LEAVES if not leaf.endswith(".bytes")]
_OPTIONS: Final[dict[str, Any]] = {
    # PNG does not compress again; statistics over image bytes would only cost time and space.
    "compression": {leaf: "zstd" if leaf in _TEXT else "none" for leaf in _LEAVES},
    "use_dictionary": _TEXT,
    "write_statistics": _TEXT,
    "version": "2.6",
}


class ShardWriter:
    """Writes rows to one Parquet file. The file appears, whole, when the context ends without an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._pending: list[dict[str, Any]] = []
        self._pending_bytes = 0

    def __enter__(self) -> ShardWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._context = atomic_path(self.path)
        self._writer = pq.ParquetWriter(self._context.__enter__(), SCHEMA, **_OPTIONS)
        return self

    def write(self, row: dict[str, Any]) -> None:
        self._pending.append(row)
        self._pending_bytes += sum(len(row[c]["bytes"]) for c in IMAGE_COLUMNS if row[c] is not None)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_GROUP or self._pending_bytes >= _BYTES_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(table(self._pending, SCHEMA))
            self._pending, self._pending_bytes = [], 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._flush()
            self._writer.close()
        except BaseException as failure:
            self._context.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._context.__exit__(kind, error, trace)


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one shard, one row group in memory at a time."""
    with row_errors(path), pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=columns).to_pylist()
            yield from rows
