"""Output M against target O at 768 x 768: PSNR, SSIM, LPIPS and CLIP, whole, inside and outside the region.

`paper`: what does not count is 0 on the scale that LPIPS expects (mid-grey), and black for CLIP.
`as_released`: masked values are scaled a second time before LPIPS, and the background's CLIP loses its mask,
so that it is the whole image's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from mie.errors import MetricError
from mie.records import Mask, Pixels
from mie.scoring import metrics
from mie.scoring.attempts import Entry
from mie.scoring.benchmarks.omni_iie import BENCHMARK, CLIP, LPIPS
from mie.scoring.metrics.psnr import PSNR
from mie.scoring.metrics.ssim import SSIM

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
    """LPIPS (VGG) and CLIP ViT-B/32, or the reason why one is not there."""

    lpips: Lpips | str
    clip: Clip | str

    def about(self) -> dict[str, Any]:
        """What the scores' header says: the files with their digests, or the reason."""
        found = {"lpips": self.lpips, "clip": self.clip}
        return {name: {"absent": n} if isinstance(n, str) else n.about() for name, n in found.items()}


@lru_cache(maxsize=2)
def load_networks(weights: Weights) -> Networks:
    """Both, once in a process."""
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


SIDE: Final = 768
AREAS: Final = ("all", "fg", "bg")
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


def score_output(reference: Reference, output: Pixels, variant: str, networks: Networks) -> dict[str, Any]:
    """`{"metrics": {name: value}, "unscored": {name: reason}}`."""
    entry = Entry(BENCHMARK.psnr_cap if variant == "paper" else None)
    if output.shape[:2] != (reference.side, reference.side):
        entry.body["resized_from"] = list(output.shape[:2])
    output = squared(output, reference.side)
    entry.measure([PSNR, SSIM], lambda: metrics.ssim_psnr(reference.target, output)[::-1])
    for names, network, measure in (
        (LPIPS, networks.lpips, _lpips),
        (CLIP, networks.clip, _clip),
    ):
        if isinstance(network, str):
            entry.unscored.update(dict.fromkeys(names, network))
        else:
            values = measure(reference, output, variant, network)
            for area, name in zip(AREAS, names, strict=True):
                entry.measure([BENCHMARK.metric(name)], partial(_one, values, area))
    return entry.body


def _one(values: Callable[[str], float], area: str) -> list[float]:
    return [values(area)]


def _area(reference: Reference, area: str) -> Mask | None:
    """The pixels that count; None for all."""
    if area == "all":
        return None
    if reference.region is None:
        raise MetricError(NO_REGION)
    return reference.region if area == "fg" else ~reference.region


def _lpips(reference: Reference, output: Pixels, variant: str, network: Any) -> Callable[[str], float]:
    from mie.scoring.metrics.perceptual import keep, scaled_again, signed

    pair = signed(output), signed(reference.target)

    def distance(area: str) -> float:
        region = _area(reference, area)
        if region is None:
            return float(network(*pair))
        kept = [keep(values, region) for values in pair]
        if variant == "as_released":
            kept = [scaled_again(values) for values in kept]
        return float(network(*kept))

    return distance


def _clip(reference: Reference, output: Pixels, variant: str, network: Any) -> Callable[[str], float]:
    from mie.scoring.metrics.perceptual import cosine, keep_pixels

    def similarity(area: str) -> float:
        region = _area(reference, area)
        if region is None or (area == "bg" and variant == "as_released"):
            shown = [output, reference.target]
        else:
            shown = [keep_pixels(output, region), keep_pixels(reference.target, region)]
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
