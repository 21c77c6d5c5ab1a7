"""Parameters named as slower learn at their share of the rate."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import torch
from torch import nn

from mie.training.config import OptimizerConfig
from mie.training.optimize import Optimizer


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 4)
        self.trunkless = nn.Linear(4, 3)  # begins alike, but is not below `trunk.`
        self.head = nn.Linear(3, 2)


def warp(slower: dict[str, float] | None, decay: float = 0.0, lr: float = 1e-2) -> dict[str, torch.Tensor]:
    """How far each parameter goes in the first step, in units of lr."""
    torch.manual_seed(0)
    model = Two()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = Optimizer(model, OptimizerConfig(weight_decay=decay, clip=1e9), slower)
    loss = sum((p * torch.randn_like(p).sign()).sum() for p in model.parameters())
    loss.backward()
    optimizer.step(loss, lr)
    return {name: (p.detach() - before[name]) / lr for name, p in model.named_parameters()}


def test_the_first_step_of_adamw_is_the_rate_times_the_share() -> None:
    for name, step in warp({"trunk.": 0.2}).items():
        share = 0.2 if name.startswith("trunk.") else 1.0
        torch.testing.assert_close(step.abs(), torch.full_like(step, share), rtol=1e-3, atol=1e-4)


def test_all_learn_alike_by_default() -> None:
    for step in warp(None).values():
        torch.testing.assert_close(step.abs(), torch.ones_like(step), rtol=1e-3, atol=1e-4)


def test_the_share_is_of_the_decay_too() -> None:
    """Decoupled decay is lr * decay * weight, so a slower weight also decays slower; vectors never do."""
    torch.manual_seed(0)
    start = dict(Two().named_parameters())
    plain, decayed = warp({"trunk.": 0.5}), warp({"trunk.": 0.5}, decay=0.1)
    for name, step in decayed.items():
        share = 0.5 if name.startswith("trunk.") else 1.0
        expected = -0.1 * share * start[name].detach() if start[name].ndim > 1 else torch.zeros_like(step)
        torch.testing.assert_close(step - plain[name], expected, rtol=1e-3, atol=1e-4)
