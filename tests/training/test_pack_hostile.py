"""A pack from a stranger, whose checksums are the stranger's too: refused by name, without taking memory."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mie.datasets import parquet
from mie.errors import MieError
from mie.training import pack_pictures
from mie.training.pack import TRAIN, Instruction, Pack, Row, Wording, read_pack, write_pack
from tests.conftest import crop

ROW = Row(
    id="a",
    perspective="perception",
    task="lesion",
    target="nodule",
    key=None,
    modality="CT",
    anatomy="chest",
    source="s",
    patient_id="p",
    license="CC0-1.0",
    fold=TRAIN,
    input=0,
    goal=None,
    mask=0,
    classes=1,
    instruction=0,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = [crop(1, 24, 20), crop(2, 24, 20)]
    mask = (images[0][..., 0] > 99).astype(np.uint8)
    words = [Instruction("key", (Wording("Mark it in red.", "t", ("red",)),))]
    write_pack(tmp_path / "pack", Pack(images, [mask], [ROW], words, {}))
    return tmp_path / "pack"


def change(folder: Path, name: str, data: bytes | pa.Table, **how: object) -> Path:
    """Another file of the pack, with its checksum in `pack.json`."""
    if isinstance(data, bytes):
        (folder / name).write_bytes(data)
    else:
        pq.write_table(data, folder / name, **how)
    info = json.loads((folder / "pack.json").read_text())
    info["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "pack.json").write_text(json.dumps(info))
    return folder


def with_values(folder: Path, name: str, column: str, values: list) -> Path:
    table = pq.read_table(folder / name)
    at = table.column_names.index(column)
    return change(folder, name, table.set_column(at, column, pa.array(values)))


def huge_png(side: int, colour_type: int = 2) -> bytes:
    """A few bytes whose header speaks of side x side pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, colour_type, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def huge_webp() -> bytes:
    """Lossless WebP of 16,383 x 16,383 by its header, without pixels behind it."""
    body = b"\x2f" + struct.pack("<I", 16382 | 16382 << 14) + bytes(30)
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


PICTURES = {
    "a PNG of 900 megapixels": huge_png(30_000),
    "a WebP of 268 megapixels": huge_webp(),
    "a length beyond the file": huge_png(9)[:33] + b"\xff\xff\xff\xf0IDAT" + bytes(40),
    "text": b"no picture at all, but long enough",
    "nothing": b"",
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_refused_by_its_header(folder, monkeypatch, name) -> None:
    with_values(folder, "images.parquet", "bytes", [PICTURES[name]] * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(pack_pictures, "decode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(MieError) as error:
        read_pack(folder)
    assert "images.parquet" in str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_pictures_that_do_not_fit_together_are_refused_before_the_first(folder, monkeypatch) -> None:
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1}  # the two pictures take 2 x 1,440 bytes, the mask 480
    with monkeypatch.context() as patch:
        patch.setattr(os, "sysconf", sizes.__getitem__)
        read_pack(folder)
        sizes["SC_PAGE_SIZE"] = 3000
        patch.setattr(pack_pictures, "decode", lambda *_: pytest.fail("decoded"))
        with pytest.raises(MieError, match="does not fit into memory"):
            read_pack(folder)


def test_a_table_that_grows_is_refused(folder, monkeypatch) -> None:
    """One picture named a thousand times, and rows without any: either takes no bytes in the file."""
    data = pq.read_table(folder / "images.parquet").column("bytes").to_pylist()[0]
    for values, found in (([data] * 1000, "larger than their file"), ([None] * 10_000, "larger")):
        table = pa.table(
            {
                "bytes": pa.array(values, pa.binary()),
                "channels": pa.array([3] * len(values), pa.int8()),
                "base": pa.nulls(len(values), pa.int32()),
            }
        )
        change(folder, "images.parquet", table, compression="zstd", use_dictionary=True)
        with pytest.raises(MieError, match=found):
            read_pack(folder)
    monkeypatch.setattr(parquet, "BUDGET", 2**16)
    rows = pa.table({"id": pa.nulls(100_000, pa.string())})
    change(folder, "rows.parquet", rows)
    with pytest.raises(MieError, match="too large to read safely"):
        read_pack(folder)


@pytest.mark.parametrize("bases", [[None, 7], [None, -1], [None, 1], [1, 0]])
def test_a_part_needs_a_whole_picture_of_its_size(folder, bases) -> None:
    part = pack_pictures.encode_part(crop(2, 24, 20), crop(1, 24, 20))
    whole = pq.read_table(folder / "images.parquet").column("bytes").to_pylist()[0]
    with_values(folder, "images.parquet", "bytes", [whole if base is None else part for base in bases])
    with_values(folder, "images.parquet", "base", bases)
    with pytest.raises(MieError, match="no base"):
        read_pack(folder)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("input", 2), ("input", -1), ("input", None), ("goal", 9), ("mask", 1), ("ask", 1), ("ask", None)],
        *[("perspective", "other"), ("input", "a"), ("simulate", "[" * 50_000), ("simulate", "{")],
    ],
)
def test_a_row_points_to_what_is_there(folder, column, value) -> None:
    with_values(folder, "rows.parquet", column, [value])
    with pytest.raises(MieError):
        read_pack(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "[1]", '[{"key": "k"}]', "\xff"])
def test_instructions_of_another_form_are_refused(folder, text) -> None:
    change(folder, "asks.json", text.encode("latin-1"))
    with pytest.raises(MieError):
        read_pack(folder)


@pytest.mark.parametrize("body", ["[]", "[" * 100_000, '{"version": 2, "files": []}', "\xff"])
def test_another_pack_json_is_refused(folder, body) -> None:
    (folder / "pack.json").write_bytes(body.encode("latin-1"))
    with pytest.raises(MieError):
        read_pack(folder)
    info = {"version": 2, "files": dict.fromkeys(["images.parquet", "masks.parquet", "rows.parquet"], 1)}
    (folder / "pack.json").write_text(json.dumps({**info, "files": {**info["files"], "asks.json": 1}}))
    with pytest.raises(MieError):
        read_pack(folder)


def test_a_pipe_is_never_waited_for(folder) -> None:
    for name in ("asks.json", "pack.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(MieError):
            read_pack(folder)
