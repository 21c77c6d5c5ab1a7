"""Floating-point operations of OmniGen2, counted from its sizes."""

from __future__ import annotations

from collections.abc import Sequence

from mie.networks.omnigen2 import OmniGen2Config, Size


def pass_flops(config: OmniGen2Config, text: int, references: Sequence[Size], size: Size) -> float:
    """Operations of one forward pass of one sample; sizes are those of latents, `text` counts tokens.

    2 · tokens · weights of every linear layer that the tokens pass, plus 4 · tokens² · width for each
    attention. Norms, activations and what runs once per sample (modulation, time) are left out. A backward
    pass counts twice its forward pass; what checkpointing recomputes is not counted.
    """
    width, patch = config.hidden_size, config.patch_size
    shared = config.num_kv_heads / config.num_attention_heads
    block = width * width * (2 + 2 * shared) + 3 * width * config.feed_forward_width

    def tokens(box: Size) -> int:
        return (box[0] // patch) * (box[1] // patch)

    def through(count: int, length: int) -> float:
        return count * (2 * length * block + 4 * length**2 * width)

    noise, refs = tokens(size), [tokens(box) for box in references]
    total = through(config.num_refiner_layers, text) + through(config.num_refiner_layers, noise)
    total += sum(through(config.num_refiner_layers, length) for length in refs)
    total += through(config.num_layers, text + sum(refs) + noise)
    patches = patch**2 * config.in_channels
    out = patch**2 * (config.out_channels or config.in_channels)
    return total + 2 * width * (text * config.text_feat_dim + patches * (sum(refs) + noise) + out * noise)
