"""The transformations that a network was taught, in its training's words: is an instruction among them?

The reader's vectors of all wordings of one transformation lie close together (cosines of .97 and more), those
of different ones far apart. An instruction that was never taught, or in words that are not understood, lies
between them, while the probability of its perspective is 1 all the same. Then the text encoder, which knows
more words, may find a wording that means nearly the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

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
