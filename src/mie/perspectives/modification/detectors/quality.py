"""How well lesions are found, and the threshold at which a pixel is called lesion.

A **lesion** is an 8-connected region of the reference with at least `SPECK` pixels. A **finding** is an
8-connected region of the found mask. It is *false* when less than a tenth of its pixels are on the reference.
A lesion is *found* when at least a tenth of its pixels are in findings that are not false: a mask that covers
everything finds nothing, unless the lesions are large; DICE tells the rest. The threshold is
chosen on some patients and judged on others: for lesions the lowest one with at most one false finding an
image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import cv2
import numpy as np

from mie.perspectives.modification.detectors import Detector
from mie.records import Mask, Pixels

SPECK: Final = 4  # pixels: smaller regions of a reference are what resizing left of an outline
_SHARE: Final = 0.1
FALSE: Final = 1.0  # false findings an image that a detector may make


@dataclass(frozen=True, slots=True)
class Counts:
    """One image: what is there, and what was found."""

    lesions: int
    found: int  # of the lesions
    findings: int
    false: int  # of the findings
    dice: float | None  # None: nothing is marked, so there is nothing to overlap with


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a detector on a set of images. None: there was nothing to measure it on."""

    images: int  # with a lesion
    healthy: int  # without
    lesions: int
    sensitivity: float | None  # found lesions / lesions
    precision: float | None  # findings that are not false / findings
    false_positives_per_image: float | None  # false findings / all images
    dice: float | None  # mean over the images with a lesion
    auc: float | None  # of the score, images with a lesion against those without

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(detector: Detector, cases: Iterable[tuple[Pixels, Mask]]) -> Quality:
    """The quality of a detector on images with their reference masks; an empty mask is a healthy image."""
    counts, scores = [], []
    for image, mask in cases:
        finding = detector.find(image)
        counts.append(count(finding.mask, mask))
        scores.append(finding.score)
    return summarise(counts, scores)


def count(found: Mask, reference: Mask) -> Counts:
    """One image's found mask `(H, W)` against its reference."""
    findings = _covered(found, reference)
    lesions = hits(without_false(found, reference), reference)
    whole = int(found.sum()) + int(reference.sum())
    return Counts(
        lesions=lesions.lesions,
        found=lesions.found,
        findings=len(findings),
        false=sum(region.share < _SHARE for region in findings),
        dice=2 * int((found & reference).sum()) / whole if reference.any() else None,
    )


@dataclass(frozen=True, slots=True)
class Hits:
    """Lesions of one name: how many there are, and how many are found."""

    lesions: int
    found: int


def without_false(found: Mask, reference: Mask) -> Mask:
    """The found mask without its false findings."""
    number, labels = cv2.connectedComponents(found.view(np.uint8), connectivity=8)
    pixels = np.bincount(labels.ravel(), minlength=number)
    true = np.bincount(labels[reference], minlength=number) >= _SHARE * pixels
    true[0] = False
    return np.asarray(true[labels])


def hits(found: Mask, reference: Mask) -> Hits:
    """Findings that are not false against the lesions of one name."""
    lesions = [region for region in _covered(reference, found) if region.pixels >= SPECK]
    return Hits(len(lesions), sum(region.share >= _SHARE for region in lesions))


def summarise(counts: Sequence[Counts], scores: Sequence[float]) -> Quality:
    """Many images together; `scores` are the detector's, in the same order."""
    ill = [one.dice is not None for one in counts]
    lesions, findings = sum(one.lesions for one in counts), sum(one.findings for one in counts)
    false = sum(one.false for one in counts)
    dice = [one.dice for one in counts if one.dice is not None]
    return Quality(
        images=sum(ill),
        healthy=len(ill) - sum(ill),
        lesions=lesions,
        sensitivity=sum(one.found for one in counts) / lesions if lesions else None,
        precision=1 - false / findings if findings else None,
        false_positives_per_image=false / len(counts) if counts else None,
        dice=float(np.mean(dice)) if dice else None,
        auc=area_under_curve(scores, ill),
    )


