"""From an image with a lesion to its healthy counterpart: several fills, their numbers, the best one kept.

The hole is white before an inpainter sees it, so nothing of the lesion can leak into the fill. Outside the
hole every pixel of the result is that of the original. One image is a volume of one slice: neighbouring
slices are filled together, from one seed, and the same candidate is kept for all of them.

An independent detector looks for the lesion before and after. One that misses half of the lesions of people
it never saw proves nothing by not seeing one, so its quality, measured by the lesion's name where that is
known, decides whether it is a gate or only a number in `params`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from mie.core import scratch
from mie.core.hashing import stable_hash
from mie.errors import MetricError
from mie.images.hashes import checksum
from mie.images.texture import compare, seam_energy, texture
from mie.perspectives.modification.detectors import Detector, Inspector, found_within
from mie.perspectives.modification.inpainters import Inpainter
from mie.perspectives.modification.inpainters.blend import blend
from mie.perspectives.modification.inpainters.volume import fill_volume
from mie.perspectives.modification.lesions import Lesion, ring_around
from mie.records import Mask, Pixels
from mie.words.vocabulary import vocabulary

# A lesion is found where at least this share of its pixels is, and left over where as much is found again.
HIT = 0.1
FEWEST: Final = 5  # held-out patients on whom a detector's quality is believed


@dataclass(frozen=True, slots=True)
class Watch:
    """A detector with what is known of it. Without one, `reason` says why."""

    detector: Detector | Inspector | None
    trusted: bool
    reason: str  # why it is not trusted, or not there; "" where it is
    quality: Mapping[str, Any] | None = None
    min_sensitivity: float = 0.0
    others: tuple[Watch, ...] = ()  # of a recipe's list: the other detectors; after `of` the trusted ones

    def of(self, names: Sequence[str]) -> Watch:
        """The first of the detectors that is trusted for lesions of these names, before the others that are;
        this one alone where none is.
        """
        found = [one._named(names) for one in (self.alone(), *self.others)]
        trusted = [one for one in found if one.trusted]
        return replace(trusted[0], others=tuple(trusted[1:])) if trusted else found[0]

    def alone(self) -> Watch:
        return replace(self, others=())

    def _named(self, names: Sequence[str]) -> Watch:
        """Trusted or not for lesions of these names; as a whole where it was not measured by name."""
        targets = None if self.quality is None else self.quality.get("targets")
        if not targets or self.min_sensitivity == 0:
            return self
        reasons = [reason for name in names if (reason := self._doubt(name, targets))]
        return replace(self, trusted=not reasons, reason="; ".join(reasons))

    def _doubt(self, name: str, targets: Mapping[str, Mapping[str, Any]]) -> str:
        """Why lesions of this name may be missed; of what few patients had, its more general name tells."""
        known = vocabulary().targets.get(name)
        general = () if known is None else known.parents
        figures = [targets[n] for n in (name, *general) if n in targets]
        found = next((one for one in figures if one["patients"] >= FEWEST), None)
        if found is None:
            patients = targets[name]["patients"] if name in targets else 0
            return f"its quality for {name} was measured on {patients} patients, at least {FEWEST}"
        if found["sensitivity"] < self.min_sensitivity:
            return (
                f"it finds {found['sensitivity']:.0%} of {name} of held-out patients, "
                f"at least {self.min_sensitivity:.0%}"
            )
        return ""

    def seen(self, image: Pixels, lesion: Mask) -> dict[str, float] | None:
        """The share of the lesion that is found in the picture, and the detector's score for the picture."""
        return None if self.detector is None else _share(self.detector, image, lesion, float(lesion.sum()))

    def left(self, image: Pixels, hole: Mask, lesion: Mask) -> dict[str, float] | None:
        """What is found inside the filled area, as a share of what the lesion was."""
        return None if self.detector is None else _share(self.detector, image, hole, float(lesion.sum()))

    @property
    def name(self) -> str | None:
        return None if self.detector is None else self.detector.name

    def params(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "trusted": self.trusted,
            **({"others": [other.name for other in self.others]} if self.others else {}),
            **({} if not self.reason else {"reason": self.reason}),
            "quality": None if self.quality is None else dict(self.quality),
        }


