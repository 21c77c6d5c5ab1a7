"""The formula against torch's own counter."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="networks need the extra `models`")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer, make_layout, pass_flops

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


def test_the_formula_counts_what_torch_counts() -> None:
    model, size, text = OmniGen2Transformer(CONFIG), (8, 12), 9
    latents = torch.randn(1, CONFIG.in_channels, *size)
    layout = make_layout(CONFIG, [text], [[size]], [size])
    words = torch.randn(1, text, CONFIG.text_feat_dim)
    # As plain products: torch does not count its fused attention on a CPU.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(latents, torch.tensor([0.5]), words, [[latents[0]]], layout)
    once = 0
    for name, module in model.named_modules():
        timed = "timestep_embedder" in name or name.endswith("norm1.linear") or name == "norm_out.linear_1"
        if timed and isinstance(module, torch.nn.Linear):
            once += 2 * module.weight.numel()  # once per sample: left out of the formula
    assert counter.get_total_flops() - once == pytest.approx(pass_flops(CONFIG, text, [size], size), rel=1e-6)
