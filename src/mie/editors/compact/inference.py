"""The network at work: what an instruction asks for, and what it gives for a batch of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mie.editors.compact.hole import find_hole
from mie.editors.compact.known import LIKE, NEAR, Known, mean_token
from mie.editors.compact.network import CompactNet
from mie.editors.compact.text import EmbeddingCache, TextEncoder
from mie.editors.compact.weights import load_network
from mie.errors import ConfigError
from mie.records import Pixels, Values
from mie.vocabulary import PERSPECTIVES

_PROMPTS: Final = 256  # instructions that are remembered, 37 kB each


class Asked(NamedTuple):
    """What an instruction says, by itself."""

    tokens: Tensor  # (1, T, 384)
    mask: Tensor  # (1, T)
    perspective: str
    understood: float  # probability of that perspective, times nearness to what was taught
    taken_for: str | None = None  # a wording of the training, where the text itself was not understood


class Maps(NamedTuple):
    """What the network says of one image, at the size that it saw."""

    overlay: Values  # (3, H, W) logits; (0, H, W) of a mender, which only says what to add
    residual: Values  # (3, H, W)
    presence: float | None = None  # probability that what is asked for is in the image; None of a mender
    change: Values | None = None  # (H, W) logits; None where the network has no such gate


class Inference:
    """A network and a text encoder on one device."""

    def __init__(
        self,
        network: CompactNet,
        encoder: TextEncoder | EmbeddingCache,
        device: torch.device,
        half: bool,
        taught: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`taught`: the transformations that a weights file knows; without it none is doubted."""
        self.device, self.half = device, half
        self._network, self._encoder = network, encoder
        self._known = Known(taught, self._meant) if taught else None
        self.read = lru_cache(_PROMPTS)(self._read)

    @classmethod
    def load(cls, weights: Path, device: str = "auto", precision: str = "auto") -> Inference:
        """The network of a weights file."""
        place = torch.device(_device(device))
        network, meta = load_network(weights)
        network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(network, TextEncoder(), place, _is_half(precision, place), meta.get("taught"))

    def _read(self, instruction: str) -> Asked:
        """What an instruction asks for.

        Of a transformation that is neither near to one that was taught nor like one, `understood` comes out
        below `NEAR * LIKE`, too little to be followed.
        """
        asked, vector = self._alone(instruction)
        if asked.perspective != "transformation" or self._known is None:
            return asked
        near = self._known.nearness(vector)
        if near >= NEAR:
            return asked._replace(understood=asked.understood * near)
        wording, like = self._known.likest(instruction, mean_token(asked.tokens, asked.mask)[0])
        if wording is None or like < LIKE:
            return asked._replace(understood=asked.understood * near * like, taken_for=wording)
        taken, _ = self._alone(wording)
        return taken._replace(understood=taken.understood * like, taken_for=wording)

    @torch.inference_mode()
    def _alone(self, text: str) -> tuple[Asked, Tensor]:
        """What a text says, and the reader's vector of it `(C,)`.

        One at a time and in float32: what comes out does not depend on its neighbours.
        """
        tokens, mask = (t.to(self.device) for t in self._encoder.encode([text]))
        reading = self._network.reader(tokens.float(), mask)
        chances = reading.perspective[0].softmax(0).tolist()
        best = max(range(len(PERSPECTIVES)), key=chances.__getitem__)
        return Asked(tokens, mask, PERSPECTIVES[best], chances[best]), reading.vector[0]

    @torch.inference_mode()
    def _meant(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The reader's vectors of prompts, and their mean tokens."""
        tokens, mask = (t.to(self.device) for t in self._encoder.encode(prompts))
        return self._network.reader(tokens.float(), mask).vector, mean_token(tokens, mask)

    def run(self, images: Sequence[Pixels], asked: Sequence[Asked]) -> list[Maps]:
        """Images `(H, W, 3)` of one size, whose sides are multiples of 32, each with its instruction.

        For a modification the network is also told where the image has a white hole. A transformation is the
        mender's alone, where there is one.
        """
        menders = [bool(self._network.config.mender) and one.perspective == "transformation" for one in asked]
        # A CPU gains nothing from a batch, and one by one gives the same bits whatever the neighbours are.
        if self.device.type == "cpu":
            groups = [[at] for at in range(len(images))]
        else:
            groups = [[at for at, one in enumerate(menders) if one == kind] for kind in (False, True)]
        found: dict[int, Maps] = {}
        for group in filter(None, groups):
            maps = self._run([images[at] for at in group], [asked[at] for at in group], menders[group[0]])
            found.update(zip(group, maps, strict=True))
        return [found[at] for at in range(len(images))]

    @torch.inference_mode()
    def _run(self, images: Sequence[Pixels], asked: Sequence[Asked], mender: bool) -> list[Maps]:
        # (B, H, W, 3) seen as (B, 3, H, W) is what channels_last means: nothing is moved.
        batch = torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2).float() / 255
        tokens = torch.cat([one.tokens for one in asked]).float()
        mask = torch.cat([one.mask for one in asked])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            if mender:
                added = self._network.mend(batch, tokens, mask).float().cpu().numpy()
                return [Maps(one[:0], one) for one in added]
            holes = self._holes(images, asked) if self._network.config.change else None
            heads = self._network(batch, tokens, mask, holes)
        overlay, residual = (t.float().cpu().numpy() for t in (heads.overlay, heads.residual))
        presence = heads.presence.float().sigmoid().tolist()
        change = [None] * len(images) if heads.change is None else heads.change[:, 0].float().cpu().numpy()
        return [Maps(*one) for one in zip(overlay, residual, presence, change, strict=True)]

    def _holes(self, images: Sequence[Pixels], asked: Sequence[Asked]) -> Tensor:
        """`(B, 1, H, W)`, 1 in the white hole of an image that is to be modified."""
        found = np.zeros((len(images), 1, *images[0].shape[:2]), np.float32)
        for at, (image, one) in enumerate(zip(images, asked, strict=True)):
            if one.perspective == "modification":
                found[at, 0] = find_hole(image)
        return torch.from_numpy(found).to(self.device)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("no GPU that torch can use", fix="leave out the option device")
    return name


def _is_half(precision: str, device: torch.device) -> bool:
    """Whether to compute in bfloat16; on `auto` where the processor has instructions for it."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older ones cannot tell
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
