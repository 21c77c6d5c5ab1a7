"""Pipelines of diffusers with few, random weights, written to disk as the real ones are.

Every class, tokenizer and file name is the library's own; only the numbers of layers and channels are small.
The same call writes the same weights. `write_pipeline(name, folder)` writes any of `PIPELINES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    EulerAncestralDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxFillPipeline,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

WORDS = ["Highlight the optic disc in red, green or blue.", "Remove the lesion from the retina."]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
]  # fmt: skip


def write_pipeline(name: str, folder: Path, **changes: Any) -> Path:
    """Write the tiny pipeline of class `name` to `folder`. Random numbers elsewhere are not disturbed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        PIPELINES[name](**changes).save_pretrained(folder, safe_serialization=True)
    return folder


def instruct_pix2pix() -> StableDiffusionInstructPix2PixPipeline:
    return StableDiffusionInstructPix2PixPipeline(
        vae=_vae(),
        text_encoder=_clip_text(),
        tokenizer=_clip_tokenizer(),
        unet=_unet(in_channels=8),
        scheduler=EulerAncestralDiscreteScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def flux_kontext(heads: int = 2) -> FluxKontextPipeline:
    return FluxKontextPipeline(**_flux(4 * 4, heads))


def flux_fill() -> FluxFillPipeline:
    return FluxFillPipeline(**_flux(4 * 4 * 2 + 8 * 8 * 4, 2))


def flux2_klein() -> Flux2KleinPipeline:
    encoder = Qwen3Config(
        vocab_size=len(_bpe(tuple(QWEN_TOKENS))[0]),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=27,  # the pipeline reads states 9, 18 and 27
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=True,
    )
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_flux2_vae(),
        text_encoder=Qwen3ForCausalLM(encoder),
        tokenizer=_qwen_tokenizer(),
        transformer=_flux2_transformer(3 * 16),
        is_distilled=True,
    )


def _unet(**changes: Any) -> UNet2DConditionModel:
    body = {
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 16,
        "attention_head_dim": 2,
        "norm_num_groups": 4,
    }
    return UNet2DConditionModel(**{**body, **changes})


def _vae(**changes: Any) -> AutoencoderKL:
    body = {
        "block_out_channels": [4, 4, 8, 8],
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "latent_channels": 4,
        "norm_num_groups": 2,
        "layers_per_block": 1,
    }
    return AutoencoderKL(**{**body, **changes})


def _flux(channels: int, heads: int) -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": _vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1, scaling_factor=0.36),
        "text_encoder": _clip_text(),
        "tokenizer": _clip_tokenizer(),
        "text_encoder_2": T5EncoderModel(
            T5Config(vocab_size=128, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        ),
        "tokenizer_2": _t5_tokenizer(),
        "transformer": FluxTransformer2DModel(
            in_channels=channels,
            out_channels=4 * 4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=heads,
            joint_attention_dim=16,
            pooled_projection_dim=16,
            guidance_embeds=True,
            axes_dims_rope=[4, 4, 8],
        ),
    }


def _flux2_vae() -> AutoencoderKLFlux2:
    return AutoencoderKLFlux2(
        block_out_channels=(4, 4, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        norm_num_groups=2,
        layers_per_block=1,
    )


def _flux2_transformer(text: int) -> Flux2Transformer2DModel:
    return Flux2Transformer2DModel(
        in_channels=4 * 4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=text,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
    )


def _clip_text() -> CLIPTextModel:
    return CLIPTextModel(_clip_config())


def _clip_config() -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=2 + 2 * 256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        projection_dim=16,
        bos_token_id=0,
        eos_token_id=1,
    )


@cache
def _bpe(special: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(WORDS, trainer)
    model = json.loads(bpe.to_str())["model"]
    return model["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split()) for m in model["merges"]]


def _clip_tokenizer() -> CLIPTokenizer:
    """CLIP marks the end of a word: every letter stands in the vocabulary with and without the mark."""
    special = ("<|startoftext|>", "<|endoftext|>")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: at for at, word in enumerate([*special, *letters, *(f"{c}</w>" for c in letters)])}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)


def _qwen_tokenizer() -> Qwen2Tokenizer:
    vocab, merges = _bpe(tuple(QWEN_TOKENS))
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, extra_special_tokens=QWEN_TOKENS[1:])
    tokenizer.chat_template = CHAT
    return tokenizer


def _t5_tokenizer() -> T5TokenizerFast:
    letters = sorted({*"".join(WORDS).replace(" ", "▁"), "▁"})
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return T5TokenizerFast(vocab=[*special, *((c, -1.0) for c in letters)], extra_ids=0)


PIPELINES: dict[str, Callable[..., Any]] = {
    "StableDiffusionInstructPix2PixPipeline": instruct_pix2pix,
    "FluxKontextPipeline": flux_kontext,
    "FluxFillPipeline": flux_fill,
    "Flux2KleinPipeline": flux2_klein,
}
