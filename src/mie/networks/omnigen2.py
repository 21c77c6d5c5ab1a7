"""OmniGen2's transformer (Wu et al. 2025): text, reference images and a noisy image in, the velocity out.

The parameters have the published names, so a published checkpoint loads strictly. Text, references and noise
are embedded and refined apart, then pass through the layers as one sequence `[text, references, noise]`.
Samples of one batch may differ in text length, in number and size of references and in image size; a mask is
made only where they do. This file needs torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

MAX_REFERENCES: Final = 5  # rows of the image index embedding
_THETA: Final = 10_000.0  # of the rotary embedding
_FREQUENCIES: Final = 256  # values of the time's sinusoid
_TIME_WIDTH: Final = 1024  # at most: the time embedding that modulates every block

Size: TypeAlias = tuple[int, int]  # (height, width)
Rotation: TypeAlias = tuple[Tensor, Tensor]  # cosines and sines, each (batch, tokens, 1, head width / 2)
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class OmniGen2Config:
    """The fields of `transformer/config.json`; the defaults are the published model's."""

    patch_size: int = 2
    in_channels: int = 16
    out_channels: int | None = None
    hidden_size: int = 2520
    num_layers: int = 32
    num_refiner_layers: int = 2
    num_attention_heads: int = 21
    num_kv_heads: int = 7
    multiple_of: int = 256
    ffn_dim_multiplier: float | None = None
    norm_eps: float = 1e-5
    axes_dim_rope: tuple[int, int, int] = (40, 40, 40)
    text_feat_dim: int = 2048
    timestep_scale: float = 1000.0

    def __post_init__(self) -> None:
        if sum(self.axes_dim_rope) * self.num_attention_heads != self.hidden_size:
            raise ValueError("axes_dim_rope must sum to hidden_size / num_attention_heads")
        if self.num_attention_heads % self.num_kv_heads:
            raise ValueError("num_attention_heads must be a multiple of num_kv_heads")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> OmniGen2Config:
        """Take what we know from a published `config.json`; wrong weights are found by their shapes."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        if "axes_dim_rope" in known:
            known["axes_dim_rope"] = tuple(known["axes_dim_rope"])
        return cls(**known)

    @property
    def feed_forward_width(self) -> int:
        width = int(4 * self.hidden_size * (self.ffn_dim_multiplier or 1))
        return math.ceil(width / self.multiple_of) * self.multiple_of


@dataclass(frozen=True, slots=True)
class Stream:
    """One sequence per row: where its tokens lie, and which of them are padding."""

    rotation: Rotation
    mask: Tensor | None  # (rows, 1, 1, tokens), True where a token counts; None where all do


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every token of a batch goes. It depends on sizes alone, so one serves all steps of an edit."""

    text: Stream
    references: Stream | None  # one row per reference of the batch
    noise: Stream
    joint: Stream
    owners: Tensor  # (references,) the sample that a reference belongs to
    ordinals: Tensor  # (references,) its place among that sample's references
    order: Tensor  # (batch, tokens) of the joint sequence: rows of the pool [text, references, noise, zero]
    noise_order: Tensor  # (batch, tokens) of the noise: rows of the flattened joint sequence
    sizes: tuple[Size, ...]  # of the images, in patches


