"""OmniGen2 as a trainee: all of its parameters, or a LoRA, on latents and text states from a cache.

Training is flow matching as published: x_t = t · image + (1 - t) · noise, t logit-normal and shifted by the
image's size, the velocity image - noise, the sum of squared errors over the number of latent values of the
whole step. Latents of target and reference are drawn from the autoencoder's distribution anew at every step.

Everything random about a sample depends on the seed, the step and the sample's place in the step, so that
any number of processes trains on the same batches.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn

from mie.core.files import cache_folder
from mie.datasets.engine import cores
from mie.errors import ConfigError
from mie.networks.lora import LoraFactors, adapter_config, add_lora, merged, plain_state
from mie.networks.omnigen2 import Layout, OmniGen2Config, OmniGen2Transformer, make_layout, pass_flops
from mie.networks.omnigen2_flow import Conditions, Guidance, sample, training_times
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.edit_rows import (
    EditRow,
    MicroPlan,
    Mixture,
    MixtureConfig,
    Part,
    images_to_encode,
    read_mixture,
    spread,
)
from mie.training.latent_cache import LatentCache, content_key
from mie.training.machine import wait_for_all, whose_turn
from mie.training.omnigen2_encoders import (
    DROPPED,
    Encoders,
    PublishedEncoders,
    chat,
    fill_moments,
    fill_states,
    to_pixels,
)
from mie.training.trainee import Trainee

ATTENTION: Final = ("to_q", "to_k", "to_v", "to_out.0")
_MICRO: Final = 8  # images of a forward pass, by default
_SHOWN: Final = 4  # samples of the grid
_MEMORY: Final = 2 << 30  # bytes of latents, and of text states, that stay in memory
_THREADS: Final = 8  # that read and draw a batch


class DataConfig(MixtureConfig):
    """Datasets, bins and cache of `MixtureConfig`, and what is left out at random."""

    caption_drop: float = Field(1e-4, ge=0, le=1, description="share of samples without their instruction")
    reference_drop: float = Field(0.5, ge=0, le=1, description="share of those without their input, too")


class LoraConfig(Strict):
    rank: int = Field(8, ge=1)
    alpha: float = Field(8, gt=0)
    targets: list[str] = Field(list(ATTENTION), min_length=1, description="ends of layers' names")
    merge: bool = Field(False, description="write the whole model, too, with the LoRA merged into it")


class ModelConfig(Strict):
    base: str = Field(description="the folder of OmniGen2, or a hub id in the local cache")
    lora: LoraConfig | None = None
    micro_batch: int | None = Field(
        None, ge=1, description="images of one forward pass; at most 8 by default"
    )
    grid_steps: int = Field(20, ge=0, description="sampling steps of the grid; 0: no grid")
    guidance: Guidance = Guidance()


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: samples of one bin."""

    latents: list[Tensor]  # of the images after the edit
    noise: list[Tensor]
    t: Tensor
    text: Tensor
    references: list[list[Tensor]]
    layout: Layout
    values: int  # latent values of the whole step, in all processes
    world: int
    perspectives: tuple[str, ...]
    bin: int
    flops: float


class _Example(NamedTuple):
    latents: Tensor
    noise: Tensor
    t: Tensor
    references: list[Tensor]
    states: Tensor


