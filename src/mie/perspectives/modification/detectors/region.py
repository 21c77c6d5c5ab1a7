"""The region detector: it looks at one place of an image and says whether a lesion lies there.

Its **quality** is measured on people whom the network that judges them has never seen: the share of their
lesions that it calls lesions, at a threshold at which it calls one healthy place in ten a lesion. A healthy
place has the outline of a lesion and lies beside it, or where other people's images show the same spot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from mie.core.files import digest
from mie.core.hashing import stable_hash
from mie.errors import ConfigError
from mie.networks.region import load_region, parts_of, probabilities
from mie.networks.shipped import shipped_weights
from mie.perspectives.modification.detectors import Finding
from mie.records import Mask, Pixels

FALSE_ALARMS: Final = 0.1  # share of healthy places that may be called lesions
_WEIGHTS: Final = "detector-region.safetensors"
_FEWEST: Final = 20  # healthy places on which a threshold is chosen


class RegionDetector:
    """A weights file, the threshold of a family and what was measured of it."""

    name = "region"

    def __init__(self, path: Path, family: str) -> None:
        self._net, meta = load_region(path)
        figures = meta.get("quality", {}).get(family)
        if family not in self._net.config.families or figures is None:
            raise ConfigError(
                f"the region detector does not know {family}",
                where=path,
                expected=", ".join(meta.get("quality", {})) or "a file with figures of its quality",
            )
        self.weights, self._family, self._figures = digest(path), family, figures
        self.threshold = float(figures["threshold"])

    def within(self, image: Pixels, region: Mask) -> Finding:
        """The outlines of the region that hold a lesion, and how likely the likeliest of them does."""
        outlines = parts_of(region)
        likely = probabilities(self._net, image, outlines, self._family)
        found = np.zeros(region.shape, np.bool_)
        for outline, probability in zip(outlines, likely, strict=True):
            if probability >= self.threshold:
                found |= outline
        return Finding(found, max(likely, default=0.0))

    def quality(self) -> Mapping[str, Any] | None:
        return dict(self._figures)


def open_region(argument: str | None, options: Mapping[str, str], family: str) -> RegionDetector:
    """`region` is the shipped detector, which knows all families; `region:PATH` the file of a training."""
    if options:
        raise ConfigError("detector 'region' has no options", found=", ".join(options))
    fix = "train it with `mie train examples/detectors/region.yaml` and say region:PATH"
    return RegionDetector(Path(argument) if argument else shipped_weights(_WEIGHTS, fix=fix), family)


class Looked(NamedTuple):
    """One lesion of a held-out patient: how likely it is one, and how likely healthy places with its outline
    are.
    """

    family: str
    target: str
    patient: str
    image: str
    lesion: float
    healthy: tuple[float, ...]


def region_quality(looked: Sequence[Looked]) -> dict[str, dict[str, Any]]:
    """By family: the threshold, false alarms and sensitivity, also by the lesion's name.

    Cross-fitted: each half of the patients is measured at the threshold that the other half gives.
    """
    return {
        family: found
        for family in sorted({one.family for one in looked})
        if (found := _of_family([one for one in looked if one.family == family])) is not None
    }


def _of_family(looked: Sequence[Looked]) -> dict[str, Any] | None:
    half = np.array([stable_hash("half", one.patient) % 2 for one in looked])
    thresholds = [_threshold([one for one, h in zip(looked, half, strict=True) if h != k]) for k in (0, 1)]
    whole = _threshold(looked)
    if whole is None or None in thresholds:
        return None  # too few healthy places to choose a threshold on
    limits = [thresholds[h] for h in half]
    found = np.array([one.lesion >= t for one, t in zip(looked, limits, strict=True)])
    alarms = [p >= t for one, t in zip(looked, limits, strict=True) for p in one.healthy]
    targets = {}
    for name in sorted({one.target for one in looked}):
        at = np.array([one.target == name for one in looked])
        some = [one for one, yes in zip(looked, at, strict=True) if yes]
        targets[name] = {**_counts(some), "sensitivity": round(float(found[at].mean()), 4)}
    return {
        **_counts(looked),
        "threshold": whole,
        "sensitivity": round(float(found.mean()), 4),
        "false_alarms": round(float(np.mean(alarms)), 4),
        "places": len(alarms),
        "targets": targets,
    }


def _counts(looked: Sequence[Looked]) -> dict[str, int]:
    return {
        "lesions": len(looked),
        "images": len({one.image for one in looked}),
        "patients": len({one.patient for one in looked}),
    }


def _threshold(looked: Sequence[Looked]) -> float | None:
    """The lowest at which at most `FALSE_ALARMS` of the healthy places are called lesions."""
    healthy = np.sort([p for one in looked for p in one.healthy])
    if len(healthy) < _FEWEST:
        return None
    first = int(np.ceil((1 - FALSE_ALARMS) * len(healthy)))  # so many lie below the threshold
    above = healthy[first] if first < len(healthy) else healthy[-1]
    return float(np.nextafter(np.float32(above), np.float32(2)) if first == len(healthy) else above)
