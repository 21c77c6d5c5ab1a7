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
    AutoencoderKLQwenImage,
    EulerAncestralDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
    FluxFillPipeline,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    LongCatImageEditPipeline,
    LongCatImageTransformer2DModel,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

WORDS = ["Highlight the optic disc in red, green or blue.", "Remove the lesion from the retina."]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{{ message['content'][0]['text'] }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
]  # fmt: skip


FLUX_VAE = {
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "shift_factor": 0.1,
    "scaling_factor": 0.36,
}


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


def sdxl_instruct_pix2pix() -> StableDiffusionXLInstructPix2PixPipeline:
    return StableDiffusionXLInstructPix2PixPipeline(**_sdxl(8))


def sdxl_img2img() -> StableDiffusionXLImg2ImgPipeline:
    return StableDiffusionXLImg2ImgPipeline(**_sdxl(4))


def flux_kontext(heads: int = 2) -> FluxKontextPipeline:
    return FluxKontextPipeline(**_flux(4 * 4, heads))


def flux_fill() -> FluxFillPipeline:
    return FluxFillPipeline(**_flux(4 * 4 * 2 + 8 * 8 * 4, 2))


def qwen_image_edit() -> QwenImageEditPipeline:
    return QwenImageEditPipeline(**_qwen())


def qwen_image_edit_plus() -> QwenImageEditPlusPipeline:
    return QwenImageEditPlusPipeline(**_qwen())


def longcat_image_edit() -> LongCatImageEditPipeline:
    return LongCatImageEditPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(latent_channels=16, **FLUX_VAE),
        text_encoder=_qwen_vl(),
        tokenizer=_qwen_tokenizer(),
        text_processor=_Processor(_qwen_images(), _qwen_tokenizer()),
        transformer=LongCatImageTransformer2DModel(
            in_channels=64,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=16,
            pooled_projection_dim=16,
            axes_dims_rope=[4, 4, 8],
        ),
    )


def flux2() -> Flux2Pipeline:
    encoder = Mistral3Config(
        text_config=MistralConfig(
            vocab_size=len(_bpe(tuple(QWEN_TOKENS))[0]),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=30,  # the pipeline reads states 10, 20 and 30
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        ),
        vision_config=PixtralVisionConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
        ),
        image_token_index=5,
    )
    return Flux2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_flux2_vae(),
        text_encoder=Mistral3ForConditionalGeneration(encoder),
        tokenizer=_qwen_tokenizer(),  # the published processor needs torchvision, its tokenizer does not
        transformer=_flux2_transformer(3 * 16),
    )


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


def _sdxl(channels: int) -> dict[str, Any]:
    return {
        "vae": _vae(),
        "text_encoder": _clip_text(),
        "text_encoder_2": CLIPTextModelWithProjection(_clip_config()),
        "tokenizer": _clip_tokenizer(),
        "tokenizer_2": _clip_tokenizer(),
        "unet": _unet(
            in_channels=channels,
            cross_attention_dim=32,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + 16,
            transformer_layers_per_block=(1, 1),
        ),
        "scheduler": EulerAncestralDiscreteScheduler(),
        "add_watermarker": False,
    }


def _qwen() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": AutoencoderKLQwenImage(
            base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        ),
        "text_encoder": _qwen_vl(),
        "tokenizer": _qwen_tokenizer(),
        "processor": _Processor(_qwen_images(), _qwen_tokenizer()),
        "transformer": QwenImageTransformer2DModel(
            in_channels=4 * 4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=16,
            axes_dims_rope=(4, 4, 8),
        ),
    }


def _qwen_vl() -> Qwen2_5_VLForConditionalGeneration:
    vocab = _bpe(tuple(QWEN_TOKENS))[0]
    text = {
        "vocab_size": len(vocab),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "out_hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [0],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=vocab["<|image_pad|>"],
        video_token_id=vocab["<|video_pad|>"],
        vision_start_token_id=vocab["<|vision_start|>"],
        vision_end_token_id=vocab["<|vision_end|>"],
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _qwen_images() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, min_pixels=28 * 28, max_pixels=56 * 56)


class _Processor(Qwen2VLProcessor):
    """Qwen's processor without its part for videos, which needs torchvision; saved as the real one is."""

    def check_argument_for_proper_class(self, name: str, value: Any) -> None:
        pass

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        self.image_processor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


_Processor.__module__, _Processor.__name__ = Qwen2VLProcessor.__module__, Qwen2VLProcessor.__name__


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
        "vae": _vae(**FLUX_VAE),
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
    "StableDiffusionXLInstructPix2PixPipeline": sdxl_instruct_pix2pix,
    "StableDiffusionXLImg2ImgPipeline": sdxl_img2img,
    "FluxKontextPipeline": flux_kontext,
    "FluxFillPipeline": flux_fill,
    "QwenImageEditPipeline": qwen_image_edit,
    "QwenImageEditPlusPipeline": qwen_image_edit_plus,
    "Flux2Pipeline": flux2,
    "Flux2KleinPipeline": flux2_klein,
    "LongCatImageEditPipeline": longcat_image_edit,
}
