"""The white hole of an image, from its pixels alone: the same rule in training and at work.

An instruction to fill or to draw inside "the white area" comes with an image whose hole is exactly white. But
bone, highlights and letters are exactly white too. A painted hole is solid, and dark tissue begins right at
its rim, while saturated bone fades; so white areas are ranked by size, solidity and the drop at the rim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mie.errors import ConfigError
from mie.networks.compact import CompactNet, load_network
from mie.networks.text import EmbeddingCache, TextEncoder
from mie.records import Mask, Pixels, Values
from mie.vocabulary import PERSPECTIVES

_WHITE: Final = 255
_LEAST: Final = 16  # pixels
_LOOKED_AT: Final = 16  # of the largest white areas
_BESIDE: Final = 0.25  # of the best one's rank: a hole may have several parts


def find_hole(image: Pixels) -> Mask:
    """`(H, W)`, true in the white hole of `(H, W, 3)`; nowhere where no white area looks like one."""
    white = cv2.inRange(np.ascontiguousarray(image), (_WHITE,) * 3, (_WHITE,) * 3)
    hole: Mask = np.zeros(white.shape, bool)
    if not white.any():
        return hole
    count, labels, stats, _ = cv2.connectedComponentsWithStats(white, connectivity=4)
    largest = sorted(range(1, count), key=lambda at: -int(stats[at, cv2.CC_STAT_AREA]))[:_LOOKED_AT]
    ranks = {}
    for at in largest:
        if stats[at, cv2.CC_STAT_AREA] < _LEAST:
            break
        box = _around(stats[at])
        ranks[at] = _rank(image[box], labels[box] == at, stats[at])
    best = max(ranks.values(), default=0.0)
    for at, rank in ranks.items():
        if rank > 0 and rank >= _BESIDE * best:
            box = _around(stats[at])
            hole[box] |= labels[box] == at
    return hole


def _around(stats: np.ndarray) -> tuple[slice, slice]:
    """The bounding box, with a pixel on every side where there is one."""
    left, top, width, height, _ = (int(value) for value in stats)
    return slice(max(0, top - 1), top + height + 1), slice(max(0, left - 1), left + width + 1)


def _rank(image: Pixels, part: Mask, stats: np.ndarray) -> float:
    """Area, times the share of its bounding box, times the squared drop of grey levels at its rim."""
    _, _, width, height, area = (int(value) for value in stats)
    inner = part.astype(np.uint8)
    rim = cv2.dilate(inner, np.ones((3, 3), np.uint8)) > inner
    if not rim.any():  # all of the image is white
        return 0.0
    drop = (_WHITE - float(image[rim].mean())) / _WHITE
    return area * area / (width * height) * drop**2


# The transformations that a network was taught, in its training's words: is an instruction among them?
#
# The reader's vectors of all wordings of one transformation lie close together (cosines of .97 and more),
# those
# of different ones far apart. An instruction that was never taught, or in words that are not understood,
# lies
# between them, while the probability of its perspective is 1 all the same. Then the text encoder, which
# knows
# more words, may find a wording that means nearly the same.


NEAR: Final = 0.85  # cosine of two readings, from which on they are of one transformation
LIKE: Final = 0.65  # cosine of two texts, from which on they mean nearly the same
_SAME: Final = 0.97
# Kinds of picture by name. To the text encoder PET and CT mean nearly the same; to a patient they do not.
_PICTURES: Final = re.compile(
    r"\b(ct|mri?|pet|spect|x-?ray|ultrasound|sonogram|oct|flair|t1|t2|dwi|adc|dermoscop\w*)\b", re.IGNORECASE
)
_ALIASES: Final = {"mr": "mri", "xray": "x-ray", "sonogram": "ultrasound"}


def representatives(vectors: Tensor) -> list[int]:
    """Of `(N, C)` vectors as few as it takes for each to have one of them within a cosine of .97."""
    unit = F.normalize(vectors.float(), dim=1)
    near = unit @ unit.T > _SAME
    near.fill_diagonal_(True)
    left = torch.ones(len(near), dtype=torch.bool, device=near.device)
    chosen: list[int] = []
    while left.any():
        chosen.append(int(near[:, left].sum(1).argmax()))
        left &= ~near[chosen[-1]]
    return sorted(chosen)


class Known:
    """What a weights file says that it was taught: its `meta["taught"]`.

    `readings` are few, one near to every reading of the training; `wordings` have one of each template at
    least. `read` gives the reader's vectors `(N, C)` of prompts, and the mean tokens `(N, W)`.
    """

    def __init__(
        self,
        taught: Mapping[str, Sequence[str]],
        read: Callable[[Sequence[str]], tuple[Tensor, Tensor]],
    ) -> None:
        self._taught, self._read = taught, read

    def nearness(self, vector: Tensor) -> float:
        """The cosine between a reading `(C,)` and the nearest that was taught, at least 0."""
        return max(float((self._vectors @ F.normalize(vector.float(), dim=0)).max()), 0.0)

    def likest(self, text: str, meant: Tensor) -> tuple[str | None, float]:
        """The wording that means most nearly what `text` does, and how nearly, from 0 to 1.

        `meant` is its mean token `(W,)`. None where no wording names every kind of picture that it names.
        """
        named = _pictures(text)
        cosines = self._meanings @ F.normalize(meant.float(), dim=0)
        found = [
            (max(cosine, 0.0), wording)
            for cosine, wording in zip(cosines.tolist(), self._taught["wordings"], strict=True)
            if named <= _pictures(wording)
        ]
        like, wording = max(found, default=(0.0, None))
        return wording, like

    @cached_property
    def _vectors(self) -> Tensor:
        return F.normalize(self._read(self._taught["readings"])[0].float(), dim=1)

    @cached_property
    def _meanings(self) -> Tensor:  # seconds of work, which most instructions do not need
        return F.normalize(self._read(self._taught["wordings"])[1].float(), dim=1)


def _pictures(text: str) -> set[str]:
    return {_ALIASES.get(name, name) for name in map(str.lower, _PICTURES.findall(text))}


def mean_token(tokens: Tensor, mask: Tensor) -> Tensor:
    """`(B, W)`: what the text encoder was trained to compare sentences by."""
    share = mask.float()[..., None]
    return (tokens.float() * share).sum(1) / share.sum(1)


# The network at work: what an instruction asks for, and what it gives for a batch of images.

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
