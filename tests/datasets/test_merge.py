"""Merged datasets: the same samples, digest and leak check as one build; clashes are named or resolved."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mie
from mie.cli import app
from mie.datasets import merge as merging
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.merge import merge, merge_datasets
from mie.datasets.recipe import parse_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import verify
from mie.errors import ConfigError, MieError
from tests.datasets.test_perspectives import MODIFICATION, TRANSFORMATION, scans, write_scans


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scans(tmp_path_factory.mktemp("scans") / "s")


def built(root: Path, folder: Path, settings: object, **changes: object) -> Path:
    body = {"name": folder.name, "seed": 3, "split": {"test": 0.4}, "sources": [scans(root)]}
    key = "perspectives" if isinstance(settings, list) else "recipe"
    build(parse_recipe({**body, key: settings, **changes}, where="t", base=Path()), folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def parts(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("parts")
    settings = {"p": "perception", "m": MODIFICATION, "t": TRANSFORMATION}
    return [built(root, folder / name, one) for name, one in settings.items()]


@pytest.fixture(scope="module")
def merged(parts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return merge(parts, tmp_path_factory.mktemp("merged") / "all", workers=1)


def fingerprint(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_a_merge_holds_what_one_build_holds(root, parts, merged, tmp_path):
    one = built(root, tmp_path / "one", ["perception", MODIFICATION, TRANSFORMATION])
    columns = ["id", "sha256", "split"]
    first, second = (zip(*Dataset(folder).table(columns).values(), strict=True) for folder in (one, merged))
    assert sorted(first) == sorted(second)
    assert verify(merged, workers=1).problems == []
    assert merged.info["modification"] == Dataset(one).info["modification"]
    assert merged.info["weights"] == Dataset(one).info["weights"]
    assert [p["digest"] for p in merged.info["recipe"]["merged"]] == [Dataset(p).digest for p in parts]
    card = (merged.folder / "README.md").read_text()
    assert "### m\n" in card
    assert "The dataset was merged from these" in card


def test_a_killed_merge_resumes_to_the_same_bytes(parts, merged, tmp_path, monkeypatch):
    for stop_at in ("_make_part", "write_shards", "data_card", "write_info"):
        folder = tmp_path / stop_at
        calls = []
        real = getattr(merging, stop_at)

        def stop(*args, real=real, stop_at=stop_at, calls=calls, **options):
            calls.append(args)
            if stop_at == "_make_part" and len(calls) < 3:
                return real(*args, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(merging, stop_at, stop)
            with pytest.raises(KeyboardInterrupt):
                merge(parts, folder, workers=1)
        assert not (folder / "dataset.json").exists()
        assert merge(parts, folder, workers=1).digest == merged.digest
        assert fingerprint(folder) == fingerprint(merged.folder)
    assert merge_datasets(parts, folder, workers=1).already_there


def test_the_same_sample_twice_is_kept_once(parts, merged, tmp_path):
    again = merge([merged.folder, parts[0]], tmp_path / "d", workers=1)
    assert sorted(again.table(["id"])["id"]) == sorted(merged.table(["id"])["id"])
    gone = [r for r in read_rejected(again.folder / "rejected.parquet") if r.gate == "duplicate"]
    assert len(gone) == len(Dataset(parts[0]))


def test_a_patient_on_both_sides_is_taken_from_training(root, parts, tmp_path):
    """The second dataset draws its test patients by another seed."""
    other = built(root, tmp_path / "other", TRANSFORMATION, seed=4, split={"test": 0.6})
    both = merge([parts[0], other], tmp_path / "d", workers=1)
    assert verify(both, workers=1).problems == []
    table = both.table(["patient_id", "split"])
    sides: dict[str, set[str]] = {}
    for patient, split in zip(*table.values(), strict=True):
        sides.setdefault(patient, set()).add(split)
    assert all(len(found) == 1 for found in sides.values())
    leaks = [r for r in read_rejected(both.folder / "rejected.parquet") if r.gate == "leak"]
    assert leaks


def test_names_and_pseudonyms_of_one_patient_are_one_patient(root, parts, tmp_path):
    named = built(root, tmp_path / "n", TRANSFORMATION, seed=4, split={"test": 0.6}, keep_names=True)
    hidden = built(root, tmp_path / "h", TRANSFORMATION, seed=4, split={"test": 0.6})
    ids = [
        set(merge([parts[0], other], tmp_path / other.name / "d", workers=1).table(["id"])["id"])
        for other in (named, hidden)
    ]
    assert ids[0] == ids[1]


def test_clashing_ids_are_an_error_or_the_first_is_kept(root, parts, tmp_path):
    wide = built(root, tmp_path / "wide", {"kind": "perception", "wordings": "wide"}, bins=[64])
    with pytest.raises(MieError, match="one id to different samples") as error:
        merge([parts[0], wide], tmp_path / "d", workers=1)
    assert "--first" in str(error.value)
    assert not (tmp_path / "d/dataset.json").exists()
    assert Dataset(wide).info["counts"]["samples"] == 8  # nothing is lost
    outcome = merge_datasets([parts[0], wide], tmp_path / "e", first=True, workers=1)
    assert Dataset(outcome.folder).info["counts"]["samples"] == 8
    assert outcome.notes == (
        "images were scaled to other lengths (p: 128, 256, 512; wide: 64): they stay as they are",
    )
    assert verify(outcome.folder, workers=1).problems == []


def test_a_damaged_dataset_is_named(parts, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(parts[0], broken)
    shard = Dataset(broken).shards()[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 0xFF  # inside a picture
    shard.write_bytes(data)
    with pytest.raises(MieError, match=r"cannot be read|damaged"):
        merge([broken, parts[1]], tmp_path / "d", workers=1)
    assert not (tmp_path / "d/dataset.json").exists()


def test_what_cannot_be_merged_is_refused(parts, merged, tmp_path):
    with pytest.raises(ConfigError, match="nothing to merge"):
        merge(parts[:1], tmp_path / "d")
    with pytest.raises(ConfigError, match="named twice"):
        merge([parts[0], parts[0]], tmp_path / "d")
    with pytest.raises(ConfigError, match="one of the datasets"):
        merge(parts[:2], parts[0])
    with pytest.raises(MieError, match="holds another dataset"):
        merge(parts[:2], merged.folder)
    with pytest.raises(MieError, match="no finished dataset"):
        merge([parts[0], tmp_path], tmp_path / "d")


def test_the_command_and_the_python_name(parts, merged, tmp_path):
    result = CliRunner().invoke(app, ["merge", *map(str, parts), "-o", str(tmp_path / "d"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert merged.digest[:16] in result.output
    assert mie.merge is merge
