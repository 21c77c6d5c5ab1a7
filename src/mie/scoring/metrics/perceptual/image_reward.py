"""ImageReward (Xu et al. 2023): how well people would like an image as an answer to a text.

BLIP reads the image (ViT) and the text (BERT with cross-attention to the image); the first token goes through
five linear layers without activations between them, and the result is brought to mean 0 and spread 1 of the
training set. The weights are the user's own: a folder with `ImageReward.safetensors` (or the published
`ImageReward.pt`, read as tensors only), `med_config.json` and the tokenizer's `vocab.txt`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from mie.core.environment import install_hint
from mie.core.files import digest
from mie.errors import MetricError
from mie.records import Pixels
from mie.scoring.metrics.perceptual.clip import MEAN, STD, cropped
from mie.scoring.metrics.perceptual.tensors import (
    batched,
    choose_device,
    exactly,
    fill,
    read_state,
    to_tensor,
)
from mie.scoring.metrics.perceptual.weights import Weights, weights_folder

FOLDER: Final = "image-reward"  # in the weights folder
FILES: Final = ("ImageReward.safetensors", "ImageReward.pt")
_CENTRE, _SPREAD = 0.16717362830052426, 1.0333394966054072  # of the published model's training set
_LONGEST: Final = 35  # tokens
_HEAD: Final = 64  # width of an attention head, in both encoders
_NORM: Final = 1e-6  # of the image encoder's layer norms
# The released names of the image encoder -> those of transformers.
_VISION: Final = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^norm\.", "post_layernorm."),
    (r"^blocks\.(\d+)\.norm([12])\.", r"encoder.layers.\1.layer_norm\2."),
    (r"^blocks\.(\d+)\.attn\.qkv\.", r"encoder.layers.\1.self_attn.qkv."),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.mlp\.", r"encoder.layers.\1.mlp."),
)
_LAYERS: Final = (0, 2, 4, 6, 7)  # the linear ones of the released head; the others drop out in training


class ImageReward:
    """The model with its weights: `reward(image, text)`; higher is better, 0 is average."""

    def __init__(
        self,
        state: dict[str, torch.Tensor],
        config: dict[str, Any],
        tokenizer: Any,
        *,
        device: str | None = None,
        weights: tuple[Weights, ...] = (),
    ) -> None:
        """`state` by the released names; `config` is that of the text encoder (`med_config.json`)."""
        self.weights = weights
        self._device = choose_device(device)
        self._tokenizer = tokenizer
        vision = _part(state, "blip.visual_encoder.")
        for pattern, instead in _VISION:
            vision = {re.sub(pattern, instead, name): tensor for name, tensor in vision.items()}
        self._vision, self._side = _vision_model(vision)
        self._text = _text_model(_part(state, "blip.text_encoder."), config, self._width)
        self._head = _head_of(_part(state, "mlp.layers."))
        for part in (self._vision, self._text, self._head):
            part.to(self._device)
        self._mean = torch.tensor(MEAN, device=self._device).view(1, 3, 1, 1)
        self._std = torch.tensor(STD, device=self._device).view(1, 3, 1, 1)

    @property
    def _width(self) -> int:
        return int(self._vision.config.hidden_size)

    def __call__(self, image: Pixels, text: str) -> float:
        """The reward of one `(H, W, 3) uint8` image for a text."""
        return self.rewards([(image, text)])[0]

    def rewards(self, pairs: Iterable[tuple[Pixels, str]], *, batch: int = 16) -> list[float]:
        """One reward for each image and text; a text of more than 35 tokens is cut."""
        return [reward for chunk in batched(pairs, batch) for reward in self._batch(chunk)]

    def about(self) -> dict[str, Any]:
        """What a result has to record."""
        return {"weights": [w.as_dict() for w in self.weights]}

    def _batch(self, pairs: list[tuple[Pixels, str]]) -> list[float]:
        with exactly():
            squares = to_tensor([cropped(image, self._side) for image, _ in pairs], self._device)
            seen = self._vision(pixel_values=(squares - self._mean) / self._std).last_hidden_state
            tokens = self._tokenizer(
                [text for _, text in pairs],
                padding="max_length",
                truncation=True,
                max_length=_LONGEST,
                return_tensors="pt",
            ).to(self._device)
            read = self._text(
                input_ids=tokens["input_ids"],
                attention_mask=tokens["attention_mask"],
                encoder_hidden_states=seen,
                encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.long, device=self._device),
            ).last_hidden_state[:, 0]
            rewards = (self._head(read.float())[:, 0] - _CENTRE) / _SPREAD
            return [float(reward) for reward in rewards.cpu()]


def load_image_reward(folder: Path | str | None = None, *, device: str | None = None) -> ImageReward:
    """The model in `folder`, or in `image-reward` of the weights folder; read from disk alone."""
    place = weights_folder() / FOLDER if folder is None else Path(folder)
    path = next((place / name for name in FILES if (place / name).is_file()), None)
    needed = [name for name in ("med_config.json", "vocab.txt") if not (place / name).is_file()]
    if path is None or needed:
        missing = ", ".join([*([] if path else [" or ".join(FILES)]), *needed])
        raise MetricError("no weights for image-reward", where=place, expected=f"{missing} in {place}")
    try:
        from transformers import BertTokenizer
    except ModuleNotFoundError:
        raise MetricError("transformers is not installed", expected=install_hint("models")) from None
    try:
        config = json.loads((place / "med_config.json").read_text(encoding="utf-8"))
        tokenizer = BertTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError) as error:
        raise MetricError("not the files of image-reward", where=place, found=str(error)[:200]) from None
    if not isinstance(config, dict):
        raise MetricError("not the files of image-reward", where=place / "med_config.json")
    state = _read(path)
    return ImageReward(state, config, tokenizer, device=device, weights=(Weights(path, digest(path)),))


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix != ".safetensors":
        return read_state(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise MetricError("not a file of weights", where=path, found=error) from None


def _part(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    found = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    if not found:
        raise MetricError("weights of another network", expected=f"tensors named {prefix}…")
    return found


def _shape(state: dict[str, torch.Tensor], name: str) -> torch.Size:
    if name not in state:
        raise MetricError("weights of another network", expected=name, found="no such tensor")
    return state[name].shape


def _depth(state: dict[str, torch.Tensor], pattern: str) -> int:
    found = [int(match[1]) for name in state if (match := re.match(pattern, name))]
    return max(found, default=-1) + 1


def _vision_model(state: dict[str, torch.Tensor]) -> tuple[Any, int]:
    from transformers import BlipVisionConfig
    from transformers.models.blip.modeling_blip import BlipVisionModel

    width, _, patch, _ = _shape(state, "embeddings.patch_embedding.weight")
    places = _shape(state, "embeddings.position_embedding")[1] - 1
    side = round(places**0.5) * patch
    model = BlipVisionModel(
        BlipVisionConfig(
            hidden_size=width,
            intermediate_size=_shape(state, "encoder.layers.0.mlp.fc1.weight")[0],
            num_hidden_layers=_depth(state, r"encoder\.layers\.(\d+)\."),
            num_attention_heads=max(1, width // _HEAD),
            image_size=side,
            patch_size=patch,
            layer_norm_eps=_NORM,
        )
    )
    fill(model, state)
    return model, side


def _text_model(state: dict[str, torch.Tensor], config: dict[str, Any], width: int) -> Any:
    from transformers import BlipTextConfig
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    words, hidden = _shape(state, "embeddings.word_embeddings.weight")
    model = BlipTextModel(  # type: ignore[no-untyped-call]
        BlipTextConfig(
            vocab_size=words,
            hidden_size=hidden,
            encoder_hidden_size=width,
            intermediate_size=_shape(state, "encoder.layer.0.intermediate.dense.weight")[0],
            num_hidden_layers=_depth(state, r"encoder\.layer\.(\d+)\."),
            num_attention_heads=int(config.get("num_attention_heads", max(1, hidden // _HEAD))),
            max_position_embeddings=_shape(state, "embeddings.position_embeddings.weight")[0],
            layer_norm_eps=float(config.get("layer_norm_eps", 1e-12)),
            hidden_act=str(config.get("hidden_act", "gelu")),
            is_decoder=True,  # so that it has cross-attention; it reads all of the text at once all the same
            bos_token_id=0,
            sep_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        ),
        add_pooling_layer=False,
    )
    fill(model, state)
    return model


def _head_of(state: dict[str, torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in _LAYERS:
        out, wide = _shape(state, f"{number}.weight")
        layers.append(nn.Linear(wide, out))
    head = nn.Sequential(*layers)
    numbers = {str(number): str(at) for at, number in enumerate(_LAYERS)}
    named = {".".join([numbers[n], kind]): t for name, t in state.items() for n, kind in [name.split(".")]}
    fill(head, named)
    return head
