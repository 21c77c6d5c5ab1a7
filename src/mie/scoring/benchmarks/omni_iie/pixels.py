"""LPIPS (VGG) and CLIP ViT-B/32, loaded once in a process; where weights are absent, the reason instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from mie.errors import MetricError
from mie.records import Mask, Pixels
from mie.scoring import metrics

if TYPE_CHECKING:
    from mie.scoring.metrics.perceptual import Clip, Lpips


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
        from mie.scoring.metrics.perceptual import load_lpips

        lpips = load_lpips("vgg", trunk=weights.vgg, linear=weights.lpips)
    except MetricError as error:
        lpips = error.reason
    try:
        from mie.scoring.metrics.perceptual import load_clip

        clip = load_clip(weights.clip)
    except MetricError as error:
        clip = error.reason
    return Networks(lpips, clip)


# Output M against target O at 768 x 768: PSNR, SSIM, LPIPS and CLIP, whole, inside and outside the region.
#
# `paper`: what does not count is 0 on the scale that LPIPS expects (mid-grey), and black for CLIP.
# `as_released`: masked values are scaled a second time before LPIPS, and the background's CLIP loses its
# mask,
# so that it is the whole image's.

SIDE: Final = 768
PSNR_CAP: Final = 100.0  # dB, for exact matches, in the variant `paper`
AREAS: Final = ("all", "fg", "bg")
LPIPS: Final = tuple(f"lpips_{area}" for area in AREAS)
CLIP: Final = tuple(f"clip_{area}" for area in AREAS)
METRICS: Final = (*LPIPS, *CLIP, "psnr", "ssim")
# What needs a foreground and a background.
DECOUPLED: Final = (*LPIPS[1:], *CLIP[1:], "overall")
NO_REGION: Final = "the sample has no region mask"


def squared(image: Pixels, side: int) -> Pixels:
    """`(side, side, 3)`, Lanczos, whatever the proportions: the benchmark's own way."""
    if image.shape[:2] == (side, side):
        return image
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS))


def squared_region(region: Mask, side: int) -> Mask:
    grey = Image.fromarray(region.astype(np.uint8) * 255)
    return np.asarray(grey.resize((side, side), Image.Resampling.NEAREST)) > 128


@dataclass(frozen=True, slots=True)
class Reference:
    """What every attempt at a sample is held against, at its final size."""

    target: Pixels
    region: Mask | None
    side: int

    @classmethod
    def of(cls, target: Pixels, region: Mask | None, side: int) -> Reference:
        return cls(squared(target, side), None if region is None else squared_region(region, side), side)


def score_output(held: Reference, output: Pixels, variant: str, networks: Networks) -> dict[str, Any]:
    """`{"metrics": {name: value}, "unscored": {name: reason}}`."""
    entry: dict[str, Any] = {"metrics": {}, "unscored": {}}
    if output.shape[:2] != (held.side, held.side):
        entry["resized_from"] = list(output.shape[:2])
    made = squared(output, held.side)
    similarity, decibel = metrics.ssim_psnr(held.target, made)
    entry["metrics"] |= {
        "psnr": min(decibel, PSNR_CAP) if variant == "paper" else decibel,
        "ssim": similarity,
    }
    for names, network, measure in (
        (LPIPS, networks.lpips, _lpips),
        (CLIP, networks.clip, _clip),
    ):
        if isinstance(network, str):
            entry["unscored"] |= dict.fromkeys(names, network)
        else:
            _measure(entry, names, measure(held, made, variant, network))
    return entry


def _measure(entry: dict[str, Any], names: tuple[str, ...], values: Callable[[str], float]) -> None:
    for area, name in zip(AREAS, names, strict=True):
        try:
            entry["metrics"][name] = values(area)
        except MetricError as error:
            entry["unscored"][name] = error.reason


def _area(held: Reference, area: str) -> Mask | None:
    """The pixels that count; None for all."""
    if area == "all":
        return None
    if held.region is None:
        raise MetricError(NO_REGION)
    return held.region if area == "fg" else ~held.region


def _lpips(held: Reference, made: Pixels, variant: str, network: Any) -> Callable[[str], float]:
    from mie.scoring.metrics.perceptual import keep, scaled_again, signed

    pair = signed(made), signed(held.target)

    def distance(area: str) -> float:
        region = _area(held, area)
        if region is None:
            return float(network(*pair))
        kept = [keep(values, region) for values in pair]
        if variant == "as_released":
            kept = [scaled_again(values) for values in kept]
        return float(network(*kept))

    return distance


def _clip(held: Reference, made: Pixels, variant: str, network: Any) -> Callable[[str], float]:
    from mie.scoring.metrics.perceptual import cosine, keep_pixels

    def similarity(area: str) -> float:
        region = _area(held, area)
        if region is None or (area == "bg" and variant == "as_released"):
            shown = [made, held.target]
        else:
            shown = [keep_pixels(made, region), keep_pixels(held.target, region)]
        return cosine(*network.images(shown))

    return similarity


def overall(values: dict[str, float]) -> float:
    """A quarter each of 1 - mean LPIPS, mean CLIP, QA and SSIM.

    >>> overall({**dict.fromkeys(LPIPS, 0.0), **dict.fromkeys(CLIP, 1.0), "qa": 1.0, "ssim": 1.0})
    1.0
    """
    far = sum(values[name] for name in LPIPS)
    near = sum(values[name] for name in CLIP)
    return ((3 - far) / 3 + near / 3 + values["qa"] + values["ssim"]) / 4
