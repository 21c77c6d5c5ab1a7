"""A LoRA for an editing pipeline of diffusers as a trainee: FLUX.1 Kontext, Qwen-Image-Edit, InstructPix2Pix.

Data, cache, mixture, bins and losses are those of the trainee `omnigen2`; what differs between pipelines is
a row of `mie.training.teaching`. What comes out is one safetensors file, which `mie run -e
diffusers:…,lora=FILE` and diffusers itself read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from mie.errors import ConfigError
from mie.networks.lora import LoraFactors, adapter_config, add_lora
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig
from mie.training.edit_rows import EditRow, MicroPlan, images_to_encode
from mie.training.latent_cache import content_key, weights_digest
from mie.training.machine import whose_turn
from mie.training.omnigen2 import DataConfig as DataConfig
from mie.training.omnigen2 import LoraConfig, OmniGen2
from mie.training.teaching import Teaching, teaching_of


class PipelineLora(LoraConfig):
    """As OmniGen2's, but the targets are those of the pipeline's row by default."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(16, gt=0)
    targets: list[str] = Field([], description="ends of layers' names; the pipeline's own by default")


class ModelConfig(Strict):
    base: str = Field(description="the pipeline's folder, or a hub id in the local cache")
    lora: PipelineLora = PipelineLora()
    micro_batch: int | None = Field(
        None, ge=1, description="images of one forward pass; at most 8 by default"
    )
    guidance: float | None = Field(None, ge=0, description="guidance in training, for distilled models")


@dataclass(frozen=True)
class PipelineBatch:
    """One forward pass: samples of one size."""

    latents: list[Tensor]  # (C, H, W) of the images after the edit
    noise: list[Tensor]
    level: Tensor
    given: list[Tensor]  # of the inputs
    words: dict[str, Tensor]
    values: int
    world: int
    perspectives: tuple[str, ...]
    bin: int


