"""A small U-Net as a trainee: a lesion detector for a family of images, or a specialist for one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mie.detectors.compact import FORMAT, load_detector
from mie.detectors.network import STRIDE, NetConfig, UNet
from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.networks import weights
from mie.records import Pixels
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.losses import overlay_loss
from mie.training.pack import Pack
from mie.training.pack_files import read_pack
from mie.training.seeds import step_seed
from mie.training.segmenter_data import Marked, SegmenterData, Wanted, marked_images
from mie.training.segmenter_validation import SegmenterValidation
from mie.training.trainee import Trainee
from mie.vocabulary import nearest_name

Width = Annotated[int, Field(gt=0, multiple_of=8)]
Blocks = Annotated[int, Field(ge=0)]


class DataConfig(Strict):
    """Which rows of which packs. The validation fold of the packs is held out, always."""

    packs: list[str] = Field(min_length=1)
    family: str | None = Field(None, description="a detector of lesions in such images")
    sources: list[str] = Field([], description="only these data sets")
    targets: list[str] = Field([], description="only these targets")
    rows: Literal["lesion", "structure"] = "lesion"
    side: int = Field(
        256, ge=STRIDE, multiple_of=STRIDE, description="the longer side of an image as it is seen"
    )

    @model_validator(mode="after")
    def _known(self) -> DataConfig:
        if self.family is not None and self.family not in FAMILIES:
            near = nearest_name(self.family, FAMILIES)
            raise ValueError(f"no family {self.family!r}; " + (near or f"one of {', '.join(FAMILIES)}"))
        if self.family is None and not self.sources:
            raise ValueError("give a family (a detector), or sources and targets (a specialist)")
        return self


class ModelConfig(Strict):
    """The network's shape (`NetConfig`), and the file of the trunk's pretrained weights."""

    encoder: Literal["none", "short", "whole"] = "short"
    trunk: str | None = None
    trunk_lr: float = Field(0.3, gt=0, le=1, description="the trunk's share of the rate")
    widths: tuple[Width, Width, Width, Width, Width] = NetConfig().widths
    down: tuple[Blocks, Blocks, Blocks, Blocks, Blocks] = NetConfig().down
    up: tuple[Blocks, Blocks, Blocks, Blocks] = NetConfig().up
    pixel: int = Field(NetConfig().pixel, gt=0)


class Segmenter(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.shape = parse_section(ModelConfig, config.model, where="model")
        self.slower = {"trunk.": self.shape.trunk_lr}
        self.net = NetConfig(
            self.shape.widths,
            self.shape.down,
            self.shape.up,
            self.shape.pixel,
            self.shape.encoder,
            self.data.side,
        )

    def check(self) -> Mapping[str, Any]:
        self._trunk()
        packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        wanted = Wanted(self.data.rows, self.data.family, tuple(self.data.sources), tuple(self.data.targets))
        images = marked_images(packs, wanted)
        self.train = [one for one in images if not one.held_out]
        self.held_out = [one for one in images if one.held_out]
        if not any(one.mask.any() for one in self.train):
            raise self._nothing(packs)
        return {"packs": [pack.facts["digest"] for pack in packs]}

    def prepare(self, device: torch.device) -> None:
        self.pool = SegmenterData(self.train, self.data.side, device)
        # A specialist is the bound for DICE; a detector has to find as well as to outline.
        by = "dice" if self.data.family is None else "lesions"
        self.validation = SegmenterValidation(self.held_out, self.data.side, device, by)

    def model(self) -> nn.Module:
        net = UNet(self.net)
        if (path := self._trunk()) is not None and net.trunk is not None:
            net.trunk.load_pretrained(torch.load(path, weights_only=True, map_location="cpu"))
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net(torch.zeros(1, 3, self.pool.view, self.pool.view))
        self.flops_per_image = 3.0 * counter.get_total_flops()
        return net

    def batch(self, step: int, rank: int, world: int) -> Any:
        seed = step_seed(self.config.seed, step, rank)
        place = self.pool.choose(np.random.default_rng(seed), self.config.batch // world)
        return {"seed": seed, "place": torch.from_numpy(place)}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        image, mask, counted = self.pool.views(batch["place"], batch["seed"])
        # Dice counts in views without a lesion too: there it is what a false finding costs.
        asked = torch.ones(len(image), 1, device=image.device)
        return overlay_loss(model(image).float(), mask, counted, asked).mean(), {}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        return self.validation.figures(model)

    def grid(self, model: nn.Module) -> Pixels | None:
        return self.validation.grid(model)

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        """Eight bits first; then the threshold and the quality are those of the very weights in the file."""
        state = model.state_dict()
        weights.save(path, state, format=FORMAT, config=self.net.as_json())
        net, _ = load_detector(path)
        chosen = self.validation.choose(net.to(self.validation.device))
        meta = {
            **facts,
            "family": self.data.family,
            "sources": sorted({one.source for one in self.train}),
            "targets": self.data.targets,
            "threshold": chosen.threshold,
            "quality": chosen.as_json(),
            "trained_on": counts(self.train),
        }
        weights.save(path, state, format=FORMAT, config=self.net.as_json(), meta=meta)

    def _trunk(self) -> Path | None:
        if self.shape.trunk is None:
            return None
        if self.shape.encoder == "none":
            raise ConfigError(
                "an encoder without a trunk takes no trunk's weights",
                where="model.trunk",
                fix="say encoder: short or whole, or leave out model.trunk",
            )
        path = self.config.path(self.shape.trunk)
        if not path.is_file():
            raise ConfigError(
                "no such file of pretrained weights",
                where=path,
                fix="examples/compact/README.md says where it comes from; or leave out model.trunk",
            )
        return path

    def _nothing(self, packs: Sequence[Pack]) -> ConfigError:
        """A filter that lets nothing through, with the name that was perhaps meant."""
        rows = [row for pack in packs for row in pack.rows if row.perspective == "perception"]
        for key, asked, known in (
            ("sources", self.data.sources, {row.source for row in rows}),
            ("targets", self.data.targets, {row.target for row in rows}),
        ):
            for name in asked:
                if name not in known:
                    near = nearest_name(name, known)
                    return ConfigError(
                        f"{name!r} is not in the packs",
                        where=f"data.{key}",
                        fix=f"did you mean {near!r}?" if near else None,
                    )
        return ConfigError(
            "nothing to train on",
            where="data",
            expected=f"training rows of the task {self.data.rows}"
            + (f" in {self.data.family} images" if self.data.family else " with these sources and targets"),
            found=f"{len(rows)} perception rows, none of them such",
            fix="pack a dataset that has them with `mie pack`",
        )


def counts(images: Sequence[Marked]) -> dict[str, int]:
    """How many images, how many of them healthy, and how many patients."""
    return {
        "images": len(images),
        "healthy": sum(not one.mask.any() for one in images),
        "patients": len({one.patient for one in images}),
    }
