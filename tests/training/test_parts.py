"""The loop's small parts, each against a reference written another way."""

from __future__ import annotations

import json
import math
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mie.errors import ConfigError, MieError
from mie.training.batches import Prefetch, seed_step, step_seed, to_device
from mie.training.checkpoints import newest, prune, read_checkpoint, write_checkpoint
from mie.training.config import OptimizerConfig
from mie.training.folder import TrainingLog, read_log
from mie.training.optimize import Meter, MovingAverage, Optimizer, learning_rate
from mie.training.trainee import TRAINEES, make_trainee, trainee_class
from tests.training.tiny import Batch, Tiny, tiny_config


def test_the_rate_warms_up_and_follows_a_cosine() -> None:
    config = OptimizerConfig(lr=2.0, warmup=4, floor=0.1)
    rates = [learning_rate(step, 105, config) for step in range(105)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert rates[54] == pytest.approx(2 * (0.1 + 0.9 / 2))  # half way
    assert rates[-1] == pytest.approx(0.2)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert learning_rate(0, 1, OptimizerConfig(warmup=0)) > 0


@given(st.integers(0, 2**31 - 1), st.integers(-1, 10**7), st.integers(0, 63))
def test_seeds_fit_every_generator(seed: int, step: int, rank: int) -> None:
    value = step_seed(seed, step, rank)
    assert 0 <= value < 2**63
    assert value not in (step_seed(seed, step + 1, rank), step_seed(seed, step, rank + 1))


def test_all_global_generators_are_seeded() -> None:
    import random

    import numpy as np

    drawn = []
    for _ in range(2):
        seed_step(1, 2)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    assert drawn[0] == drawn[1]


def test_the_average_follows_by_its_formula() -> None:
    model = nn.BatchNorm1d(3)
    ema = MovingAverage(model, 0.9)
    wanted = model.weight.detach().clone().double()
    for done in range(1, 200):
        with torch.no_grad():
            model.weight.fill_(float(done % 7))
            model.running_mean.fill_(float(done))
        ema.update(done)
        decay = min(0.9, (1 + done) / (10 + done))
        wanted = decay * wanted + (1 - decay) * (done % 7)
    torch.testing.assert_close(ema.module.weight.double(), wanted, rtol=1e-5, atol=1e-5)
    assert ema.module.running_mean.tolist() == [199.0] * 3
    assert not ema.module.training
    assert not ema.module.weight.requires_grad


def test_decay_is_for_maps_alone_and_state_travels_in_any_format() -> None:
    def made() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)).to(memory_format=torch.channels_last)
        return model, Optimizer(model, OptimizerConfig(weight_decay=0.5))

    def stepped(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        loss = model(torch.rand(2, 3, 6, 6)).square().sum()
        loss.backward()
        optimizer.step(loss, 0.1)

    model, optimizer = made()
    decays = {p: group["weight_decay"] for group in optimizer.adamw.param_groups for p in group["params"]}
    assert [decays[p] for p in model.parameters()] == [0.5, 0, 0, 0]
    stepped(model, optimizer, 1)
    other, second = made()
    other.load_state_dict(model.state_dict())
    second.load((name, value.contiguous()) for name, value in optimizer.tensors())
    for both in ((model, optimizer), (other, second)):
        stepped(*both, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_means_are_of_what_was_finite() -> None:
    meter, t = Meter(), torch.tensor
    meter.add({})  # a loss without named parts
    meter.add({"loss": t(1.0), "dice": t(4.0)})
    meter.add({"loss": t(math.nan), "dice": t(6.0)})
    meter.add({"loss": t(3.0)})
    meter.add({"loss": t(5.0), "noise": t(math.inf)})
    means, others = meter.read(t(7.0), t(8))
    assert means == {"loss": 3.0, "dice": 5.0, "noise": None}
    assert others == [7.0, 8.0]
    assert meter.read() == ({}, [])


class Pair(NamedTuple):
    a: Any
    b: Any


def test_batches_come_in_order_and_keep_their_form() -> None:
    made: list[int] = []

    def make(step: int) -> Any:
        made.append(step)
        return {
            "x": [torch.tensor(step)],
            "pair": Pair(torch.ones(1), "text"),
            "own": Batch(torch.ones(2), torch.ones(3)),
        }

    prefetch = Prefetch(make, 3, 50, pin=False)
    for at, (step, batch) in enumerate(prefetch):
        assert step == at + 3 == batch["x"][0].item()
        assert len(made) <= at + 6  # three in the queue, one in hand, one being made
        if at == 10:
            break
    prefetch.close()
    assert not any(thread.name == "batches" for thread in threading.enumerate())
    moved = to_device(batch, torch.device("meta"))
    assert {moved["x"][0].device.type, moved["pair"].a.device.type, moved["own"].goal.device.type} == {"meta"}
    assert (moved["pair"].b, type(moved["own"])) == ("text", Batch)


def test_a_log_of_a_killed_run_is_one_history(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = TrainingLog(path)
    for event, step in (("start", 0), ("train", 2), ("train", 4), ("train", 6)):
        log.append(event, step, {"loss": 1.0})
    log.close()
    with path.open("ab") as handle:
        handle.write(b'{"event": "train", "st')  # torn by a kill
    log = TrainingLog(path)
    log.append("resume", 4, {})
    log.append("train", 6, {"loss": 2.0})
    log.close()
    assert [(line["step"], line["loss"]) for line in read_log(path)] == [(0, 1), (2, 1), (4, 1), (6, 2)]
    assert len(path.read_text().splitlines()) == 6  # nothing whole was taken away


def test_a_corrupted_checkpoint_is_refused(tmp_path: Path) -> None:
    files = {name: {"a": torch.arange(6.0)} for name in ("model", "ema", "optimizer")}
    for step in (5, 10):
        write_checkpoint(tmp_path, step, files, {"seconds": 1.0})
    state, read = read_checkpoint(tmp_path / "step-000010")
    assert (state["step"], state["seconds"]) == (10, 1.0)
    assert torch.equal(read["ema"]["a"], torch.arange(6.0))
    path = tmp_path / "step-000010/ema.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(MieError, match=r"corrupted[\s\S]*ema\.safetensors[\s\S]*resumes from step-000005"):
        read_checkpoint(tmp_path / "step-000010")
    path.unlink()
    with pytest.raises(MieError, match="corrupted"):
        read_checkpoint(tmp_path / "step-000010")
    (tmp_path / "step-000005/state.json").write_text("{")
    with pytest.raises(MieError, match=r"state\.json[\s\S]*resumes from the beginning"):
        read_checkpoint(tmp_path / "step-000005")


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    files: dict[str, Any] = {name: {} for name in ("model", "ema", "optimizer")}
    for step in (1, 2, 3, 4, 1_000_000):
        write_checkpoint(tmp_path, step, files, {})
    (tmp_path / ".step-000009.77.tmp").mkdir()  # a write that was killed
    prune(tmp_path, 2, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000004", "step-1000000"]
    assert newest(tmp_path) == tmp_path / "step-1000000"
    assert newest(tmp_path / "none") is None


def test_trainees_by_name() -> None:
    assert trainee_class("tests.training.tiny:Tiny") is Tiny
    assert isinstance(make_trainee(tiny_config()), Tiny)
    for name, message in (
        ("compct", "did you mean 'compact'"),
        ("no.such.module:X", "cannot be imported"),
        ("json:nothing", "cannot be imported"),
        ("pathlib:Path", "is not a trainee"),
    ):
        with pytest.raises(ConfigError, match=message):
            trainee_class(name)


def test_trainees_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [
        EntryPoint("tiny", "tests.training.tiny:Tiny", "mie.trainees"),
        EntryPoint("compact", "tests.training.tiny:Tiny", "mie.trainees"),
        EntryPoint("broken", "pathlib:Path", "mie.trainees"),
    ]
    monkeypatch.setattr(
        "mie.core.registry.entry_points", lambda group: [one for one in offered if one.group == group]
    )
    assert isinstance(make_trainee(tiny_config(trainee="tiny")), Tiny)
    assert trainee_class("compact") is not Tiny, "our own names win"
    with pytest.raises(ConfigError, match=r"'broken' is not a trainee[\s\S]*no model, batch"):
        trainee_class("broken")
    ours = [
        "compact",
        "diffusers-lora",
        "flow",
        "flux-fill-lora",
        "forensic",
        "inpainter",
        "judge-lora",
        "omnigen2",
        "region",
        "segmenter",
    ]
    assert TRAINEES.names() == ["broken", *ours, "tiny"]


def test_a_trainee_of_the_wrong_keys_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data: sise[\s\S]*did you mean 'size'"):
        make_trainee(tiny_config(data={"sise": 3}))
    assert json.loads(json.dumps(tiny_config().document()))["trainee"] == "tests.training.tiny:Tiny"
