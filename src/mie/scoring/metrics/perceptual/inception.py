"""The Inception v3 of the original FID: TensorFlow's of 2015-12-05, 2048 features before its classifier.

It differs from the usual Inception v3 in three ways. Average pooling leaves the padding out of its mean, the
last block pools by maximum, and its classifier (not used here) has 1008 classes. Names of the parts are those
of the published weight file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from mie.records import Pixels
from mie.scoring.metrics.perceptual import weights as known
from mie.scoring.metrics.perceptual.tensors import (
    batched,
    check_pixels,
    choose_device,
    exactly,
    fill,
    read_state,
)
from mie.scoring.metrics.perceptual.tensors import to_tensor as as_tensor
from mie.scoring.metrics.perceptual.weights import Weights, find_weights

FEATURES: Final = 2048
_SIDE: Final = 299

Kernel: TypeAlias = int | tuple[int, int]
# Name, channels, kernel; the last element of a chain may fork into two whose outputs are joined.
Layer: TypeAlias = tuple[str, int, Kernel]
Chain: TypeAlias = tuple[Layer | tuple[Layer, Layer], ...]


class Convolution(nn.Module):
    """Convolution without bias, batch normalisation, ReLU."""

    def __init__(self, before: int, after: int, kernel: Kernel, *, stride: int = 1, padded: bool = True):
        super().__init__()
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if padded else 0
        self.conv = nn.Conv2d(before, after, (height, width), stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(after, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Mixed(nn.Module):
    """Chains of convolutions beside each other and a pooled branch, joined along the channels.

    `pool`: "average" or "maximum" are followed by a 1x1 convolution to `pooled` channels; "halve" is a
    maximum with stride 2, and then every chain ends with stride 2 too.
    """

    def __init__(self, before: int, chains: tuple[Chain, ...], pool: str, pooled: int = 0) -> None:
        super().__init__()
        self._pool, self._chains = pool, chains
        for chain in chains:
            channels = before
            for at, part in enumerate(chain):
                last = at == len(chain) - 1
                halves = pool == "halve" and last
                for name, after, kernel in _layers(part):
                    layer = Convolution(channels, after, kernel, stride=2 if halves else 1, padded=not halves)
                    self.add_module(name, layer)
                channels = _layers(part)[0][1]
        if pooled:
            self.branch_pool = Convolution(before, pooled, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([*(self._through(chain, x) for chain in self._chains), self._pooled(x)], 1)

    def _through(self, chain: Chain, x: torch.Tensor) -> torch.Tensor:
        for part in chain:
            x = torch.cat([self.get_submodule(name)(x) for name, _, _ in _layers(part)], 1)
        return x

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        if self._pool == "halve":
            return F.max_pool2d(x, 3, stride=2)
        if self._pool == "maximum":
            x = F.max_pool2d(x, 3, stride=1, padding=1)
        else:
            x = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        out: torch.Tensor = self.branch_pool(x)
        return out


def _layers(part: Layer | tuple[Layer, Layer]) -> tuple[Layer, ...]:
    return (part,) if isinstance(part[0], str) else part


def _mixed_5(before: int, pooled: int) -> Mixed:
    chains: tuple[Chain, ...] = (
        (("branch1x1", 64, 1),),
        (("branch5x5_1", 48, 1), ("branch5x5_2", 64, 5)),
        (("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3", 96, 3)),
    )
    return Mixed(before, chains, "average", pooled)


def _mixed_6a() -> Mixed:
    chains: tuple[Chain, ...] = (
        (("branch3x3", 384, 3),),
        (("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3", 96, 3)),
    )
    return Mixed(288, chains, "halve")


def _mixed_6(inner: int) -> Mixed:
    tall, wide = (7, 1), (1, 7)
    chains: tuple[Chain, ...] = (
        (("branch1x1", 192, 1),),
        (("branch7x7_1", inner, 1), ("branch7x7_2", inner, wide), ("branch7x7_3", 192, tall)),
        (
            ("branch7x7dbl_1", inner, 1),
            ("branch7x7dbl_2", inner, tall),
            ("branch7x7dbl_3", inner, wide),
            ("branch7x7dbl_4", inner, tall),
            ("branch7x7dbl_5", 192, wide),
        ),
    )
    return Mixed(768, chains, "average", 192)


def _mixed_7a() -> Mixed:
    chains: tuple[Chain, ...] = (
        (("branch3x3_1", 192, 1), ("branch3x3_2", 320, 3)),
        (
            ("branch7x7x3_1", 192, 1),
            ("branch7x7x3_2", 192, (1, 7)),
            ("branch7x7x3_3", 192, (7, 1)),
            ("branch7x7x3_4", 192, 3),
        ),
    )
    return Mixed(768, chains, "halve")


def _mixed_7(before: int, pool: str) -> Mixed:
    wide, tall = (1, 3), (3, 1)
    chains: tuple[Chain, ...] = (
        (("branch1x1", 320, 1),),
        (("branch3x3_1", 384, 1), (("branch3x3_2a", 384, wide), ("branch3x3_2b", 384, tall))),
        (
            ("branch3x3dbl_1", 448, 1),
            ("branch3x3dbl_2", 384, 3),
            (("branch3x3dbl_3a", 384, wide), ("branch3x3dbl_3b", 384, tall)),
        ),
    )
    return Mixed(before, chains, pool, 192)


class InceptionV3(nn.Module):
    """Images `(N, 3, 299, 299)` in -1 to 1 to features `(N, 2048)`."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, 32, 3, stride=2, padded=False)
        self.Conv2d_2a_3x3 = Convolution(32, 32, 3, padded=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, 3)
        self.Conv2d_3b_1x1 = Convolution(64, 80, 1)
        self.Conv2d_4a_3x3 = Convolution(80, 192, 3, padded=False)
        self.Mixed_5b = _mixed_5(192, 32)
        self.Mixed_5c = _mixed_5(256, 64)
        self.Mixed_5d = _mixed_5(288, 64)
        self.Mixed_6a = _mixed_6a()
        self.Mixed_6b = _mixed_6(128)
        self.Mixed_6c = _mixed_6(160)
        self.Mixed_6d = _mixed_6(160)
        self.Mixed_6e = _mixed_6(192)
        self.Mixed_7a = _mixed_7a()
        self.Mixed_7b = _mixed_7(1280, "average")
        self.Mixed_7c = _mixed_7(2048, "maximum")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = F.max_pool2d(x, 3, stride=2)
        x = F.max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, stride=2)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return x.mean(dim=(2, 3))


