"""The region detector as a trainee: it tells lesions from healthy places with the same outlines.

It learns from real tissue alone. Had it seen healed images as healthy and drawn lesions as lesions, it could
tell them by the traces of the network that drew them, and would pass whatever that network makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from mie.core.hashing import stable_hash
from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.networks import weights
from mie.networks.pretrained import read_pth_tensors
from mie.networks.region import FORMAT, RegionConfig, RegionNet, load_region
from mie.perspectives.modification.detectors.region import Looked, region_quality
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.flow_data import flow_data, lesion_names
from mie.training.pack import TRAIN, VALIDATION, Pack, read_pack
from mie.training.region_crops import SquareCutter
from mie.training.trainee import Trainee

_AT_ONCE: Final = 64
_PLACES: Final = 3  # healthy places for each held-out lesion
_SHOWN: Final = 12


class DataConfig(Strict):
    packs: list[str] = Field(min_length=1)
    measured: list[str] = Field([], description="packs whose patients are held out, and no others")
    part: tuple[int, int] | None = Field(
        None, description="hold out this one of so many parts of the patients, as in [0, 5]"
    )

    @model_validator(mode="after")
    def _known(self) -> DataConfig:
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise ValueError("part names one of so many, counted from 0, as in [0, 5]")
        if self.part is not None and self.measured:
            raise ValueError("give measured or part: each says who is held out")
        return self


class ModelConfig(Strict):
    trunk: str | None = Field(None, description="the file of the trunk's pretrained weights")
    trunk_lr: float = Field(0.3, gt=0, le=1, description="the trunk's share of the learning rate")
    width: int = Field(RegionConfig(()).width, gt=0, multiple_of=8)
    blocks: int = Field(RegionConfig(()).blocks, ge=0)
    dropout: float = Field(RegionConfig(()).dropout, ge=0, lt=1)


class Region(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.shape = parse_section(ModelConfig, config.model, where="model")
        self.slower = {"trunk.": self.shape.trunk_lr}
        self.net = RegionConfig(FAMILIES, self.shape.width, self.shape.blocks, self.shape.dropout)

    def check(self) -> Mapping[str, Any]:
        paths = (*self.data.packs, *self.data.measured)
        self._packs = [read_pack(self.config.path(path)) for path in paths]
        if self.shape.trunk is not None:
            self.config.trunk_file(self.shape.trunk)
        return {"packs": [pack.facts["digest"] for pack in self._packs]}

    def prepare(self, device: torch.device) -> None:
        whole = [_one_fold(pack) for pack in self._packs]
        self.targets = lesion_names(whole, TRAIN, 1)
        data = flow_data(whole, TRAIN, self.targets, self.config.seed)
        self.patients = data.patients[data.lesions[:, 0].astype(np.int64)]
        people = sorted(self._held_out(data.patients))
        held_out = np.isin(self.patients, people)
        if held_out.all():
            raise ConfigError("every patient is held out", where="data", fix="give packs with more patients")
        self.pool = SquareCutter(data, device, np.isin(data.patients, people))
        self.chances = self.pool.weights(np.flatnonzero(~held_out))
        self.measured = torch.from_numpy(np.flatnonzero(held_out)).to(device)

    def _held_out(self, patients: np.ndarray) -> set[str]:
        """The part's patients, those of the measured packs, or else those of the validation fold."""
        if self.data.part is not None:
            at, of = self.data.part
            return {str(name) for name in patients if stable_hash("part", str(name)) % of == at}
        packs = self._packs[len(self.data.packs) :]
        rows = (
            [row for pack in packs for row in pack.rows]
            if packs
            else [row for pack in self._packs for row in pack.rows if row.fold == VALIDATION]
        )
        return {row.patient_id or f"{row.source}/{row.input}" for row in rows}

    def model(self) -> nn.Module:
        net = RegionNet(self.net)
        if self.shape.trunk is not None:
            net.trunk.load_pretrained(read_pth_tensors(self.config.trunk_file(self.shape.trunk)))
        return net

    def batch(self, step: int, rank: int, world: int) -> Any:
        return {"seed": step_seed(self.config.seed, step, rank), "count": self.config.batch // world}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        squares = self.pool.draw(self.chances, int(batch["count"]), int(batch["seed"]))
        logits = model(squares.image, squares.outline, squares.family).float()
        each = F.binary_cross_entropy_with_logits(logits, 0.03 + 0.94 * squares.lesion, reduction="none")
        # Healthy places that could not be had count nothing; those that could, for them too.
        share = squares.valid * torch.where(
            squares.lesion > 0, 1.0, len(each) / 2 / ((1 - squares.lesion) * squares.valid).sum().clamp(min=1)
        )
        return (each * share).mean(), {"valid": squares.valid.mean()}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        looked = self.looked(model)
        lesions = np.array([one.lesion for one in looked])
        healthy = np.array([p for one in looked for p in one.healthy])
        if not lesions.size or not healthy.size:
            return {"score": None}
        above = (lesions[:, None] > healthy[None]).mean() + 0.5 * (lesions[:, None] == healthy[None]).mean()
        figures: dict[str, float | None] = {"score": float(above)}
        for family, found in region_quality(looked).items():
            figures[f"sensitivity/{family}"] = found["sensitivity"]
            figures[f"false_alarms/{family}"] = found["false_alarms"]
        return figures

    @torch.no_grad()
    def looked(self, model: nn.Module) -> list[Looked]:
        """Every held-out lesion, with healthy places of its outline."""
        rows = self.pool.data.lesions[self.measured.cpu().numpy()]
        lesions, _ = self._likely(model, 1.0, 0)
        places = [self._likely(model, 0.0, 1 + k) for k in range(_PLACES)]
        data, found = self.pool.data, []
        for at, row in enumerate(rows):
            image = int(row[0])
            healthy = tuple(round(float(p[at]), 5) for p, valid in places if valid[at] > 0)
            name = f"{data.sources[image]}/{image}"
            family = FAMILIES[int(data.families[image])]
            one = (family, self.targets[int(row[2])], str(data.patients[image]), name)
            found.append(Looked(*one, round(float(lesions[at]), 5), healthy))
        return found

    def _likely(self, model: nn.Module, lesion: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        likely, valid = [], []
        for start in range(0, len(self.measured), _AT_ONCE):
            of = self.measured[start : start + _AT_ONCE]
            squares = self.pool.held_out(
                of, lesion, stable_hash("place", self.config.seed, seed, start) >> 33
            )
            likely.append(model(squares.image, squares.outline, squares.family).float().sigmoid().cpu())
            valid.append(squares.valid.cpu())
        if not likely:
            return np.zeros(0), np.zeros(0)
        return torch.cat(likely).numpy(), torch.cat(valid).numpy()

    def grid(self, model: nn.Module) -> Pixels | None:
        """Lesions above, healthy places with the same outlines below."""
        of = self.measured[:: max(1, len(self.measured) // _SHOWN)][:_SHOWN]
        if not len(of):
            return None
        rows = []
        for lesion in (1.0, 0.0):
            squares = self.pool.held_out(of, lesion, 1)
            edge = F.max_pool2d(squares.outline, 3, 1, 1) - squares.outline
            shown = squares.image * (1 - edge) + edge
            rows.append(np.hstack(list((shown * 255).byte().permute(0, 2, 3, 1).cpu().numpy())))
        return np.vstack(rows)

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        """Save in eight bits first; what is stated of the weights is measured on those very ones."""
        weights.save(path, model.state_dict(), format=FORMAT, config=self.net.as_json())
        net, _ = load_region(path)
        looked = self.looked(net.to(self.pool.device))
        meta = {**facts, "looked": [list(one) for one in looked], "quality": region_quality(looked)}
        weights.save(path, model.state_dict(), format=FORMAT, config=self.net.as_json(), meta=meta)


def with_quality(path: Path, to: Path, looked: Sequence[Looked]) -> None:
    """Write a weights file again with figures of more people, none of whom its network has seen.

    The figures of a cross-validation describe how such a network does, not this very one.
    """
    found = weights.load(path, format=FORMAT)
    meta = {key: value for key, value in found.meta.items() if key != "looked"}
    weights.save(
        to, found.state, format=FORMAT, config=found.config, meta={**meta, "quality": region_quality(looked)}
    )


def _one_fold(pack: Pack) -> Pack:
    rows = [replace(row, fold=TRAIN) for row in pack.rows]
    return Pack(pack.images, pack.masks, rows, pack.instructions, pack.facts)
