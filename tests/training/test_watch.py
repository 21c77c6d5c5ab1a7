"""Warnings come early, and once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import torch

from mie.training.watch import Watch
from tests.training.tiny import Tiny, tiny_config


def watch() -> Watch:
    return Watch(Tiny(tiny_config()), torch.device("cpu"), 1)


def lines(watch: Watch, losses: list[float], **more: float) -> list[str]:
    found = []
    for step, loss in enumerate(losses, start=1):
        line = {"loss": loss, "data_wait": 0.0, "skipped": 0, **more}
        found += watch.warnings(step, len(losses), line)
    return found


def test_a_loss_that_falls_is_not_warned_about() -> None:
    assert lines(watch(), [1 / n for n in range(1, 20)]) == []


def test_a_loss_that_does_not_fall_is_warned_about_once() -> None:
    (found,) = lines(watch(), [1.0 + 0.01 * (n % 2) for n in range(20)])
    assert "the loss does not fall: 1.00" in found


def test_a_loader_that_stalls() -> None:
    (found,) = lines(watch(), [1 / n for n in range(1, 5)], data_wait=0.5)
    assert found.startswith("50% of the time was spent waiting for batches")


def test_every_new_step_without_a_gradient_is_told() -> None:
    own = watch()
    found = [
        own.warnings(n, 9, {"loss": None, "data_wait": 0.0, "skipped": s}) for n, s in enumerate((0, 2, 2, 3))
    ]
    assert [len(some) for some in found] == [0, 1, 0, 1]
    assert found[1][0].startswith("2 steps")


def test_waiting_is_a_share_of_the_time() -> None:
    own = watch()
    own._waited = 0.5
    assert own.read(2.0) == {"data_wait": 0.25}
    assert own.read(2.0) == {"data_wait": 0.0}
