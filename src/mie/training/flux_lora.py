"""A LoRA for FLUX.1 Fill as a trainee: it learns to draw the healthy tissue of one family of images.

VAE and text encoders are frozen; the prompt is encoded once. What is optimised, averaged and kept in a
checkpoint is the LoRA alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.inpainters.flux_base import (
    MULTIPLE,
    PROMPTS,
    base_digest,
    encode_prompt,
    fill_picture,
    find_base,
    load_pipeline,
    need_packages,
)
from mie.inpainters.flux_weights import save_lora
from mie.records import Pixels
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.flux_adapter import LoraFactors, add_lora_layers
from mie.training.flux_data import HealthyTissue, Lesson
from mie.training.flux_flow import Flow, draw_levels, flow_loss, pose
from mie.training.pack import VALIDATION
from mie.training.pack_files import read_pack
from mie.training.seeds import step_seed
from mie.training.trainee import Trainee

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")


class DataConfig(Strict):
    """Where the images are (`mie pack`), and of which family."""

    packs: list[str] = Field(min_length=1)
    family: str
    size: int = Field(512, ge=64, le=2048, multiple_of=MULTIPLE)
    validate_rows: int = Field(32, ge=1)


class ModelConfig(Strict):
    base: str = Field(description="a folder, or a hub id in the local cache")
    rank: int = Field(16, ge=1)
    alpha: int = Field(16, ge=1)
    targets: list[str] = Field(list(_ATTENTION), min_length=1)
    guidance: float = Field(30, ge=0, description="what FLUX is told in training; use the same when filling")
    grid_steps: int = Field(20, ge=0, description="of the fills to look at; 0: none")


class FluxFillLora(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        need_packages("training a LoRA")
        if config.compile:
            raise ConfigError("a LoRA is not compiled", where="compile", expected="false", found="true")
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.shape = parse_section(ModelConfig, config.model, where="model")
        if self.data.family not in FAMILIES:
            raise ConfigError(
                "no such family", where="data.family", expected=", ".join(FAMILIES), found=self.data.family
            )

    def check(self) -> Mapping[str, Any]:
        own = self.config.path(self.shape.base)
        self._base = find_base(own if own.is_dir() else self.shape.base)
        packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        self.tissue = HealthyTissue(packs, self.data.family, self.data.size)
        return {"packs": [pack.facts["digest"] for pack in packs], "base": base_digest(self._base)}

    def prepare(self, device: torch.device) -> None:
        self.device = device
        dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        self.words = encode_prompt(self._base, PROMPTS[self.data.family], device, dtype)
        self.pipe = load_pipeline(self._base, device, dtype)
        transformer = self.pipe.transformer
        self._adapter = add_lora_layers(transformer, self.shape.rank, self.shape.alpha, self.shape.targets)
        if self.config.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()
        self._held_out = self._lessons()

    def model(self) -> nn.Module:
        return LoraFactors.fresh(self.pipe.transformer)

    def batch(self, step: int, rank: int, world: int) -> Any:
        rng = np.random.default_rng(step_seed(self.config.seed, step, rank))
        return _stacked([self.tissue.draw(rng) for _ in range(self.config.batch // world)])

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        loss, hole = self._flow(model, batch, None)
        return loss, {"hole": hole.detach()}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """The flow error inside held-out holes, with the same noise at every validation."""
        draw = torch.Generator().manual_seed(step_seed(self.config.seed, -2))
        errors = [self._flow(model, _stacked([lesson]), draw).hole.item() for lesson in self._held_out]
        flow = float(np.mean(errors)) if errors else None
        return {"score": None if flow is None else -flow, "flow": flow}

    def grid(self, model: nn.Module) -> Pixels | None:
        if not self.shape.grid_steps or not self._held_out:
            return None
        model.lend()  # type: ignore[operator]
        rows = []
        for lesson in self._held_out[:4]:
            shown = lesson.image.copy()
            shown[lesson.hole] = 255
            filled = fill_picture(
                self.pipe,
                self.words,
                shown,
                lesson.hole,
                steps=self.shape.grid_steps,
                guidance=self.shape.guidance,
                seed=self.config.seed,
            )
            output = np.where(lesson.hole[..., None], filled, lesson.image)
            rows.append(np.concatenate([shown, output, lesson.image], 1))
        return np.concatenate(rows)

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        known = {"family": self.data.family, "prompt": PROMPTS[self.data.family], "base": self.shape.base}
        save_lora(path, model.tensors(), self._adapter, {**known, **facts})  # type: ignore[operator]

    def _flow(self, model: nn.Module, batch: Any, draw: torch.Generator | None) -> Flow:
        """`draw` on the CPU; None: the device's own generator, which the loop has seeded."""
        image = batch["image"].to(self.device).permute(0, 3, 1, 2).float() / 255
        hole = batch["hole"].to(self.device)[:, None].float()
        problem = pose(self.pipe, image, hole, draw)
        place = self.device if draw is None else torch.device("cpu")
        normal = torch.randn(len(image), generator=draw, device=place)
        noise = torch.randn(problem.latents.shape, generator=draw, device=place).to(self.device)
        level = draw_levels(self.pipe, problem, normal.to(self.device))
        guidance = None
        if self.pipe.transformer.config.guidance_embeds:
            guidance = torch.full_like(level, self.shape.guidance)
        return flow_loss(model, problem, self.words, level=level, noise=noise, guidance=guidance)

    def _lessons(self) -> list[Lesson]:
        if not self.tissue.images[VALIDATION]:
            return []
        rng = np.random.default_rng(step_seed(self.config.seed, -2))
        return [self.tissue.draw(rng, VALIDATION) for _ in range(self.data.validate_rows)]


def _stacked(lessons: list[Lesson]) -> dict[str, Tensor]:
    """`(B, S, S, 3)` and `(B, S, S)` bytes."""
    image, hole = (np.stack(arrays) for arrays in zip(*lessons, strict=True))
    return {"image": torch.from_numpy(image), "hole": torch.from_numpy(hole)}
