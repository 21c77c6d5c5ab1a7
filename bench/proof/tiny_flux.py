"""Write a FLUX Fill of some hundred kB with fixed random weights, as the base of a LoRA.

A program of its own: it imports diffusers, which the rest of the proof does without.
"""

from __future__ import annotations

import json
import string
import sys

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxFillPipeline,
    FluxTransformer2DModel,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

LATENT = 4


def main() -> None:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=4 * LATENT * 2 + 8 * 8 * 4,
        out_channels=4 * LATENT,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        guidance_embeds=True,
        axes_dims_rope=[4, 4, 8],
    )
    vae = AutoencoderKL(
        block_out_channels=[4, 4, 8, 8],
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        latent_channels=LATENT,
        norm_num_groups=2,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=0.36,
    )
    short = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    clip = CLIPTextConfig(vocab_size=300, bos_token_id=0, eos_token_id=1, **short)
    t5 = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    pipeline = FluxFillPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=CLIPTextModel(clip),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=T5EncoderModel(t5),
        tokenizer_2=_t5_tokenizer(),
        transformer=transformer,
    )
    pipeline.save_pretrained(sys.argv[1], safe_serialization=True)


def _clip_tokenizer() -> CLIPTokenizer:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["healthy tissue, no lesion", "photograph of healthy skin"], trainer)
    model = json.loads(bpe.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split()) for m in model["merges"]]
    return CLIPTokenizer(vocab=model["vocab"], merges=merges, model_max_length=77)


def _t5_tokenizer() -> T5TokenizerFast:
    letters = sorted({*string.ascii_lowercase, *"MRICTX-,.▁"})
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return T5TokenizerFast(vocab=[*special, *((letter, -1.0) for letter in letters)], extra_ids=0)


if __name__ == "__main__":
    main()