def make_layout(
    config: OmniGen2Config,
    text_lengths: Sequence[int],
    references: Sequence[Sequence[Size]],
    sizes: Sequence[Size],
    device: torch.device | str | None = None,
) -> Layout:
    """Lay out a batch. Sizes are (height, width) of latents; `text_lengths` count the valid tokens.

    Text token i lies at (i, i, i). An image lies at (shift, row, column); the shift starts at the length of
    the text and grows by the longer side of each image.
    """
    text: list[Tensor] = []
    placements: list[list[Tensor]] = []  # per sample: its references, then the noise
    grids = [
        [_patches(box, config) for box in (*boxes, size)]
        for boxes, size in zip(references, sizes, strict=True)
    ]
    for length, images in zip(text_lengths, grids, strict=True):
        text.append(torch.arange(length)[:, None].expand(-1, 3))
        shift, placed = length, []
        for height, width in images:
            axes = (torch.tensor([shift]), torch.arange(height), torch.arange(width))
            placed.append(torch.cartesian_prod(*axes).reshape(-1, 3))
            shift += max(height, width)
        placements.append(placed)
    flat = [box for placed in placements for box in placed[:-1]]
    noise = [placed[-1] for placed in placements]
    joint = [torch.cat([words, *placed]) for words, placed in zip(text, placements, strict=True)]

    widths = [max(map(len, rows), default=0) for rows in (text, flat, noise)]
    starts = [0, len(text) * widths[0], len(text) * widths[0] + len(flat) * widths[1]]
    zero = starts[2] + len(noise) * widths[2]
    order = torch.full((len(joint), max(map(len, joint))), zero)
    noise_order = torch.zeros((len(joint), widths[2]), dtype=torch.long)
    reference = 0
    for row, (words, placed) in enumerate(zip(text, placements, strict=True)):
        rows = [torch.arange(len(words)) + row * widths[0]]
        for box in placed[:-1]:
            rows.append(torch.arange(len(box)) + starts[1] + reference * widths[1])
            reference += 1
        rows.append(torch.arange(len(placed[-1])) + starts[2] + row * widths[2])
        order[row, : len(joint[row])] = torch.cat(rows)
        last = row * order.shape[1] + len(joint[row])
        noise_order[row, : len(placed[-1])] = torch.arange(last - len(placed[-1]), last)
    return Layout(
        text=_stream(text, config, device),
        references=_stream(flat, config, device) if flat else None,
        noise=_stream(noise, config, device),
        joint=_stream(joint, config, device),
        owners=torch.tensor([i for i, p in enumerate(placements) for _ in p[:-1]], device=device).long(),
        ordinals=torch.tensor([j for p in placements for j in range(len(p) - 1)], device=device).long(),
        order=order.to(device),
        noise_order=noise_order.to(device),
        sizes=tuple(images[-1] for images in grids),
    )


