"""An OmniGen2 with few, random weights, written to disk as the published one is.

Autoencoder, language model and tokenizer are the libraries' own classes; only the numbers of layers and
channels are small. The same call writes the same weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer
from tests.editors.large.tiny_pipelines import _qwen_tokenizer, _vae

CONFIG = OmniGen2Config(
    in_channels=4,
    hidden_size=48,
    num_layers=2,
    num_refiner_layers=1,
    num_attention_heads=4,
    num_kv_heads=2,
    multiple_of=16,
    axes_dim_rope=(4, 4, 4),
    text_feat_dim=16,
)


def write_omnigen2(folder: Path, shards: int = 2) -> Path:
    """Write the tiny model to `folder`. Random numbers elsewhere are not disturbed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tokenizer = _qwen_tokenizer()
        _language(len(tokenizer)).save_pretrained(folder / "mllm", safe_serialization=True)
        tokenizer.save_pretrained(folder / "processor")
        _vae(
            use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1, scaling_factor=0.36
        ).save_pretrained(folder / "vae", safe_serialization=True)
        state = OmniGen2Transformer(CONFIG).state_dict()
    transformer = folder / "transformer"
    transformer.mkdir()
    body = {"_class_name": "OmniGen2Transformer2DModel", "axes_lens": [300, 64, 64], **asdict(CONFIG)}
    (transformer / "config.json").write_text(json.dumps(body))
    names = sorted(state)
    weight_map = {}
    for shard in range(shards):
        file = f"diffusion_pytorch_model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: state[name] for name in names[shard::shards]}
        save_file(part, transformer / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (transformer / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _language(vocabulary: int) -> Qwen2_5_VLForConditionalGeneration:
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": CONFIG.text_feat_dim,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1]},
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "out_hidden_size": CONFIG.text_feat_dim,
            "intermediate_size": 16,
            "num_heads": 2,
        },
    )
    return Qwen2_5_VLForConditionalGeneration(config)
