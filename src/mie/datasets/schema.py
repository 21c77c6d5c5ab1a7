"""The columns of a dataset, and Arrow tables in and out without pandas.

One row per sample, images as PNG in the Hugging Face image layout. `pyarrow.array` imports pandas to see
whether its values are a Series, a third of a second in every process of a build, and it copies an image into
a buffer that grows. So tables are made here from Python values by their buffers, all parts of a column joined
once. Shards are written a few rows at a time: memory does not grow with the dataset.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.files import atomic_path
from mie.core.hashing import canonical
from mie.datasets.parquet import ShardFile
from mie.errors import MieError
from mie.images.hashes import pixel_digest
from mie.images.png import decode_png, encode_png
from mie.records import Pixels, Reference, Sample
from mie.vocabulary import REFERENCE_ROLES


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """`pq.read_table` of one file, without `pyarrow.dataset`, which imports pandas too."""
    with ShardFile(path) as file:
        return file.read(columns=columns)


@contextmanager
def row_errors(where: object) -> Iterator[None]:
    """Turn what a file or a row that is none of ours raises, anywhere on its way, into a `MieError`."""
    try:
        yield
    except (MieError, OSError):
        raise
    except _NOT_OURS as error:
        raise MieError(
            "the dataset cannot be read",
            where=where,
            found=f"{type(error).__name__}: {error}"[:300],
            fix="`mie verify` says what is wrong",
        ) from error


# Arrow's own (a KeyError or ValueError each), text that is not UTF-8, a null where a text should be.
_NOT_OURS: Final = (pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, RecursionError)


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """`pa.Table.from_pylist` for columns of text, bytes, numbers, lists and structures of them."""
    columns = [array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """`pa.array(values, kind)`; None is null."""
    if pa.types.is_struct(kind):
        fields = [array([None if v is None else v[field.name] for v in values], field.type) for field in kind]
        return pa.Array.from_buffers(kind, len(values), [_validity(values)], children=fields)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = np.array([0 if v is None else v for v in values], kind.to_pandas_dtype())
        return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers)])
    if pa.types.is_list(kind):
        items = array([item for v in values for item in v or ()], kind.value_type)
        return pa.Array.from_buffers(
            kind, len(values), [_validity(values), _offsets(values)], children=[items]
        )
    if pa.types.is_string(kind):
        # "replace": an error may quote a file name in another encoding, and is no reason to lose a part.
        values = [None if v is None else v.encode(errors="replace") for v in values]
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


SCHEMA_VERSION: Final = 1
IMAGE_COLUMNS: Final = ("input", "target_image", "mask")

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
# Column -> (Arrow type, Hugging Face feature type).
_COLUMNS: Final[dict[str, tuple[pa.DataType, str]]] = {
    "id": (pa.string(), "string"),
    "perspective": (pa.string(), "string"),
    "task": (pa.string(), "string"),
    "target": (pa.string(), "string"),
    "modality": (pa.string(), "string"),
    "anatomy": (pa.string(), "string"),
    "prompt": (pa.string(), "string"),
    "prompt_template": (pa.string(), "string"),
    "description": (pa.string(), "string"),
    "input": (_IMAGE, "Image"),
    "target_image": (_IMAGE, "Image"),
    "mask": (_IMAGE, "Image"),
    "colour": (pa.string(), "string"),
    "split": (pa.string(), "string"),
    "bin": (pa.int32(), "int32"),
    "source": (pa.string(), "string"),
    "case_id": (pa.string(), "string"),
    "patient_id": (pa.string(), "string"),
    "group": (pa.string(), "string"),
    "turn": (pa.int32(), "int32"),
    "recipe": (pa.string(), "string"),
    "recipe_version": (pa.int32(), "int32"),
    "params": (pa.string(), "string"),
    "seed": (pa.int64(), "int64"),
    "parents": (pa.list_(pa.string()), "List"),
    "license": (pa.string(), "string"),
    "sha256": (pa.string(), "string"),
}


# Columns without which there is no sample.
_REQUIRED: Final = (
    *("id", "perspective", "task", "target", "modality", "prompt", "input", "target_image", "split"),
    *("source", "case_id", "recipe", "params", "seed"),
)


def _feature(kind: str) -> dict[str, Any]:
    if kind == "Image":
        return {"_type": "Image"}
    if kind == "List":
        return {"_type": "List", "feature": {"dtype": "string", "_type": "Value"}}
    return {"dtype": kind, "_type": "Value"}


TEXT_COLUMNS: Final = tuple(name for name in _COLUMNS if name not in IMAGE_COLUMNS)
FEATURES: Final = {name: _feature(kind) for name, (_, kind) in _COLUMNS.items()}
SCHEMA: Final = pa.schema(
    [(name, kind) for name, (kind, _) in _COLUMNS.items()],
    metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
)
# Further input images of samples. A dataset without any has no such column, as ever.
REFERENCES: Final = "references"
_REFERENCE = pa.struct([("image", _IMAGE), ("role", pa.string()), ("text", pa.string())])
_REFERENCE_FEATURE: Final = {
    "_type": "List",
    "feature": {"image": _feature("Image"), "role": _feature("string"), "text": _feature("string")},
}
WIDE_SCHEMA: Final = pa.schema(
    [*SCHEMA, pa.field(REFERENCES, pa.list_(_REFERENCE))],
    metadata={
        "huggingface": json.dumps({"info": {"features": {**FEATURES, REFERENCES: _REFERENCE_FEATURE}}})
    },
)
REJECTED_SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in ("source", "where", "target", "gate", "reason", "numbers")]
)


def content_digest(pixels: Mapping[str, bytes | None], fields: Mapping[str, Any]) -> str:
    """SHA-256 over every field and the digests of the pixels: independent of how PNG or Parquet pack them."""
    digest = hashlib.sha256(canonical(fields).encode())
    for name in IMAGE_COLUMNS:
        digest.update(pixels[name] or b"-")
    return digest.hexdigest()


_REMEMBERED_BYTES: Final = 16 * 2**20  # of PNG files: the images of one case, at any size


class RowEncoder:
    """Samples to rows; an image that several samples of a case share is encoded once."""

    def __init__(self) -> None:
        self._pngs: OrderedDict[bytes, bytes] = OrderedDict()  # by the digest of the pixels, oldest first
        self._bytes = 0

    def row(self, sample: Sample) -> tuple[dict[str, Any], dict[str, bytes | None]]:
        """The row, and the digest of each image's pixels."""
        fields = text_fields(sample)
        pixels: dict[str, bytes | None] = {}
        row: dict[str, Any] = dict(fields)
        for name in IMAGE_COLUMNS:
            array: Pixels | None = getattr(sample, name)
            if array is None:
                pixels[name], row[name] = None, None
                continue
            digest, png = self._encoded(array)
            pixels[name], row[name] = digest, {"bytes": png, "path": f"{sample.id}_{name}.png"}
        row["sha256"] = content_digest(pixels, fields)
        if sample.references:
            row[REFERENCES] = [
                {
                    "image": {
                        "bytes": self._encoded(one.image)[1],
                        "path": f"{sample.id}_reference_{at}.png",
                    },
                    "role": one.role,
                    "text": one.text,
                }
                for at, one in enumerate(sample.references)
            ]
        return row, pixels

    def _encoded(self, array: Pixels) -> tuple[bytes, bytes]:
        digest = pixel_digest(array)
        png = self._pngs.pop(digest, None)
        if png is None:
            png = encode_png(array)
            self._bytes += len(png)
        self._pngs[digest] = png
        while self._bytes > _REMEMBERED_BYTES and len(self._pngs) > 1:
            self._bytes -= len(self._pngs.popitem(last=False)[1])
        return digest, png


