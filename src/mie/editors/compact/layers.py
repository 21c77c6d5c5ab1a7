"""What the network is made of: blocks that the text conditions, attention, and a branch for fine detail."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


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
