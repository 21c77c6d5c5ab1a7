"""Parquet files that ask for more memory than they look like."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mie.datasets import parquet
from mie.datasets.dataset import RowIndex
from mie.datasets.parquet import ShardFile, _page
from mie.datasets.schema import read_rows, read_table
from mie.errors import MieError


def write(path, values, rows, **options):
    """A column of dictionary codes: `rows` times each of the values in turn."""
    codes = pa.array([at % len(values) for at in range(rows)], pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(values, pa.binary()))
    pq.write_table(pa.table({"id": column}), path, compression="zstd", store_schema=False, **options)
    return path


def test_a_repeated_value_of_a_dictionary_is_refused_before_it_takes_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BUDGET", 2**26)
    monkeypatch.setattr(parquet, "_BATCH", 2**24)
    path = write(tmp_path / "bomb.parquet", [b"\0" * 2**20], 1000)  # a gigabyte of values
    assert path.stat().st_size < 1000
    before = pa.default_memory_pool().max_memory()
    for read in (
        lambda: list(read_rows(path)),
        lambda: read_table(path),
        lambda: RowIndex([path]).row(0),
        lambda: ShardFile(path).read_row_group(0, columns=["id"]),
    ):
        with pytest.raises(MieError, match="too large to read safely"):
            read()
    assert pa.default_memory_pool().max_memory() - before < 2.5 * parquet.BUDGET


def test_pages_that_grow_are_refused_whatever_the_footer_says(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BUDGET", 2**22)
    path = tmp_path / "pages.parquet"
    table = pa.table({"id": pa.array([b"\0" * 2**20] * 8, pa.binary())})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    true = varint(2 * size)  # zigzag: twice the value
    path.write_bytes(path.read_bytes().replace(true, varint(2 * 5, len(true))))
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 5
    for way in ("read_row_groups", "iter_batches"):  # a page is decompressed whole, by either
        monkeypatch.setattr(pq.ParquetFile, way, lambda *_, **__: pytest.fail("read"))
    with pytest.raises(MieError, match="too large to read safely"):
        read_table(path)


def varint(value, length=0):
    out = []
    while True:
        out.append(value & 127)
        value >>= 7
        if not value and len(out) >= length:
            break
    return bytes([byte | 128 for byte in out[:-1]] + out[-1:])


def test_nulls_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BUDGET", 2**22)
    path = tmp_path / "nulls.parquet"
    pq.write_table(pa.table({"id": pa.nulls(100_000, pa.string())}), path)
    with pytest.raises(MieError, match="too large to read safely"):
        list(read_rows(path))


@pytest.mark.parametrize("budget", [parquet.BUDGET, 50_000])
def test_what_is_within_the_budget_is_read_whichever_way(tmp_path, monkeypatch, budget):
    """A dictionary that might grow beyond it, and does not, is read in batches to the same table."""
    monkeypatch.setattr(parquet, "BUDGET", budget)
    monkeypatch.setattr(parquet, "_BATCH", 2000)
    values = [bytes([at]) * 40 for at in range(100)]
    path = write(tmp_path / "a.parquet", values, 300, row_group_size=100)
    expected = [values[at % 100] for at in range(300)]
    with ShardFile(path) as file:
        assert file.read_row_group(1, columns=["id"]).column("id").to_pylist() == expected[100:200]
    if budget == parquet.BUDGET:
        assert read_table(path).column("id").to_pylist() == expected
    assert [row["id"] for row in read_rows(path)] == expected


def test_a_table_without_rows_is_read(tmp_path):
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").num_rows == 0


def test_headers_of_pages_are_those_that_arrow_writes(tmp_path):
    """Sizes by our reader against the sum in the footer, which counts headers too."""
    path = tmp_path / "a.parquet"
    table = pa.table({"a": [f"text {at}" for at in range(5000)], "b": [[at, 2] for at in range(5000)]})
    pq.write_table(table, path, compression="snappy", data_page_size=1000, data_page_version="2.0")
    group = pq.read_metadata(path).row_group(0)
    with path.open("rb") as file:
        for at in range(group.num_columns):
            column = group.column(at)
            place = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
            end, total, pages = place + column.total_compressed_size, 0, 0
            while place < end:
                _, size, held, length = _page(file, place)
                place += held + length
                total += size + length
                pages += 1
            assert place == end
            assert total == column.total_uncompressed_size
            assert pages > 1


def test_damaged_pages_end_as_errors_of_ours(tmp_path):
    path = write(tmp_path / "a.parquet", [b"abc", b"def"], 50)
    data = path.read_bytes()
    refused = 0
    for at in range(4, 60):
        path.write_bytes(data[:at] + bytes([(data[at] + 37) % 256]) + data[at + 1 :])
        try:
            list(read_rows(path))
        except (MieError, OSError):
            refused += 1
    assert refused > 20
