"""The networks behind MedEBench's baseline metrics: LPIPS (AlexNet), CLIP, ImageReward, Inception.

What is not on the machine is not measured: its metrics apply to nothing, and the header says which files they
need. The released script takes CLIP ViT-L/14 and squeezes images to a square; a folder
`clip-vit-large-patch14` among the weights is taken before ViT-B/32, and the digest in the header says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mie.errors import MetricError
from mie.records import Pixels
from mie.scoring.attempts import Entry
from mie.scoring.benchmarks.medebench import BENCHMARK

if TYPE_CHECKING:
    from mie.scoring.metrics.perceptual import Clip, ImageReward, Inception, Lpips

LARGE: Final = "clip-vit-large-patch14"
# The metrics of each network, in the order of the table; `_plain` is told the instruction, not the change.
METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "lpips": ("lpips",),
    "clip": ("isim", "talign", "talign_plain", "dalign", "dalign_plain"),
    "image_reward": ("image_reward", "image_reward_plain"),
    "fid": ("fid",),
}
NO_DESCRIPTION: Final = "the sample has no change description"


@dataclass(frozen=True, slots=True)
class Weights:
    """Files of the user's own; without them those of the weights folder are taken."""

    alex: str | None = None
    lpips: str | None = None
    clip: str | None = None
    image_reward: str | None = None
    inception: str | None = None


@dataclass(frozen=True, slots=True)
class Networks:
    """Each network, or the reason why it is not there."""

    lpips: Lpips | str
    clip: Clip | str
    image_reward: ImageReward | str
    fid: Inception | str

    def about(self) -> dict[str, Any]:
        """What the scores' header says: the files with their digests, or the reason."""
        found = {name: getattr(self, name) for name in METRICS}
        return {name: {"absent": n} if isinstance(n, str) else n.about() for name, n in found.items()}

    def there(self) -> list[str]:
        """The metrics that can be measured on one output."""
        there = [name for name in METRICS if not isinstance(getattr(self, name), str)]
        return [metric for name in there if name != "fid" for metric in METRICS[name]]


def setup(weights: Weights | None = None) -> tuple[Weights, Mapping[str, Any]]:
    """What `measure` finds in its context, and what the header says about it."""
    state = weights or Weights()
    own = {name: path for name, path in asdict(state).items() if path is not None}
    return state, {"weights": load_networks(state).about(), **({"own_weights": own} if own else {})}


@lru_cache(maxsize=2)
def load_networks(weights: Weights) -> Networks:
    """All that are on the machine, once in a process."""
    from mie.scoring.metrics import perceptual

    return Networks(
        _load(lambda: perceptual.load_lpips("alex", trunk=weights.alex, linear=weights.lpips)),
        _load(lambda: perceptual.load_clip(weights.clip or _large())),
        _load(lambda: perceptual.load_image_reward(weights.image_reward)),
        _load(lambda: perceptual.load_inception(weights.inception)),
    )


def _load(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except MetricError as error:
        return error.reason


def _large() -> Path | None:
    from mie.scoring.metrics.perceptual.weights import weights_folder

    place = weights_folder() / LARGE
    return place if place.is_dir() else None


def measure_networks(
    entry: Entry,
    networks: Networks,
    variant: str,
    images: Mapping[str, Pixels],  # input, target and output, of one size
    texts: Mapping[str, str],  # change and instruction
) -> None:
    """The numbers of one output; a metric that is not defined here has a reason."""
    from mie.scoring.metrics import perceptual

    if not isinstance(networks.lpips, str):
        scaled = perceptual.unit if variant == "as_released" else perceptual.signed
        network = networks.lpips
        pair = scaled(images["output"]), scaled(images["target"])
        _one(entry, "lpips", lambda: network(*pair))
    if not isinstance(networks.clip, str):
        _clip(entry, networks.clip, "squash" if variant == "as_released" else "crop", images, texts)
    if not isinstance(networks.image_reward, str):
        reward = networks.image_reward
        for name, text in (("image_reward", texts["change"]), ("image_reward_plain", texts["instruction"])):
            _told(entry, name, text, lambda text: reward(images["output"], text))


def _clip(entry: Entry, clip: Clip, fit: str, images: Mapping[str, Pixels], texts: Mapping[str, str]) -> None:
    from mie.scoring.metrics.perceptual import cosine, directional

    before, target, after = clip.images([images["input"], images["target"], images["output"]], fit=fit)
    _one(entry, "isim", lambda: cosine(after, target))
    for ending, text in (("", texts["change"]), ("_plain", texts["instruction"])):
        _told(entry, f"talign{ending}", text, lambda text: cosine(after, clip.texts([text])[0]))
        _told(entry, f"dalign{ending}", text, lambda text: directional(before, after, clip.texts([text])[0]))


def _told(entry: Entry, name: str, text: str, compute: Callable[[str], float]) -> None:
    if not text.strip():
        entry.unscored[name] = NO_DESCRIPTION
        return
    _one(entry, name, lambda: compute(text))


def _one(entry: Entry, name: str, compute: Callable[[], float]) -> None:
    entry.measure([BENCHMARK.metric(name)], lambda: [compute()])
