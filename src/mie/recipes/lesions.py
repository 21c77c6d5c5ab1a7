"""Which marked regions of a case are lesions, which go together, and how far around them is filled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np

from mie.recipes.body import VIEWS
from mie.recipes.location import equivalent_diameter
from mie.records import Mask, Target

# Parts of one lesion: where two or more of them are marked, they are spoken of as the whole.
_WHOLES: Final = (
    (
        frozenset({"necrotic tumour core", "peritumoural oedema", "enhancing tumour"}),
        Target("brain tumour", "lesion"),
    ),
    (frozenset({"ischaemic penumbra", "ischaemic core"}), Target("ischaemic stroke lesion", "lesion")),
)
# What a lesion's outline encloses (the core inside a marked rim) goes with it, unless it is larger than this
# share of the lesion: a ring of exudates does not take the macula along.
_ENCLOSED: Final = 1.0
# Share of the body that may be filled. In a section through the body half an organ cannot be made up.
_MOST: Final = {"ct": 0.15, "mri": 0.15}
_MOST_ELSEWHERE: Final = 0.4


@dataclass(frozen=True, slots=True)
class Lesion:
    """One or several marked lesions that are removed together."""

    targets: tuple[Target, ...]  # as the data set names them
    spoken: tuple[Target, ...]  # as a sentence names them
    mask: Mask  # what is marked
    hole: Mask  # what is filled: dilated by the margin
    margin: tuple[int, int]  # smallest and largest dilation of a component, in pixels


@dataclass(frozen=True, slots=True)
class LesionLimits:
    """When a lesion cannot be removed believably. Measured at the size that is stored."""

    min_pixels: int = 24  # of the lesion
    max_fraction: float | None = None  # of the body, filled; None: the family's
    inside: float = 0.5  # share of the lesion that must lie inside the body


def lesions_of(
    masks: Mapping[str, Mask],
    targets: Mapping[str, Target],
    margin: tuple[float, int],
    view: Mask | None = None,
) -> list[Lesion]:
    """All lesions together; after that, where there are several, each group whose holes do not touch.

    `margin` is (share of a component's diameter, least pixels). Lesions of one target stay together, and so
    do targets whose holes touch: half a tumour is never left behind. Holes stay inside the `view`.
    """
    marked = {n: m for n, m in masks.items() if targets[n].kind == "lesion" and m.any()}
    if not marked:
        return []
    holes = {name: dilated(mask, margin)[0] for name, mask in marked.items()}
    groups: list[list[str]] = []
    for name in marked:
        touching = [g for g in groups if any((holes[name] & holes[other]).any() for other in g)]
        joined = [other for group in touching for other in group]
        groups = [g for g in groups if g not in touching] + [[*joined, name]]
    together = [list(marked)] + (groups if len(groups) > 1 else [])
    found = [_lesion([n for n in marked if n in group], marked, targets, margin) for group in together]
    return found if view is None else [replace(one, hole=one.hole & (view | one.mask)) for one in found]


def _lesion(
    names: Sequence[str],
    marked: Mapping[str, Mask],
    targets: Mapping[str, Target],
    margin: tuple[float, int],
) -> Lesion:
    mask = np.logical_or.reduce([marked[name] for name in names])
    hole, reach = dilated(mask, margin)
    found = tuple(targets[name] for name in names)
    return Lesion(found, spoken_targets(found), mask, hole, reach)


def spoken_targets(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """As a sentence names them: parts of one lesion as the whole."""
    spoken = targets
    for parts, whole in _WHOLES:
        if sum(target.name in parts for target in spoken) > 1:
            spoken = (whole, *(target for target in spoken if target.name not in parts))
    return spoken


def dilated(mask: Mask, margin: tuple[float, int]) -> tuple[Mask, tuple[int, int]]:
    """The mask with each connected part grown by its own margin, and the smallest and largest margin."""
    share, least = margin
    count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    radii = [
        max(least, round(share * equivalent_diameter(stats[k, cv2.CC_STAT_AREA]))) for k in range(1, count)
    ]
    hole = np.zeros_like(mask)
    for radius in sorted(set(radii)):
        part = np.isin(labels, [k for k, r in enumerate(radii, start=1) if r == radius]).astype(np.uint8)
        disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
        hole |= cv2.dilate(part, disc).view(np.bool_)
    return _with_enclosed(hole, _ENCLOSED * int(mask.sum())), (min(radii), max(radii))


def _with_enclosed(hole: Mask, most: float) -> Mask:
    outside = (~np.pad(hole, 1)).astype(np.uint8)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(outside, connectivity=4)
    small = [k for k in range(1, count) if k != labels[0, 0] and stats[k, cv2.CC_STAT_AREA] <= most]
    enclosed: Mask = np.isin(labels, small)[1:-1, 1:-1]
    return hole | enclosed


def why_not(
    lesion: Lesion, body: Mask, limits: LesionLimits, family: str
) -> tuple[str, str, dict[str, Any]] | None:
    """(gate, reason, numbers) where the lesion cannot be removed; None where it can be tried."""
    pixels = int(lesion.mask.sum())
    beyond = ~np.pad(body, 1) if family in VIEWS else np.pad(np.zeros_like(body), 1, constant_values=True)
    reach = cv2.dilate(beyond.astype(np.uint8), np.ones((3, 3), np.uint8))[1:-1, 1:-1].view(np.bool_)
    if (lesion.mask & reach).any():
        what = "view" if family in VIEWS else "image"
        return "border", f"the lesion touches the edge of the {what}: what lies beyond it is not known", {}
    if pixels < limits.min_pixels:
        reason = f"the lesion is too small: {pixels} px, at least {limits.min_pixels}"
        return "area", reason, {"pixels": pixels}
    inside = float((lesion.mask & body).sum()) / pixels
    if inside < limits.inside:
        reason = f"only {inside:.0%} of the lesion lies inside the body, at least {limits.inside:.0%}"
        return "outside", reason, {"inside": inside}
    fraction = float(lesion.hole.sum()) / float(body.sum())
    most = limits.max_fraction or _MOST.get(family, _MOST_ELSEWHERE)
    if fraction > most:
        reason = (
            f"the lesion and its margin fill {fraction:.0%} of the body in the picture, "
            f"at most {most:.0%}: too little healthy tissue is left to go by"
        )
        return "area", reason, {"fraction": fraction}
    return None


def ring_around(hole: Mask, body: Mask, unhealthy: Mask) -> Mask:
    """Surroundings about as large as the hole: healthy body within a distance that grows with the hole.

    At least 12 pixels wide, so that patches of 8 x 8 fit in for a spectrum.
    """
    width = max(12.0, 0.3 * equivalent_diameter(float(hole.sum()) / max(1, _count(hole))))
    distance = cv2.distanceTransform((~hole).astype(np.uint8), cv2.DIST_L2, 3)
    ring: Mask = (distance > 0) & (distance <= math.ceil(width)) & body & ~unhealthy
    return ring


def _count(mask: Mask) -> int:
    return int(cv2.connectedComponents(mask.view(np.uint8), connectivity=8)[0]) - 1
