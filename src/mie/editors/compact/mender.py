"""The mender: an image and what an instruction says in, what to add to the image out.

A network of its own for transformation (noise, artifacts, resolution, contrast). Its features pass no norm
(the attention looks through one, and adds): it would take away grey levels and the amount of noise, by which
a correction is measured. As in the network beside it, the finest level works on 2x2 blocks of pixels. What
shades an image slowly, as coils do, is undone by a coarse field that the image is multiplied by.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mie.editors.compact.layers import Attention

Widths = tuple[int, int, int, int]  # at strides 2, 4, 8 and 16
DOWN: Final[Widths] = (2, 1, 2, 2)  # blocks at each stride on the way down
UP: Final = (2, 2, 2)  # and at strides 2, 4 and 8 on the way up
_HINT: Final = 64  # of the text's vector, what the blocks get to know
_BRANCH: Final = 0.2  # a block adds so much of what it gets, at first
_BRIGHT: Final = 4.0  # pictures in [0, 1] have a deviation of about a quarter


class Mender(nn.Module):
    """`image (B, 3, H, W)` in [0, 1] to a residual `(B, 3, H, W)`, zero at first.

    `vector (B, text)`, `tokens (B, T, text)` and `mask (B, T)` are those of the reader.
    """

    def __init__(self, widths: Widths, text: int, heads: int) -> None:
        super().__init__()
        w = widths
        # The reader's first vectors are small: as they are, the text would be learnt late.
        self.hint = nn.Sequential(nn.LayerNorm(text), nn.Linear(text, _HINT), nn.SiLU())
        self.stem = _conv(12, w[0], 3, gain=_BRIGHT)
        self.down = nn.ModuleList(_conv(w[k], w[k + 1], 2, stride=2) for k in range(3))
        self.encode = nn.ModuleList(nn.ModuleList(_Block(w[k]) for _ in range(DOWN[k])) for k in range(4))
        # Ghosts of motion and of undersampling come from the other end of the image.
        self.look = Attention(w[3], text, heads, itself=True)
        self.field = _conv(w[3], 1, 3, gain=0.0)
        self.up = nn.ModuleList(_conv(w[k + 1], 4 * w[k], 1) for k in range(3))
        self.decode = nn.ModuleList(nn.ModuleList(_Block(w[k]) for _ in range(UP[k])) for k in range(3))
        self.leave = _conv(w[0], 12, 3, gain=0.0)

    def forward(self, image: Tensor, vector: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        hint = self.hint(vector)
        x = self.stem(F.pixel_unshuffle(image - 0.5, 2))
        skips: list[Tensor] = []
        for k in range(4):
            if k:
                x = self.down[k - 1](x)
            for block in self.encode[k].children():
                x = block(x, hint)
            skips.append(x)
        x = self.look(x, tokens, mask)
        field = F.interpolate(self.field(x), scale_factor=16.0, mode="bilinear")
        for k in (2, 1, 0):
            x = skips[k] + F.pixel_shuffle(self.up[k](x), 2)
            for block in self.decode[k].children():
                x = block(x, hint)
        return F.pixel_shuffle(self.leave(x), 2) + image * torch.expm1(field)


class _Block(nn.Module):
    """Two convolutions beside the way; the text scales and shifts what is between them and scales the end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = _conv(width, width, 3, gain=2**0.5)
        self.film = nn.Linear(_HINT, 3 * width)
        self.conv2 = _conv(width, width, 3, gain=_BRANCH)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, hint: Tensor) -> Tensor:
        scale, shift, gate = self.film(hint)[:, :, None, None].chunk(3, 1)
        return x + self.conv2(F.silu(self.conv(x) * (1 + scale) + shift)) * (1 + gate)


def _conv(width: int, out: int, size: int, *, stride: int = 1, gain: float = 1.0) -> nn.Conv2d:
    """Whose output has `gain` times the deviation of its input: torch's own would lose 0.4 of it."""
    made = nn.Conv2d(width, out, size, stride, padding=size // 2 if stride == 1 else 0)
    nn.init.normal_(made.weight, std=gain / (width * size * size) ** 0.5)
    assert made.bias is not None  # noqa: S101
    nn.init.zeros_(made.bias)
    return made
