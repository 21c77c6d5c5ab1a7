"""What a detector is: an image goes in, where its lesions are comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mie.records import Mask, Pixels


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one image."""

    mask: Mask  # (H, W): the pixels of lesions, at the detector's own threshold
    score: float  # in [0, 1]: how sure the detector is that there is any lesion at all


class Detector(Protocol):
    """Anything that finds lesions. Any size of image; the same image, the same finding."""

    name: str
    weights: str  # SHA-256 of what it has learnt

    def find(self, image: Pixels) -> Finding:
        """The lesions in an image `(H, W, 3) uint8` RGB."""
        ...

    def quality(self) -> Mapping[str, Any] | None:
        """How well it finds lesions of held-out patients (`quality.Quality.as_json`, with `threshold`).

        None where nobody has measured it: say so wherever the detector is used.
        """
        ...
