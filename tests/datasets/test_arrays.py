"""Arrow tables by their buffers, against pyarrow's own conversion."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.datasets.schema import array, read_table, table

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
IMAGE = st.fixed_dictionaries({"bytes": st.binary(max_size=9), "path": TEXT | st.none()})
KINDS = [
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=9)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.list_(pa.string()), st.lists(TEXT, max_size=3)),
    (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), IMAGE),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_an_array_is_the_one_of_pyarrow(kind, values):
    @given(st.lists(values | st.none(), max_size=20))
    def check(column):
        found = array(column, kind)
        found.validate(full=True)
        assert found.equals(pa.array(column, kind))
        assert found.to_pylist() == column

    check()


@given(st.lists(st.fixed_dictionaries({"name": TEXT | st.none(), "image": IMAGE | st.none()}), max_size=20))
def test_a_table_is_written_as_the_same_bytes(tmp_path_factory, rows):
    schema = pa.schema([("name", pa.string()), ("image", KINDS[-1][0])], metadata={"made": "here"})
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(table(rows, schema), folder / "ours", compression="zstd")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "theirs", compression="zstd")
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()
    assert read_table(folder / "ours").equals(pq.read_table(folder / "theirs"))
    assert read_table(folder / "ours", ["name"]).to_pylist() == [{"name": row["name"]} for row in rows]
