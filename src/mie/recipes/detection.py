"""What an independent lesion detector says of a pair, and whether its word counts.

A detector that misses half of the lesions of people it never saw proves nothing by not seeing one. So its
measured quality decides whether it is a gate or only a number in `params`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mie.detectors.base import Detector
from mie.records import Mask, Pixels

# A lesion is found where at least this share of its pixels is, and left over where as much is found again.
HIT = 0.1


@dataclass(frozen=True, slots=True)
class Watch:
    """A detector with what is known of it. Without one, `reason` says why."""

    detector: Detector | None
    trusted: bool
    reason: str  # why it is not trusted, or not there; "" where it is
    quality: Mapping[str, Any] | None = None

    def seen(self, image: Pixels, lesion: Mask) -> dict[str, float] | None:
        """The share of the lesion that is found in the picture, and the detector's score for the picture."""
        return None if self.detector is None else _share(self.detector, image, lesion, float(lesion.sum()))

    def left(self, image: Pixels, hole: Mask, lesion: Mask) -> dict[str, float] | None:
        """What is found inside the filled area, as a share of what the lesion was."""
        return None if self.detector is None else _share(self.detector, image, hole, float(lesion.sum()))

    def params(self) -> dict[str, Any]:
        name = None if self.detector is None else self.detector.name
        return {
            "name": name,
            "trusted": self.trusted,
            **({} if not self.reason else {"reason": self.reason}),
            "quality": None if self.quality is None else dict(self.quality),
        }


def watch(detector: Detector | None, *, min_sensitivity: float, reason: str = "") -> Watch:
    """`reason`: why there is no detector. A user's own model is trusted unmeasured where 0 is asked for."""
    if detector is None:
        return Watch(None, False, reason or "no detector was asked for")
    quality = detector.quality()
    if quality is None:
        trusted = min_sensitivity == 0
        return Watch(detector, trusted, "" if trusted else "its quality was not measured")
    sensitivity = float(quality.get("sensitivity") or 0.0)
    if sensitivity < min_sensitivity:
        reason = (
            f"it finds {sensitivity:.0%} of the lesions of held-out patients, at least {min_sensitivity:.0%}"
        )
        return Watch(detector, False, reason, quality)
    return Watch(detector, True, "", quality)


def _share(detector: Detector, image: Pixels, region: Mask, of: float) -> dict[str, float]:
    found = detector.find(image)
    return {
        "share": round(float((found.mask & region).sum()) / max(1.0, of), 4),
        "score": round(float(found.score), 4),
    }
