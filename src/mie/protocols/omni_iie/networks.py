"""LPIPS (VGG) and CLIP ViT-B/32, loaded once in a process; where weights are absent, the reason instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mie.metrics.errors import MetricError

if TYPE_CHECKING:
    from mie.metrics.perceptual import Clip, Lpips


@dataclass(frozen=True, slots=True)
class Weights:
    """Files of the user's own: VGG16's, LPIPS' linear layers, and a folder with a CLIP model.

    Without them the published files of the weights folder are taken.
    """

    vgg: str | None = None
    lpips: str | None = None
    clip: str | None = None


@dataclass(frozen=True, slots=True)
class Networks:
    """The two, or why there is none."""

    lpips: Lpips | str
    clip: Clip | str

    def about(self) -> dict[str, Any]:
        """What the scores' header says: the files with their digests, or the reason."""
        found = {"lpips": self.lpips, "clip": self.clip}
        return {name: {"absent": n} if isinstance(n, str) else n.about() for name, n in found.items()}


@lru_cache(maxsize=2)
def load_networks(weights: Weights) -> Networks:
    lpips: Lpips | str
    clip: Clip | str
    try:
        from mie.metrics.perceptual import load_lpips

        lpips = load_lpips("vgg", trunk=weights.vgg, linear=weights.lpips)
    except MetricError as error:
        lpips = error.reason
    try:
        from mie.metrics.perceptual import load_clip

        clip = load_clip(weights.clip)
    except MetricError as error:
        clip = error.reason
    return Networks(lpips, clip)
