"""A LoRA for a vision-language model as a trainee: a local judge that grades as people do (ImgEdit-Judge).

The examples are those of `mie judge-set`: a benchmark's questions with the replies that people's grades make.
The model learns the tokens of the reply alone. Validation asks the questions of patients that were held out,
reads the replies as `mie score` does, and counts the grades within one step of people's; the untuned model is
asked the same. A reply that cannot be read is no grade: it is counted beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from mie.core.files import inside
from mie.errors import ConfigError
from mie.judges import ParseError
from mie.judges.adapters import save_adapter
from mie.networks.lora import LoraFactors, adapter_config, add_lora
from mie.networks.pretrained import model_digest, need_packages
from mie.scoring.judge_set import HELD_OUT, TRAIN, form_of, read_judge_set
from mie.scoring.statistics.ranks import within
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.trainee import Trainee

_IGNORED: Final = -100  # no loss for these tokens
_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


class DataConfig(Strict):
    """The sets of `mie judge-set`."""

    sets: list[str] = Field(min_length=1)
    validate_rows: int = Field(64, ge=1, description="held-out questions that are asked at a validation")


class ModelConfig(Strict):
    base: str = Field(description="a folder with a vision-language model of transformers")
    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    targets: list[str] = Field(list(_ATTENTION), min_length=1)
    max_tokens: int = Field(128, ge=1, description="of a reply at validation")


class JudgeLora(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        need_packages("training a judge")
        if config.compile:
            raise ConfigError("a LoRA is not compiled", where="compile", expected="false", found="true")
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.shape = parse_section(ModelConfig, config.model, where="model")
        self._untuned: dict[str, float | None] | None = None

    def check(self) -> Mapping[str, Any]:
        self._base = self.config.path(self.shape.base)
        if not (self._base / "config.json").is_file():
            raise ConfigError("no model here", where=self._base, expected="a folder with config.json")
        self._examples: dict[str, list[dict[str, Any]]] = {TRAIN: [], HELD_OUT: []}
        digests = []
        for text in self.data.sets:
            folder = self.config.path(text)
            document, examples = read_judge_set(folder)
            digests.append(document["digest"])
            for example in examples:
                form = form_of(document, example["prompt"])
                self._examples[example["fold"]].append({**example, "folder": folder, "form": form})
        if not self._examples[TRAIN]:
            raise ConfigError("no example to train on", where="data.sets")
        return {"sets": digests, "base": model_digest(self._base)}

    def prepare(self, device: torch.device) -> None:
        transformers: Any = import_module("transformers")
        self.device = device
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self.processor: Any = transformers.AutoProcessor.from_pretrained(self._base, **options)
        dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        self.network: Any = transformers.AutoModelForImageTextToText.from_pretrained(
            self._base, use_safetensors=True, dtype=dtype, **options
        )
        self.network.to(device)
        shape = self.shape
        self._places = add_lora(self.network, shape.rank, shape.alpha, shape.targets, where="model.targets")
        if self.config.gradient_checkpointing:
            self.network.gradient_checkpointing_enable()
        rows = sorted(self._examples[HELD_OUT], key=lambda example: str(example["key"]))
        self._held_out = rows[: self.data.validate_rows]

    def model(self) -> nn.Module:
        return LoraFactors.fresh(self.network, self._places, self.shape.rank)

    def batch(self, step: int, rank: int, world: int) -> Any:
        rng = np.random.default_rng(step_seed(self.config.seed, step, rank))
        chosen = rng.integers(0, len(self._examples[TRAIN]), self.config.batch // world)
        return [self._tokens(self._examples[TRAIN][int(at)]) for at in chosen]

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        losses = torch.stack([self._loss(model, example) for example in batch])
        return losses.mean(), {"worst": losses.detach().max()}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """The loss on held-out replies, and how many grades lie within one step of people's."""
        if not self._held_out:
            return {"score": None}
        losses = [float(self._loss(model, self._tokens(example))) for example in self._held_out]
        loss = float(np.mean(losses))
        tuned = self._alignment(model)
        if self._untuned is None:
            self._untuned = self._alignment(self.model().to(self.device))  # its second factors are zero
        untuned = {f"untuned_{name}": value for name, value in self._untuned.items()}
        return {"score": -loss, "loss": loss, **tuned, **untuned}

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        tensors = model.tensors("")  # type: ignore[operator]
        adapter = adapter_config(self.shape.rank, self.shape.alpha, self.shape.targets)
        save_adapter(path, tensors, adapter, {"base": Path(self.shape.base).name, **facts})

    def _alignment(self, model: nn.Module) -> dict[str, float | None]:
        model.lend()  # type: ignore[operator]
        near: list[bool] = []
        read = 0
        for example in self._held_out:
            try:
                grades = example["form"].read(self._reply(example))
            except ParseError:
                continue
            read += 1
            near += within(list(map(float, grades)), example["grades"]).tolist()
        share = float(np.mean(near)) if near else None
        return {"within_one": share, "answered": read / len(self._held_out)}

    def _reply(self, example: Mapping[str, Any]) -> str:
        text, images = self._question(example)
        inputs = self.processor(text=[text], images=images, return_tensors="pt").to(self.device)
        length = int(inputs["input_ids"].shape[1])
        with torch.no_grad():
            made = self.network.generate(**inputs, do_sample=False, max_new_tokens=self.shape.max_tokens)
        return str(self.processor.decode(made[0, length:], skip_special_tokens=True))

    def _tokens(self, example: Mapping[str, Any]) -> dict[str, Tensor]:
        """The question and its reply; only the reply's tokens are learnt."""
        text, images = self._question(example)
        end = self.processor.tokenizer.eos_token or ""
        asked = self.processor(text=[text], images=images, return_tensors="pt")["input_ids"].shape[1]
        inputs = dict(
            self.processor(text=[text + example["reply"] + end], images=images, return_tensors="pt")
        )
        labels = inputs["input_ids"].clone()
        labels[:, :asked] = _IGNORED
        return {**inputs, "labels": labels}

    def _question(self, example: Mapping[str, Any]) -> tuple[str, list[Image.Image] | None]:
        images = []
        for message in example["messages"]:
            for part in message["content"]:
                if part["type"] == "image":
                    path = inside(example["folder"], example["folder"], part["image"])
                    with Image.open(path) as picture:
                        images.append(picture.convert("RGB"))
        text = self.processor.apply_chat_template(
            example["messages"], add_generation_prompt=True, tokenize=False
        )
        return str(text), images or None

    def _loss(self, model: nn.Module, example: Mapping[str, Tensor]) -> Tensor:
        inputs = {name: tensor.to(self.device) for name, tensor in example.items()}
        loss: Tensor = model(**inputs, return_dict=False)[0]
        return loss
