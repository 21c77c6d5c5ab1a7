"""Entries of the cache: by content, whole, of one encoder, and proved when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import safetensors.torch
import torch

from mie.errors import MieError
from mie.training.latent_cache import (
    LatentCache,
    content_key,
    read_rows_file,
    weights_digest,
    write_rows_file,
)

KEY = content_key("image", b"pixels")


def cache(folder: Path, encoder: str = "a" * 64) -> LatentCache:
    return LatentCache(folder, "moments", encoder)


def test_what_was_written_is_read_and_only_what_lacks_is_missing(tmp_path: Path) -> None:
    own, mean = cache(tmp_path), torch.randn(4, 6, 5).half()
    assert own.missing([KEY, "b" * 64, KEY]) == [KEY, "b" * 64]
    own.write(KEY, {"mean": mean})
    assert torch.equal(own.read(KEY)["mean"], mean)
    assert own.missing([KEY, "b" * 64]) == ["b" * 64]
    assert not list(tmp_path.rglob("*.tmp"))


def test_keys_depend_on_every_part_and_its_borders() -> None:
    keys = {content_key("ab", "c"), content_key("a", "bc"), content_key("abc"), content_key("ab", "c", "")}
    assert len(keys) == 4


def test_another_autoencoder_has_entries_of_its_own(tmp_path: Path) -> None:
    cache(tmp_path).write(KEY, {"mean": torch.ones(2)})
    other = cache(tmp_path, "c" * 64)
    assert other.missing([KEY]) == [KEY]
    other.folder.mkdir()
    other.path(KEY).parent.mkdir()
    other.path(KEY).write_bytes(cache(tmp_path).path(KEY).read_bytes())  # somebody moved it there
    with pytest.raises(
        MieError, match=r"cannot be used[\s\S]*encoder cccc[\s\S]*encoder aaaa[\s\S]*remove the file"
    ):
        other.read(KEY)


@pytest.mark.parametrize("damage", ["flipped", "short", "foreign", "empty", "large"])
def test_damaged_entries_are_refused(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache(tmp_path)
    own.write(KEY, {"mean": torch.arange(8.0)})
    data = bytearray(own.path(KEY).read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    elif damage == "large":
        monkeypatch.setattr("mie.training.latent_cache._MOST", 16)
    else:
        foreign = safetensors.torch.save({"mean": torch.ones(2)})
        data = {"short": data[:-3], "foreign": bytearray(foreign), "empty": bytearray()}[damage]
    own.path(KEY).write_bytes(bytes(data))
    with pytest.raises(MieError, match="cannot be used"):
        own.read(KEY)


def test_values_that_are_not_finite_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(MieError, match="not finite"):
        cache(tmp_path).write(KEY, {"mean": torch.tensor([float("inf")])})
    assert cache(tmp_path).missing([KEY]) == [KEY]


def test_memory_is_bounded(tmp_path: Path) -> None:
    own = LatentCache(tmp_path, "moments", "a" * 64, memory=40)
    keys = [content_key(str(n)) for n in range(3)]
    for key in keys:
        own.write(key, {"mean": torch.ones(4)})  # 16 bytes
    for key in keys:
        own.read(key)
    for key in keys:
        own.path(key).unlink()
    assert [key for key in keys if key in own._kept] == keys[:2]


def test_a_digest_covers_every_byte_of_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    before = weights_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345679")
    assert weights_digest(tmp_path) != before


def test_lists_of_rows(tmp_path: Path) -> None:
    assert read_rows_file(tmp_path, "x") is None
    write_rows_file(tmp_path, "x", [[1, "ä"]])
    assert read_rows_file(tmp_path, "x") == [[1, "ä"]]
    (tmp_path / "rows/x.json").write_text("[")
    assert read_rows_file(tmp_path, "x") is None, "made anew"
