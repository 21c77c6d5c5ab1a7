"""The compact network at work: reads an instruction, and gives maps for a batch of images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mie.editors.compact.holes import find_hole
from mie.editors.compact.kinds import EDIT_KINDS, EditKind
from mie.errors import ConfigError
from mie.networks.compact import CompactNet, load_network
from mie.networks.text import EmbeddingCache, TextEncoder, mean_token, sentence_vectors
from mie.records import Pixels, Values
from mie.vocabulary import PERSPECTIVES
from mie.words.fallback import Fallback

NEAR: Final = 0.85  # cosine of two readings of one transformation, at least
LIKE: Final = 0.65  # cosine of two texts that mean nearly the same, at least
_SAME: Final = 0.97  # cosine above which one reading represents another
# Modalities by name. To the text encoder PET and CT mean nearly the same; to a patient they do not.
_MODALITIES: Final = re.compile(
    r"\b(ct|mri?|pet|spect|x-?ray|ultrasound|sonogram|oct|flair|t1|t2|dwi|adc|dermoscop\w*)\b", re.IGNORECASE
)
_ALIASES: Final = {"mr": "mri", "xray": "x-ray", "sonogram": "ultrasound"}
_PROMPTS: Final = 256  # instructions that are remembered, 37 kB each


def representatives(vectors: Tensor) -> list[int]:
    """Choose as few of `(N, C)` vectors as it takes for each to have one of them within a cosine of .97."""
    unit = F.normalize(vectors.float(), dim=1)
    near = unit @ unit.T > _SAME
    near.fill_diagonal_(True)
    left = torch.ones(len(near), dtype=torch.bool, device=near.device)
    chosen: list[int] = []
    while left.any():
        chosen.append(int(near[:, left].sum(1).argmax()))
        left &= ~near[chosen[-1]]
    return sorted(chosen)


class TaughtTransformations:
    """The transformations that a network was taught, in its training's words (`meta["taught"]` of a file).

    The reader's vectors of all wordings of one transformation lie close together (cosines of .97 and more),
    those of different ones far apart. An instruction that was never taught, or whose words are not
    understood, lies between them, although the probability of its perspective is 1. Then the text encoder,
    which knows more words, may find a wording that means nearly the same.

    `readings` are few, one near to every reading of the training; `wordings` hold at least one of each
    template. `read` gives the reader's vectors `(N, C)` of prompts, and their mean tokens `(N, W)`.
    """

    def __init__(
        self,
        taught: Mapping[str, Sequence[str]],
        read: Callable[[Sequence[str]], tuple[Tensor, Tensor]],
    ) -> None:
        self._taught, self._read = taught, read

    def similarity(self, vector: Tensor) -> float:
        """Return the cosine between a reading `(C,)` and the nearest that was taught, at least 0."""
        return max(float((self._vectors @ F.normalize(vector.float(), dim=0)).max()), 0.0)

    def closest_wording(self, text: str, mean: Tensor) -> tuple[str | None, float]:
        """Return the wording whose meaning is closest to that of `text`, and how close, from 0 to 1.

        `mean` is the text's mean token `(W,)`. None where no wording names every modality that it names.
        """
        named = _modalities(text)
        cosines = self._meanings @ F.normalize(mean.float(), dim=0)
        candidates = [
            (max(cosine, 0.0), wording)
            for cosine, wording in zip(cosines.tolist(), self._taught["wordings"], strict=True)
            if named <= _modalities(wording)
        ]
        cosine, wording = max(candidates, default=(0.0, None))
        return wording, cosine

    @cached_property
    def _vectors(self) -> Tensor:
        return F.normalize(self._read(self._taught["readings"])[0].float(), dim=1)

    @cached_property
    def _meanings(self) -> Tensor:  # seconds of work, which most instructions do not need
        return F.normalize(self._read(self._taught["wordings"])[1].float(), dim=1)


def _modalities(text: str) -> set[str]:
    return {_ALIASES.get(name, name) for name in map(str.lower, _MODALITIES.findall(text))}


class Interpretation(NamedTuple):
    """What an instruction says, without an image."""

    tokens: Tensor  # (1, T, 384)
    mask: Tensor  # (1, T)
    perspective: str
    understood: float  # probability of that perspective, times similarity to what was taught
    taken_for: str | None = None  # a wording of the training, where the text itself was not understood

    @property
    def kind(self) -> EditKind:
        return EDIT_KINDS[self.perspective]


class Maps(NamedTuple):
    """The network's output for one image, at the size that it saw.

    The restoration network gives a residual alone: `overlay` is `(0, H, W)`, `presence` None.
    """

    overlay: Values  # (3, H, W) logits
    residual: Values  # (3, H, W)
    presence: float | None = None  # probability that what is asked for is in the image
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
        targets: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`taught`: the transformations that a weights file knows; without it none is doubted.

        `targets`: by modality, what it was trained to paint.
        """
        self.targets = targets
        self.device, self.half = device, half
        self._network, self._encoder = network, encoder
        self._taught = TaughtTransformations(taught, self._read_all) if taught else None
        self.interpret = lru_cache(_PROMPTS)(self._interpret)

    @classmethod
    def load(cls, weights: Path, device: str = "auto", precision: str = "auto") -> Inference:
        """Load the network of a weights file."""
        place = torch.device(_device(device))
        network, meta = load_network(weights)
        network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
        half = _is_half(precision, place)
        return cls(network, TextEncoder(), place, half, meta.get("taught"), meta.get("targets"))

    @cached_property
    def fallback(self) -> Fallback:
        return Fallback(partial(sentence_vectors, self._encoder))

    def _interpret(self, instruction: str) -> Interpretation:
        """Return what an instruction asks for.

        For an edit of the whole image that is neither near to a taught transformation nor similar to one of
        its wordings, `understood` is below `NEAR * LIKE`, too little to be followed.
        """
        own, vector = self._interpret_alone(instruction)
        if own.kind is not EditKind.IMAGE or self._taught is None:
            return own
        near = self._taught.similarity(vector)
        if near >= NEAR:
            return own._replace(understood=own.understood * near)
        wording, like = self._taught.closest_wording(instruction, mean_token(own.tokens, own.mask)[0])
        if wording is None or like < LIKE:
            return own._replace(understood=own.understood * near * like, taken_for=wording)
        other, _ = self._interpret_alone(wording)
        return other._replace(understood=other.understood * like, taken_for=wording)

    @torch.inference_mode()
    def _interpret_alone(self, text: str) -> tuple[Interpretation, Tensor]:
        """Return what a text says, and the reader's vector of it `(C,)`.

        One at a time and in float32: the result does not depend on its neighbours.
        """
        tokens, mask = (t.to(self.device) for t in self._encoder.encode([text]))
        reading = self._network.reader(tokens.float(), mask)
        probabilities = reading.perspective[0].softmax(0).tolist()
        best = max(range(len(PERSPECTIVES)), key=probabilities.__getitem__)
        return Interpretation(tokens, mask, PERSPECTIVES[best], probabilities[best]), reading.vector[0]

    @torch.inference_mode()
    def _read_all(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the reader's vectors of prompts, and their mean tokens."""
        tokens, mask = (t.to(self.device) for t in self._encoder.encode(prompts))
        return self._network.reader(tokens.float(), mask).vector, mean_token(tokens, mask)

    def run(self, images: Sequence[Pixels], instructions: Sequence[Interpretation]) -> list[Maps]:
        """Run images `(H, W, 3)` of one size, whose sides are multiples of 32, each with its instruction.

        Edits of an area are also told where the image has a white hole. Edits of the whole image go to the
        restoration network alone, where there is one.
        """
        separate = bool(self._network.config.restoration)
        restored = [separate and one.kind is EditKind.IMAGE for one in instructions]
        # A CPU gains nothing from a batch, and one by one gives the same bits whatever the neighbours are.
        if self.device.type == "cpu":
            groups = [[at] for at in range(len(images))]
        else:
            groups = [[at for at, one in enumerate(restored) if one == value] for value in (False, True)]
        maps: dict[int, Maps] = {}
        for group in filter(None, groups):
            run = self._run_restoration if restored[group[0]] else self._run_network
            results = run([images[at] for at in group], [instructions[at] for at in group])
            maps.update(zip(group, results, strict=True))
        return [maps[at] for at in range(len(images))]

    @torch.inference_mode()
    def _run_restoration(
        self, images: Sequence[Pixels], instructions: Sequence[Interpretation]
    ) -> list[Maps]:
        inputs = self._inputs(images, instructions)  # autocast cannot join half-precision tokens
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            residuals = self._network.restore(*inputs).float().cpu().numpy()
        return [Maps(residual[:0], residual) for residual in residuals]

    @torch.inference_mode()
    def _run_network(self, images: Sequence[Pixels], instructions: Sequence[Interpretation]) -> list[Maps]:
        inputs = self._inputs(images, instructions)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            holes = self._holes(images, instructions) if self._network.config.change else None
            heads = self._network(*inputs, holes)
        overlay, residual = (t.float().cpu().numpy() for t in (heads.overlay, heads.residual))
        presence = heads.presence.float().sigmoid().tolist()
        change = [None] * len(images) if heads.change is None else heads.change[:, 0].float().cpu().numpy()
        return [Maps(*one) for one in zip(overlay, residual, presence, change, strict=True)]

    def _inputs(
        self, images: Sequence[Pixels], instructions: Sequence[Interpretation]
    ) -> tuple[Tensor, Tensor, Tensor]:
        # (B, H, W, 3) seen as (B, 3, H, W) is what channels_last means: nothing is moved.
        batch = torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2).float() / 255
        tokens = torch.cat([one.tokens for one in instructions]).float()
        return batch, tokens, torch.cat([one.mask for one in instructions])

    def _holes(self, images: Sequence[Pixels], instructions: Sequence[Interpretation]) -> Tensor:
        """`(B, 1, H, W)`, 1 in the white hole of an image that is edited in an area."""
        holes = np.zeros((len(images), 1, *images[0].shape[:2]), np.float32)
        for at, (image, instruction) in enumerate(zip(images, instructions, strict=True)):
            if instruction.kind is EditKind.AREA:
                holes[at, 0] = find_hole(image)
        return torch.from_numpy(holes).to(self.device)


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