def area_under_curve(scores: Sequence[float], ill: Sequence[bool]) -> float | None:
    """The chance that an image with a lesion scores above one without, ties counting half (Mann-Whitney).

    >>> area_under_curve([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    values, truth = np.asarray(scores, np.float64), np.asarray(ill, np.bool_)
    with_lesion, without = values[truth][:, None], values[~truth][None]
    if not with_lesion.size or not without.size:
        return None
    return float(((with_lesion > without) + 0.5 * (with_lesion == without)).mean())


@dataclass(frozen=True, slots=True)
class _Region:
    pixels: int
    share: float  # of them that the other mask holds


def _covered(mask: Mask, other: Mask) -> list[_Region]:
    number, labels = cv2.connectedComponents(mask.view(np.uint8), connectivity=8)
    pixels = np.bincount(labels.ravel(), minlength=number)
    shared = np.bincount(labels[other], minlength=number)
    return [_Region(int(n), float(s / n)) for n, s in zip(pixels[1:], shared[1:], strict=True)]


LEVELS: Final = tuple(round(0.05 * k, 2) for k in range(1, 20))
DEFAULT: Final = 0.5  # where there is nobody to choose it on


@dataclass(frozen=True, slots=True)
class Measured:
    """One held-out image at every threshold of `LEVELS`."""

    patient: str
    score: float
    counts: tuple[Counts, ...]
    targets: Mapping[str, tuple[Hits, ...]] = field(default_factory=dict)  # at the same thresholds


@dataclass(frozen=True, slots=True)
class Chosen:
    """A threshold, and what may be expected of it.

    Cross-fitted: the held-out patients are dealt into two halves, and each half is measured at the threshold
    that is best on the other. `threshold` itself is the best on all of them, and is what is used.
    """

    threshold: float
    quality: Quality | None  # None: nobody was held out
    patients: int
    counts: tuple[Counts, ...]  # of each image, at the threshold that it was measured at
    crossed: bool  # False: fewer than two patients, measured at `DEFAULT`
    targets: Mapping[str, Mapping[str, Any]]  # name -> lesions, images, patients, sensitivity

    def as_json(self) -> dict[str, Any] | None:
        """What is kept beside the weights."""
        if self.quality is None:
            return None
        how = "cross-fitted over two halves of the held-out patients" if self.crossed else "not chosen"
        return {
            **self.quality.as_json(),
            "threshold": self.threshold,
            "patients": self.patients,
            "threshold_chosen": how,
            "targets": {name: dict(found) for name, found in self.targets.items()},
        }


def choose(measured: Sequence[Measured], *, by: str) -> Chosen:
    """The threshold for what was measured; `by` is "lesions" (see `worth`) or "dice"."""
    patients = sorted({one.patient for one in measured})
    if len(patients) < 2:
        level = LEVELS.index(DEFAULT)
        counts = tuple(one.counts[level] for one in measured)
        quality = summarise(counts, [one.score for one in measured]) if measured else None
        targets = by_name(measured, [level] * len(measured))
        return Chosen(DEFAULT, quality, len(patients), counts, crossed=False, targets=targets)
    # Names say where a patient comes from, so dealing them out in order gives both halves of every source.
    half = {patient: at % 2 for at, patient in enumerate(patients)}
    halves = [[one for one in measured if half[one.patient] == side] for side in (0, 1)]
    levels = [best_level(some, by) for some in halves]
    used = [levels[1 - half[one.patient]] for one in measured]
    counts = tuple(one.counts[level] for one, level in zip(measured, used, strict=True))
    return Chosen(
        LEVELS[best_level(measured, by)],
        summarise(counts, [one.score for one in measured]),
        len(patients),
        counts,
        crossed=True,
        targets=by_name(measured, used),
    )


def by_name(measured: Sequence[Measured], levels: Sequence[int]) -> dict[str, dict[str, Any]]:
    """What is found of the lesions of each name, every image at its own threshold."""
    rows: dict[str, list[tuple[str, Hits]]] = {}
    for one, level in zip(measured, levels, strict=True):
        for name, found in one.targets.items():
            if found[level].lesions:
                rows.setdefault(name, []).append((one.patient, found[level]))
    summary: dict[str, dict[str, Any]] = {}
    for name, some in sorted(rows.items()):
        lesions = sum(found.lesions for _, found in some)
        summary[name] = {
            "lesions": lesions,
            "images": len(some),
            "patients": len({patient for patient, _ in some}),
            "sensitivity": sum(found.found for _, found in some) / lesions,
        }
    return summary


def best_level(measured: Sequence[Measured], by: str) -> int:
    """The place in `LEVELS`: by "lesions" the lowest with at most `FALSE` false findings an image.

    By "dice", or where no threshold has so few, the one that is worth most; among equals that nearest the
    middle.
    """
    scores = [one.score for one in measured]
    qualities = [summarise([one.counts[at] for one in measured], scores) for at in range(len(LEVELS))]
    if by == "lesions":
        few = (at for at, one in enumerate(qualities) if (one.false_positives_per_image or 0.0) <= FALSE)
        if (lowest := next(few, None)) is not None:
            return lowest
    found = [worth(quality, by) for quality in qualities]
    return max(range(len(LEVELS)), key=lambda at: (round(found[at], 6), -abs(LEVELS[at] - DEFAULT)))


def worth(quality: Quality, by: str) -> float:
    """DICE; by "lesions" its mean with the lesion-wise F score: finding counts as much as outlining."""
    dice = quality.dice or 0.0
    if by == "dice":
        return dice
    sensitivity, precision = quality.sensitivity or 0.0, quality.precision or 0.0
    both = sensitivity + precision
    return float(np.mean([dice, 2 * sensitivity * precision / both if both else 0.0]))