class OmniGen2Transformer(nn.Module):
    """The network. Set `checkpointing` to recompute each block's activations in the backward pass."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        patch = config.patch_size**2 * config.in_channels
        out = config.patch_size**2 * (config.out_channels or config.in_channels)
        width, time = config.hidden_size, min(config.hidden_size, _TIME_WIDTH)
        self.x_embedder = nn.Linear(patch, width)
        self.ref_image_patch_embedder = nn.Linear(patch, width)
        self.time_caption_embed = _TimeCaptionEmbedding(config, time)

        def blocks(count: int, modulation: int | None) -> nn.ModuleList:
            return nn.ModuleList(Block(config, modulation) for _ in range(count))

        self.noise_refiner = blocks(config.num_refiner_layers, time)
        self.ref_image_refiner = blocks(config.num_refiner_layers, time)
        self.context_refiner = blocks(config.num_refiner_layers, None)
        self.layers = blocks(config.num_layers, time)
        self.norm_out = _OutputNorm(width, time, out)
        self.image_index_embedding = nn.Parameter(torch.randn(MAX_REFERENCES, width) * 0.02)

    @property
    def blocks(self) -> list[Block]:
        """Every block, for sharding, compiling and counting."""
        stacks = (self.noise_refiner, self.ref_image_refiner, self.context_refiner, self.layers)
        return [block for stack in stacks for block in stack]  # type: ignore[misc]

    def forward(
        self,
        latents: Sequence[Tensor] | Tensor,
        t: Tensor,
        text: Tensor,
        references: Sequence[Sequence[Tensor] | Tensor],
        layout: Layout,
    ) -> list[Tensor]:
        """The velocity of each sample, shaped as its latents.

        Args:
            latents: One (channels, height, width) per sample, or a tensor of all.
            t: (batch,), 0 for noise, 1 for the image.
            text: (batch, tokens, text_feat_dim), right padding.
            references: For each sample its reference latents.
            layout: Made by `make_layout` from the sizes of the same batch.

        """
        config, dtype = self.config, self.x_embedder.weight.dtype
        length = layout.text.rotation[0].shape[1]
        time, words = self.time_caption_embed(t, text[:, :length].to(dtype))
        words = self._through(self.context_refiner, words, layout.text, None)
        flat = [image for images in references for image in images]
        pool = [words.flatten(0, 1)]
        if layout.references is not None:
            tokens = self.ref_image_patch_embedder(to_patches(flat, config.patch_size).to(dtype))
            tokens = tokens + self.image_index_embedding[layout.ordinals, None]
            tokens = self._through(self.ref_image_refiner, tokens, layout.references, time[layout.owners])
            pool.append(tokens.flatten(0, 1))
        noise = self.x_embedder(to_patches(latents, config.patch_size).to(dtype))
        noise = self._through(self.noise_refiner, noise, layout.noise, time)
        pool += [noise.flatten(0, 1), noise.new_zeros(1, noise.shape[-1])]
        joint = torch.cat(pool)[layout.order]
        joint = self._through(self.layers, joint, layout.joint, time)
        velocity = self.norm_out(joint.flatten(0, 1)[layout.noise_order], time)
        return from_patches(velocity, layout.sizes, config.patch_size)

    def _through(self, blocks: nn.ModuleList, x: Tensor, stream: Stream, time: Tensor | None) -> Tensor:
        for block in blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, stream.rotation, stream.mask, time, use_reentrant=False)
            else:
                x = block(x, stream.rotation, stream.mask, time)
        return x


class Block(nn.Module):
    """Attention and feed-forward, a norm before and after each; scaled and gated by the time if modulated."""

    def __init__(self, config: OmniGen2Config, modulation: int | None) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.attn = Attention(config)
        self.feed_forward = _FeedForward(width, config.feed_forward_width)
        self.norm1 = nn.RMSNorm(width, eps) if modulation is None else _ModulatedNorm(width, modulation, eps)
        self.ffn_norm1 = nn.RMSNorm(width, eps)
        self.norm2 = nn.RMSNorm(width, eps)
        self.ffn_norm2 = nn.RMSNorm(width, eps)

    def forward(self, x: Tensor, rotation: Rotation, mask: Tensor | None, time: Tensor | None) -> Tensor:
        if time is None:
            x = x + self.norm2(self.attn(self.norm1(x), rotation, mask))
            return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))
        normed, gate, scale, ffn_gate = self.norm1(x, time)
        x = x + gate.tanh() * self.norm2(self.attn(normed, rotation, mask))
        return x + ffn_gate.tanh() * self.ffn_norm2(self.feed_forward(self.ffn_norm1(x) * (1 + scale)))


class Attention(nn.Module):
    """Self-attention in which several query heads share a key and value head."""

    def __init__(self, config: OmniGen2Config) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.head, self.group = width // heads, heads // config.num_kv_heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, self.head * config.num_kv_heads, bias=False)
        self.to_v = nn.Linear(width, self.head * config.num_kv_heads, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(width, width, bias=False)])
        self.norm_q = nn.RMSNorm(self.head, config.norm_eps)
        self.norm_k = nn.RMSNorm(self.head, config.norm_eps)
        self.attend: Attend = attend  # replaced where somebody wants to look at the attention

    def forward(self, x: Tensor, rotation: Rotation, mask: Tensor | None) -> Tensor:
        q, k, v = (
            project(x).view(*x.shape[:-1], -1, self.head) for project in (self.to_q, self.to_k, self.to_v)
        )
        q, k = rotate(self.norm_q(q), rotation), rotate(self.norm_k(k), rotation)
        # Repeated keys rather than `enable_gqa`: with a mask, only some kernels take groups.
        k, v = (y.repeat_interleave(self.group, 2) for y in (k, v))
        out = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
        return self.to_out[0](out.transpose(1, 2).flatten(2))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention over (batch, heads, tokens, head width)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn neighbouring pairs of values by their angles, in float32 whatever the type of `x`."""
    cos, sin = rotation
    a, b = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).type_as(x)


