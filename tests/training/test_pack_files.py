"""A pack on disk: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mie.errors import MieError
from mie.training.pack import _FILES, read_pack, write_pack
from mie.training.pack_datasets import pack_datasets
from mie.training.pack_pictures import LOSSLESS, decode, encode
from tests.conftest import crop
from tests.training.conftest import same


@pytest.fixture(scope="module")
def pack(overlays, pairs):
    return pack_datasets([overlays, pairs], longest=96)


@pytest.fixture
def written(pack, tmp_path):
    write_pack(tmp_path / "pack", pack)
    return tmp_path / "pack"


def test_what_was_written_comes_back(pack, written) -> None:
    found = read_pack(written, workers=2)
    assert found.rows == pack.rows
    assert found.instructions == pack.instructions
    assert {k: found.facts[k] for k in pack.facts} == json.loads(json.dumps(pack.facts))
    for name in ("images", "masks"):
        ours, theirs = getattr(pack, name), getattr(found, name)
        assert len(ours) == len(theirs)
        assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    info = json.loads((written / "pack.json").read_text())
    assert info["counts"]["rows"] == len(pack.rows)
    for name, digest in info["files"].items():
        assert hashlib.sha256((written / name).read_bytes()).hexdigest() == digest


def test_the_same_pack_gives_the_same_digest(pack, written, tmp_path) -> None:
    assert write_pack(tmp_path / "again", pack)["digest"] == read_pack(written).facts["digest"]


def test_lossy_inputs_are_close_and_smaller_pairs_and_masks_exact(pack, written, tmp_path) -> None:
    write_pack(tmp_path / "lossy", pack, lossy=90)
    found = read_pack(tmp_path / "lossy")
    paired = {i for row in pack.rows if row.goal is not None for i in (row.input, row.goal)}
    for at, (a, b) in enumerate(zip(pack.images, found.images, strict=True)):
        assert a.shape == b.shape
        if at in paired:
            assert same(a, b)
        else:
            error = float(np.mean((a.astype(float) - b) ** 2))
            assert 10 * np.log10(255**2 / max(error, 1e-9)) > 30
    assert any(not same(a, b) for a, b in zip(pack.images, found.images, strict=True))
    assert all(same(a, b) for a, b in zip(pack.masks, found.masks, strict=True))
    size = [(folder / "images.parquet").stat().st_size for folder in (written, tmp_path / "lossy")]
    assert size[1] < size[0]


@pytest.mark.parametrize("name", _FILES)
def test_one_wrong_byte_is_refused(written, name) -> None:
    body = bytearray((written / name).read_bytes())
    body[len(body) // 2] ^= 1
    (written / name).write_bytes(bytes(body))
    with pytest.raises(MieError) as error:
        read_pack(written)
    assert name in str(error.value)
    assert "damaged" in str(error.value)


def test_a_missing_file_an_unfinished_pack_and_another_version(written) -> None:
    (written / "masks.parquet").unlink()
    with pytest.raises(MieError, match="damaged"):
        read_pack(written)
    info = json.loads((written / "pack.json").read_text())
    (written / "pack.json").write_text(json.dumps({**info, "version": 99}))
    with pytest.raises(MieError, match="another version"):
        read_pack(written)
    (written / "pack.json").write_text("{")
    with pytest.raises(MieError, match="not valid JSON"):
        read_pack(written)
    (written / "pack.json").unlink()
    with pytest.raises(MieError, match="no finished pack"):
        read_pack(written)


def test_a_pack_goes_into_a_new_folder_or_over_an_interrupted_one(pack, written, tmp_path) -> None:
    with pytest.raises(MieError, match="taken"):
        write_pack(written, pack)
    (written / "pack.json").unlink()  # it is written last
    write_pack(written, pack)
    assert read_pack(written).rows == pack.rows
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    with pytest.raises(MieError, match="taken"):
        write_pack(tmp_path / "mine", pack)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_full_disk_leaves_no_pack(pack, tmp_path, monkeypatch) -> None:
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mie.training.pack.pq.write_table", full)
    with pytest.raises(MieError, match="disk is full"):
        write_pack(tmp_path / "full", pack)
    with pytest.raises(MieError, match="no finished pack"):
        read_pack(tmp_path / "full")


def test_a_pack_of_pairs_alone_has_no_mask(pack, tmp_path) -> None:
    alone = replace(pack, rows=[row for row in pack.rows if row.mask is None], masks=[])
    write_pack(tmp_path / "pairs", alone)
    assert read_pack(tmp_path / "pairs").masks == []


@given(
    arrays.arrays(np.uint8, st.one_of(st.tuples(st.integers(1, 40), st.integers(1, 40)), st.just((9, 17, 3))))
)
def test_exact_pictures_are_exact(picture) -> None:
    assert same(decode(encode(picture, LOSSLESS), 1 if picture.ndim == 2 else 3), picture)


def test_a_colour_picture_and_a_very_long_one() -> None:
    picture = crop(1)
    assert same(decode(encode(picture, LOSSLESS), 3), picture)
    long = np.arange(17000 * 2, dtype=np.uint32).reshape(2, 17000).astype(np.uint8)
    assert same(decode(encode(long, LOSSLESS), 1), long)
    assert same(decode(encode(long, 90), 1), long)