class PipelineEncoders:
    """Autoencoder and text encoders of a pipeline; only the autoencoder's config is kept after `release`."""

    def __init__(self, pipe: Any, folder: Path, teaching: Teaching) -> None:
        self.pipe, self.teaching = pipe, teaching
        self.image_digest = weights_digest(folder / "vae")
        parts = sorted(
            path for path in folder.iterdir() if path.name.startswith(("text_enc", "tokeni", "processor"))
        )
        self.text_digest = content_key(type(pipe).__name__, weights_digest(*parts))
        self.config = dict(pipe.vae.config)
        self.channels = int(self.config.get("latent_channels") or self.config["z_dim"])
        self.stride = int(pipe.vae_scale_factor)

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        vae = self.pipe.vae
        images = images.to(vae.device, vae.dtype)
        video = "z_dim" in self.config  # Qwen-Image's autoencoder is one of videos
        with torch.no_grad():
            found = vae.encode(images[:, :, None] if video else images).latent_dist
        mean, std = found.mean.float(), found.std.float()
        return (mean[:, :, 0], std[:, :, 0]) if video else (mean, std)

    def normalised(self, latents: Tensor) -> Tensor:
        if "z_dim" in self.config:
            mean, std = (
                torch.tensor(self.config[key])[:, None, None] for key in ("latents_mean", "latents_std")
            )
            return (latents - mean) / std
        return (latents - (self.config.get("shift_factor") or 0.0)) * self.config["scaling_factor"]

    def words(self, instruction: str, image: Pixels | None) -> dict[str, Tensor]:
        with torch.no_grad():
            found = self.teaching.words(self.pipe, instruction, image)
        return {name: value.to(torch.bfloat16) for name, value in found.items()}

    def states(self, texts: Sequence[str]) -> list[Tensor]:
        raise NotImplementedError  # `fill_texts` keeps several tensors of a text

    def decode(self, latents: Tensor) -> Tensor:
        raise NotImplementedError  # no grid

    def release(self) -> None:
        """Only the transformer stays."""
        for name in ("text_encoder", "text_encoder_2", "vae"):
            if getattr(self.pipe, name, None) is not None:
                setattr(self.pipe, name, None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class DiffusersLora(OmniGen2):
    section = ModelConfig
    sharded = False

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.product = "lora"
        if config.compile:
            raise ConfigError(
                "a LoRA of a pipeline is not compiled", where="compile", expected="false", found="true"
            )

    def find_base(self) -> None:
        from mie.editors.diffusers.loader import check_files, find_pipeline

        own = self.config.path(self.net.base)
        self.base: Any = find_pipeline(str(own if own.is_dir() else self.net.base))
        check_files(self.base)
        self.teaching = teaching_of(self.base.name, self.base.index)

    def encoders(self, device: torch.device) -> Any:
        from mie.editors.diffusers.loader import Machine, load_pipeline

        machine = Machine("bf16" if self.config.precision == "bf16" else "fp32", str(device))
        self.pipe = load_pipeline(self.base, machine.checked())
        return PipelineEncoders(self.pipe, self.base.folder, self.teaching)

    def words_key(self, row: EditRow) -> str:
        return content_key("words", row.prompt, row.input if self.teaching.sees_image else "")

    def fill_texts(self, encoders: Any, rows: Sequence[EditRow]) -> None:
        """Encode the instructions, together with the input images where the text encoder sees them."""
        from mie.datasets.dataset import Dataset

        by_key = {self.words_key(row): row for row in rows}
        mine = whose_turn(self.states.missing(by_key))
        images: dict[str, Pixels] = {}
        wanted = {by_key[key].input for key in mine} if self.teaching.sees_image else set()
        for share in self.data.datasets:
            for split in ("train", "val"):
                dataset = Dataset(self.config.path(share.path))
                left = wanted - images.keys()
                for image in images_to_encode(dataset, split, self.data.bins, left) if left else ():
                    images[image.key] = image.pixels
        for done, key in enumerate(mine, start=1):
            row = by_key[key]
            self.states.write(key, encoders.words(row.prompt, images.get(row.input)))
            self.notify(f"encoding instructions, {done} of {len(mine)}")

    def model(self) -> nn.Module:
        if not hasattr(self, "_places"):
            transformer = self.network_of()
            if self.config.gradient_checkpointing:
                transformer.enable_gradient_checkpointing()
            lora = self.net.lora
            self._places = add_lora(transformer, lora.rank, lora.alpha, lora.targets or self.teaching.targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step_seed(self.config.seed, -1))
            return LoraFactors.fresh(self.network_of(), self._places, self.net.lora.rank)

    def network_of(self) -> Any:
        """Return the part of the pipeline that is trained."""
        return getattr(self.pipe, self.teaching.part)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        return ()

    def flops(self, batch: Any) -> None:  # type: ignore[override]
        return None

    def batch(self, step: int, rank: int, world: int) -> list[Any]:
        return [part for parts in super().batch(step, rank, world) for part in parts]  # type: ignore[attr-defined]

    def _micro_batch(self, plan: MicroPlan, seeds: Sequence[int], values: int, world: int) -> Any:
        """Samples of one size go together: these transformers take no others in a batch."""
        groups: dict[Any, list[int]] = {}
        for at, row in enumerate(plan.rows):
            length = len(self.states.read(self.words_key(row))["embeds"])
            groups.setdefault((row.size, length), []).append(at)
        return [
            self._group(
                [plan.rows[at] for at in places], [seeds[at] for at in places], values, world, plan.bin
            )
            for places in groups.values()
        ]

    def _group(
        self, rows: Sequence[EditRow], seeds: Sequence[int], values: int, world: int, bin_: int
    ) -> PipelineBatch:
        latents, noise, levels, given = [], [], [], []
        for row, seed in zip(rows, seeds, strict=True):
            draw = torch.Generator().manual_seed(seed)
            goal, image = self.moments.read(row.target_image), self.moments.read(row.input)
            drawn = goal["mean"].float() + goal["std"].float() * torch.randn(
                goal["mean"].shape, generator=draw
            )
            latents.append(self._encoders.normalised(drawn))
            # The pipelines condition on the mode, not on a draw.
            mode = image["mean"].float()
            given.append(mode if self.teaching.raw_input else self._encoders.normalised(mode))
            levels.append(self._level(draw, latents[-1].shape[-2] * latents[-1].shape[-1] // 4))
            noise.append(torch.randn(latents[-1].shape, generator=draw))
        stored = [self.states.read(self.words_key(row)) for row in rows]
        kind = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        words = {name: torch.stack([one[name] for one in stored]).to(kind) for name in stored[0]}
        names = tuple(row.perspective for row in rows)
        return PipelineBatch(latents, noise, torch.stack(levels), given, words, values, world, names, bin_)

    def _level(self, draw: torch.Generator, tokens: int) -> Tensor:
        """Draw a level of noise: logit-normal, shifted as the scheduler does when it samples; or evenly."""
        if not self.teaching.flow:
            return torch.rand((), generator=draw)
        config = self.pipe.scheduler.config
        x0, x1 = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        y0, y1 = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
        shift = float(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))
        return torch.sigmoid(torch.randn((), generator=draw) + shift)

    def _errors(self, model: nn.Module, batch: Any) -> list[Tensor]:
        x, e, given = (torch.stack(some) for some in (batch.latents, batch.noise, batch.given))
        guidance = self.teaching.guidance if self.net.guidance is None else self.net.guidance
        errors = self.teaching.errors(self.pipe, model, x, e, given, batch.level, batch.words, guidance)
        return list(errors.square().flatten(1).sum(1))

    def _validation_batches(self) -> list[Any]:
        from mie.training.batches import to_device

        batches = []
        for row in self._held_out:
            seed = int(content_key("validation", row.id)[:15], 16)
            batches.append(to_device(self._group([row], [seed], 1, 1, row.bin), self.device))
        return batches

    def grid(self, model: nn.Module) -> Pixels | None:
        return None  # the autoencoder is not in memory; `mie run` on the val split shows edits

    def editor(self, product: Path) -> str:
        own = self.config.path(self.net.base)
        return f"diffusers:{own if own.is_dir() else self.net.base},lora={product}"

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        from mie.perspectives.modification.inpainters.flux import save_lora

        assert isinstance(model, LoraFactors)  # noqa: S101 (it came from `model`)
        path.mkdir()
        lora = self.net.lora
        settings = adapter_config(lora.rank, lora.alpha, lora.targets or self.teaching.targets)
        facts = {"base": Path(self.net.base).name, "pipeline": self.base.name, **facts}
        save_lora(path / "lora.safetensors", model.tensors(""), settings, facts, part=self.teaching.part)
