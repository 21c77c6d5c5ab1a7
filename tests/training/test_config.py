from __future__ import annotations

from pathlib import Path

import pytest

from mie.errors import ConfigError
from mie.training.config import Strict, TrainConfig, parse_config, parse_section, read_config

BODY = {"name": "tiny", "trainee": "compact", "steps": 10, "batch": 4}


def write(folder: Path, text: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_with_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKS", "packs")
    text = """
name: compact
trainee: compact
seed: 1
steps: 6000
batch: 96
optimizer: {lr: 7.0e-4, weight_decay: 0.02, warmup: 300, clip: 1.0, floor: 0.02}
ema: 0.998
precision: bf16
compile: true
channels_last: true
gradient_checkpointing: false
checkpoint: {every: 500, keep: 2}
validate: {every: 1000}
log_every: 20
data: {pack: "${PACKS}/p.pack", mix: {a: 1, b: ["${PACKS}"]}}
model: {width: 32}
"""
    config = read_config(write(tmp_path, text))
    assert set(config.document()) == {
        TrainConfig.model_fields[f].alias or f for f in TrainConfig.model_fields
    }
    assert (config.optimizer.lr, config.validation.every, config.checkpoint.keep) == (7e-4, 1000, 2)
    assert config.path(config.data["pack"]) == tmp_path / "packs/p.pack"
    assert config.data["mix"] == {"a": 1, "b": ["packs"]}
    assert parse_config(config.document()).decisive() == config.decisive()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepps": 3}, r"unknown key 'stepps'[\s\S]*did you mean 'steps'"),
        ({"optimizer": {"warm_up": 3}}, r"optimizer\.warm_up[\s\S]*did you mean 'warmup'"),
        ({"validation": {"every": 3}}, r"unknown key 'validation'[\s\S]*did you mean 'validate'"),
        ({"batch": 0}, r"batch[\s\S]*found:    0"),
        ({"ema": 1.0}, "ema"),
        ({"optimizer": {"lr": float("nan")}}, r"optimizer\.lr"),
        ({"precision": "fp16"}, "precision"),
        ({"name": "../up"}, "name"),
        ({"data": {"pack": "${NOT_SET_ANYWHERE}/p"}}, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_nonsense_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({**BODY, **change})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "given twice"),
        ("[1, 2]", "not a mapping"),
        ("{", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(write(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(tmp_path / "none.yaml")


def test_a_trainee_reads_its_own_section() -> None:
    class Data(Strict):
        pack: str

    assert parse_section(Data, {"pack": "a"}, where="data").pack == "a"
    with pytest.raises(ConfigError, match=r"data: pakc[\s\S]*did you mean 'pack'"):
        parse_section(Data, {"pakc": "a", "pack": "a"}, where="data")


def test_only_what_leaves_the_weights_alone_may_differ() -> None:
    free = {"name": "other", "checkpoint": {"every": 7}, "validate": {"every": 9}, "log_every": 3}
    assert parse_config({**BODY, **free}).decisive() == parse_config(BODY).decisive()
    for change in ({"seed": 9}, {"steps": 11}, {"model": {"width": 2}}, {"compile": True}):
        assert parse_config({**BODY, **change}).decisive() != parse_config(BODY).decisive()
