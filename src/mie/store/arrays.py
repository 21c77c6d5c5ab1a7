"""Arrow tables in and out without pandas: from Python values by their buffers, and from Parquet files.

`pyarrow.array` imports pandas to see whether its values are a Series, a third of a second in every process of
a build, and it copies an image into a buffer that grows; here all parts of a column are joined once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """`pq.read_table` of one file, without `pyarrow.dataset`, which imports pandas too."""
    with pq.ParquetFile(path) as file:
        return file.read(columns=columns)


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """`pa.Table.from_pylist` for columns of text, bytes, integers, lists and structures of them."""
    columns = [array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """`pa.array(values, kind)`; None is null."""
    if pa.types.is_struct(kind):
        fields = [array([None if v is None else v[field.name] for v in values], field.type) for field in kind]
        return pa.Array.from_buffers(kind, len(values), [_validity(values)], children=fields)
    if pa.types.is_integer(kind):
        numbers = np.array([0 if v is None else v for v in values], kind.to_pandas_dtype())
        return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers)])
    if pa.types.is_list(kind):
        items = array([item for v in values for item in v or ()], kind.value_type)
        return pa.Array.from_buffers(
            kind, len(values), [_validity(values), _offsets(values)], children=[items]
        )
    if pa.types.is_string(kind):
        values = [None if v is None else v.encode() for v in values]
    return pa.Array.from_buffers(kind, len(values), [_validity(values), _offsets(values), _joined(values)])


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    """One bit a value, the lowest first; no bits at all where nothing is missing."""
    if all(v is not None for v in values):
        return None
    return pa.py_buffer(np.packbits([v is not None for v in values], bitorder="little"))


def _offsets(values: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(np.fromiter(accumulate((len(v or ()) for v in values), initial=0), np.int32))


def _joined(values: Sequence[bytes | None]) -> pa.Buffer:
    # In Arrow's own memory, which keeps its pages: joining megabytes into bytes takes twice as long.
    buffer = pa.allocate_buffer(sum(len(v or b"") for v in values))
    view, start = memoryview(buffer).cast("B"), 0
    for value in values:
        if value:
            view[start : start + len(value)] = value
            start += len(value)
    return buffer
