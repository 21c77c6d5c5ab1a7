"""A LoRA for FLUX.1 Fill as a trainee: it learns to draw the healthy tissue of one family of images.

VAE, text encoders and transformer are frozen; the prompt is encoded once. The loop copies, averages and saves
the module it is given, so that module holds the LoRA factors alone, some megabytes, and lends them to the one
transformer in memory before each pass.

Training is flow matching as FLUX learnt it, on the very inputs that FluxFillPipeline builds. Between a
picture's latents x and noise e lies x_s = (1 - s) x + s e; the transformer predicts the velocity e - x. It
sees x_s, the latents of the picture with an emptied hole, and the hole itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from mie.errors import ConfigError, MieError
from mie.images.families import FAMILIES
from mie.networks.lora import LoraFactors, adapter_config, add_lora
from mie.networks.pretrained import model_digest, need_packages
from mie.perspectives.modification.inpainters.flux import (
    MULTIPLE,
    PROMPTS,
    Words,
    encode_prompt,
    fill_picture,
    find_base,
    load_pipeline,
    save_lora,
)
from mie.perspectives.modification.inpainters.holes import LesionShapes, neighbourhood
from mie.records import Mask, Pixels
from mie.training.batches import Groups, step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.inpainter import Healthy, healthy_images, lesion_shapes
from mie.training.pack import TRAIN, VALIDATION, Pack, read_pack
from mie.training.trainee import Trainee

OUTSIDE: Final = 0.1  # what a latent outside the hole counts; the original is put back there anyway
_TURNED: Final = ("dermoscopy", "endoscopy")  # pictures without an upright
_AREA: Final = (0.003, 0.25)  # of the image: a smaller hole has nothing to learn from
_TRIES: Final = 50
_ATTENTION = (
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "add_q_proj",
    "add_k_proj",
    "add_v_proj",
    "to_add_out",
)


class Example(NamedTuple):
    """`image` `(S, S, 3)` uint8, whole, and the `hole` `(S, S)` bool to be filled."""

    image: Pixels
    hole: Mask


class HealthyTissue:
    """The packs' images of one family as FLUX sees them, with lesion-shaped holes beside their lesions."""

    def __init__(self, packs: Sequence[Pack], family: str, size: int) -> None:
        self._family, self._size = family, size
        # Outlines of lesions that are trained on, also for validation: others stay unseen.
        self.shapes: LesionShapes = lesion_shapes(packs, family, TRAIN)
        self.images = {fold: healthy_images(packs, family, fold) for fold in (TRAIN, VALIDATION)}
        if not self.images[TRAIN]:
            raise ConfigError(f"no {family} images to train on", where="data.packs")
        self._groups = {fold: Groups.of(_sources(some), 0.5) for fold, some in self.images.items() if some}

    def draw(self, rng: np.random.Generator, fold: str = TRAIN) -> Example:
        """Draw an image, a hole in its healthy part, and the surroundings that FLUX sees."""
        for _ in range(_TRIES):
            healthy = self.images[fold][int(self._groups[fold].draw(rng, 1)[0])]
            mask = self.shapes.sample(rng, *healthy.allowed.shape, allowed=healthy.allowed, area=_AREA)
            if mask is not None:
                return self._turned(self._seen(healthy.image, mask), rng)
        raise MieError(
            "no place for a hole was found",
            where="data.packs",
            found=f"{_TRIES} images in a row without enough healthy tissue",
            fix="give images with more healthy tissue",
        )

    def _seen(self, image: Pixels, mask: Mask) -> Example:
        near = neighbourhood(mask, size=self._size, multiple=self._size)  # padded to one size for all
        return Example(near.picture(image), near.hole(mask))

    def _turned(self, example: Example, rng: np.random.Generator) -> Example:
        if self._family not in _TURNED:
            return example
        turns, step = int(rng.integers(4)), int(rng.choice((1, -1)))
        image, hole = example.image[:, ::step], example.hole[:, ::step]
        return Example(np.rot90(image, turns).copy(), np.rot90(hole, turns).copy())


