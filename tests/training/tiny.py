"""A trainee for tests: three convolutions learn to blur random pictures. Also run by subprocesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_config, parse_section
from mie.training.trainee import Trainee


class TinyData(Strict):
    size: int = 12
    bad_steps: tuple[int, ...] = ()  # a not-a-number in the batch
    fail_at: int | None = None  # the batch thread raises
    fits: int | None = None  # more images than this run out of memory
    digest: str = "0"
    datasets: tuple[Any, ...] = ()


class TinyModel(Strict):
    width: int = 6
    norm: bool = False
    dropout: float = 0.1


@dataclass(frozen=True)
class Batch:
    image: Tensor
    goal: Tensor


class Tiny(Trainee):
    score = "psnr"
    flops_per_image = 1e6

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(TinyData, config.data, where="data")
        self.net = parse_section(TinyModel, config.model, where="model")

    def check(self) -> Mapping[str, Any]:
        return {"tiny": self.data.digest}

    def model(self) -> nn.Module:
        width, norm = self.net.width, nn.BatchNorm2d if self.net.norm else nn.Identity
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), norm(width), nn.GELU(), nn.Dropout(self.net.dropout),
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, 3, 3, padding=1),
        )  # fmt: skip

    def batch(self, step: int, rank: int, world: int) -> Batch:
        if step == self.data.fail_at:
            raise ValueError("no such picture")
        # The whole batch is drawn, then shared out: two processes see what one sees.
        draw = torch.Generator().manual_seed(step_seed(self.config.seed, step))
        image = torch.rand(self.config.batch, 3, self.data.size, self.data.size, generator=draw)
        if step in self.data.bad_steps:
            image[0, 0, 0, 0] = float("nan")
        part = slice(rank, None, world)
        return Batch(image[part], avg_pool2d(image, 3, 1, 1)[part])

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        if self.data.fits is not None and len(batch.image) > self.data.fits:
            raise torch.OutOfMemoryError("tried to allocate 7 GiB")
        loss = (model(batch.image) - batch.goal).square().mean()
        return loss, {"rmse": loss.detach().sqrt()}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        batch = self.batch(10**6, 0, 1)
        error = (model(batch.image) - batch.goal).square().mean().item()
        return {"psnr": -10 * float(np.log10(error)), "unscored": None}

    def grid(self, model: nn.Module) -> Pixels:
        image = self.batch(10**6, 0, 1).image[:1]
        both = torch.cat([image, model(image)], dim=3)[0].clamp(0, 1).permute(1, 2, 0)
        return (both.float() * 255).byte().cpu().numpy()

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        tensors = {k: v.contiguous() for k, v in model.state_dict().items()}
        path.write_bytes(save(tensors, {"step": str(facts["step"])}))


class TinyEditor(Tiny):
    """Takes part in an experiment: what it trains edits as `otsu` does, whatever was learned."""

    reads = "datasets"

    def editor(self, product: Path) -> str:
        return "otsu"


def tiny_config(base: Path | str = ".", **changes: Any) -> TrainConfig:
    body: dict[str, Any] = {
        "name": "tiny",
        "trainee": "tests.training.tiny:Tiny",
        "seed": 3,
        "steps": 12,
        "batch": 4,
        "optimizer": {"lr": 1e-2, "warmup": 2},
        "precision": "fp32",
        "checkpoint": {"every": 4},
        "validate": {"every": 6},
        "log_every": 2,
    }
    return parse_config({**body, **changes}, base=base)
