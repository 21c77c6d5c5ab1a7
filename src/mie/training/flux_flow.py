"""Flow matching as FLUX learnt it, on the very inputs that FluxFillPipeline builds.

x_s = (1 - s) x + s e between a picture's latents x and noise e; the transformer is asked for the velocity
e - x. It sees x_s, the latents of the picture with an emptied hole, and the hole itself.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from mie.inpainters.flux_base import Words

OUTSIDE: Final = 0.1  # what a latent outside the hole counts; the original is put back there anyway


class Flow(NamedTuple):
    """Mean squared errors of the velocity: `loss` is descended, `hole` is inside the hole alone."""

    loss: Tensor
    hole: Tensor


class Problem(NamedTuple):
    """Packed for the transformer, `(B, tokens, channels)`."""

    latents: Tensor
    given: Tensor  # masked picture and hole, as FLUX Fill reads them
    weight: Tensor  # of each latent in the loss
    inside: Tensor  # share of the latent's pixels that lie in the hole
    places: Tensor  # (tokens, 3)


@torch.no_grad()
def pose(pipe: Any, image: Tensor, hole: Tensor, generator: torch.Generator | None = None) -> Problem:
    """`image` `(B, 3, H, W)` in [0, 1], `hole` `(B, 1, H, W)` of 0 and 1; H and W are multiples of 16."""
    vae, dtype = pipe.vae, pipe.vae.dtype
    count, _, height, width = image.shape
    channels, side = vae.config.latent_channels, pipe.vae_scale_factor
    centred = 2 * image - 1
    latents = pipe._encode_vae_image(centred.to(dtype), generator)
    packing = (count, channels, height // side, width // side)
    latents = pipe._pack_latents(latents, *packing).float()
    masked = (centred * (1 - hole)).to(dtype)
    mask, seen = pipe.prepare_mask_latents(
        hole, masked, count, channels, 1, height, width, torch.float32, image.device, generator
    )
    inside = nn.functional.avg_pool2d(hole, side).expand(-1, channels, -1, -1).contiguous()
    inside = pipe._pack_latents(inside, *packing)
    places = pipe._prepare_latent_image_ids(
        count, height // side // 2, width // side // 2, image.device, torch.float32
    )
    weight = OUTSIDE + (1 - OUTSIDE) * (inside > 0).float()
    return Problem(latents, torch.cat([seen, mask], 2), weight, inside, places)


def draw_levels(pipe: Any, problem: Problem, normal: Tensor) -> Tensor:
    """Noise levels s in (0, 1) from `normal` `(B,)`: logit-normal, shifted to the size as in sampling."""
    from diffusers.pipelines.flux.pipeline_flux_fill import calculate_shift

    known = pipe.scheduler.config
    shift = calculate_shift(
        problem.latents.shape[1],
        known.get("base_image_seq_len", 256),
        known.get("max_image_seq_len", 4096),
        known.get("base_shift", 0.5),
        known.get("max_shift", 1.15),
    )
    return torch.sigmoid(normal + shift)  # e^shift u / (1 + (e^shift - 1) u) of u = sigmoid(normal)


def flow_loss(
    model: nn.Module, problem: Problem, words: Words, *, level: Tensor, noise: Tensor, guidance: Tensor | None
) -> Flow:
    """How far the model's velocity is off. `level` `(B,)`; `guidance` `(B,)`, None where FLUX takes none."""
    s = level[:, None, None]
    mixed = (1 - s) * problem.latents + s * noise
    count, dtype = len(level), words.embeds.dtype
    velocity = model(
        hidden_states=torch.cat([mixed, problem.given], 2).to(dtype),
        timestep=level.to(dtype),
        guidance=guidance,
        pooled_projections=words.pooled.expand(count, -1),
        encoder_hidden_states=words.embeds.expand(count, -1, -1),
        txt_ids=problem.places.new_zeros(words.embeds.shape[1], 3),
        img_ids=problem.places,
    )
    error = (velocity.float() - (noise - problem.latents)).square()
    loss = (error * problem.weight).sum() / problem.weight.sum()
    hole = (error * problem.inside).sum() / problem.inside.sum()
    return Flow(loss, hole)
