"""The flow expert as a trainee: one network that fills holes with tissue, or with a lesion by name.

It is trained on the lesions and on the healthy tissue of packs (`flow_data`) by flow matching
(`networks.flow`): squared error of the velocity inside the hole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.networks import weights
from mie.networks.flow import FORMAT, FlowConfig, FlowNet, draw, scene, velocity_target
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.flow_data import Crops, Cutter, FlowData, flow_data, lesion_names
from mie.training.pack import TRAIN, VALIDATION, read_pack
from mie.training.trainee import Trainee

_STRONG: Final = 4.0  # a mean square in units of the grain: stronger lesions count no more than this
_TIMES: Final = 8  # at which the velocity is validated
_AT_ONCE: Final = 64
_SHOWN: Final = 10


class DataConfig(Strict):
    packs: list[str] = Field(min_length=1)
    least: int = Field(4, ge=1, description="training rows that show a lesion before its name is learnt")
    validate_crops: int = Field(256, ge=2)


class ModelConfig(Strict):
    widths: tuple[int, int, int] = (64, 160, 256)
    steps: int = Field(12, ge=1, description="of the sampler, in validation")


class Flow(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.options = parse_section(ModelConfig, config.model, where="model")
        if any(width % 8 for width in self.options.widths):
            raise ConfigError(
                "widths must be multiples of 8", where="model.widths", found=self.options.widths
            )

    def check(self) -> Mapping[str, Any]:
        packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        self.targets = lesion_names(packs, TRAIN, self.data.least)
        self.folds = {
            fold: flow_data(packs, fold, self.targets, self.config.seed) for fold in (TRAIN, VALIDATION)
        }
        return {"packs": [pack.facts["digest"] for pack in packs], "targets": list(self.targets)}

    def prepare(self, device: torch.device) -> None:
        self.cutter = Cutter(self.folds[TRAIN], device)
        self.held_out = Cutter(self._with_shapes(self.folds[VALIDATION]), device)
        del self.folds

    def _with_shapes(self, fold: FlowData) -> FlowData:
        """Outlines are the training fold's in both."""
        return FlowData(**{**fold.arrays(), "shapes": self.folds[TRAIN].shapes})

    def model(self) -> nn.Module:
        return FlowNet(FlowConfig(self.targets, FAMILIES, self.options.widths))

    def batch(self, step: int, rank: int, world: int) -> Any:
        return {"seed": step_seed(self.config.seed, step, rank), "count": self.config.batch // world}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        crops = self.cutter.cut(batch["count"], batch["seed"])
        t = torch.randn(batch["count"], device=crops.image.device).sigmoid()
        each = self._errors(model, crops, t, torch.randn_like(crops.image))
        middle = batch["count"] // 2
        parts = {"lesions": each[:middle].mean(), "healthy": each[middle:].mean()}
        return each.mean(), {name: value.detach() for name, value in parts.items()}

    def _errors(self, model: nn.Module, crops: Crops, t: Tensor, noise: Tensor) -> Tensor:
        """The mean squared error of each crop's velocity inside its hole, `(B,)`."""
        around = scene(crops.image, crops.hole, crops.lesion)
        channels = _channels(model, crops)
        residual = channels * around.residual(crops.image)
        x, velocity = velocity_target(residual, channels * noise, t)
        found = model(around.hole * x, t, around.context, crops.conditions)
        learnt = channels * crops.learnt
        count = learnt.sum((1, 2, 3)).clamp(min=1)
        power = (learnt * residual**2).sum((1, 2, 3)) / count
        error = (learnt * (found - velocity) ** 2).sum((1, 2, 3)) / count
        return error / (power / _STRONG).clamp(min=1)

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Measure the loss on held-out patients, and PSNR and grain of what is drawn there."""
        count = self.data.validate_crops // 2 * 2
        crops = self.held_out.cut(count, self.config.seed)
        random = torch.Generator(crops.image.device).manual_seed(self.config.seed)
        noise = torch.randn(crops.image.shape, generator=random, device=crops.image.device)
        figures: dict[str, list[Tensor]] = {"loss": [], "psnr": [], "variance_ratio": []}
        for start in range(0, count, _AT_ONCE):
            part = _part(crops, slice(start, start + _AT_ONCE))
            some = noise[start : start + _AT_ONCE]
            for at in range(_TIMES):
                t = torch.full((len(some),), (at + 0.5) / _TIMES, device=some.device)
                figures["loss"].append(self._errors(model, part, t, some) / _TIMES)
            drawn = self._drawn(model, part, some)
            inside = part.learnt
            area = inside.sum((1, 2, 3)).clamp(min=1)
            error = (inside * (drawn - part.image) ** 2).sum((1, 2, 3)) / (3 * area)
            figures["psnr"].append(-10 * error.clamp(min=1e-6).log10())
            energy = [_energy(image, inside) for image in (drawn, part.image)]
            figures["variance_ratio"].append((energy[0] + 1e-6) / (energy[1] + 1e-6))
        loss = torch.cat(figures["loss"]).view(-1, _TIMES, min(_AT_ONCE, count)).sum(1).flatten()
        psnr, ratio = (torch.cat(figures[name]) for name in ("psnr", "variance_ratio"))
        middle = count // 2
        return {
            "score": -float(loss.mean()),
            "loss_lesions": float(loss[:middle].mean()),
            "loss_healthy": float(loss[middle:].mean()),
            "psnr_lesions": float(psnr[:middle].mean()),
            "psnr_healthy": float(psnr[middle:].mean()),
            "variance_ratio_lesions": float(ratio[:middle].median()),
            "variance_ratio_healthy": float(ratio[middle:].median()),
        }

    def _drawn(self, model: nn.Module, crops: Crops, noise: Tensor) -> Tensor:
        around = scene(crops.image, crops.hole, crops.lesion)
        channels = _channels(model, crops)
        drawn = draw(model, around, crops.conditions, channels * noise, steps=self.options.steps)
        return around.compose(drawn)

    def grid(self, model: nn.Module) -> Pixels | None:
        """Lesions on the left, healthy tissue on the right: hole, two draws, truth."""
        crops = self.held_out.cut(2 * _SHOWN, self.config.seed + 1)
        random = torch.Generator(crops.image.device).manual_seed(self.config.seed)
        draws = [
            self._drawn(
                model, crops, torch.randn(crops.image.shape, generator=random, device=crops.image.device)
            )
            for _ in range(2)
        ]
        hidden = crops.image * (1 - crops.hole) + 0.5 * crops.hole + 0.2 * crops.lesion
        rows = [
            np.hstack([_pixels(x[at]) for x in (hidden, *draws, crops.image)]) for at in range(2 * _SHOWN)
        ]
        return np.hstack([np.vstack(rows[:_SHOWN]), np.vstack(rows[_SHOWN:])])

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        net = _net(model)
        weights.save(path, net.state_dict(), format=FORMAT, config=net.config.as_json(), meta=dict(facts))


def _net(model: nn.Module) -> FlowNet:
    net = getattr(model, "module", model)  # as wrapped for several processes
    assert isinstance(net, FlowNet)  # noqa: S101
    return net


def _channels(model: nn.Module, crops: Crops) -> Tensor:
    return _net(model).channels(crops.conditions.family)


def _part(crops: Crops, which: slice) -> Crops:
    conditions = type(crops.conditions)(*(value[which] for value in crops.conditions))
    image, hole, lesion, learnt = (value[which] for value in crops[:4])
    return Crops(image, hole, lesion, learnt, conditions, crops.of[which])


def _energy(image: Tensor, inside: Tensor) -> Tensor:
    """The mean square of what differs between neighbouring pixels, both inside."""
    grey = image.mean(1, keepdim=True)
    total, count = grey.new_zeros(len(grey)), grey.new_zeros(len(grey))
    for axis in (2, 3):
        both = inside.narrow(axis, 1, inside.shape[axis] - 1) * inside.narrow(axis, 0, inside.shape[axis] - 1)
        total = total + (both * grey.diff(dim=axis) ** 2).sum((1, 2, 3))
        count = count + both.sum((1, 2, 3))
    return total / count.clamp(min=1)


def _pixels(image: Tensor) -> Pixels:
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
