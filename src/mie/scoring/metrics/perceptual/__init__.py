"""Numbers from networks that others have trained: LPIPS, CLIP similarities, ImageReward, FID and KID.

Each needs PyTorch (the extra `models`) and its published weights (`mie weights get NAME`). Without
them it has no value: `MetricError`, whose `reason` says what is missing and which command gets it. Nothing
else is ever measured under these names.

The modules import PyTorch, so they are imported here only when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mie.core.environment import install_hint
from mie.errors import MetricError
from mie.scoring.metric import Metric

if TYPE_CHECKING:
    from mie.scoring.metrics.perceptual.clip import Clip, cosine, directional, keep_pixels, load_clip
    from mie.scoring.metrics.perceptual.distances import (
        FeatureStatistics,
        Kid,
        fid,
        kid,
        squared_mmd,
        store_features,
    )
    from mie.scoring.metrics.perceptual.image_reward import ImageReward, load_image_reward
    from mie.scoring.metrics.perceptual.inception import Inception, load_inception
    from mie.scoring.metrics.perceptual.lpips import Lpips, keep, load_lpips, scaled_again, signed, unit

__all__ = [
    "CLIP",
    "FID",
    "KID",
    "LPIPS",
    "Clip",
    "FeatureStatistics",
    "ImageReward",
    "Inception",
    "Kid",
    "Lpips",
    "cosine",
    "directional",
    "fid",
    "keep",
    "keep_pixels",
    "kid",
    "load_clip",
    "load_image_reward",
    "load_inception",
    "load_lpips",
    "scaled_again",
    "signed",
    "squared_mmd",
    "store_features",
    "unit",
]
_MODULES = {
    "clip": ("Clip", "cosine", "directional", "keep_pixels", "load_clip"),
    "distances": ("FeatureStatistics", "Kid", "fid", "kid", "squared_mmd", "store_features"),
    "image_reward": ("ImageReward", "load_image_reward"),
    "inception": ("Inception", "load_inception"),
    "lpips": ("Lpips", "keep", "load_lpips", "scaled_again", "signed", "unit"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

_NETWORK = {"reference", "weights"}
LPIPS = Metric(
    "lpips", "LPIPS", "perceptual distance to the reference image", higher_is_better=False, needs=_NETWORK
)
CLIP = Metric("clip", "CLIP", "similarity to the reference image by CLIP", needs=_NETWORK)
FID = Metric(
    "fid",
    "FID",
    "distance of the outputs to the references as a set",
    decimals=2,
    higher_is_better=False,
    needs=_NETWORK,
)
KID = Metric(
    "kid",
    "KID",
    "kernel distance of the outputs to the references as a set",
    higher_is_better=False,
    needs=_NETWORK,
)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MetricError("torch is not installed", expected=install_hint("models")) from None
    return getattr(module, name)
