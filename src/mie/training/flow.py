"""The flow expert as a trainee: one network that fills holes with tissue, or with a lesion by name.

It is trained on the lesions and on the healthy tissue of packs (`flow_data`) by flow matching
(`networks.flow`): squared error of the velocity of both bands inside the hole (`flow_loss`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from mie.core.files import digest
from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.networks import weights
from mie.networks.flow import FORMAT, HEALTHY, FlowConfig, FlowNet, Steps
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.flow_crops import Cutter, FlowData
from mie.training.flow_data import flow_data, lesion_extents, lesion_names
from mie.training.flow_loss import (
    coarse_errors,
    drawn,
    energy,
    fine_errors,
    measured_strengths,
    noise_like,
    psnr,
)
from mie.training.pack import TRAIN, VALIDATION, read_pack
from mie.training.trainee import Trainee

_TIMES: Final = 8  # at which the velocity is validated
_AT_ONCE: Final = 64
_SHOWN: Final = 10
_MEASURED: Final = 8192  # crops that the strength of both bands is measured on


class DataConfig(Strict):
    packs: list[str] = Field(min_length=1)
    least: int = Field(4, ge=1, description="training rows that show a lesion before its name is learnt")
    validate_crops: int = Field(256, ge=2)


class ModelConfig(Strict):
    start: str | None = Field(
        None, description="weights to go on from; families and lesions are matched by name"
    )
    widths: tuple[int, int, int] = (64, 160, 256)
    steps: tuple[int, int] = Field((6, 6), description="of the sampler for each band, in validation")
    measured: int = Field(_MEASURED, ge=16, description="crops on which the bands' strength is measured")


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
        facts: dict[str, Any] = {
            "packs": [pack.facts["digest"] for pack in packs],
            "targets": list(self.targets),
        }
        if self.options.start is not None:
            facts["start"] = digest(self.config.path(self.options.start))
        return facts

    def prepare(self, device: torch.device) -> None:
        self.extents = lesion_extents(self.folds[TRAIN], self.targets)
        self.cutter = Cutter(self.folds[TRAIN], device)
        self.held_out = Cutter(self._with_shapes(self.folds[VALIDATION]), device)
        del self.folds

    def _with_shapes(self, fold: FlowData) -> FlowData:
        """Outlines are the training fold's in both."""
        return FlowData(**{**fold.arrays(), "shapes": self.folds[TRAIN].shapes})

    def model(self) -> nn.Module:
        net = FlowNet(FlowConfig(self.targets, FAMILIES, self.options.widths)).to(self.cutter.device)
        net.strengths.copy_(measured_strengths(self.cutter, net, self.options.measured, self.config.seed))
        if self.options.start is not None:
            go_on_from(net, self.config.path(self.options.start))
        return net

    def batch(self, step: int, rank: int, world: int) -> Any:
        return {"seed": step_seed(self.config.seed, step, rank), "count": self.config.batch // world}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        crops = self.cutter.cut(batch["count"], batch["seed"])
        parts: dict[str, Tensor] = {}
        for number, errors in enumerate((coarse_errors, fine_errors)):
            some = crops.part(slice(number, None, 2))
            t = torch.randn(len(some.image), device=some.image.device).sigmoid()
            each = errors(model, _net(model), some, t, noise_like(_net(model), some))
            middle = len(each) // 2
            band = ("coarse", "fine")[number]
            parts[f"{band}_lesions"], parts[f"{band}_healthy"] = each[:middle].mean(), each[middle:].mean()
        loss = torch.stack(list(parts.values())).mean()
        return loss, {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Measure the loss on held-out patients, and PSNR and grain of what is drawn there."""
        net = _net(model)
        count = self.data.validate_crops // 2 * 2
        crops = self.held_out.cut(count, self.config.seed)
        random = torch.Generator(crops.image.device).manual_seed(self.config.seed)
        figures: dict[str, list[Tensor]] = {"coarse": [], "fine": [], "psnr": [], "variance_ratio": []}
        for start in range(0, count, _AT_ONCE):
            part = crops.part(slice(start, start + _AT_ONCE))
            noise = noise_like(net, part, random)
            for name, errors in (("coarse", coarse_errors), ("fine", fine_errors)):
                times = [
                    torch.full_like(part.target, k + 0.5, dtype=torch.float) / _TIMES for k in range(_TIMES)
                ]
                each = [errors(model, net, part, t, noise) for t in times]
                figures[name].append(torch.stack(each).mean(0))
            made = drawn(model, net, part, noise, Steps(*self.options.steps))
            figures["psnr"].append(psnr(made, part))
            both = [energy(image, part.hole) for image in (made, part.image)]
            figures["variance_ratio"].append((both[0] + 1e-6) / (both[1] + 1e-6))
        halves = {"lesions": slice(0, count // 2), "healthy": slice(count // 2, None)}
        values = {name: torch.cat(parts) for name, parts in figures.items()}
        found: dict[str, float | None] = {"score": -float((values["coarse"] + values["fine"]).mean() / 2)}
        for name, value in values.items():
            for kind, which in halves.items():
                middle = torch.median if name == "variance_ratio" else torch.mean
                found[f"{name}_{kind}"] = float(middle(value[which]))
        return found

    def grid(self, model: nn.Module) -> Pixels | None:
        """Lesions on the left, healthy tissue on the right: hole, two draws, truth."""
        net = _net(model)
        crops = self.held_out.cut(2 * _SHOWN, self.config.seed + 1)
        random = torch.Generator(crops.image.device).manual_seed(self.config.seed)
        draws = [
            drawn(model, net, crops, noise_like(net, crops, random), Steps(*self.options.steps))
            for _ in range(2)
        ]
        hidden = crops.image * (1 - crops.hole) + 0.5 * crops.hole + 0.2 * crops.lesion
        rows = [
            np.hstack([_pixels(x[at]) for x in (hidden, *draws, crops.image)]) for at in range(2 * _SHOWN)
        ]
        return np.hstack([np.vstack(rows[:_SHOWN]), np.vstack(rows[_SHOWN:])])

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        net = _net(model)
        meta = {**facts, "extents": self.extents}
        weights.save(path, net.state_dict(), format=FORMAT, config=net.config.as_json(), meta=meta)


def go_on_from(net: FlowNet, path: Path) -> None:
    """Take over weights: what both know of families and lesions by name, everything else as it is.

    Strengths are the units that its bands were learnt in, so known ones stay.
    """
    found = weights.load(path, format=FORMAT)
    old = weights.build(lambda: FlowNet(FlowConfig.from_json(found.config)), found, path)
    if old.config.widths != net.config.widths:
        raise ConfigError(
            "the weights are of another size", where=path, expected=net.config.widths, found=old.config.widths
        )
    families = [(at, old.config.families.index(name)) for at, name in enumerate(net.config.families)
                if name in old.config.families]  # fmt: skip
    names = (None, HEALTHY, *net.config.targets)
    targets = [(at, old.config.target(name)) for at, name in enumerate(names)
               if name in (None, HEALTHY, *old.config.targets)]  # fmt: skip
    state = old.state_dict()
    by_name = {"family.weight", "target.weight", "strengths"}
    with torch.no_grad():
        net.load_state_dict({name: state[name] for name in state.keys() - by_name}, strict=False)
        for table, known in (("family", families), ("target", targets)):
            for new, at in known:
                net.get_parameter(f"{table}.weight")[new] = state[f"{table}.weight"][at]
        for new, at in families:
            for new_target, at_target in targets:
                net.strengths[new, new_target] = state["strengths"][at, at_target]


def _net(model: nn.Module) -> FlowNet:
    net = getattr(model, "module", model)  # as wrapped for several processes
    assert isinstance(net, FlowNet)  # noqa: S101
    return net


def _pixels(image: Tensor) -> Pixels:
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