def watch(detector: Detector | Inspector | None, *, min_sensitivity: float, reason: str = "") -> Watch:
    """`reason`: why there is no detector. A user's own model is trusted unmeasured where 0 is asked for."""
    if detector is None:
        return Watch(None, False, reason or "no detector was asked for")
    quality = detector.quality()
    if quality is None:
        trusted = min_sensitivity == 0
        return Watch(detector, trusted, "" if trusted else "its quality was not measured")
    patients = quality.get("patients")
    if patients is not None and patients < FEWEST and min_sensitivity > 0:
        reason = f"its quality was measured on {patients} patients, at least {FEWEST}"
        return Watch(detector, False, reason, quality, min_sensitivity)
    sensitivity = float(quality.get("sensitivity") or 0.0)
    if sensitivity < min_sensitivity:
        reason = (
            f"it finds {sensitivity:.0%} of the lesions of held-out patients, at least {min_sensitivity:.0%}"
        )
        return Watch(detector, False, reason, quality, min_sensitivity)
    return Watch(detector, True, "", quality, min_sensitivity)


def _share(detector: Detector | Inspector, image: Pixels, region: Mask, of: float) -> dict[str, float]:
    found = found_within(detector, image, region)
    return {
        "share": round(float(found.mask.sum()) / max(1.0, of), 4),
        "score": round(float(found.score), 4),
    }


WHITE: Final = 255


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a fill's texture may be from that of its surroundings (`mie.images.texture`), and its seam."""

    mean_shift: float = 45.0  # grey levels
    variance_ratio: tuple[float, float] = (0.05, 4.0)
    gradient_distance: float = 0.4
    spectrum_distance: float = 3.0
    seam: float = 0.5


@dataclass(frozen=True, slots=True)
class Slice:
    """One image with what is to go from it."""

    image: Pixels
    lesion: Lesion
    body: Mask
    unhealthy: Mask  # every marked lesion, also those that stay

    @property
    def white(self) -> Pixels:
        return with_white_hole(self.image, self.lesion.hole)


