"""The network: an image and an instruction's tokens in, overlay maps and a correction of the image out.

A U-Net whose finest level works on 2x2 pixel blocks (nothing is lost, four times less to compute), with a
pretrained trunk feeding every scale. The instruction enters three ways: a vector that scales and shifts each
block's features (FiLM), cross-attention at strides 8 and 16, and one query per overlay colour. Each query
reads from the tokens what is to be painted in its colour; a pixel is painted where its embedding agrees with
the query. So "the liver in red and the kidneys in blue" is understood in the text, not in the image.

With `change`, a query more says where a modification changes the image, in the same embedding, so that what
perception knows of lesions is known here too; and a white hole comes as a channel of its own. With `detail`,
the correction has a branch at full resolution. With `local`, the image's local contrast is a channel more.
With `restoration`, a network of its own corrects the image where an instruction asks for a transformation.
Both share the reader: the text alone says what is asked for, so in use only one of the two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mie.errors import MieError
from mie.networks import weights
from mie.networks.compact_layers import (
    Attention,
    Block,
    Detail,
    RestorationNet,
    Widths,
    attend,
    local_contrast,
)
from mie.networks.fill import pull_push
from mie.networks.trunk import BACKBONES, Trunk
from mie.vocabulary import COLOURS, PERSPECTIVES

TEXT_WIDTH: Final = 384
STRIDE: Final = 32  # the sides of an image must be multiples of it
_HALVINGS: Final = 5  # the last one makes a pixel of a stride
FORMAT: Final = "compact 1"  # of weights files
_IN_FILES: Final = {"restoration": "mender"}  # fields that weights files know by another name


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Widths at strides 2, 4, 8 and 16, blocks on the way down and up, and the text's width.

    Fields after `pixel` came later. Their defaults are the network without them, so that older files load.
    """

    widths: tuple[int, int, int, int] = (64, 96, 192, 320)
    down: tuple[int, int, int, int] = (1, 2, 2, 2)
    up: tuple[int, int, int] = (2, 1, 1)
    text: int = 256
    heads: int = 8
    pixel: int = 24  # width of a pixel's embedding
    change: bool = False  # a gate for modification, and the hole's channel
    detail: int = 0  # blocks of the branch at full resolution
    dropout: float = 0.0  # of features at strides 8 and 16, in training
    drop_path: float = 0.0  # of whole blocks there, per image, in training
    local: bool = False  # a channel more: the image's local contrast
    restoration: Widths | tuple[()] = ()  # widths of the restoration network; empty: none
    backbone: str = "mobilenetv2"  # of the trunk

    def as_json(self) -> dict[str, Any]:
        return {_IN_FILES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NetConfig:
        names = {key: name for name, key in _IN_FILES.items()}
        fields: dict[str, Any] = {
            names.get(key, key): tuple(value) if isinstance(value, list) else value
            for key, value in values.items()
        }
        return cls(**fields)


class Heads(NamedTuple):
    overlay: Tensor  # (B, 3, H, W) logits: is this pixel painted red, green, blue
    residual: Tensor  # (B, 3, H, W) what to add to the image in [0, 1]
    perspective: Tensor  # (B, 3) logits, from the text alone; (B + T, 3) with T rows to restore
    presence: Tensor  # (B,) logit: what is asked for is in this image
    change: Tensor | None = None  # (B, 1, H, W) logits: is this pixel modified
    restored: Tensor | None = None  # (T, 3, H, W) what the restoration network adds to its own rows

    def known(self) -> dict[str, Tensor]:
        """The heads that this network has, by name."""
        return {name: head for name, head in self._asdict().items() if head is not None}


class CompactNet(nn.Module):
    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        w, text = config.widths, config.text
        self.reader = Reader(text, config.heads)
        backbone = BACKBONES[config.backbone]
        self.trunk = Trunk(backbone=backbone)
        taps = list(backbone.taps.values())
        self.from_trunk = nn.ModuleList(nn.Conv2d(c, width, 1) for c, width in zip(taps[:4], w, strict=True))
        self.from_top = nn.Conv2d(taps[4], w[3], 1)
        self.stem = nn.Conv2d(4 * (3 + config.change + config.local), w[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(w[k], w[k + 1], 3, 2, 1) for k in range(3))
        drops = [(config.dropout, config.drop_path) if k >= 2 else (0.0, 0.0) for k in range(4)]
        self.encode = nn.ModuleList(
            nn.ModuleList(Block(w[k], w[k], text, *drops[k]) for _ in range(config.down[k])) for k in range(4)
        )
        self.look = nn.ModuleList(Attention(w[k], text, config.heads, itself=k == 3) for k in (2, 3))
        self.decode = nn.ModuleList(
            nn.ModuleList(
                Block(w[k + 1] + w[k] if n == 0 else w[k], w[k], text, *drops[k]) for n in range(config.up[k])
            )
            for k in range(3)
        )
        self.look_back = Attention(w[2], text, config.heads)
        self.unfold = nn.Conv2d(w[0], 4 * config.pixel, 1)
        self.fine = nn.Sequential(
            nn.Conv2d(config.pixel + 3, config.pixel, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(config.pixel, config.pixel, 3, padding=1),
            nn.SiLU(),
        )
        self.embed = nn.Conv2d(config.pixel, config.pixel, 1)
        self.query = nn.Linear(text, config.pixel + 1)
        self.residual = nn.Conv2d(config.pixel, 3, 3, padding=1)
        self.change = nn.Linear(text, config.pixel + 1) if config.change else None
        self.detail = Detail(w[0], text, config.detail) if config.detail else None
        self.presence = nn.Sequential(nn.Linear(w[3] + text, text), nn.SiLU(), nn.Linear(text, 1))
        nn.init.zeros_(self.residual.weight)
        assert self.residual.bias is not None  # noqa: S101
        nn.init.zeros_(self.residual.bias)
        widths = config.restoration
        # By this name its tensors are in weights files.
        self.mender = RestorationNet(widths, text, config.heads) if widths else None

    @property
    def restoration(self) -> RestorationNet | None:
        """The network that edits the whole image, where it is separate."""
        return self.mender

    def forward(
        self,
        image: Tensor,
        tokens: Tensor,
        token_mask: Tensor,
        hole: Tensor | None = None,
        restore: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Heads:
        """`image (B, 3, H, W)` in [0, 1], `hole (B, 1, H, W)` 1 inside; it is only used with `change`.

        The hole is filled smoothly before anything looks at the image; the residual leads from the image as
        it was given. `restore` is image, tokens and mask of T other rows, which the restoration network alone
        sees: training needs all of them in one pass. There may be no rows but those.
        """
        if restore is None:
            return self._heads(image, self.reader(tokens, token_mask), token_mask, hole)
        degraded, words, word_mask = restore
        read = self.reader(torch.cat([tokens, words]), torch.cat([token_mask, word_mask]))
        rows = len(image)
        restored = self._restored(degraded, Reading(*(part[rows:] for part in read)), word_mask)
        if not rows:
            return Heads(image, image, read.perspective, image[:, 0, 0, 0], image[:, :1], restored)
        heads = self._heads(image, Reading(*(part[:rows] for part in read)), token_mask, hole)
        return heads._replace(perspective=read.perspective, restored=restored)

    def restore(self, image: Tensor, tokens: Tensor, token_mask: Tensor) -> Tensor:
        """Return what the restoration network, which must be there, adds to `(B, 3, H, W)` in [0, 1]."""
        return self._restored(image, self.reader(tokens, token_mask), token_mask)

    def _restored(self, image: Tensor, read: Reading, mask: Tensor) -> Tensor:
        assert self.mender is not None  # noqa: S101
        residual: Tensor = self.mender(image, read.vector, read.tokens, mask)
        return residual

    def _heads(self, image: Tensor, read: Reading, token_mask: Tensor, hole: Tensor | None) -> Heads:
        original = image
        blocks = [F.pixel_unshuffle(image - 0.5, 2)]
        if self.change is not None:
            hole = torch.zeros_like(image[:, :1]) if hole is None else hole
            image = pull_push(image, 1 - hole, _HALVINGS)
            blocks = [F.pixel_unshuffle(image - 0.5, 2), F.pixel_unshuffle(hole, 2)]
        if self.config.local:
            blocks.append(F.pixel_unshuffle(local_contrast(image), 2))
        seen = self.trunk(image)
        x = self.stem(torch.cat(blocks, 1))
        skips: list[Tensor] = []
        for k in range(4):
            if k:
                x = self.down[k - 1](x)
            x = x + self.from_trunk[k](seen[k])
            if k == 3:
                top = F.interpolate(self.from_top(seen[4]), scale_factor=2.0, mode="nearest")
                x = x + top
            x = _through(self.encode[k], x, read.vector)
            if k >= 2:
                x = self.look[k - 2](x, read.tokens, token_mask)
            skips.append(x)
        presence = self.presence(torch.cat([x.mean((2, 3)), read.vector], 1))[:, 0]
        for k in (2, 1, 0):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = torch.cat([x, skips[k]], 1)
            x = _through(self.decode[k], x, read.vector)
            if k == 2:
                x = self.look_back(x, read.tokens, token_mask)
        added = None if self.detail is None else self.detail(x, blocks[0], read.vector)
        x = F.pixel_shuffle(self.unfold(x), 2)
        x = x + self.fine(torch.cat([x, image - 0.5], 1))
        embedded = self.embed(x)
        overlay = _agree(embedded, self.query(read.colours))
        residual = self.residual(x)
        if added is not None:
            residual = residual + added
        if self.change is None:
            return Heads(overlay, residual, read.perspective, presence)
        change = _agree(embedded, self.change(read.vector)[:, None])
        return Heads(overlay, residual + (image - original), read.perspective, presence, change)


class Reading(NamedTuple):
    tokens: Tensor  # (B, T, text)
    colours: Tensor  # (B, 3, text): what each colour stands for
    vector: Tensor  # (B, text)
    perspective: Tensor  # (B, 3)


class Reader(nn.Module):
    """Reads an instruction: learned queries attend to its tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.project = nn.Linear(TEXT_WIDTH, width)
        self.norm = nn.LayerNorm(width)
        self.asked = nn.Parameter(torch.randn(1, len(COLOURS) + 1, width) * 0.5)
        self.layers = nn.ModuleList(_TokenQuery(width, heads) for _ in range(2))
        self.vector = nn.Sequential(
            nn.Linear(width * (len(COLOURS) + 2), 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )
        self.perspective = nn.Linear(width, len(PERSPECTIVES))

    def forward(self, tokens: Tensor, mask: Tensor) -> Reading:
        x = self.norm(self.project(tokens))
        asked = self.asked.expand(len(x), -1, -1)
        for layer in self.layers:
            asked = layer(asked, x, mask)
        share = mask.to(x.dtype)[..., None]
        mean = (x * share).sum(1) / share.sum(1).clamp(min=1)
        vector = self.vector(torch.cat([asked.flatten(1), mean], 1))
        return Reading(x, asked[:, :-1], vector, self.perspective(asked[:, -1] + mean))


class _TokenQuery(nn.Module):
    """Queries attend to the tokens, then pass a small perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        x = x + self.out(attend(self.q(self.norm(x)), self.kv(tokens), self.heads, mask))
        return x + self.think(self.norm2(x))


def _agree(embedded: Tensor, query: Tensor) -> Tensor:
    """How much each pixel `(B, C, H, W)` agrees with each of K queries `(B, K, C + 1)`, the last a bias."""
    agreed = torch.einsum("bchw,bkc->bkhw", embedded, query[..., :-1])
    return agreed + query[..., -1, None, None]


def _through(blocks: nn.Module, x: Tensor, text: Tensor) -> Tensor:
    for block in blocks.children():
        x = block(x, text)
    return x


def save_weights(
    path: Path, state: Mapping[str, Tensor], config: NetConfig, meta: Mapping[str, Any] | None = None
) -> None:
    weights.save(path, state, format=FORMAT, config=config.as_json(), meta=meta)


def load_weights(path: Path) -> tuple[dict[str, Tensor], NetConfig, dict[str, Any]]:
    """(state in float32, the network's shape, meta). `MieError` for a file that is damaged or not ours."""
    file = weights.load(path, format=FORMAT)
    known = NetConfig().as_json()
    # A file may lack what came later, but hold nothing that is unknown here.
    if not set(file.config) <= set(known):
        raise MieError(
            "the weights are those of another architecture",
            where=path,
            expected=", ".join(known),
            found=", ".join(file.config),
        )
    config = NetConfig.from_json(file.config)
    if config.backbone not in BACKBONES:
        raise MieError(
            "the weights are those of another architecture",
            where=path,
            expected=f"a trunk of {' or '.join(BACKBONES)}",
            found=config.backbone,
        )
    return file.state, config, file.meta


def load_network(path: Path) -> tuple[CompactNet, dict[str, Any]]:
    """The network of a weights file, ready to use, and the file's meta."""
    state, config, meta = load_weights(path)
    file = weights.Weights(state, config.as_json(), meta)
    net = weights.build(lambda: CompactNet(config), file, path)
    return net.eval().requires_grad_(False), meta