def text_fields(sample: Sample) -> dict[str, Any]:
    """Every column but the images and the digest, as stored."""
    fields = {
        name: getattr(sample, name) for name in _COLUMNS if name not in IMAGE_COLUMNS and name != "sha256"
    }
    fields["params"] = canonical(sample.params)
    fields["parents"] = list(sample.parents)
    return {**fields, **_reference_digests(sample.references)}


def _reference_digests(references: Sequence[Reference]) -> dict[str, Any]:
    """What a digest says of further images: nothing where there are none, as ever."""
    if not references:
        return {}
    return {REFERENCES: [[one.role, one.text, pixel_digest(one.image).hex()] for one in references]}


def reworded_row(row: Mapping[str, Any], pixels: Mapping[str, bytes | None], **texts: Any) -> dict[str, Any]:
    """The row with other texts (`params` as a mapping) and the digest that goes with them.

    `pixels` are the digests of the row's images, as `RowEncoder.row` gave them: nothing is decoded.
    """
    out = {**row, **texts}
    out["params"] = canonical(out["params"]) if "params" in texts else row["params"]
    fields = {name: out[name] for name in _COLUMNS if name not in IMAGE_COLUMNS and name != "sha256"}
    fields["parents"] = list(row["parents"] or ())
    fields |= _reference_digests(references_of(row))
    out["sha256"] = content_digest(pixels, fields)
    return out


def sample_from_row(row: Mapping[str, Any]) -> Sample:
    """The sample a row holds, images decoded. `MieError` for a row that is none of ours."""
    values: dict[str, Any] = {name: row.get(name) for name in _COLUMNS if name != "sha256"}
    missing = [name for name in _REQUIRED if values[name] is None]
    if missing:
        raise MieError("the row lacks what every sample has", expected=", ".join(missing), found="nothing")
    for name in IMAGE_COLUMNS:
        values[name] = None if values[name] is None else decode_png(values[name]["bytes"])
    values["params"] = params_of(row)
    values["parents"] = tuple(values["parents"] or ())
    return Sample(**values, references=references_of(row))


