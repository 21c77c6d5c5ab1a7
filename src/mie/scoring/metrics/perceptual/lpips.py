"""The convolutions of AlexNet and VGG16, numbered as in the published weight files (`features.N`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mie.errors import ConfigError, MetricError
from mie.records import Mask, Pixels
from mie.scoring.metrics.perceptual import weights as known
from mie.scoring.metrics.perceptual.tensors import (
    batched,
    check_pixels,
    choose_device,
    exactly,
    fill,
    read_state,
    to_tensor,
)
from mie.scoring.metrics.perceptual.weights import Weights, find_weights


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


# LPIPS, learned perceptual image patch similarity (Zhang et al. 2018), version 0.1, on AlexNet or VGG16.
#
#     d(a, b) = sum over layers l of mean over places of w_l . (u_l(a) - u_l(b))^2
#
# where u_l are the trunk's activations, each place scaled to unit length, and w_l the learned non-negative
# weights of the channels. 0 for equal images; lower is better. The networks expect values in -1 to 1.

# (H, W, 3) float32; nominally -1 to 1, but what stands in them is the caller's business (see `unit`).
Floats: TypeAlias = NDArray[np.float32]
Pair: TypeAlias = tuple[Floats, Floats]

# The reference's own constants: the mean and spread of ImageNet colours on the scale -1 to 1, rounded.
_SHIFT: Final = (-0.030, -0.088, -0.188)
_SCALE: Final = (0.458, 0.448, 0.450)
_EPSILON: Final = 1e-10
_PIXELS: Final = 1 << 19  # of each side of a batch; VGG16 needs about 1 GB for it
_FILES: Final = {
    "alex": (known.ALEXNET, known.LPIPS_ALEX),
    "vgg": (known.VGG16, known.LPIPS_VGG),
}


def signed(image: Pixels) -> Floats:
    """`(H, W, 3) uint8` on the scale -1 to 1, which is what LPIPS was made for."""
    return check_pixels(image).astype(np.float32) / np.float32(127.5) - np.float32(1)


def unit(image: Pixels) -> Floats:
    """On the scale 0 to 1: fed to LPIPS as it is, what MedEBench's released script measures."""
    return check_pixels(image).astype(np.float32) / np.float32(255)


def keep(values: Floats, region: Mask) -> Floats:
    """Zero (on the scale -1 to 1: mid-grey) outside the region, `(H, W) bool`."""
    return np.where(region[:, :, None], values, np.float32(0))


def scaled_again(values: Floats) -> Floats:
    """2 x - 1. Omni IIE Bench's released script does this to values that are on the scale -1 to 1 already:
    `scaled_again(keep(signed(image), region))` is what it measures for foreground and background.
    """
    return np.float32(2) * values - np.float32(1)


class Lpips:
    """The metric with its weights: `lpips(signed(a), signed(b))`."""

    def __init__(
        self,
        net: str,
        trunk: dict[str, torch.Tensor],
        linear: dict[str, torch.Tensor],
        *,
        device: str | None = None,
        weights: tuple[Weights, ...] = (),
    ) -> None:
        """`trunk`: tensors of a whole network, `features.0.weight`, …; `linear`: `lin0.model.1.weight`, …"""
        self.net = net
        self.weights = weights
        self._trunk = TRUNKS[net]
        self._device = choose_device(device)
        self._layers = make_trunk(self._trunk, trunk).to(self._device)
        self._linear = [tensor.to(self._device) for tensor in _channel_weights(linear, self._trunk.channels)]
        self._shift = torch.tensor(_SHIFT, device=self._device).view(1, 3, 1, 1)
        self._scale = torch.tensor(_SCALE, device=self._device).view(1, 3, 1, 1)

    def __call__(self, a: Floats, b: Floats) -> float:
        """The distance of two images `(H, W, 3) float32` of one size."""
        return next(self.distances([(a, b)]))

    def distances(self, pairs: Iterable[Pair]) -> Iterator[float]:
        """One distance for each pair, in order. Pairs of one size that follow each other share a batch;
        what is in memory does not grow with their number.
        """
        for shape, group in groupby(pairs, key=self._checked_shape):
            for batch in batched(group, max(1, _PIXELS // (shape[0] * shape[1]))):
                yield from self._batch(batch)

    def about(self) -> dict[str, Any]:
        """What a result has to record."""
        return {"net": self.net, "version": "0.1", "weights": [w.as_dict() for w in self.weights]}

    def _batch(self, pairs: list[Pair]) -> list[float]:
        with exactly():
            both = to_tensor([pair[0] for pair in pairs] + [pair[1] for pair in pairs], self._device)
            total = torch.zeros(len(pairs), device=self._device)
            outputs = tapped(self._layers, self._trunk, (both - self._shift) / self._scale)
            for output, linear in zip(outputs, self._linear, strict=True):
                length = output.square().sum(dim=1, keepdim=True).sqrt()
                first, second = (output / (length + _EPSILON)).chunk(2)
                total += ((first - second).square() * linear).sum(dim=1).mean(dim=(1, 2))
            return [float(value) for value in total.cpu()]

    def _checked_shape(self, pair: Pair) -> tuple[int, ...]:
        a, b = pair
        if a.shape != b.shape or a.ndim != 3 or a.shape[2] != 3:
            raise MetricError("images differ in size", expected=a.shape, found=b.shape)
        if a.dtype != np.float32 or b.dtype != np.float32:
            raise MetricError("not scaled for LPIPS", expected="signed(image)", found=f"{a.dtype}, {b.dtype}")
        smallest = self._trunk.smallest
        if min(a.shape[:2]) < smallest:
            found = f"{a.shape[0]}x{a.shape[1]}"
            raise MetricError(f"too small for LPIPS ({self.net})", expected=f"{smallest} px", found=found)
        return a.shape


def load_lpips(
    net: str = "alex",
    *,
    trunk: Path | str | None = None,
    linear: Path | str | None = None,
    device: str | None = None,
) -> Lpips:
    """LPIPS with the published weights of the weights folder, or with those at the given paths."""
    if net not in _FILES:
        raise ConfigError(f"no LPIPS network named {net!r}", expected=", ".join(_FILES))
    files = zip(_FILES[net], (trunk, linear), strict=True)
    found = tuple(find_weights(f"lpips-{net}", file, path) for file, path in files)
    states = [read_state(one.path) for one in found]
    return Lpips(net, *states, device=device, weights=found)


def _channel_weights(linear: dict[str, torch.Tensor], channels: tuple[int, ...]) -> list[torch.Tensor]:
    """One weight for each channel of each layer, `(1, C, 1, 1)`."""
    out = []
    for layer, count in enumerate(channels):
        tensor = linear.get(f"lin{layer}.model.1.weight")
        if tensor is None or tensor.shape != (1, count, 1, 1):
            shape = None if tensor is None else tuple(tensor.shape)
            raise MetricError(
                "not the linear layers of LPIPS", expected=f"lin{layer}: {(1, count, 1, 1)}", found=shape
            )
        out.append(tensor)
    return out
