"""Datasets from strangers: rows that hold anything. No verb ends in a traceback."""

import contextlib
import json
import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.recipe import parse_recipe
from mie.datasets.stats import dataset_stats
from mie.datasets.verify import verify
from mie.editors.run import run_editor
from mie.errors import MieError
from mie.images.png import encode_png
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.score import score_run
from tests.conftest import crop, folder_source, write_folder

HUGE = bytearray(encode_png(crop(0, 16, 16)))
HUGE[16:24] = struct.pack(">II", 30_000, 30_000)
CHANGES = {
    "no bytes": ("input", {"bytes": b"", "path": "a"}),
    "null bytes": ("input", {"bytes": None, "path": "a"}),
    "a huge picture": ("input", {"bytes": bytes(HUGE), "path": "a"}),
    "null prompt": ("prompt", None),
    "deep params": ("params", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "list params": ("params", "[1, 2]"),
    "no JSON": ("params", "{"),
    "null digest": ("sha256", None),
    "bad UTF-8": ("prompt", b"\xff\xfe"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    root = write_folder(folder / "source", 3)
    body = {"name": "discs", "seed": 3, "split": {"val": 0, "test": 1}, "sources": [folder_source(root)]}
    build(parse_recipe(body, where="t", base=Path()), folder / "dataset", workers=1)
    return folder / "dataset"


def changed(sound, folder, column, value):
    """The dataset with one cell of its first row changed."""
    shutil.copytree(sound, folder)
    (path,) = Dataset(folder).shards()
    table = pq.read_table(path)
    cells = table.column(column).to_pylist()
    cells[0] = value
    if isinstance(value, bytes):  # text that is none: made as bytes, and called text
        raw = pa.array([c.encode() if isinstance(c, str) else c for c in cells], pa.binary())
        array = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    else:
        array = pa.array(cells, table.schema.field(column).type)
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, table.schema.field(column), array), path)
    return folder


@pytest.mark.parametrize("name", CHANGES)
def test_verify_names_it(sound, tmp_path, name):
    folder = changed(sound, tmp_path / "d", *CHANGES[name])
    problems = verify(folder, workers=1).problems
    assert any(p.check in ("decode", "digest", "files") for p in problems)


@pytest.mark.parametrize("name", CHANGES)
def test_other_verbs_end_without_a_traceback(sound, tmp_path, name):
    folder = changed(sound, tmp_path / "d", *CHANGES[name])
    run = tmp_path / "run"
    verbs = {
        "run": lambda: run_editor(folder, "identity", run),
        "score": lambda: score_run(BENCHMARKS["miedb"], run, workers=1),
        "stats": lambda: dataset_stats(Dataset(folder)),
        "export": lambda: export(Dataset(folder), tmp_path / "out", "folder"),
    }
    for verb in verbs.values():
        with contextlib.suppress(MieError):
            verb()


def test_params_are_an_object(sound, tmp_path):
    folder = changed(sound, tmp_path / "d", "params", json.dumps([1]))
    with pytest.raises(MieError, match="not a JSON object"):
        next(Dataset(folder).samples())
