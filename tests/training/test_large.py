"""Float32 weights beside a model in bfloat16, and checkpoints in parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import torch
from torch import nn

from mie.errors import MieError
from mie.training.checkpoints import own_rows, read_checkpoint, write_checkpoint
from mie.training.config import OptimizerConfig, with_preset
from mie.training.large import Masters, WeightsAverage
from mie.training.optimize import Optimizer, eight_bit, learning_rate


def test_small_updates_are_not_lost() -> None:
    """A step far below bfloat16's resolution adds up in the masters."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False)
    start = model.weight.detach().clone()
    weights = Masters(model)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-5, weight_decay=0), weights=weights)
    for _ in range(50):
        for _ in range(2):  # two micro-batches
            model(torch.ones(1, 4, dtype=torch.bfloat16)).float().sum().backward()
        assert model.weight.grad is None, "it went over to the master"
        optimizer.step(torch.zeros(()), 1e-5)
    moved = start - weights.named["weight"]
    torch.testing.assert_close(moved, torch.full_like(moved, 50e-5), rtol=0.02, atol=0)
    assert model.weight.dtype == torch.bfloat16
    assert torch.equal(model.weight, weights.named["weight"].bfloat16())


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False)
    weights = Masters(model)
    for value in (256.0, 1.0, 1.0):  # in bfloat16 256 + 1 is 256
        model(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
    assert weights.named["weight"].grad.item() == 258
    assert weights.clip_gradients(1.0).item() == 258
    assert weights.named["weight"].grad.item() == pytest.approx(1.0)


def test_an_average_is_lent_and_given_back() -> None:
    model = nn.Linear(3, 3)
    weights = Masters(model)
    average = WeightsAverage(weights, 0.5)
    before = model.weight.detach().clone()
    with torch.no_grad():
        average.averaged["weight"].zero_()
    with average.lent():
        assert not model.weight.any()
    assert torch.equal(model.weight, before)
    assert not WeightsAverage(weights, 0).averaged


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_rows_are_shared_out_as_fsdp_does(rows: int) -> None:
    parts = [own_rows(rows, rank, 3) for rank in range(3)]
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(3)]
    assert [part.stop - part.start for part in parts] == chunks + [0] * (3 - len(chunks))


def written(root: Path, world: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint as `world` processes write it, one after another."""
    whole = {"w": torch.arange(10.0).view(5, 2), "one": torch.arange(1.0), "step": torch.tensor(3.0)}
    cut = lambda rank: {k: v[own_rows(len(v), rank, world)] if v.ndim else v for k, v in whole.items()}
    parts: list[dict[str, str]] = []
    monkeypatch.setattr("mie.training.checkpoints.wait_for_all", lambda _: None)
    monkeypatch.setattr("mie.training.checkpoints.gather", lambda mine, _: parts.append(mine) or parts)
    monkeypatch.setattr("mie.training.checkpoints.os.replace", lambda a, b: None)
    for rank in range(world):
        write_checkpoint(root, 4, {"model": cut(rank), "optimizer": cut(rank)}, {}, rank, world)
    # The main one wrote first here: it did not know of the others' files yet.
    every = {name: sha for part in parts for name, sha in part.items()}
    folder = root / ".step-000004.tmp"
    (folder / "state.json").write_text(json.dumps({"step": 4, "sha256": every}))
    return folder.rename(root / "step-000004")


@pytest.mark.parametrize(("wrote", "reads"), [(2, 1), (2, 3), (2, 2), (3, 2)])
def test_any_number_of_processes_reads_any_checkpoint(
    wrote: int, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, wrote, monkeypatch)
    pieces = [read_checkpoint(folder, rank, reads)[1]["model"] for rank in range(reads)]
    assert torch.equal(torch.cat([piece["w"] for piece in pieces]), torch.arange(10.0).view(5, 2))
    assert torch.cat([piece["one"] for piece in pieces]).tolist() == [0.0]
    assert [piece["step"].item() for piece in pieces] == [3.0] * reads
    damaged = next(folder.glob("model-00002*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    with pytest.raises(MieError, match="corrupted"):
        read_checkpoint(folder, reads - 1, reads)


def test_eight_bits_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(MieError, match=r"needs the package bitsandbytes[\s\S]*bits: 32"):
        eight_bit([], OptimizerConfig(bits=8))


def test_a_constant_rate_after_the_warm_up() -> None:
    config = OptimizerConfig(lr=1.0, warmup=3, schedule="constant")
    assert [learning_rate(step, 100, config) for step in (0, 2, 3, 99)] == [0.25, 0.75, 1.0, 1.0]


def test_the_published_preset() -> None:
    body = with_preset(
        {"preset": "miedb", "steps": 5, "data": {"bins": [256]}, "optimizer": {"lr": 1.0}}, "t"
    )
    assert body["steps"] == 5
    assert body["data"] == {"bins": [256], "caption_drop": 1e-4, "reference_drop": 0.5}
    assert body["optimizer"]["lr"] == 1.0
    assert body["optimizer"]["betas"] == [0.9, 0.95]
    assert (body["batch"], body["seed"], body["ema"]) == (64, 2233, 0)
    with pytest.raises(MieError, match=r"miedb2[\s\S]*miedb"):
        with_preset({"preset": "miedb2"}, "t")
