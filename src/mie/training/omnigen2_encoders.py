"""OmniGen2's autoencoder and language model, which only fill the cache: training does without them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from mie.editors.omnigen2.editor import CHAT
from mie.editors.omnigen2.loader import Model, load_text, load_vae
from mie.records import Pixels
from mie.training.edit_rows import Encoded
from mie.training.latent_cache import LatentCache, weights_digest

MAX_TOKENS: Final = 888  # of a text in training
# The published training drops a caption by asking for images in general.
DROPPED: Final = (
    "<|im_start|>system\nYou are a helpful assistant that generates images.<|im_end|>\n"
    "<|im_start|>user\n<|im_end|>\n"
)
_TEXTS: Final = 16


class Encoders(Protocol):
    """What fills the cache, and turns latents back into pictures."""

    image_digest: str  # of what makes the moments
    text_digest: str
    channels: int
    stride: int
    shift: float
    scale: float  # a latent is (value - shift) · scale

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of `(B, 3, H, W)` in [-1, 1]."""
        ...

    def states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the hidden states of each text, `(tokens, width)`."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Return `(B, 3, H, W)` in about [-1, 1] of normalised latents."""
        ...

    def release(self) -> None:
        """Free the memory of the device."""
        ...


def chat(instruction: str) -> str:
    """Return the text that the language model reads."""
    return CHAT.format(instruction)


class PublishedEncoders:
    """The encoders of a published folder, loaded when they are first needed."""

    def __init__(self, model: Model, device: torch.device, half: bool) -> None:
        config = json.loads(
            (model.vae / "config.json").read_text(encoding="utf-8")
        )  # `find_model` has read it
        self._model, self._device = model, device
        self._kind = torch.bfloat16 if half else torch.float32
        self.image_digest = weights_digest(model.vae)
        self.text_digest = weights_digest(model.text, model.tokenizer)
        self.channels = int(config["latent_channels"])
        self.stride = 2 ** (len(config["block_out_channels"]) - 1)
        self.shift = float(config.get("shift_factor") or 0.0)
        self.scale = float(config.get("scaling_factor") or 1.0)
        self._vae: Any = None
        self._text: Any = None

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        vae = self._autoencoder()
        with torch.no_grad():
            found = vae.encode(images.to(self._device, vae.dtype)).latent_dist
        return found.mean.float(), found.std.float()

    def states(self, texts: Sequence[str]) -> list[Tensor]:
        if self._text is None:
            model, tokenizer = load_text(self._model, self._kind)
            self._text = model.to(self._device), tokenizer
        model, tokenizer = self._text
        tokens = tokenizer(
            list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(
                input_ids=tokens.input_ids.to(self._device),
                attention_mask=tokens.attention_mask.to(self._device),
                use_cache=False,
            ).last_hidden_state
        return [
            row[:length] for row, length in zip(states, tokens.attention_mask.sum(1).tolist(), strict=True)
        ]

    def decode(self, latents: Tensor) -> Tensor:
        vae = self._autoencoder()
        with torch.no_grad():
            values = vae.decode((latents.to(self._device) / self.scale + self.shift).to(vae.dtype)).sample
        return values.float()

    def release(self) -> None:
        self._vae = self._text = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _autoencoder(self) -> Any:
        if self._vae is None:
            self._vae = load_vae(self._model, self._kind).to(self._device)
        return self._vae


def fill_moments(
    cache: LatentCache,
    encoders: Encoders,
    images: Iterable[Encoded],
    total: int,
    note: Callable[[str], None],
    batch: int = 8,
) -> None:
    """Encode the images, those of one size together, and keep their moments."""
    waiting: dict[tuple[int, ...], list[Encoded]] = {}
    done = 0

    def encode(group: list[Encoded]) -> None:
        nonlocal done
        means, stds = encoders.moments(to_values([one.pixels for one in group]))
        for one, mean, std in zip(group, means, stds, strict=True):
            cache.write(one.key, {"mean": mean.half(), "std": std.half()})
        done += len(group)
        note(f"encoding images, {done} of {total}")

    for image in images:
        group = waiting.setdefault(image.pixels.shape, [])
        group.append(image)
        if len(group) == batch:
            encode(waiting.pop(image.pixels.shape))
    for group in waiting.values():
        encode(group)


def fill_states(
    cache: LatentCache, encoders: Encoders, texts: Mapping[str, str], note: Callable[[str], None]
) -> None:
    """Encode texts by key, those of similar length together, and keep their states."""
    order = sorted(texts, key=lambda key: (len(texts[key]), key))
    for start in range(0, len(order), _TEXTS):
        keys = order[start : start + _TEXTS]
        for key, states in zip(keys, encoders.states([texts[key] for key in keys]), strict=True):
            cache.write(key, {"states": states.to(torch.bfloat16)})
        note(f"encoding texts, {start + len(keys)} of {len(order)}")


def to_values(images: Sequence[Pixels]) -> Tensor:
    """`(B, 3, H, W)` in [-1, 1]."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pixels(values: Tensor) -> Pixels:
    """`(B, H, W, 3) uint8` of values in about [-1, 1]."""
    pixels = (values.float().clamp(-1, 1) / 2 + 0.5).mul(255).round()
    return pixels.byte().permute(0, 2, 3, 1).cpu().numpy()
