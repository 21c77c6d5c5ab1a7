"""How each class of diffusers' pipelines is trained to edit. Another class is one more row of `TEACHING`.

Transformers learn by flow matching: between the latents x of the image after the edit and noise e lies x_s
= (1 - s) x + s e; the transformer sees x_s and the latents of the input image, one after the other, and
predicts e - x. InstructPix2Pix's UNet learns to predict the noise e in sqrt(a) x + sqrt(1 - a) e, with the
input as further channels. A row says how a class encodes its instruction and calls its network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mie.core.registry import suggestion
from mie.errors import ConfigError
from mie.records import Pixels

Words = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Teaching:
    """One class of pipelines."""

    # (pipe, instruction, input image or None) -> tensors without a batch axis, to be kept in the cache
    words: Callable[[Any, str, Pixels | None], dict[str, Tensor]]
    # (pipe, network, x, e, latents of the input, level in (0, 1), words, guidance) -> errors, (B, ...)
    errors: Callable[..., Tensor]
    part: str = "transformer"  # what is trained
    flow: bool = True  # the level is drawn as flow matching does; else evenly
    raw_input: bool = False  # the input's latents are not normalised
    sees_image: bool = False  # the text encoder is shown the input image, too
    targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")
    guidance: float | None = None  # in training, for models that were distilled from guidance


def pack(latents: Tensor) -> Tensor:
    """`(B, C, H, W)` to `(B, H/2 · W/2, 4 C)`, patches of two by two as FLUX and Qwen-Image order them."""
    b, c, h, w = latents.shape
    return latents.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)


def _kontext_words(pipe: Any, instruction: str, image: Pixels | None) -> dict[str, Tensor]:
    embeds, pooled, _ = pipe.encode_prompt(prompt=instruction, prompt_2=None)
    return {"embeds": embeds[0], "pooled": pooled[0]}


def flow_errors(velocity: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the errors of a velocity on packed latents."""

    def errors(
        pipe: Any,
        network: Any,
        x: Tensor,
        e: Tensor,
        given: Tensor,
        level: Tensor,
        words: Words,
        guidance: Any,
    ) -> Tensor:
        s = level[:, None, None, None]
        size = (x.shape[-2] // 2, x.shape[-1] // 2)
        found = velocity(pipe, network, pack((1 - s) * x + s * e), pack(given), level, words, size, guidance)
        return found.float() - pack(e - x)

    return errors


def _kontext_velocity(
    pipe: Any,
    transformer: Any,
    noisy: Tensor,
    given: Tensor,
    level: Tensor,
    words: Words,
    size: tuple[int, int],
    guidance: float | None,
) -> Tensor:
    count, dtype, device = len(noisy), words["embeds"].dtype, noisy.device
    places = pipe._prepare_latent_image_ids(count, *size, device, dtype)
    reference = places.clone()
    reference[..., 0] = 1
    distilled = bool(pipe.transformer.config.guidance_embeds)
    velocity = transformer(
        hidden_states=torch.cat([noisy, given], 1).to(dtype),
        timestep=level.to(dtype),
        guidance=torch.full((count,), guidance or 1.0, device=device) if distilled else None,
        pooled_projections=words["pooled"],
        encoder_hidden_states=words["embeds"],
        txt_ids=torch.zeros(words["embeds"].shape[1], 3, device=device, dtype=dtype),
        img_ids=torch.cat([places, reference]),
        return_dict=False,
    )[0]
    return velocity[:, : noisy.shape[1]]


def _qwen_words(pipe: Any, instruction: str, image: Pixels | None) -> dict[str, Tensor]:
    assert image is not None  # noqa: S101 (`sees_image`)
    picture = Image.fromarray(np.ascontiguousarray(image))
    plus = type(pipe).__name__ == "QwenImageEditPlusPipeline"
    embeds, _ = pipe.encode_prompt(image=[picture] if plus else picture, prompt=[instruction])
    return {"embeds": embeds[0]}


def _qwen_velocity(
    pipe: Any,
    transformer: Any,
    noisy: Tensor,
    given: Tensor,
    level: Tensor,
    words: Words,
    size: tuple[int, int],
    guidance: float | None,
) -> Tensor:
    dtype = words["embeds"].dtype
    velocity = transformer(
        hidden_states=torch.cat([noisy, given], 1).to(dtype),
        timestep=level.to(dtype),
        guidance=None,
        encoder_hidden_states=words["embeds"],
        encoder_hidden_states_mask=words.get("mask"),
        img_shapes=[[(1, *size), (1, *size)]] * len(noisy),
        return_dict=False,
    )[0]
    return velocity[:, : noisy.shape[1]]


def _pix2pix_words(pipe: Any, instruction: str, image: Pixels | None) -> dict[str, Tensor]:
    embeds = pipe._encode_prompt(instruction, pipe.text_encoder.device, 1, False)
    return {"embeds": embeds[0]}


def _pix2pix_errors(
    pipe: Any, network: Any, x: Tensor, e: Tensor, given: Tensor, level: Tensor, words: Words, guidance: Any
) -> Tensor:
    alphas = pipe.scheduler.alphas_cumprod.to(x.device)
    t = (level * len(alphas)).long().clamp(max=len(alphas) - 1)
    a = alphas[t][:, None, None, None]
    kind = words["embeds"].dtype
    noisy = a.sqrt() * x + (1 - a).sqrt() * e
    found = network(
        torch.cat([noisy, given], 1).to(kind), t, encoder_hidden_states=words["embeds"], return_dict=False
    )
    return found[0].float() - e


_QWEN: Final = Teaching(
    _qwen_words,
    flow_errors(_qwen_velocity),
    sees_image=True,
    targets=("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
)
TEACHING: Final[dict[str, Teaching]] = {
    "FluxKontextPipeline": Teaching(
        _kontext_words,
        flow_errors(_kontext_velocity),
        targets=("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
        guidance=1.0,
    ),
    "StableDiffusionInstructPix2PixPipeline": Teaching(
        _pix2pix_words, _pix2pix_errors, part="unet", flow=False, raw_input=True
    ),
    "QwenImageEditPipeline": _QWEN,
    "QwenImageEditPlusPipeline": _QWEN,
}


def teaching_of(name: str, where: object) -> Teaching:
    """The row of a class."""
    if name in TEACHING:
        return TEACHING[name]
    raise ConfigError(
        f"no way to train the pipeline {name!r} is known",
        where=where,
        expected=", ".join(TEACHING),
        fix=suggestion(name, TEACHING) or "FLUX.1 Fill has a trainee of its own: flux-fill-lora",
    )