class Inception:
    """The network with its weights: images of any size to features."""

    def __init__(
        self,
        state: dict[str, torch.Tensor],
        *,
        device: str | None = None,
        weights: tuple[Weights, ...] = (),
    ) -> None:
        self.weights = weights
        self._device = choose_device(device)
        self._network = InceptionV3()
        fill(self._network, state)
        self._network.to(self._device)

    def features(self, images: Iterable[Pixels], *, batch: int = 32) -> Iterator[NDArray[np.float32]]:
        """`(B, 2048) float32` for every `batch` images `(H, W, 3) uint8`, in order."""
        for chunk in batched(images, batch):
            with exactly():
                x = torch.cat([self._prepare(image) for image in chunk])
                yield self._network(x).cpu().numpy()

    def about(self) -> dict[str, Any]:
        """What a result has to record."""
        return {"weights": [w.as_dict() for w in self.weights]}

    def _prepare(self, image: Pixels) -> torch.Tensor:
        # Bilinear without antialiasing, on 0 to 1, as pytorch-fid does: published FIDs depend on it.
        x = as_tensor([check_pixels(image)], self._device) / 255
        x = F.interpolate(x, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        return 2 * x - 1


def load_inception(path: Path | str | None = None, *, device: str | None = None) -> Inception:
    """The network with the published weights of the weights folder, or with those at `path`."""
    found = find_weights("fid", known.INCEPTION, path)
    return Inception(read_state(found.path), device=device, weights=(found,))
