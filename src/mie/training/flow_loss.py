"""What the flow expert minimises: squared errors of the velocity of both bands, inside the hole.

Every other crop teaches the coarse band, the rest the fine one. Nothing but torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from mie.networks.flow import STRIDE, Bands, FlowNet, Scene, Steps, draw, scene
from mie.training.flow_crops import Crops, Cutter

_STRONG: Final = 6.0  # a mean square in units of the usual strength: stronger crops count no more than this
_ROUGH: Final = 0.08  # of its strength: noise on the coarse band that the fine one is learnt from, at most
_FEWEST: Final = 6  # crops whose strength is trusted
_WEAKEST: Final = (0.02, 0.5)  # strengths are no less: of the coarse band, and of the fine one in grains
_AT_ONCE: Final = 128

Network = Callable[..., Tensor]


def around(net: FlowNet, crops: Crops) -> Scene:
    spread = net.spread(crops.conditions.family, crops.target)
    return scene(crops.image, crops.hole, crops.beyond, crops.lesion, spread)


def noise_like(net: FlowNet, crops: Crops, random: torch.Generator | None = None) -> Bands:
    """Normal noise for both bands, zero in channels that a family does not have."""
    count, channels, height, width = crops.image.shape
    drawn = net.channels(crops.conditions.family)
    sizes = ((height // STRIDE, width // STRIDE), (height, width))
    device = crops.image.device
    return Bands(
        *(drawn * torch.randn(count, channels, *size, generator=random, device=device) for size in sizes)
    )


def coarse_errors(model: Network, net: FlowNet, crops: Crops, t: Tensor, noise: Bands) -> Tensor:
    """The mean squared error of each crop's coarse velocity, `(B,)`."""
    seen = around(net, crops)
    band = seen.coarse(seen.added(crops.image))
    covered = seen.covered
    x = (covered > 0) * _between(noise.coarse, band, t)
    velocity = model(x, None, t, seen.context, crops.conditions).float()
    return _errors(velocity, band, noise.coarse, covered * net.channels(crops.conditions.family))


def fine_errors(model: Network, net: FlowNet, crops: Crops, t: Tensor, noise: Bands) -> Tensor:
    """The mean squared error of each crop's fine velocity, `(B,)`, over a coarse band that is a bit off."""
    seen = around(net, crops)
    added = seen.added(crops.image)
    rough = _ROUGH * torch.rand(len(t), 1, 1, 1, device=t.device)
    coarse = seen.coarse(added) + (seen.covered > 0) * rough * noise.coarse
    band = seen.fine(added, coarse)
    x = seen.hole * _between(noise.fine, band, t)
    velocity = model(coarse, x, t, seen.context, crops.conditions).float()
    return _errors(velocity, band, noise.fine, seen.hole * net.channels(crops.conditions.family))


def drawn(
    model: Network,
    net: FlowNet,
    crops: Crops,
    noise: Bands,
    steps: Steps,
    guidance: float = 1.0,
) -> Tensor:
    """The crops, RGB in [0, 1], with their holes drawn."""
    seen = around(net, crops)
    return seen.compose(draw(model, seen, crops.conditions, noise, steps=steps, guidance=guidance))


@torch.no_grad()
def measured_strengths(cutter: Cutter, net: FlowNet, count: int, seed: int) -> Tensor:
    """How strong each band is by family and target, `(families, 2 + targets, 2, 3)`: root mean squares.

    What few crops show gets the strength of all lesions of its family.
    """
    shape = net.strengths.shape
    device = net.strengths.device
    sums = torch.zeros(shape, device=device)
    number = torch.zeros(shape[:2], device=device)
    unit = torch.ones(1, 2, 3, device=device)
    some = min(count, _AT_ONCE)
    for start in range(0, count, some):
        crops = cutter.cut(some, seed + start)
        seen = scene(crops.image, crops.hole, crops.beyond, crops.lesion, unit.expand(some, -1, -1))
        added = seen.added(crops.image)
        coarse = seen.coarse(added)
        fine = seen.fine(added, coarse)
        powers = torch.stack([_power(coarse, seen.covered), _power(fine, seen.hole)], 1)
        at = (crops.conditions.family, crops.target)
        sums.index_put_(at, powers, accumulate=True)
        number.index_put_(at, torch.ones(some, device=device), accumulate=True)
    lesions = sums[:, 2:].sum(1, keepdim=True) / number[:, 2:].sum(1)[:, None, None, None].clamp(min=1)
    known = (number >= _FEWEST)[..., None, None]
    found = torch.where(known, sums / number.clamp(min=1)[..., None, None], lesions)
    least = torch.tensor(_WEAKEST, device=device).view(1, 1, 2, 1)
    return torch.maximum(found.sqrt(), least)


def _power(band: Tensor, where: Tensor) -> Tensor:
    """`(B, 3)`: mean square by channel."""
    return (where * band**2).sum((2, 3)) / where.sum((2, 3)).clamp(min=1e-3)


def _between(noise: Tensor, band: Tensor, t: Tensor) -> Tensor:
    at = t.view(-1, 1, 1, 1)
    return (1 - at) * noise + at * band


def _errors(velocity: Tensor, band: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    count = where.sum((1, 2, 3)).clamp(min=1e-3)
    power = (where * band**2).sum((1, 2, 3)) / count
    error = (where * (velocity - (band - noise)) ** 2).sum((1, 2, 3)) / count
    return error / (power / _STRONG).clamp(min=1)


def psnr(made: Tensor, crops: Crops) -> Tensor:
    """In the hole, `(B,)`."""
    area = crops.hole.sum((1, 2, 3)).clamp(min=1)
    error = (crops.hole * (made - crops.image) ** 2).sum((1, 2, 3)) / (3 * area)
    return -10 * error.clamp(min=1e-6).log10()


def energy(image: Tensor, inside: Tensor) -> Tensor:
    """The mean square of what differs between neighbouring pixels, both inside."""
    grey = image.mean(1, keepdim=True)
    total, count = grey.new_zeros(len(grey)), grey.new_zeros(len(grey))
    for axis in (2, 3):
        both = inside.narrow(axis, 1, inside.shape[axis] - 1) * inside.narrow(axis, 0, inside.shape[axis] - 1)
        total = total + (both * grey.diff(dim=axis) ** 2).sum((1, 2, 3))
        count = count + both.sum((1, 2, 3))
    return total / count.clamp(min=1)
