"""ASI: structures that are outlined, visible, nearest or largest, from masks of anatomy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mie.questions.marks import check_outline, mark_colour, outlined
from mie.questions.templates.template import Draft, Params, Template
from mie.questions.views import Region, View, direction_of, gap_between
from mie.questions.words import other_structures, phrasings, picture
from mie.records import Target

_LEAST: Final = 0.002  # share of the image below which a structure is hard to see
_MOST: Final = 0.6
_DIRECTIONS: Final = ("To the left", "To the right", "Above", "Below")
POINT_TAIL: Final = (
    " Answer with [x, y] as fractions of the image's width and height, [0, 0] being the top left corner."
)


def _clear(view: View, targets: Sequence[Target]) -> list[Target]:
    """Those that are large enough to be seen and small enough to be a structure."""
    return [t for t in targets if _LEAST <= view.regions[t.name].share <= _MOST]


def capital(name: str) -> str:
    """An option's text."""
    return name[:1].upper() + name[1:]


def _outlined(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    colour = mark_colour(view.modality)
    structures = _clear(view, view.structures())
    marked = [name for name, target in view.targets.items() if target.kind == "anatomy"]
    for at in rng.permutation(len(structures))[:2]:
        target = structures[int(at)]
        wrong = [capital(name) for name in other_structures(target.name, view.anatomy, marked)]
        if len(wrong) < 2 or "," in target.name or view.regions[target.name].area < 40:
            continue
        words = {"image": picture(view.modality), "colour": colour}
        shown = [outlined(view.image, view.masks[target.name], colour)]
        yield Draft(
            {"target": target.name, "colour": colour}, words, capital(target.name), wrong, shown=shown
        )


def _is_outlined(views: Sequence[View], params: Params, option: str) -> bool:
    if capital(params["target"]) == option:
        return params["target"] in views[0].masks
    other = next((name for name in views[0].masks if capital(name) == option), None)
    if other is None:
        return False
    a, b = views[0].masks[params["target"]], views[0].masks[other]
    return float((a & b).sum()) > 0.5 * float((a | b).sum())


def _check_outlined(views: Sequence[View], params: Params) -> None:
    check_outline(views[0].image, views[0].masks[params["target"]], params["colour"])


OUTLINED: Final = Template(
    "outlined_structure",
    "ASI",
    "closed",
    phrasings(
        "[Which|What] [structure|anatomical structure] is outlined in {colour} [in|on] this {image}?",
        "What does the {colour} outline [enclose|surround|mark] [in|on] this {image}?",
        "Name the [structure|anatomical structure] inside the {colour} outline.",
        "[Identify|Name] what is outlined in {colour} on this {image}.",
    ),
    rule="the target whose mask the outline follows; other options are other structures",
    drafts=_outlined,
    holds=_is_outlined,
    check=_check_outlined,
    opens=True,
)


def _visible(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    present = [t.name for t in _clear(view, view.structures())]
    absent = [n for n, t in view.targets.items() if t.kind == "anatomy" and n not in view.masks]
    if not present or len(absent) < 2 or view.healed:
        return
    right = present[int(rng.integers(len(present)))]
    names = [absent[int(at)] for at in rng.permutation(len(absent))]
    words = {"image": picture(view.modality), "anatomy": view.anatomy}
    yield Draft({}, words, capital(right), [capital(name) for name in names])


def _is_visible(views: Sequence[View], _: Params, option: str) -> bool:
    return any(capital(name) == option for name in views[0].masks)


VISIBLE: Final = Template(
    "visible_structure",
    "ASI",
    "closed",
    phrasings(
        "[Which|Which one] of these structures is [visible|seen|shown] [in|on] this {image}?",
        "[Which|Which one] of the following [can be seen|is present] on this {image}?",
        "Only one of these structures lies in this {image}. Which one?",
    ),
    rule="the one option with a mask in this image; the data set marks the others, but not here",
    drafts=_visible,
    holds=_is_visible,
)


def _largest(view: View, _: np.random.Generator) -> Iterator[Draft]:
    structures = [t for t in _clear(view, view.structures()) if "," not in t.name]
    ranked = sorted(structures, key=lambda t: -view.regions[t.name].area)
    if len(ranked) < 3 or view.regions[ranked[0].name].area < 1.3 * view.regions[ranked[1].name].area:
        return
    names = [capital(target.name) for target in ranked[:5]]
    yield Draft(
        {"names": [t.name for t in ranked[:5]]}, {"image": picture(view.modality)}, names[0], names[1:]
    )


def _is_largest(views: Sequence[View], params: Params, option: str) -> bool:
    areas = {capital(name): views[0].regions[name].area for name in params["names"]}
    return option in areas and areas[option] == max(areas.values())


LARGEST: Final = Template(
    "largest_structure",
    "ASI",
    "closed",
    phrasings(
        "[Which|Which one] of these structures [covers|takes up|occupies] the [largest|greatest] "
        "area [in|on] this {image}?",
        "[Which|Which one] of these structures has the largest cross-section on this {image}?",
    ),
    rule="the largest mask among the options, by at least 30 %",
    drafts=_largest,
    holds=_is_largest,
)


def _relation(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    structures = [t for t in _clear(view, view.structures()) if "," not in t.name]
    pairs = [(a, b) for a in structures for b in structures if a.name != b.name]
    for at in rng.permutation(len(pairs)):
        one, other = pairs[int(at)]
        words = {
            "one": one.name,
            "other": other.name,
            "image": picture(view.modality),
            "does": "do" if one.plural else "does",
            "is": "are" if one.plural else "is",
        }
        right = direction_of(view.regions[one.name], view.regions[other.name])
        if right is None or _many(view.regions[one.name]) or _many(view.regions[other.name]):
            continue
        wrong = [name for name in _DIRECTIONS if name != right]
        subject = f"{one.name} {other.name}"
        yield Draft({"one": one.name, "other": other.name}, words, right, wrong, subject=subject)
        return


def _many(region: Region) -> bool:
    """Whether it has several large parts: two kidneys lie on no single side."""
    return len(region.areas) > 1 and region.areas[1] > 0.2 * region.areas[0]


def _is_relation(views: Sequence[View], params: Params, option: str) -> bool:
    regions = views[0].regions
    return direction_of(regions[params["one"]], regions[params["other"]]) == option


RELATION: Final = Template(
    "relative_position",
    "ASI",
    "closed",
    phrasings(
        "[Seen|Viewed] from the {other}, where {does} the {one} lie [in|on] this image as it is shown?",
        "Where {is} the {one} in relation to the {other} [in|on] this {image}, as displayed?",
        "In [which|what] direction from the {other} {does} the {one} lie on the screen?",
        "As this {image} is [shown|displayed], in which direction {is} the {one} from the {other}?",
        "Relative to the {other}, where {does} the {one} lie [in this picture|on this image], as displayed?",
        "[Where|In which direction] {does} the {one} lie from the {other}, in terms of the displayed image?",
    ),
    rule="the direction between the centres of two masks, where one direction clearly prevails",
    drafts=_relation,
    holds=_is_relation,
)


def _nearest(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    structures = [t for t in _clear(view, view.structures()) if "," not in t.name]
    if len(structures) < 4:
        return
    one = structures[int(rng.integers(len(structures)))]
    gaps = {
        t.name: gap_between(view.regions[t.name], view.regions[one.name])
        for t in structures
        if t.name != one.name
    }
    ranked = sorted(gaps, key=lambda name: gaps[name])[:5]
    if gaps[ranked[1]] < gaps[ranked[0]] + 0.04 * max(view.image.shape[:2]):
        return
    names = [capital(name) for name in ranked]
    words = {"one": one.name, "image": picture(view.modality)}
    yield Draft({"one": one.name, "names": ranked}, words, names[0], names[1:], subject=one.name)


def _is_nearest(views: Sequence[View], params: Params, option: str) -> bool:
    regions = views[0].regions
    gaps = {capital(n): gap_between(regions[n], regions[params["one"]]) for n in params["names"]}
    return option in gaps and gaps[option] == min(gaps.values())


NEAREST: Final = Template(
    "nearest_structure",
    "ASI",
    "closed",
    phrasings(
        "[Which|Which one] of these structures [lies|is] [nearest|closest] to the {one} [in|on] this "
        "{image}?",
        "On this {image}, [which|which one] of these structures is the nearest neighbour of the {one}?",
        "[Which|Which one] of these is the shortest distance away from the {one} on this {image}?",
    ),
    rule="the least distance between masks, clearly below all others",
    drafts=_nearest,
    holds=_is_nearest,
)


def point_value(views: Sequence[View], params: Params) -> str:
    """The middle of the largest disc inside the target."""
    x, y, _ = views[0].region(params["targets"]).core
    return f"[{x:.3f}, {y:.3f}]"


def point_tolerance(region: Region) -> float:
    """The radius of that disc, at least 3 % of the image."""
    return round(max(0.03, min(0.25, region.core[2])), 3)


def _is_compact(region: Region) -> bool:
    """Whether it has a middle: a ring, a ribbon or a network has none that everybody would point to."""
    longer = max(region.mask.shape)
    return math.pi * (region.core[2] * longer) ** 2 >= 0.25 * region.area


def _point(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    structures = [t for t in _clear(view, view.structures()) if "," not in t.name and not t.plural]
    if structures and not view.healed:
        target = structures[int(rng.integers(len(structures)))]
        region = view.regions[target.name]
        if not _many(region) and _is_compact(region):
            words = {"one": target.name, "image": picture(view.modality)}
            params = {"targets": [target.name]}
            yield Draft(params, words, tolerance=point_tolerance(region), subject=target.name)


POINT: Final = Template(
    "point_structure",
    "ASI",
    "point",
    phrasings(
        "[Point to|Mark|Locate] the [middle|centre] of the {one} [in|on] this {image}.",
        "Where is the [middle|centre] of the {one} [in|on] this {image}?",
    ),
    rule="the middle of the largest disc inside the mask; its radius is the tolerance",
    drafts=_point,
    value=point_value,
    tail=POINT_TAIL,
)

TEMPLATES: Final = (OUTLINED, VISIBLE, LARGEST, RELATION, NEAREST, POINT)