class OmniGen2(Trainee):
    score = "score"
    shares = True
    reads = "datasets"
    section: type[Strict] = ModelConfig

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        net: Any = parse_section(self.section, config.model, where="model")
        self.net = net
        self._encoders: Any = None
        self.product = "lora" if self.net.lora else "model"
        divisors = (size for size in range(min(config.batch, _MICRO), 0, -1) if config.batch % size == 0)
        self.micro = self.net.micro_batch or next(divisors)
        if config.batch % self.micro:
            raise ConfigError(
                "the batch does not divide into micro-batches",
                where="model.micro_batch",
                expected=f"a divisor of batch {config.batch}",
                found=self.micro,
            )

    # Data

    def check(self) -> Mapping[str, Any]:
        self.find_base()
        self.cache = self.config.path(self.data.cache) if self.data.cache else cache_folder() / "training"
        self.parts = {split: self.read_parts(split) for split in ("train", "val")}
        self.mixture = Mixture(self.parts["train"], self.data.bins)
        return {"base": self.base_digest()}

    def find_base(self) -> None:
        """Check the base model; reads its headers alone."""
        from mie.editors.omnigen2.loader import find_model

        own = self.config.path(self.net.base)
        self.base = find_model(str(own if own.is_dir() else self.net.base))
        self.shape: OmniGen2Config = self.base.config

    def base_digest(self) -> str:
        from mie.networks.pretrained import model_digest

        return model_digest(self.base.folder)

    def read_parts(self, split: str) -> list[Part]:
        return read_mixture(self.data, self.config.path, split, self.cache, self.notify)

    def encoders(self, device: torch.device) -> Encoders:
        return PublishedEncoders(self.base, device, self.config.precision == "bf16")

    def prepare(self, device: torch.device) -> None:
        """Fill the cache; afterwards no encoder is in memory. Several processes share the work."""
        self.device = device
        encoders = self._encoders = self.encoders(device)
        self.moments = LatentCache(self.cache, "moments", encoders.image_digest, _MEMORY)
        self.states = LatentCache(self.cache, "states", encoders.text_digest, _MEMORY)
        self._pool = ThreadPoolExecutor(min(_THREADS, cores()))
        held_out = [row for part in self.parts["val"] for row in part.rows]
        self._held_out = spread(held_out, self.data.validate_samples)
        rows = [*(row for part in self.parts["train"] for row in part.rows), *self._held_out]
        self.fill(encoders, rows)
        encoders.release()

    def fill(self, encoders: Encoders, rows: Sequence[EditRow]) -> None:
        """Encode what the cache lacks."""
        from mie.datasets.dataset import Dataset

        self.fill_texts(encoders, rows)
        keys = self.moments.missing(key for row in rows for key in (row.input, row.target_image))
        mine = whose_turn(keys)
        left = set(mine)
        for share in self.data.datasets:
            for split in ("train", "val"):
                if left:
                    dataset = Dataset(self.config.path(share.path))
                    images = images_to_encode(dataset, split, self.data.bins, left)
                    fill_moments(self.moments, encoders, images, len(left), self.notify)
                    left -= {key for key in left if self.moments.path(key).is_file()}
        wait_for_all()

    def fill_texts(self, encoders: Encoders, rows: Sequence[EditRow]) -> None:
        texts = {text_key(text): text for text in (DROPPED, chat(""), *(chat(row.prompt) for row in rows))}
        lacking = self.states.missing(texts)
        fill_states(self.states, encoders, {key: texts[key] for key in whose_turn(lacking)}, self.notify)

    # The model

    def model(self) -> nn.Module:
        net = self.network()
        net.checkpointing = self.config.gradient_checkpointing
        if self.net.lora is None:
            return net.requires_grad_(True)
        half = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        device = getattr(self, "device", torch.device("cpu"))
        net = net.to(device, half)
        lora = self.net.lora
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step_seed(self.config.seed, -1))
            self._places = add_lora(net, lora.rank, lora.alpha, lora.targets)
            return LoraFactors.fresh(net, self._places, lora.rank)

    def network(self) -> OmniGen2Transformer:
        """Return the base's transformer in float32 on the CPU."""
        from mie.editors.omnigen2.loader import load_transformer

        return load_transformer(self.base, torch.float32, "cpu")

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        if isinstance(model, LoraFactors):
            return model.network.blocks  # type: ignore[return-value]
        return model.blocks  # type: ignore[return-value]

    @property
    def sharded(self) -> bool:  # type: ignore[override]
        return self.net.lora is None

    # A step

    def batch(self, step: int, rank: int, world: int) -> list[MicroBatch]:
        plans = self.mixture.step(self.config.seed, step, self.config.batch, self.micro)
        if len(plans) % world:
            raise ConfigError(
                "the micro-batches cannot be shared out",
                where="model.micro_batch",
                expected=f"batch / micro_batch a multiple of {world} processes",
                found=f"{self.config.batch} / {self.micro}",
            )
        per_row = self._encoders.channels
        values = sum(per_row * _area(row.size, self._encoders.stride) for plan in plans for row in plan.rows)
        batches = []
        for plan in plans[rank::world]:
            seeds = [step_seed(self.config.seed, step, 1 + place) for place in plan.places]
            batches.append(self._micro_batch(plan, seeds, values, world))
        return batches

    def split(self, batch: list[MicroBatch]) -> Sequence[MicroBatch]:
        return batch

    def flops(self, batch: list[MicroBatch]) -> float:
        """Operations of forward and backward pass, without what checkpointing recomputes.

        A LoRA's backward pass goes through the frozen weights once: their own gradients are not needed.
        """
        return (3 if self.net.lora is None else 2) * sum(micro.flops for micro in batch)

    def loss(self, model: nn.Module, batch: MicroBatch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        errors = self._errors(model, batch)
        numbers = [image.numel() for image in batch.latents]
        each = torch.stack([error.detach() / n for error, n in zip(errors, numbers, strict=True)])
        parts = {f"bin_{batch.bin}": each.mean()}
        for name in sorted(set(batch.perspectives)):
            mine = [at for at, other in enumerate(batch.perspectives) if other == name]
            parts[name] = each[mine].mean()
        # The processes' gradients are averaged: what is a share of the step counts as often as they are.
        return torch.stack(errors).sum() / batch.values * batch.world, parts

    def _errors(self, model: nn.Module, batch: MicroBatch) -> list[Tensor]:
        mixed = [
            t * image + (1 - t) * noise
            for image, noise, t in zip(batch.latents, batch.noise, batch.t, strict=True)
        ]
        velocity = model(mixed, batch.t, batch.text, batch.references, batch.layout)
        return [
            (v.float() - (image - noise)).square().sum()
            for v, image, noise in zip(velocity, batch.latents, batch.noise, strict=True)
        ]

    def _micro_batch(self, plan: MicroPlan, seeds: Sequence[int], values: int, world: int) -> MicroBatch:
        examples = list(self._pool.map(self._example, plan.rows, seeds))
        lengths = [len(one.states) for one in examples]
        text = torch.nn.utils.rnn.pad_sequence([one.states for one in examples], batch_first=True)
        sizes = [_size(one.latents) for one in examples]
        boxes = [[_size(image) for image in one.references] for one in examples]
        return MicroBatch(
            latents=[one.latents for one in examples],
            noise=[one.noise for one in examples],
            t=torch.stack([one.t for one in examples]),
            text=text,
            references=[one.references for one in examples],
            layout=make_layout(self.shape, lengths, boxes, sizes),
            values=values,
            world=world,
            perspectives=tuple(row.perspective for row in plan.rows),
            bin=plan.bin,
            flops=sum(
                pass_flops(self.shape, length, box, size)
                for length, box, size in zip(lengths, boxes, sizes, strict=True)
            ),
        )

    def _example(self, row: EditRow, seed: int, drop: bool = True) -> _Example:
        draw = torch.Generator().manual_seed(seed)
        u = torch.rand(2, generator=draw)
        bare = drop and bool(u[0] < self.data.caption_drop)
        alone = bare and bool(u[1] < self.data.reference_drop)
        latents = self._latents(row.target_image, draw)
        height, width = _size(latents)
        tokens = height * width // self.shape.patch_size**2
        t = training_times(torch.sigmoid(torch.randn((), generator=draw)), tokens)
        noise = torch.randn(latents.shape, generator=draw)
        references = [] if alone else [self._latents(row.input, draw)]
        return _Example(latents, noise, t, references, self._states(DROPPED if bare else chat(row.prompt)))

    def _latents(self, key: str, draw: torch.Generator) -> Tensor:
        moments = self.moments.read(key)
        mean, std = moments["mean"].float(), moments["std"].float()
        values = mean + std * torch.randn(mean.shape, generator=draw)
        return (values - self._encoders.shift) * self._encoders.scale

    def _states(self, text: str) -> Tensor:
        states = self.states.read(text_key(text))["states"]
        return states if self.config.precision == "bf16" else states.float()

    # Validation

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """The flow error on held-out samples, with the same noise at every validation."""
        errors: dict[str, list[float]] = {}
        for batch in self._validation_batches():
            found = self._errors(model, batch)
            for name, error, image in zip(batch.perspectives, found, batch.latents, strict=True):
                errors.setdefault(name, []).append(error.item() / image.numel())
        means = {name: float(np.mean(values)) for name, values in sorted(errors.items())}
        whole = float(np.mean([v for values in errors.values() for v in values])) if errors else None
        return {
            "score": None if whole is None else -whole,
            "flow": whole,
            **{f"flow_{name}": mean for name, mean in means.items()},
        }

    def _validation_batches(self) -> list[MicroBatch]:
        from mie.training.batches import to_device

        batches = []
        for bin_ in sorted({row.bin for row in self._held_out}):
            rows = [row for row in self._held_out if row.bin == bin_]
            for start in range(0, len(rows), self.micro):
                part = tuple(rows[start : start + self.micro])
                plan = MicroPlan(bin_, part, tuple(range(len(part))))
                seeds = [int(content_key("validation", row.id)[:15], 16) for row in part]
                batches.append(to_device(self._micro_batch(plan, seeds, 1, 1), self.device))
        return batches

    def grid(self, model: nn.Module) -> Pixels | None:
        """Input, edit and target image of held-out samples."""
        shown = [row for row in self._held_out if row.size == self._held_out[0].size][:_SHOWN]
        if not self.net.grid_steps or not shown:
            return None
        edits = to_pixels(self._encoders.decode(self.edit(model, shown)))
        pictures = [
            to_pixels(self._encoders.decode(torch.stack([self._mean(getattr(row, name)) for row in shown])))
            for name in ("input", "target_image")
        ]
        self._encoders.release()
        return np.concatenate(
            [np.concatenate([pictures[0], edits, pictures[1]], 2)[n] for n in range(len(shown))]
        )

    def edit(self, model: nn.Module, rows: Sequence[EditRow]) -> Tensor:
        """Sample edits of rows of one size; returns latents. The noise is the same at every call."""
        draw = torch.Generator().manual_seed(step_seed(self.config.seed, -3))
        references = [self._mean(row.input).to(self.device) for row in rows]
        noise = torch.randn((len(rows), *references[0].shape), generator=draw).to(self.device)
        states = [self._states(chat(row.prompt)) for row in rows]
        text = torch.nn.utils.rnn.pad_sequence(states, batch_first=True).to(self.device)
        bare = self._states(chat("")).to(self.device)
        given = Conditions(text, [len(one) for one in states], [[one] for one in references])
        negative = Conditions(
            bare.expand(len(rows), -1, -1), [len(bare)] * len(rows), [[one] for one in references]
        )
        return sample(
            _Sampled(model, self.shape),  # type: ignore[arg-type]
            noise,
            given,
            negative,
            steps=self.net.grid_steps,
            guidance=self.net.guidance,
        )

    def _mean(self, key: str) -> Tensor:
        return (self.moments.read(key)["mean"].float() - self._encoders.shift) * self._encoders.scale

    # What is written

    def editor(self, product: Path) -> str:
        if self.net.lora is None:
            return f"omnigen2:{product}"
        own = self.config.path(self.net.base)
        return f"omnigen2:{own if own.is_dir() else self.net.base},lora={product}"

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        path.mkdir()
        facts = {"base": Path(self.net.base).name, **facts}
        (path / "mie.json").write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
        if self.net.lora is None:
            self._save_model(model.state_dict(), path)
            return
        assert isinstance(model, LoraFactors)  # noqa: S101 (it came from `model`)
        lora = self.net.lora
        settings = adapter_config(lora.rank, lora.alpha, lora.targets)
        (path / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        save_file(model.tensors(), path / "adapter_model.safetensors", {"format": "pt"})
        if lora.merge:
            model.lend()
            with merged(self._places):
                (path / "merged").mkdir()
                self._save_model(plain_state(model.network), path / "merged")

    def _save_model(self, state: Mapping[str, Tensor], path: Path) -> None:
        """Write a folder that opens as `omnigen2:FOLDER`; what was not trained is linked where possible."""
        kind = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        folder = path / "transformer"
        folder.mkdir()
        tensors = {name: value.detach().to("cpu", kind).contiguous() for name, value in state.items()}
        save_file(tensors, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
        shutil.copyfile(self.base.folder / "transformer" / "config.json", folder / "config.json")
        for part in {self.base.vae, self.base.text, self.base.tokenizer}:
            _link_tree(part.resolve(), path / part.name)


class _Sampled:
    """A model as the sampler calls it: with its config, behind whatever wraps it."""

    def __init__(self, model: nn.Module, config: OmniGen2Config) -> None:
        self._model, self.config = model, config

    def __call__(self, *inputs: Any) -> Any:
        return self._model(*inputs)


def text_key(text: str) -> str:
    return content_key("text", text)


def _link_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if not path.is_file():
            continue
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), place)
        except OSError:  # another disk, or one without links
            shutil.copyfile(path, place)


def _size(latents: Tensor) -> tuple[int, int]:
    return latents.shape[-2], latents.shape[-1]


def _area(size: tuple[int, int], stride: int) -> int:
    return (size[0] // stride) * (size[1] // stride)