@dataclass(slots=True)
class Candidate:
    """One fill of one slice, and what speaks against it: (gate, reason)."""

    number: int
    inpainter: str
    seed: int
    image: Pixels
    numbers: dict[str, Any]
    failures: list[tuple[str, str]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures

    def params(self) -> dict[str, Any]:
        failed = [gate for gate, _ in self.failures]
        return {
            "inpainter": self.inpainter,
            "seed": self.seed,
            **self.numbers,
            **({"failed": failed} if failed else {}),
        }


# Asked last, of the candidates that pass all else, best first: None where it is good, else (gate, reason).
Opinion = Callable[[Slice, Candidate], "tuple[str, str] | None"]


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Fills holes with one family's inpainters, in turn, and measures what came out."""

    inpainters: Sequence[Inpainter]
    blending: str
    candidates: int
    bounds: Bounds
    watch: Watch

    def fill(
        self, slices: Sequence[Slice], build_seed: int, opinion: Opinion | None = None
    ) -> tuple[int, list[list[Candidate]]]:
        """(which candidate is kept, every candidate of every slice).

        The kept one passes in the most slices; among equals it is nearest to its surroundings. Seeds come
        from what is filled, so the same picture in two data sets gets the same counterpart.
        """
        content = [(checksum(s.white), checksum(s.lesion.hole)) for s in slices]
        made: list[list[Candidate]] = []
        first: dict[int, list[Pixels]] = {}  # by whose turn it is
        settled: set[int] = set()  # inpainters without chance: a further fill would be the same
        for number in range(self.candidates):
            turn = number % len(self.inpainters)
            if turn in settled:
                continue
            inpainter, seed = self.inpainters[turn], stable_hash("fill", build_seed, content, number) >> 33
            images = self._filled(inpainter, slices, seed)
            before = first.setdefault(turn, images)
            if before is not images and all((a == b).all() for a, b in zip(images, before, strict=True)):
                settled.add(turn)
                continue
            filled = zip(slices, images, strict=True)
            made.append([self._measured(s, i, number, inpainter.name, seed) for s, i in filled])
        order = sorted(range(len(made)), key=lambda k: self._rank(made[k]))
        if opinion is None:
            return order[0], made
        for number in order:
            for at, candidate in zip(slices, made[number], strict=True):
                if candidate.passed and (found := opinion(at, candidate)) is not None:
                    candidate.failures.append(found)
            if any(candidate.passed for candidate in made[number]):
                return number, made
        return order[0], made

    def _filled(self, inpainter: Inpainter, slices: Sequence[Slice], seed: int) -> list[Pixels]:
        if len(slices) == 1:
            white, hole = slices[0].white, slices[0].lesion.hole
            filled = inpainter.fill(white, hole, seed=seed)
            return [blend(self.blending, white, filled, hole)]
        return fill_volume(
            inpainter,
            [scratch.put_aside(s.white) for s in slices],
            [s.lesion.hole for s in slices],
            seed=seed,
            blend=self.blending,
        )

    def _measured(self, at: Slice, image: Pixels, number: int, inpainter: str, seed: int) -> Candidate:
        hole = at.lesion.hole
        numbers: dict[str, Any] = {"texture": None, "seam": None, "detector": None}
        inside, around = texture(image, hole), texture(image, ring_around(hole, at.body, at.unhealthy))
        if inside is not None and around is not None:
            numbers["texture"] = {name: round(value, 4) for name, value in compare(inside, around).items()}
        with suppress(MetricError):  # a hole without an inside: its number stays unknown
            numbers["seam"] = round(seam_energy(image, hole), 4)
        numbers["detector"] = self.watch.left(image, hole, at.lesion.mask)
        if self.watch.others:
            looked = ((one.name, one.left(image, hole, at.lesion.mask)) for one in self.watch.others)
            numbers["other_detectors"] = [{"name": name, **left} for name, left in looked if left is not None]
        candidate = Candidate(number, inpainter, seed, image, numbers)
        candidate.failures += self._failures(numbers)
        return candidate

    def _failures(self, numbers: dict[str, Any]) -> list[tuple[str, str]]:
        bounds, found = self.bounds, []
        low, high = bounds.variance_ratio
        measured = numbers["texture"]
        if measured is not None:
            for name in ("mean_shift", "gradient_distance", "spectrum_distance"):
                if measured[name] > getattr(bounds, name):
                    found.append(
                        ("texture", f"{_said(name)} {measured[name]:g}, at most {getattr(bounds, name):g}")
                    )
            if not low <= measured["variance_ratio"] <= high:
                found.append(
                    (
                        "texture",
                        f"{_said('variance_ratio')} {measured['variance_ratio']:g}, {low:g} to {high:g}",
                    )
                )
        if numbers["seam"] is not None and numbers["seam"] > bounds.seam:
            found.append(
                ("seam", f"the outline shows: seam energy {numbers['seam']:g}, at most {bounds.seam:g}")
            )
        if self.watch.trusted:
            for name, share in shares_left(numbers):
                if share >= HIT:
                    reason = f"{name} still finds {share:.0%} of the lesion's area in the fill"
                    found.append(("detector", reason))
        return found

    def _rank(self, slices: Sequence[Candidate]) -> tuple[int, float, int]:
        failed = sum(not candidate.passed for candidate in slices)
        return failed, math.fsum(self._distance(c.numbers) for c in slices), slices[0].number

    def _distance(self, numbers: dict[str, Any]) -> float:
        """How far from its surroundings, each number over its bound."""
        bounds, measured = self.bounds, numbers["texture"]
        total = max(0.0, numbers["seam"] or 0.0) / bounds.seam
        if measured is not None:
            total += math.fsum(
                measured[name] / getattr(bounds, name)
                for name in ("mean_shift", "gradient_distance", "spectrum_distance")
            )
            total += abs(math.log(measured["variance_ratio"])) / math.log(bounds.variance_ratio[1])
        if numbers["detector"] is not None:
            total += numbers["detector"]["share"] / HIT
        return total


def shares_left(numbers: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(detector, share of the lesion's area that it finds in the fill) of all that looked at a candidate."""
    first = numbers["detector"]
    looked = [] if first is None else [("the detector", first["share"])]
    others = numbers.get("other_detectors", ())
    return looked + [(f"the detector {one['name']}", one["share"]) for one in others]


def with_white_hole(image: Pixels, hole: Mask) -> Pixels:
    return np.where(hole[..., None], np.uint8(WHITE), image)


def _said(name: str) -> str:
    return f"the fill's {name.replace('_', ' ')} against its surroundings is"
