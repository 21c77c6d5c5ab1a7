"""LL: where a lesion lies: quadrant, the patient's side, a box among five, a box and a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mie.questions.marks import check_boxes, mark_colour, with_boxes
from mie.questions.templates.anatomy import POINT_TAIL, point_tolerance, point_value
from mie.questions.templates.features import marked_groups
from mie.questions.templates.template import Draft, Params, Template
from mie.questions.views import QUADRANTS, Region, View, overlap, quadrant_of
from mie.questions.words import lesion_words, phrasings, picture
from mie.records import Mask, Target

_PLACES: Final = (*QUADRANTS, "Centre")


def _words(target: Target, view: View) -> dict[str, str]:
    return {**lesion_words(target), "image": picture(view.modality), "anatomy": view.anatomy}


def _quadrant(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        right = quadrant_of(region.mask) if region.share < 0.2 else None
        if right is not None:
            wrong = [name for name in _PLACES if name != right]
            yield Draft({"targets": names}, _words(target, view), right, wrong, subject=target.name)


def _is_quadrant(views: Sequence[View], params: Params, option: str) -> bool:
    return quadrant_of(views[0].region(params["targets"]).mask) == option


QUADRANT: Final = Template(
    "quadrant",
    "LL",
    "closed",
    phrasings(
        "In [which|what] part of the [image|picture] {does} the {lesion} lie, as it is displayed?",
        "Where {is} the {lesion} [in|on] this {image}[, as it is displayed|, in terms of the "
        "displayed image]?",
        "[Which|What] part of the displayed image [shows|contains] the {lesion}?",
        "[Locate|Localise] the {lesion} [in|on] this {image} as displayed.",
    ),
    rule="the quadrant with at least 90 % of the mask on both axes, or the centre; not asked elsewhere",
    drafts=_quadrant,
    holds=_is_quadrant,
)

# The patient's side, where the volume says how it lies.

_LEFT, _RIGHT, _BOTH = "The patient's left", "The patient's right", "Both sides"
# The data set says how the volume lies; slices hang with the patient's right on the left of the image.
_SIDED: Final = frozenset({"brain", "head", "chest", "lung", "kidney", "abdomen", "breast", "pelvis"})


def side_of(view: View, names: Sequence[str]) -> str | None:
    """None where the picture does not show the whole section, or the mask is near the midline."""
    if not view.oriented or view.plane not in ("axial", "coronal") or view.anatomy not in _SIDED:
        return None
    columns = np.flatnonzero((view.image.max(axis=2) > 24).any(axis=0))
    if not len(columns):
        return None
    middle = (int(columns[0]) + int(columns[-1]) + 1) / 2
    margin = 0.05 * (int(columns[-1]) - int(columns[0]) + 1)
    mask: Mask = view.region(names).mask
    left_of = int(np.count_nonzero(mask[:, : max(0, int(middle - margin))]))
    right_of = int(np.count_nonzero(mask[:, int(middle + margin) :]))
    total = int(np.count_nonzero(mask))
    if left_of == total:
        return _RIGHT
    if right_of == total:
        return _LEFT
    return _BOTH if min(left_of, right_of) > 0.3 * total else None


def _side(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, _region in marked_groups(view):
        right = side_of(view, names)
        if right is not None:
            wrong = [name for name in (_LEFT, _RIGHT, _BOTH) if name != right]
            yield Draft({"targets": names}, _words(target, view), right, wrong, subject=target.name)


def _is_side(views: Sequence[View], params: Params, option: str) -> bool:
    return side_of(views[0], params["targets"]) == option


SIDE: Final = Template(
    "patient_side",
    "LL",
    "closed",
    phrasings(
        "On [which|what] side of the patient {does} the {lesion} [lie|appear]? The slice hangs in "
        "radiological convention.",
        "[Which|What] side of the patient [shows|contains] the {lesion}, in radiological convention?",
        "In radiological convention, on [which|what] side of the patient {is} the {lesion} [seen|located]?",
    ),
    rule="the whole mask lies on one side of the body's middle; the volume's header says how the "
    "patient lies",
    drafts=_side,
    holds=_is_side,
)

# One box of five.

_BOXES: Final = 5
_TRIES: Final = 60


def _box_choice(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    colour = mark_colour(view.modality)
    for target, names, region in marked_groups(view):
        height, width = region.mask.shape
        left, top, right, bottom = _roomy(region, height, width)
        if right - left > 0.35 * width or bottom - top > 0.35 * height or region.count != 1:
            continue
        boxes = _decoys(view, (left, top, right, bottom), rng)
        if len(boxes) < _BOXES - 1:
            continue
        at = int(rng.integers(_BOXES))
        boxes.insert(at, (left, top, right, bottom))
        options = [f"Box {number + 1}" for number in range(_BOXES)]
        answer = options.pop(at)
        params = {"targets": names, "boxes": [list(box) for box in boxes], "colour": colour}
        shown = [with_boxes(view.image, boxes, colour)]
        words = {**_words(target, view), "colour": colour}
        yield Draft(params, words, answer, options, fixed=True, shown=shown)


def _roomy(region: Region, height: int, width: int) -> tuple[int, int, int, int]:
    """The region's box with a little room around it, at least 16 pixels a side."""
    left, top, right, bottom = region.box
    across, down = max(4, (16 - (right - left) + 1) // 2), max(4, (16 - (bottom - top) + 1) // 2)
    return max(0, left - across), max(0, top - down), min(width, right + across), min(height, bottom + down)


def _decoys(
    view: View, box: tuple[int, int, int, int], rng: np.random.Generator
) -> list[tuple[int, int, int, int]]:
    """Boxes of the same size on tissue, that touch no lesion and overlap no other box."""
    height, width = view.image.shape[:2]
    across, down = box[2] - box[0], box[3] - box[1]
    bright = view.image.max(axis=2) > 24
    boxes: list[tuple[int, int, int, int]] = []
    for _ in range(_TRIES):
        left, top = int(rng.integers(width - across + 1)), int(rng.integers(height - down + 1))
        one = left, top, left + across, top + down
        inside = slice(top, top + down), slice(left, left + across)
        if any(overlap(one, other) > 0.05 for other in (box, *boxes)) or view.unhealthy[inside].any():
            continue
        if bright[inside].mean() < 0.6:
            continue
        boxes.append(one)
        if len(boxes) == _BOXES - 1:
            break
    return boxes


def _is_box(views: Sequence[View], params: Params, option: str) -> bool:
    left, top, right, bottom = params["boxes"][int(option.removeprefix("Box ")) - 1]
    mask = views[0].region(params["targets"]).mask
    return bool(mask[top:bottom, left:right].any())


def _check_box_choice(views: Sequence[View], params: Params) -> None:
    check_boxes(views[0].image, params["boxes"], params["colour"])


BOX_CHOICE: Final = Template(
    "box_choice",
    "LL",
    "closed",
    phrasings(
        "[Which|Which one] of the [five |]numbered boxes [contains|encloses|surrounds] the {lesion}?",
        "In [which|which one] of the five [numbered|{colour}] boxes {does} the {lesion} lie?",
    ),
    rule="the one box that contains the mask; no pixel of a lesion lies in the others",
    drafts=_box_choice,
    holds=_is_box,
    check=_check_box_choice,
)

# A box and a point, as coordinates.


def _box(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        left, top, right, bottom = region.box_fractions
        if min(right - left, bottom - top) >= 0.05 and region.count == 1:
            yield Draft({"targets": names}, _words(target, view), tolerance=0.5, subject=target.name)


def _box_value(views: Sequence[View], params: Params) -> str:
    box = views[0].region(params["targets"]).box_fractions
    return "[" + ", ".join(f"{value:.3f}" for value in box) + "]"


BOX: Final = Template(
    "lesion_box",
    "LL",
    "box",
    phrasings(
        "[Give|State] the bounding box of the {lesion} [in|on] this {image}.",
        "[Draw|Place|Put] a [tight |]box around the {lesion} [in|on] this {image}.",
        "What is the bounding box of the {lesion} [in|on] this {image}?",
    ),
    rule="the box around the mask; an overlap of half (IoU) is right",
    drafts=_box,
    value=_box_value,
    tail=" Answer with [left, top, right, bottom] as fractions of the image's width and height.",
)


def _point(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        if region.count == 1 and not target.plural:
            tolerance = point_tolerance(region)
            yield Draft({"targets": names}, _words(target, view), tolerance=tolerance, subject=target.name)


POINT: Final = Template(
    "point_lesion",
    "LL",
    "point",
    phrasings(
        "[Point to|Mark|Locate] the [middle|centre] of the {lesion} [in|on] this {image}.",
        "Where is the [middle|centre] of the {lesion} [in|on] this {image}?",
    ),
    rule="the middle of the largest disc inside the mask; its radius is the tolerance",
    drafts=_point,
    value=point_value,
    tail=POINT_TAIL,
)

TEMPLATES: Final = (QUADRANT, SIDE, BOX_CHOICE, BOX, POINT)
