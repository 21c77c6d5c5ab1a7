"""OmniGen2's flow: from noise at t = 0 to the image at t = 1, in training and in sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mie.networks.omnigen2 import Layout, OmniGen2Transformer, Size, make_layout

# Training draws more times near the noise the more tokens an image has: the logit moves by this line.
_SHIFT: Final = ((256, 0.5), (4096, 1.15))  # (tokens, shift)
_SAMPLER: Final = 40.0  # pixels of the latent's side at which sampling takes equal steps


class NotFiniteError(ArithmeticError):
    """The latents hold values that are not finite. `step` is the step that made them, from 0."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the latents are not finite after step {step + 1}")
        self.step = step


@dataclass(frozen=True, slots=True)
class Guidance:
    """How strongly text and references are followed, and in which share of the steps."""

    text: float = 5.0
    image: float = 2.0
    start: float = 0.0
    end: float = 1.0

    def at(self, step: int, steps: int) -> tuple[float, float]:
        """(text, image) at a step; 1 outside the range, which means no guidance."""
        return (self.text, self.image) if self.start <= step / steps <= self.end else (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a batch of edits is conditioned on: text states with their lengths, and reference latents."""

    text: Tensor  # (batch, tokens, width), right padding
    lengths: Sequence[int]
    references: Sequence[Sequence[Tensor]]

    def without_references(self) -> Conditions:
        return Conditions(self.text, self.lengths, [()] * len(self.lengths))

    def layout(self, model: OmniGen2Transformer, sizes: Sequence[Size]) -> Layout:
        """The layout of a batch of latents of these sizes."""
        references = [[_size(image) for image in images] for images in self.references]
        return make_layout(model.config, self.lengths, references, sizes, self.text.device)


def training_times(u: Tensor, tokens: int, sigma: float = 1.0) -> Tensor:
    """Shift times of (0, 1) towards the noise, as for images of this many tokens."""
    (x0, y0), (x1, y1) = _SHIFT
    mu = math.exp(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))
    return 1 - mu / (mu + (1 / (1 - u) - 1) ** sigma)


def sampler_times(steps: int, size: Size) -> Tensor:
    """The `steps + 1` times of the sampler for latents of this size, from 0 to 1, in float32."""
    m = math.sqrt(size[0] * size[1]) / _SAMPLER
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    return (t / (m - m * t + t)).float()


def noisy(images: Sequence[Tensor], noise: Sequence[Tensor], t: Tensor) -> list[Tensor]:
    """The latents at time t on the straight line from the noise to the image."""
    return [s * image + (1 - s) * n for image, n, s in zip(images, noise, t, strict=True)]


def flow_loss(
    velocity: Sequence[Tensor],
    images: Sequence[Tensor],
    noise: Sequence[Tensor],
    values: int | None = None,
) -> Tensor:
    """The sum of squared errors against image - noise over the number of latent values.

    With several micro-batches or processes, `values` is the number in all of them, so that every latent value
    counts the same.
    """
    errors = [
        (v.float() - (image.float() - n.float())).square().sum()
        for v, image, n in zip(velocity, images, noise, strict=True)
    ]
    return torch.stack(errors).sum() / (values or sum(image.numel() for image in images))


@torch.no_grad()
def sample(
    model: OmniGen2Transformer,
    noise: Tensor,
    conditions: Conditions,
    negative: Conditions,
    *,
    steps: int = 50,
    guidance: Guidance = Guidance(),
    on_step: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Take noise of one size, (batch, channels, height, width), to images by Euler steps.

    Up to three passes a step: v sees text and references, vr the negative text and references, vu the
    negative text alone. The guided velocity is vu + image·(vr - vu) + text·(v - vr). Without image guidance
    it is vu + text·(v - vu), without text guidance v.

    Raises:
        NotFiniteError: After the first step that made NaN or infinity.

    """
    batch, _, height, width = noise.shape
    sizes = [(height, width)] * batch
    passes = {
        "full": (conditions, conditions.layout(model, sizes)),
        "references": (negative, negative.layout(model, sizes)),
        "none": ((bare := negative.without_references()), bare.layout(model, sizes)),
    }
    z = noise.float()
    times = sampler_times(steps, (height, width)).to(z.device)

    def velocity(name: str, t: Tensor) -> Tensor:
        given, layout = passes[name]
        return torch.stack(model(z, t.expand(batch), given.text, given.references, layout)).float()

    for step in range(steps):
        t = times[step]
        text, image = guidance.at(step, steps)
        v = velocity("full", t)
        if text > 1:
            vu = velocity("none", t)
            if image > 1:
                vr = velocity("references", t)
                v = vu + image * (vr - vu) + text * (v - vr)
            else:
                v = vu + text * (v - vu)
        z = z + (times[step + 1] - t) * v
        if not torch.isfinite(z).all():
            raise NotFiniteError(step)
        if on_step is not None:
            on_step(step + 1, steps)
    return z


def _size(latent: Tensor) -> Size:
    return latent.shape[-2], latent.shape[-1]
