"""The transformations that a network was taught, in its training's words: is an instruction among them?

The reader's vectors of all wordings of one transformation lie close together (cosines of .97 and more), those
of different ones far apart. An instruction that was never taught, or in words that are not understood, lies
between them, while the probability of its perspective is 1 all the same. Then the text encoder, which knows
more words, may find a wording that means nearly the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

NEAR: Final = 0.85  # cosine of two readings, from which on they are of one transformation
LIKE: Final = 0.65  # cosine of two texts, from which on they mean nearly the same
_SAME: Final = 0.97


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

    def likest(self, meant: Tensor) -> tuple[str, float]:
        """The wording that means most nearly what a mean token `(W,)` does, and how nearly, from 0 to 1."""
        cosines = self._meanings @ F.normalize(meant.float(), dim=0)
        at = int(cosines.argmax())
        return self._taught["wordings"][at], max(float(cosines[at]), 0.0)

    @cached_property
    def _vectors(self) -> Tensor:
        return F.normalize(self._read(self._taught["readings"])[0].float(), dim=1)

    @cached_property
    def _meanings(self) -> Tensor:  # a second's work, which most instructions do not need
        return F.normalize(self._read(self._taught["wordings"])[1].float(), dim=1)


def mean_token(tokens: Tensor, mask: Tensor) -> Tensor:
    """`(B, W)`: what the text encoder was trained to compare sentences by."""
    share = mask.float()[..., None]
    return (tokens.float() * share).sum(1) / share.sum(1)
