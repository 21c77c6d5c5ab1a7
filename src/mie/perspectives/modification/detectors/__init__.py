"""What a detector is: an image goes in, where its lesions are comes out; of a region, if one is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from mie.core.registry import Registry, unknown_name
from mie.core.spec import parse_spec
from mie.images.families import FAMILIES
from mie.records import Mask, Pixels


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one image."""

    mask: Mask  # (H, W): the pixels of lesions, at the detector's own threshold
    score: float  # in [0, 1]: how sure the detector is that there is any lesion at all


class _Learnt(Protocol):
    name: str
    weights: str  # SHA-256 of what it has learnt

    def quality(self) -> Mapping[str, Any] | None:
        """How well it tells lesions of held-out patients: `sensitivity`, `patients`, by name in `targets`.

        None where nobody has measured it: say so wherever the detector is used.
        """
        ...


class Detector(_Learnt, Protocol):
    """Anything that finds lesions. Any size of image; the same image, the same finding."""

    def find(self, image: Pixels) -> Finding:
        """The lesions in an image `(H, W, 3) uint8` RGB."""
        ...


@runtime_checkable
class Inspector(_Learnt, Protocol):
    """Anything that looks at a region and tells whether a lesion lies there; it does not search."""

    def within(self, image: Pixels, region: Mask) -> Finding:
        """What of a region `(H, W) bool` of an image `(H, W, 3) uint8` RGB is a lesion."""
        ...


def found_within(detector: Detector | Inspector, image: Pixels, region: Mask) -> Finding:
    """What a detector of either kind finds inside a region."""
    if isinstance(detector, Inspector):
        return detector.within(image, region)
    finding = detector.find(image)
    return Finding(finding.mask & region, finding.score)


# argument, options, family -> detector
Opener: TypeAlias = Callable[[str | None, Mapping[str, str], str], Detector | Inspector]

DETECTORS: Final[Registry[Opener]] = Registry(
    "detector",
    {
        "compact": "mie.perspectives.modification.detectors.compact:open_compact",
        "nnunet": "mie.perspectives.modification.detectors.nnunet:open_nnunet",
        "region": "mie.perspectives.modification.detectors.region:open_region",
    },
    group="mie.detectors",
)


def make_detector(spec: str, *, family: str) -> Detector | Inspector:
    """The detector of a spec (`compact`, `compact:PATH`, `nnunet:FOLDER,fold=0`, `region`) for a family."""
    parsed = parse_spec(spec, noun="detector")
    opener = DETECTORS[parsed.name]
    if family not in FAMILIES:
        raise unknown_name("modality family", family, FAMILIES)
    return opener(parsed.argument, parsed.options, family)
