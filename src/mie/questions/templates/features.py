"""LFD: number, size, shape and brightness of lesions, measured on their masks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mie.images.families import GREY, family_of
from mie.questions.marks import check_outline, mark_colour, outlined
from mie.questions.templates.anatomy import capital
from mie.questions.templates.imaging import NUMBERS, image_options
from mie.questions.templates.template import Draft, Params, Template
from mie.questions.views import Region, View
from mie.questions.words import groups_of, is_classes, lesion_words, phrasings, picture
from mie.records import Target

_LEAST: Final = 40  # pixels of a lesion whose features can be seen


def marked_groups(view: View) -> list[tuple[Target, list[str], Region]]:
    """Each kind of lesion in the image, parts and classes together: name, masks, region."""
    found = []
    for target, names in groups_of(view.targets.values()).items():
        region = view.region(names)
        if region.area >= _LEAST:
            found.append((target, names, region))
    return found


def _words(target: Target, view: View) -> dict[str, str]:
    return {**lesion_words(target), "image": picture(view.modality)}


def _region(views: Sequence[View], params: Params) -> Region:
    return views[0].region(params["targets"])


# Number of lesions.


def _count(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        count = region.count
        if count is not None and count <= 12 and target.plural:
            tolerance = float(round(0.15 * count))  # one of six may be overlooked, none of three
            yield Draft({"targets": names}, _words(target, view), tolerance=tolerance, subject=target.name)


def _count_value(views: Sequence[View], params: Params) -> str:
    return str(_region(views, params).count)


COUNT: Final = Template(
    "lesion_count",
    "LFD",
    "number",
    phrasings(
        "How many [separate|distinct] {lesion} [are visible|can be seen] [in|on] this {image}?",
        "[Count the|State the number of] [separate|distinct] {lesion} [in|on] this {image}.",
    ),
    rule="connected parts of the mask of at least a tenth of the largest; not asked where a part is in doubt",
    drafts=_count,
    value=_count_value,
    tail=" Answer with a whole number.",
)
_ONE, _MANY = "One", "More than one"


def _single(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        count = region.count
        if count is not None:
            right = _ONE if count == 1 else _MANY
            wrong = [_MANY if count == 1 else _ONE]
            yield Draft({"targets": names}, _words(target, view), right, wrong, subject=target.name)


def _is_single(views: Sequence[View], params: Params, option: str) -> bool:
    return option == (_ONE if _region(views, params).count == 1 else _MANY)


SINGLE: Final = Template(
    "one_or_many",
    "LFD",
    "closed",
    phrasings(
        "In how many separate places {is} {a_lesion} [visible|seen|found] [in|on] this {image}?",
        "How many separate areas [in|on] this {image} show {a_lesion}?",
        "Does this {image} show {a_lesion} in one place or in [several|more than one]?",
        "Count the separate places where this {image} shows {a_lesion}.",
        "In how many separate places does this {image} show {a_lesion}?",
    ),
    rule="connected parts of the mask; not asked where a part is in doubt",
    drafts=_single,
    holds=_is_single,
)

# Size.


def _diameter(view: View, _: np.random.Generator) -> Iterator[Draft]:
    if view.spacing is None:
        return
    for target, names, region in marked_groups(view):
        if region.count == 1:
            across = region.diameter * view.spacing
            tolerance = round(max(2.0, 0.15 * across), 1)
            height, width = (f"{side * view.spacing:.0f}" for side in view.image.shape[:2])
            words = {**_words(target, view), "height": height, "width": width}
            yield Draft({"targets": names}, words, tolerance=tolerance, unit="mm", subject=target.name)


def _diameter_value(views: Sequence[View], params: Params) -> str:
    return f"{_region(views, params).diameter * (views[0].spacing or 0.0):.1f}"


DIAMETER: Final = Template(
    "diameter_mm",
    "LFD",
    "number",
    phrasings(
        "[Estimate|Measure|Give] the [largest|longest] diameter of the {lesion} [in|on] this {image}.",
        "What is the [largest|longest] diameter of the {lesion} [in|on] this {image}?",
    ),
    rule="the largest distance between two pixels of the mask, times the pixel spacing",
    drafts=_diameter,
    value=_diameter_value,
    tail=" Answer with a number in millimetres; the image is {height} mm high and {width} mm wide.",
)
_BINS: Final = (0.0, 0.01, 0.05, 0.15, 0.3, 1.0)
_BIN_NAMES: Final = ("Less than 1 %", "1 to 5 %", "5 to 15 %", "15 to 30 %", "More than 30 %")
_EDGE: Final = 0.15  # a share this near to an edge, relative to it, is not asked about


def bin_of(share: float) -> str | None:
    """The range of a share of the image; None near the edge of two."""
    if any(abs(share - edge) < _EDGE * edge for edge in _BINS[1:-1]):
        return None
    return next(name for name, high in zip(_BIN_NAMES, _BINS[1:], strict=True) if share < high or high == 1)


def _share(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        right = bin_of(region.share)
        if right is not None:
            wrong = [name for name in _BIN_NAMES if name != right]
            yield Draft({"targets": names}, _words(target, view), right, wrong, subject=target.name)


def _is_share(views: Sequence[View], params: Params, option: str) -> bool:
    return bin_of(_region(views, params).share) == option


SHARE: Final = Template(
    "area_range",
    "LFD",
    "closed",
    phrasings(
        "[About|Roughly] [what share|how much|what percentage] of the image {does} the {lesion} "
        "[cover|occupy]?",
        "How much of the image area {does} the {lesion} [cover|take up|occupy]?",
        "What part of the [image's area|image] {is} covered by the {lesion}?",
    ),
    rule="pixels of the mask over pixels of the image; not asked near the edge of two ranges",
    drafts=_share,
    holds=_is_share,
)

# Brightness and shape.

_BRIGHTER, _DARKER, _ALIKE = "Brighter", "Darker", "About equally bright"
_CLEAR, _SAME = 15.0, 4.0  # grey levels of 255


def _tone(view: View, names: Sequence[str]) -> str | None:
    contrast = view.contrast(names)
    if contrast is None or _SAME < abs(contrast) < _CLEAR:
        return None
    return _ALIKE if abs(contrast) <= _SAME else (_BRIGHTER if contrast > 0 else _DARKER)


def _brightness(view: View, _: np.random.Generator) -> Iterator[Draft]:
    if family_of(view.modality) not in GREY:
        return
    for target, names, _found in marked_groups(view):
        right = _tone(view, names)
        if right is not None:
            wrong = [name for name in (_BRIGHTER, _DARKER, _ALIKE) if name != right]
            yield Draft({"targets": names}, _words(target, view), right, wrong, subject=target.name)


def _is_tone(views: Sequence[View], params: Params, option: str) -> bool:
    return _tone(views[0], params["targets"]) == option


BRIGHTNESS: Final = Template(
    "brightness",
    "LFD",
    "closed",
    phrasings(
        "[Compared with|Relative to] the tissue around {them}, how bright {is} the {lesion} [in|on] "
        "this {image}?",
        "How {does} the {lesion} [appear|look] [compared with|next to] the surrounding tissue on "
        "this {image}?",
        "{Is} the {lesion} brighter or darker than the tissue around {them} [in|on] this {image}?",
        "What is the brightness of the {lesion} relative to [the surrounding|nearby] tissue?",
    ),
    rule="median grey level of the mask minus that of a ring around it, without air and bone: 15 levels or "
    "more, or at most 4",
    drafts=_brightness,
    holds=_is_tone,
)
_ROUND, _LONG, _INDENTED = "Round or oval", "Elongated", "Irregular with an indented outline"


def shape_of(region: Region) -> str | None:
    """None between the classes, and for several parts."""
    if region.count != 1 or region.area < 120:
        return None
    if region.solidity <= 0.82:
        return _INDENTED
    if region.solidity >= 0.92 and region.aspect >= 2.2:
        return _LONG
    return _ROUND if region.solidity >= 0.93 and region.aspect <= 1.6 else None


def _shape(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for target, names, region in marked_groups(view):
        right = shape_of(region)
        if right is not None:
            wrong = [name for name in (_ROUND, _LONG, _INDENTED) if name != right]
            yield Draft({"targets": names}, _words(target, view), right, wrong, subject=target.name)


def _is_shape(views: Sequence[View], params: Params, option: str) -> bool:
    return shape_of(_region(views, params)) == option


SHAPE: Final = Template(
    "shape",
    "LFD",
    "closed",
    phrasings(
        "[What|Which] [shape|outline] {does} the {lesion} have [in|on] this {image}?",
        "How would you describe the [shape|outline] of the {lesion} [in|on] this {image}?",
        "[Describe|Characterise] the shape of the {lesion} [in|on] this {image}.",
    ),
    rule="solidity (area over convex hull) and aspect ratio of the mask; not asked between the classes",
    drafts=_shape,
    holds=_is_shape,
)

# Parts of a lesion.


def _part(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    colour = mark_colour(view.modality)
    for target, names in groups_of(view.targets.values()).items():
        marked = [n for n in names if n in view.masks and view.regions[n].area >= 2 * _LEAST]
        if len(names) < 2 or is_classes(names) or not marked:
            continue
        name = marked[int(rng.integers(len(marked)))]
        wrong = [capital(other) for other in names if other != name]
        words = {"lesion": target.name, "image": picture(view.modality), "colour": colour}
        shown = [outlined(view.image, view.masks[name], colour)]
        params = {"target": name, "colour": colour}
        yield Draft(params, words, capital(name), wrong, shown=shown, subject=target.name)


def _is_part(views: Sequence[View], params: Params, option: str) -> bool:
    return capital(params["target"]) == option and params["target"] in views[0].masks


def _check_part(views: Sequence[View], params: Params) -> None:
    check_outline(views[0].image, views[0].masks[params["target"]], params["colour"])


PART: Final = Template(
    "outlined_part",
    "LFD",
    "closed",
    phrasings(
        "[Which|What] part of the {lesion} is outlined in {colour}[ on this {image}|]?",
        "[Which|What] component of the {lesion} does the {colour} outline [enclose|mark|surround]?",
        "[Identify|Name] the part of the {lesion} inside the {colour} outline.",
    ),
    rule="the part whose mask the outline follows",
    drafts=_part,
    holds=_is_part,
    check=_check_part,
)

# Several images.


def _by_size(
    views: Sequence[View], count: int, apart: float
) -> Iterator[tuple[list[View], Target, list[str]]]:
    """Runs of images of one data set whose lesions differ clearly in size."""
    groups: dict[tuple[str, str], list[tuple[float, View, Target, list[str]]]] = {}
    for view in views:
        for target, names, region in marked_groups(view) if not view.healed else ():
            groups.setdefault((view.source, target.name), []).append((region.share, view, target, names))
    for found in groups.values():
        for start in range(0, len(found) - count + 1, count):
            run = sorted(found[start : start + count], key=lambda item: -item[0])
            if all(a[0] >= apart * b[0] for a, b in itertools.pairwise(run)):
                yield [item[1] for item in run], run[0][2], run[0][3]


def _order(views: Sequence[View], rng: np.random.Generator) -> Iterator[tuple[Sequence[View], Draft]]:
    for ranked, target, names in _by_size(views, 3, 1.4):
        order = [int(at) for at in rng.permutation(3)]
        shown = [ranked[at] for at in order]
        right = _ordered([order.index(rank) for rank in range(3)])
        wrong = [text for text in map(_ordered, itertools.permutations(range(3))) if text != right]
        yield shown, Draft({"targets": names}, _words(target, shown[0]), right, wrong)


def _ordered(places: Sequence[int]) -> str:
    return ", ".join(f"image {place + 1}" for place in places).capitalize()


def _is_order(views: Sequence[View], params: Params, option: str) -> bool:
    shares = [view.region(params["targets"]).share for view in views]
    return option == _ordered(sorted(range(len(views)), key=lambda at: -shares[at]))


ORDER: Final = Template(
    "order_by_size",
    "LFD",
    "closed",
    phrasings(
        "[Order|Sort|Rank] these three images by the share that the {lesion} [covers|occupies], "
        "largest first.",
        "[Put|Arrange|Bring] these three images in order of the area of the {lesion}[, from largest "
        "to smallest|, largest first].",
    ),
    rule="share of the image that the mask covers, each at least 40 % more than the next",
    several=_order,
    holds=_is_order,
)


def _biggest(views: Sequence[View], rng: np.random.Generator) -> Iterator[tuple[Sequence[View], Draft]]:
    for ranked, target, names in _by_size(views, 4, 1.0):
        if ranked[0].region(names).share < 1.4 * ranked[1].region(names).share:
            continue
        order = [int(at) for at in rng.permutation(4)]
        options = image_options(4)
        right = options.pop(order.index(0))
        words = {**_words(target, ranked[0]), "number": NUMBERS[2]}
        yield [ranked[at] for at in order], Draft({"targets": names}, words, right, options, fixed=True)


def _is_biggest(views: Sequence[View], params: Params, option: str) -> bool:
    shares = [view.region(params["targets"]).share for view in views]
    return shares[image_options(len(views)).index(option)] == max(shares)


BIGGEST: Final = Template(
    "largest_lesion",
    "LFD",
    "closed",
    phrasings(
        "In [which|which one] of these {number} images {does} the {lesion} [cover|take up|occupy] "
        "the largest [share|part] of the image?",
    ),
    rule="share of the image that the mask covers, at least 40 % more than in any other image",
    several=_biggest,
    holds=_is_biggest,
)

TEMPLATES: Final = (COUNT, SINGLE, DIAMETER, SHARE, BRIGHTNESS, SHAPE, PART, ORDER, BIGGEST)
