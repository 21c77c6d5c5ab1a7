"""What a detector is: an image and a region go in, which part of it is a lesion comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from mie.core.registry import Registry, unknown_name
from mie.core.spec import parse_spec
from mie.images.families import FAMILIES
from mie.records import Mask, Pixels


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one image."""

    mask: Mask  # (H, W): the pixels of lesions, at the detector's own threshold
    score: float  # in [0, 1]: how sure the detector is that there is any lesion at all


class Detector(Protocol):
    """Anything that tells lesions. Any size of image; the same image and region, the same finding."""

    name: str
    weights: str  # SHA-256 of what it has learnt

    def within(self, image: Pixels, region: Mask) -> Finding:
        """What of a region `(H, W) bool` of an image `(H, W, 3) uint8` RGB is a lesion."""
        ...

    def quality(self) -> Mapping[str, Any] | None:
        """How well it finds lesions of held-out patients (`quality.Quality.as_json`, with `threshold`).

        None where nobody has measured it: say so wherever the detector is used.
        """
        ...


class Searching(Detector, Protocol):
    """A detector that searches whole images. Inherit from it: a region is what was found there."""

    def find(self, image: Pixels) -> Finding:
        """The lesions in an image `(H, W, 3) uint8` RGB."""
        ...

    def within(self, image: Pixels, region: Mask) -> Finding:
        finding = self.find(image)
        return Finding(finding.mask & region, finding.score)


# argument, options, family -> detector
Opener: TypeAlias = Callable[[str | None, Mapping[str, str], str], Detector]

DETECTORS: Final[Registry[Opener]] = Registry(
    "detector",
    {
        "compact": "mie.perspectives.modification.detectors.compact:open_compact",
        "nnunet": "mie.perspectives.modification.detectors.nnunet:open_nnunet",
        "region": "mie.perspectives.modification.detectors.region:open_region",
    },
    group="mie.detectors",
)


def make_detector(spec: str, *, family: str) -> Detector:
    """The detector of a spec (`compact`, `compact:PATH`, `nnunet:FOLDER,fold=0`, `region`) for a family."""
    parsed = parse_spec(spec, noun="detector")
    opener = DETECTORS[parsed.name]
    if family not in FAMILIES:
        raise unknown_name("modality family", family, FAMILIES)
    return opener(parsed.argument, parsed.options, family)