def references_of(row: Mapping[str, Any]) -> tuple[Reference, ...]:
    """The further input images of a row, decoded. `MieError` for a role that is none of ours."""
    found = []
    for one in row.get(REFERENCES) or ():
        if one["role"] not in REFERENCE_ROLES:
            expected = ", ".join(REFERENCE_ROLES)
            raise MieError("a reference has an unknown role", expected=expected, found=one["role"])
        found.append(Reference(decode_png(one["image"]["bytes"]), one["role"], one["text"] or ""))
    return tuple(found)


def params_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the column `params` says; `MieError` unless it is a JSON object."""
    try:
        params = json.loads(row["params"])
    except (ValueError, TypeError, RecursionError) as error:
        raise MieError("`params` is not JSON", found=f"{type(error).__name__}: {error}"[:200]) from None
    if not isinstance(params, dict):
        raise MieError("`params` is not a JSON object", found=type(params).__name__)
    return params


def sample_digest(sample: Sample) -> str:
    """What `sha256` is for this sample."""
    return content_digest(pixel_digests(sample), text_fields(sample))


def pixel_digests(sample: Sample) -> dict[str, bytes | None]:
    """The digest of each image's pixels."""
    arrays = {name: getattr(sample, name) for name in IMAGE_COLUMNS}
    return {name: None if array is None else pixel_digest(array) for name, array in arrays.items()}


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


_WIDE_LEAVES: Final = [f"{REFERENCES}.list.element.{leaf}" for leaf in ("image.path", "role", "text")]
_WIDE_OPTIONS: Final[dict[str, Any]] = {
    **_OPTIONS,
    "compression": {
        **_OPTIONS["compression"],
        **dict.fromkeys(_WIDE_LEAVES, "zstd"),
        f"{REFERENCES}.list.element.image.bytes": "none",
    },
    "use_dictionary": [*_TEXT, *_WIDE_LEAVES],
    "write_statistics": [*_TEXT, *_WIDE_LEAVES],
}


def has_references(path: Path) -> bool:
    """Whether a shard has the column of further images."""
    with ShardFile(path) as file:
        return REFERENCES in file.schema_arrow.names


class RowWriter:
    """Writes rows to one Parquet file. The file appears, whole, when the context ends without an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._pending: list[dict[str, Any]] = []

    def _open(self, path: Path) -> pq.ParquetWriter:
        raise NotImplementedError

    def _full(self, row: dict[str, Any]) -> bool:
        """Whether the rows that wait make a row group now that `row` has joined them."""
        raise NotImplementedError

    def _write_group(self, rows: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._context = atomic_path(self.path)
        self._temporary = self._context.__enter__()
        self._writer = self._open(self._temporary)
        return self

    def write(self, row: dict[str, Any]) -> None:
        self._pending.append(row)
        self.rows += 1
        if self._full(row):
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._write_group(self._pending)
            self._pending = []

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


class ShardWriter(RowWriter):
    """A shard of samples.

    The column of further images is there if `wide` is true, or as soon as a row has some.
    """

    def __init__(self, path: Path, *, wide: bool = False) -> None:
        super().__init__(path)
        self.wide = wide
        self._pending_bytes = 0

    def _open(self, path: Path) -> pq.ParquetWriter:
        schema, options = (WIDE_SCHEMA, _WIDE_OPTIONS) if self.wide else (SCHEMA, _OPTIONS)
        return pq.ParquetWriter(path, schema, **options)

    def _full(self, row: dict[str, Any]) -> bool:
        self._pending_bytes += sum(len(row[c]["bytes"]) for c in IMAGE_COLUMNS if row[c] is not None)
        self._pending_bytes += sum(len(one["image"]["bytes"]) for one in row.get(REFERENCES) or ())
        return len(self._pending) >= ROWS_PER_GROUP or self._pending_bytes >= _BYTES_PER_GROUP

    def _write_group(self, rows: list[dict[str, Any]]) -> None:
        if not self.wide and any(row.get(REFERENCES) for row in rows):
            self._widen()
        if self.wide:
            rows = [{REFERENCES: None, **row} for row in rows]
        self._writer.write_table(table(rows, WIDE_SCHEMA if self.wide else SCHEMA))
        self._pending_bytes = 0

    def _widen(self) -> None:
        """Add the column to what is written so far: its rows have no further images."""
        self._writer.close()
        before = read_table(self._temporary)
        self.wide = True
        self._writer = self._open(self._temporary)
        for start in range(0, before.num_rows, ROWS_PER_GROUP):
            rows = before.slice(start, ROWS_PER_GROUP).to_pylist()
            self._writer.write_table(table([{REFERENCES: None, **row} for row in rows], WIDE_SCHEMA))


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one shard, one row group in memory at a time."""
    with row_errors(path), ShardFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=columns).to_pylist()
            yield from rows
