"""The convolutions of AlexNet and VGG16, numbered as in the published weight files (`features.N`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from mie.metrics.perceptual.tensors import fill


@dataclass(frozen=True, slots=True)
class Trunk:
    """A network's layers, which of them LPIPS looks at, and the smallest side an image may have."""

    name: str
    taps: tuple[int, ...]  # places of the ReLUs whose output is taken
    channels: tuple[int, ...]  # there
    smallest: int


ALEX: Final = Trunk("alex", (1, 4, 7, 9, 11), (64, 192, 384, 256, 256), 31)
VGG: Final = Trunk("vgg", (3, 8, 15, 22, 29), (64, 128, 256, 512, 512), 16)
TRUNKS: Final = {trunk.name: trunk for trunk in (ALEX, VGG)}

_VGG16: Final = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)  # 0: halve


def alexnet() -> nn.Sequential:
    """The "one weird trick" AlexNet without its classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(inplace=True),
    )


def vgg16() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width in _VGG16:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2, stride=2))
    return nn.Sequential(*layers)


def make_trunk(trunk: Trunk, state: dict[str, torch.Tensor], *, where: object = None) -> nn.Sequential:
    """The layers with the weights of a whole published network (its classifier is left out)."""
    layers = alexnet() if trunk is ALEX else vgg16()
    features = {k.removeprefix("features."): v for k, v in state.items() if k.startswith("features.")}
    fill(layers, features, where=where)
    return layers


def tapped(layers: nn.Sequential, trunk: Trunk, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """What LPIPS looks at, one after another, so that only one layer is in memory at a time."""
    for place, layer in enumerate(layers):
        x = layer(x)
        if place in trunk.taps:
            yield x
