"""Layers of the compact network: blocks conditioned on the text, attention, local contrast, restoration."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Widths = tuple[int, int, int, int]  # at strides 2, 4, 8 and 16
DOWN: Final[Widths] = (2, 1, 2, 2)  # blocks at each stride on the way down
UP: Final = (2, 2, 2)  # and at strides 2, 4 and 8 on the way up
_HINT: Final = 64  # of the text's vector, what the blocks get to know
_BRANCH: Final = 0.2  # a block adds so much of what it gets, at first
_BRIGHT: Final = 4.0  # pictures in [0, 1] have a deviation of about a quarter
_WINDOW: Final = 31  # pixels, the side of the window of local contrast
_NOISE: Final = 0.01  # of the range of grey: smaller differences are noise
_MOST: Final = 3.0  # standard deviations


class Block(nn.Module):
    """Two convolutions; the text scales and shifts what lies between them."""

    def __init__(self, width: int, out: int, text: int, dropout: float = 0.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.drop_path = dropout, drop_path
        self.norm, self.norm2 = nn.GroupNorm(_groups(width), width), nn.GroupNorm(_groups(out), out)
        self.conv, self.conv2 = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.film = nn.Linear(text, 2 * out)
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)
        nn.init.normal_(self.conv2.weight, std=1e-2 / out**0.5)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        scale, shift = self.film(text)[:, :, None, None].chunk(2, 1)
        y = self.conv(F.silu(self.norm(x)))
        y = F.silu(self.norm2(y) * (1 + scale) + shift)
        if self.training and self.dropout:
            y = F.dropout(y, self.dropout)
        y = self.conv2(y)
        if self.training and self.drop_path:
            kept = torch.rand(len(y), 1, 1, 1, device=y.device) >= self.drop_path
            y = y * kept / (1 - self.drop_path)
        return self.skip(x) + y


class Detail(nn.Module):
    """A correction at full resolution, on 2x2 blocks of pixels. No norms: levels and grain stay as they are.

    `(B, width, H/2, W/2)` features and the image's blocks `(B, 12, H/2, W/2)` to `(B, 3, H, W)`, zero at
    first.
    """

    def __init__(self, width: int, text: int, blocks: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(width + 12, width, 3, padding=1)
        self.films = nn.ModuleList(nn.Linear(text, width) for _ in range(blocks))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.leave = nn.Conv2d(width, 12, 3, padding=1)
        nn.init.zeros_(self.leave.weight)
        assert self.leave.bias is not None  # noqa: S101
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, image: Tensor, text: Tensor) -> Tensor:
        x = self.enter(torch.cat([x, image], 1))
        for film, block in zip(self.films, self.blocks, strict=True):
            x = x + 0.5 * block(x) * (1 + film(text)[:, :, None, None])
        return F.pixel_shuffle(self.leave(x), 2)


class Attention(nn.Module):
    """Pixels look at the instruction's tokens and, where the map is small, at each other."""

    def __init__(self, width: int, text: int, heads: int, *, itself: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(_groups(width), width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(text, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width) if itself else None
        self.qkv = nn.Linear(width, 3 * width) if itself else None
        self.out2 = nn.Linear(width, width) if itself else None

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        q = self.q(self.norm(x).flatten(2).transpose(1, 2))
        y = y + self.out(attend(q, self.kv(tokens), self.heads, mask))
        if self.norm2 is not None and self.qkv is not None and self.out2 is not None:
            q, kv = self.qkv(self.norm2(y)).split((c, 2 * c), 2)
            y = y + self.out2(attend(q, kv, self.heads))
        return y.transpose(1, 2).reshape(b, c, h, w)


def attend(q: Tensor, kv: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attention of `(B, N, C)` to keys and values `(B, T, 2C)`; `mask (B, T)` is true where a token is."""
    b, n, c = q.shape
    k, v = kv.chunk(2, 2)
    split = [t.view(b, -1, heads, c // heads).transpose(1, 2) for t in (q, k, v)]
    keep = None if mask is None else mask[:, None, None, :].expand(b, 1, n, -1)
    y = F.scaled_dot_product_attention(split[0], split[1], split[2], attn_mask=keep)
    return y.transpose(1, 2).reshape(b, n, c)


def _groups(width: int) -> int:
    return 8 if width % 8 == 0 else 1


def local_contrast(image: Tensor) -> Tensor:
    """`(B, 1, H, W)` in [-1, 1] of `(B, 3, H, W)` in [0, 1]: grey minus its mean around, by its deviation.

    Faint lesions stand out, whatever the window was. In a brain CT whose window is wide enough for bone, a
    stroke is one or two grey levels of 255; that is less than bfloat16 keeps of a grey near one half, so this
    is computed in float32.
    """
    grey = image.float().mean(1, keepdim=True)
    difference = grey - _around(grey)
    deviation = (_around(difference.square()) + _NOISE**2).sqrt()
    return (difference / deviation).clamp(-_MOST, _MOST) / _MOST


def _around(x: Tensor) -> Tensor:
    """The mean over a square window; beyond the edge nothing counts."""
    half = _WINDOW // 2
    x = F.avg_pool2d(x, (_WINDOW, 1), 1, (half, 0), count_include_pad=False)
    return F.avg_pool2d(x, (1, _WINDOW), 1, (0, half), count_include_pad=False)


class RestorationNet(nn.Module):
    """`image (B, 3, H, W)` in [0, 1] to a residual `(B, 3, H, W)`, zero at first.

    A network of its own for transformation (noise, artifacts, resolution, contrast). Its features pass no
    norm (the attention looks through one, and adds): a norm would take away grey levels and the amount of
    noise, by which a correction is measured. As in `CompactNet` the finest level works on 2x2 blocks of
    pixels. Slow shading, as coils cause it, is undone by a coarse field that the image is multiplied by.

    `vector (B, text)`, `tokens (B, T, text)` and `mask (B, T)` are those of the reader.
    """

    def __init__(self, widths: Widths, text: int, heads: int) -> None:
        super().__init__()
        w = widths
        # The reader's first vectors are small: as they are, the text would be learnt late.
        self.hint = nn.Sequential(nn.LayerNorm(text), nn.Linear(text, _HINT), nn.SiLU())
        self.stem = _conv(12, w[0], 3, gain=_BRIGHT)
        self.down = nn.ModuleList(_conv(w[k], w[k + 1], 2, stride=2) for k in range(3))
        self.encode = nn.ModuleList(
            nn.ModuleList(_PlainBlock(w[k]) for _ in range(DOWN[k])) for k in range(4)
        )
        # Ghosts of motion and of undersampling come from the other end of the image.
        self.look = Attention(w[3], text, heads, itself=True)
        self.field = _conv(w[3], 1, 3, gain=0.0)
        self.up = nn.ModuleList(_conv(w[k + 1], 4 * w[k], 1) for k in range(3))
        self.decode = nn.ModuleList(nn.ModuleList(_PlainBlock(w[k]) for _ in range(UP[k])) for k in range(3))
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


class _PlainBlock(nn.Module):
    """Two convolutions in a residual branch; the text scales and shifts between them, and scales the end."""

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
    """A convolution whose output has `gain` times the deviation of its input: torch's own would lose 0.4."""
    conv = nn.Conv2d(width, out, size, stride, padding=size // 2 if stride == 1 else 0)
    nn.init.normal_(conv.weight, std=gain / (width * size * size) ** 0.5)
    assert conv.bias is not None  # noqa: S101
    nn.init.zeros_(conv.bias)
    return conv
