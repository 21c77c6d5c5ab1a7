"""A dataset that fails `mie verify` is refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
from mie.errors import ConfigError, MieError
from mie.training.config import check_datasets, dataset_folders
from mie.training.loop import train
from tests.conftest import folder_source, write_folder
from tests.training.tiny import tiny_config


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    root = write_folder(tmp_path / "source", 6, patients=6)
    body = {"name": "discs", "split": {"test": 0.3}, "sources": [folder_source(root)]}
    build(parse_recipe(body, where="t", base=Path()), tmp_path / "dataset", workers=1)
    return tmp_path / "dataset"


def test_a_sound_dataset_is_recorded_and_not_decoded_twice(dataset: Path, tmp_path: Path) -> None:
    config = tiny_config(tmp_path, data={"datasets": ["dataset", "elsewhere"]})
    assert dataset_folders(config) == {"dataset": dataset}
    said: list[str] = []
    facts = check_datasets(config, {}, said.append)
    again = check_datasets(config, json.loads(json.dumps(facts)), said.append)
    assert said == [f"verifying {dataset}"]
    assert again == facts
    assert facts["dataset"]["samples"] == 6
    info = train(config, tmp_path / "out", device="cpu", stop_after=0).info
    assert info["decisive"]["data_digests"]["dataset"] == facts["dataset"]["digest"]


def test_a_spoilt_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    body = json.loads((dataset / "dataset.json").read_text())
    body["digest"] = "0" * 64
    (dataset / "dataset.json").write_text(json.dumps(body))
    config = tiny_config(tmp_path, data={"datasets": ["dataset"]})
    with pytest.raises(MieError, match=r"fails `mie verify`[\s\S]*digest"):
        train(config, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out/train.json").exists()


def test_a_rebuilt_dataset_is_another_training(dataset: Path, tmp_path: Path) -> None:
    config = tiny_config(tmp_path, data={"datasets": ["dataset"]})
    train(config, tmp_path / "out", device="cpu", stop_after=0)
    root = tmp_path / "source"
    body = {"name": "discs", "seed": 1, "split": {"test": 0.5}, "sources": [folder_source(root)]}
    build(parse_recipe(body, where="t", base=Path()), dataset, workers=1, overwrite=True)
    with pytest.raises(ConfigError, match=r"another training[\s\S]*data_digests"):
        train(config, tmp_path / "out", device="cpu")