def _sources(images: Sequence[Healthy]) -> list[str]:
    return [healthy.name.rpartition("/")[0] for healthy in images]


class Flow(NamedTuple):
    """Mean squared errors of the velocity: `loss` is descended, `hole` is inside the hole alone."""

    loss: Tensor
    hole: Tensor


class FlowInputs(NamedTuple):
    """Packed for the transformer, `(B, tokens, channels)`."""

    latents: Tensor
    condition: Tensor  # masked picture and hole, as FLUX Fill reads them
    weight: Tensor  # of each latent in the loss
    inside: Tensor  # share of the latent's pixels that lie in the hole
    places: Tensor  # (tokens, 3)


@torch.no_grad()
def flow_inputs(
    pipe: Any, image: Tensor, hole: Tensor, generator: torch.Generator | None = None
) -> FlowInputs:
    """`image` `(B, 3, H, W)` in [0, 1], `hole` `(B, 1, H, W)` of 0 and 1; H and W are multiples of 16."""
    vae, dtype = pipe.vae, pipe.vae.dtype
    count, _, height, width = image.shape
    channels, side = vae.config.latent_channels, pipe.vae_scale_factor
    centred = 2 * image - 1
    latents = pipe._encode_vae_image(centred.to(dtype), generator)
    packing = (count, channels, height // side, width // side)
    latents = pipe._pack_latents(latents, *packing).float()
    masked = (centred * (1 - hole)).to(dtype)
    mask, seen = pipe.prepare_mask_latents(
        hole, masked, count, channels, 1, height, width, torch.float32, image.device, generator
    )
    inside = nn.functional.avg_pool2d(hole, side).expand(-1, channels, -1, -1).contiguous()
    inside = pipe._pack_latents(inside, *packing)
    places = pipe._prepare_latent_image_ids(
        count, height // side // 2, width // side // 2, image.device, torch.float32
    )
    weight = OUTSIDE + (1 - OUTSIDE) * (inside > 0).float()
    return FlowInputs(latents, torch.cat([seen, mask], 2), weight, inside, places)


def draw_levels(pipe: Any, inputs: FlowInputs, normal: Tensor) -> Tensor:
    """Noise levels s in (0, 1) from `normal` `(B,)`: logit-normal, shifted to the size as in sampling."""
    from diffusers.pipelines.flux.pipeline_flux_fill import calculate_shift

    config = pipe.scheduler.config
    shift = calculate_shift(
        inputs.latents.shape[1],
        config.get("base_image_seq_len", 256),
        config.get("max_image_seq_len", 4096),
        config.get("base_shift", 0.5),
        config.get("max_shift", 1.15),
    )
    return torch.sigmoid(normal + shift)  # e^shift u / (1 + (e^shift - 1) u) of u = sigmoid(normal)


def flow_loss(
    model: nn.Module,
    inputs: FlowInputs,
    words: Words,
    *,
    level: Tensor,
    noise: Tensor,
    guidance: Tensor | None,
) -> Flow:
    """Measure the error of the velocity; `level` and `guidance` are `(B,)`, None where FLUX takes none."""
    s = level[:, None, None]
    mixed = (1 - s) * inputs.latents + s * noise
    count, dtype = len(level), words.embeds.dtype
    velocity = model(
        hidden_states=torch.cat([mixed, inputs.condition], 2).to(dtype),
        timestep=level.to(dtype),
        guidance=guidance,
        pooled_projections=words.pooled.expand(count, -1),
        encoder_hidden_states=words.embeds.expand(count, -1, -1),
        txt_ids=inputs.places.new_zeros(words.embeds.shape[1], 3),
        img_ids=inputs.places,
        return_dict=False,
    )[0]
    error = (velocity.float() - (noise - inputs.latents)).square()
    loss = (error * inputs.weight).sum() / inputs.weight.sum()
    hole = (error * inputs.inside).sum() / inputs.inside.sum()
    return Flow(loss, hole)


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
    guidance: float = Field(30, ge=0, description="guidance in training; use the same when filling")
    grid_steps: int = Field(20, ge=0, description="sampling steps of the grid's fills; 0: no grid")


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
        return {"packs": [pack.facts["digest"] for pack in packs], "base": model_digest(self._base)}

    def prepare(self, device: torch.device) -> None:
        self.device = device
        dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        self.words = encode_prompt(self._base, PROMPTS[self.data.family], device, dtype)
        self.pipe = load_pipeline(self._base, device, dtype)
        transformer, shape = self.pipe.transformer, self.shape
        self._places = add_lora(transformer, shape.rank, shape.alpha, shape.targets, where="model.targets")
        if self.config.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()
        self._held_out = self._examples()

    def model(self) -> nn.Module:
        return LoraFactors.fresh(self.pipe.transformer, self._places, self.shape.rank)

    def batch(self, step: int, rank: int, world: int) -> Any:
        rng = np.random.default_rng(step_seed(self.config.seed, step, rank))
        return _stacked([self.tissue.draw(rng) for _ in range(self.config.batch // world)])

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        loss, hole = self._flow(model, batch, None)
        return loss, {"hole": hole.detach()}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """The flow error inside held-out holes, with the same noise at every validation."""
        draw = torch.Generator().manual_seed(step_seed(self.config.seed, -2))
        errors = [self._flow(model, _stacked([example]), draw).hole.item() for example in self._held_out]
        flow = float(np.mean(errors)) if errors else None
        return {"score": None if flow is None else -flow, "flow": flow}

    def grid(self, model: nn.Module) -> Pixels | None:
        if not self.shape.grid_steps or not self._held_out:
            return None
        model.lend()  # type: ignore[operator]
        rows = []
        for example in self._held_out[:4]:
            shown = example.image.copy()
            shown[example.hole] = 255
            filled = fill_picture(
                self.pipe,
                self.words,
                shown,
                example.hole,
                steps=self.shape.grid_steps,
                guidance=self.shape.guidance,
                seed=self.config.seed,
            )
            output = np.where(example.hole[..., None], filled, example.image)
            rows.append(np.concatenate([shown, output, example.image], 1))
        return np.concatenate(rows)

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        own = {"family": self.data.family, "prompt": PROMPTS[self.data.family], "base": self.shape.base}
        adapter = adapter_config(self.shape.rank, self.shape.alpha, self.shape.targets)
        save_lora(path, model.tensors(""), adapter, {**own, **facts})  # type: ignore[operator]

    def _flow(self, model: nn.Module, batch: Any, draw: torch.Generator | None) -> Flow:
        """Compute the loss; `draw` is on the CPU, None is the device's own generator, seeded by the loop."""
        image = batch["image"].to(self.device).permute(0, 3, 1, 2).float() / 255
        hole = batch["hole"].to(self.device)[:, None].float()
        inputs = flow_inputs(self.pipe, image, hole, draw)
        place = self.device if draw is None else torch.device("cpu")
        normal = torch.randn(len(image), generator=draw, device=place)
        noise = torch.randn(inputs.latents.shape, generator=draw, device=place).to(self.device)
        level = draw_levels(self.pipe, inputs, normal.to(self.device))
        guidance = None
        if self.pipe.transformer.config.guidance_embeds:
            guidance = torch.full_like(level, self.shape.guidance)
        return flow_loss(model, inputs, self.words, level=level, noise=noise, guidance=guidance)

    def _examples(self) -> list[Example]:
        if not self.tissue.images[VALIDATION]:
            return []
        rng = np.random.default_rng(step_seed(self.config.seed, -2))
        return [self.tissue.draw(rng, VALIDATION) for _ in range(self.data.validate_rows)]


def _stacked(examples: list[Example]) -> dict[str, Tensor]:
    """`(B, S, S, 3)` and `(B, S, S)` bytes."""
    image, hole = (np.stack(arrays) for arrays in zip(*examples, strict=True))
    return {"image": torch.from_numpy(image), "hole": torch.from_numpy(hole)}