def to_patches(images: Sequence[Tensor] | Tensor, patch: int) -> Tensor:
    """(images, tokens, patch · patch · channels), padded with zeros where the images differ in size."""
    if isinstance(images, Tensor) or len({image.shape for image in images}) == 1:
        batch = images if isinstance(images, Tensor) else torch.stack(list(images))
        n, c, height, width = batch.shape
        grid = batch.reshape(n, c, height // patch, patch, width // patch, patch)
        return grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return pad_sequence([to_patches(image[None], patch)[0] for image in images], batch_first=True)


def from_patches(tokens: Tensor, sizes: Sequence[Size], patch: int) -> list[Tensor]:
    """The images, (channels, height, width) each, from their tokens; `sizes` in patches."""
    images = []
    for row, (height, width) in zip(tokens, sizes, strict=True):
        grid = row[: height * width].reshape(height, width, patch, patch, -1)
        images.append(grid.permute(4, 0, 2, 1, 3).reshape(-1, height * patch, width * patch))
    return images


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


class _FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, inner, bias=False)
        self.linear_2 = nn.Linear(inner, width, bias=False)
        self.linear_3 = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)) * self.linear_3(x))


class _ModulatedNorm(nn.Module):
    """The norm before attention, and what the time says about the whole block."""

    def __init__(self, width: int, time: int, eps: float) -> None:
        super().__init__()
        self.linear = nn.Linear(time, 4 * width)
        self.norm = nn.RMSNorm(width, eps)

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        scale, gate, ffn_scale, ffn_gate = self.linear(F.silu(time))[:, None].chunk(4, -1)
        return self.norm(x) * (1 + scale), gate, ffn_scale, ffn_gate


class _OutputNorm(nn.Module):
    def __init__(self, width: int, time: int, out: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(time, width)
        self.linear_2 = nn.Linear(width, out)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        normed = F.layer_norm(x, x.shape[-1:], eps=1e-6)
        return self.linear_2(normed * (1 + self.linear_1(F.silu(time)))[:, None])


class _TimeCaptionEmbedding(nn.Module):
    def __init__(self, config: OmniGen2Config, time: int) -> None:
        super().__init__()
        self.scale = config.timestep_scale
        self.timestep_embedder = nn.ModuleDict(
            {"linear_1": nn.Linear(_FREQUENCIES, time), "linear_2": nn.Linear(time, time)}
        )
        self.caption_embedder = nn.Sequential(
            nn.RMSNorm(config.text_feat_dim, config.norm_eps),
            nn.Linear(config.text_feat_dim, config.hidden_size),
        )

    def forward(self, t: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        half = _FREQUENCIES // 2
        exponents = torch.arange(half, dtype=torch.float32, device=t.device) / half
        angles = self.scale * t.float()[:, None] * torch.exp(-math.log(_THETA) * exponents)
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(text.dtype)
        first, second = self.timestep_embedder["linear_1"], self.timestep_embedder["linear_2"]
        return second(F.silu(first(waves))), self.caption_embedder(text)


def _patches(size: Size, config: OmniGen2Config) -> Size:
    height, width = size
    if height % config.patch_size or width % config.patch_size:
        raise ValueError(f"latents of {height}x{width} do not divide into patches of {config.patch_size}")
    return height // config.patch_size, width // config.patch_size


def _stream(rows: list[Tensor], config: OmniGen2Config, device: torch.device | str | None) -> Stream:
    lengths = torch.tensor([len(row) for row in rows])
    positions = pad_sequence(rows, batch_first=True).to(device, torch.float64)
    mask = None
    if len(set(lengths.tolist())) > 1:
        mask = (torch.arange(positions.shape[1]) < lengths[:, None])[:, None, None].to(device)
    # In float64: a position of 1,000 times a frequency in float32 is off by 1e-4 of a turn.
    angles = []
    for axis, width in enumerate(config.axes_dim_rope):
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
        angles.append(positions[..., axis, None] * _THETA**-exponents)
    turned = torch.cat(angles, -1)[:, :, None]
    return Stream((turned.cos().float(), turned.sin().float()), mask)
