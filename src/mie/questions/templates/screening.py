"""AS: is a lesion there? Negatives are images whose masks are empty, and images that were healed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mie.errors import MieError
from mie.questions.templates.imaging import NUMBERS, image_options
from mie.questions.templates.template import Draft, Params, Template
from mie.questions.views import View
from mie.questions.words import groups_of, is_classes, lesion_words, phrasings, picture
from mie.records import Target

YES, NO = "Yes", "No"
_LEAST: Final = 20  # pixels: fewer cannot be expected to be seen


def _screen(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    groups = groups_of(view.targets.values())
    asked: list[tuple[Target, list[str]]] = list(groups.items())
    for names in groups.values():
        if is_classes(names) and not all(name.startswith(("benign", "malignant")) for name in names):
            asked += [(view.targets[name], [name]) for name in names]
    for at in rng.permutation(len(asked))[:2]:
        target, names = asked[int(at)]
        draft = _asked(view, target, names)
        if draft is not None:
            yield draft


def _asked(view: View, target: Target, names: Sequence[str]) -> Draft | None:
    area = view.region(names).area
    if 0 < area < _LEAST or (view.healed and not set(names) & set(view.healed)):
        return None
    right = YES if area else NO
    words = {**lesion_words(target), "image": picture(view.modality), "anatomy": view.anatomy}
    return Draft({"targets": list(names)}, words, right, [NO if area else YES], subject=target.name)


def _is_there(views: Sequence[View], params: Params, option: str) -> bool:
    view = views[0]
    known = all(name in view.targets for name in params["targets"])
    there = any(name in view.masks for name in params["targets"])
    return known and option == (YES if there else NO)


def _check_healed(views: Sequence[View], _: Params) -> None:
    for view in views:
        if view.healed and (view.hole is None or not view.hole.any()):
            raise MieError(
                "a healed image does not say where it was healed", expected="a mask of the filled area"
            )
        if view.healed and any(name in view.masks for name in view.healed):
            raise MieError(
                "a lesion is marked in an image that was healed of it", found=", ".join(view.healed)
            )


SCREEN: Final = Template(
    "lesion_present",
    "AS",
    "closed",
    phrasings(
        "{Is} {a_lesion} [visible|present] [in|on] this {image}?",
        "Can {a_lesion} be [seen|found] [in|on] this {image}?",
        "Does this {image} [show|contain] {a_lesion}?",
        "Do you see {a_lesion} on this {image}?",
        "Looking at this {image}, do you find {a_lesion}?",
        "Would you report {a_lesion} on this {image}?",
    ),
    rule="yes where a mask of the lesion is there; no where the data set marks it and has none here, "
    "or where the lesion was taken out",
    drafts=_screen,
    holds=_is_there,
    check=_check_healed,
)


def _pair(views: Sequence[View], rng: np.random.Generator) -> Iterator[tuple[Sequence[View], Draft]]:
    """An image and the same image healed."""
    originals = {(view.source, view.case_id): view for view in views if not view.healed}
    for healed in views:
        original = originals.get((healed.source, healed.case_id)) if healed.healed else None
        if original is None:
            continue
        target, names = _healed_target(original, healed.healed)
        shown = [original, healed] if rng.integers(2) else [healed, original]
        options = image_options(2)
        right = options.pop(shown.index(original))
        yield (
            shown,
            Draft({"targets": names, "pair": True}, _words(target, original, 2), right, options, fixed=True),
        )


def _healed_target(view: View, healed: Sequence[str]) -> tuple[Target, list[str]]:
    """The common name of what was taken out; that of the first where there are several."""
    groups = groups_of(view.targets.values())
    target = next(group for group, names in groups.items() if healed[0] in names)
    return target, groups[target]


def _words(target: Target, view: View, count: int) -> dict[str, str]:
    words = lesion_words(target)
    return {**words, "image": picture(view.modality), "number": NUMBERS[count - 2]}


def _shows(views: Sequence[View], params: Params, option: str) -> bool:
    options = image_options(len(views))
    there = [any(name in view.masks for name in params["targets"]) for view in views]
    known = all(name in view.targets for view in views for name in params["targets"])
    return known and there.count(True) == 1 and there[options.index(option)]


def _check_pair(views: Sequence[View], params: Params) -> None:
    _check_healed(views, params)
    if params.get("pair"):
        (one, other), hole = (view.image for view in views), next(v.hole for v in views if v.hole is not None)
        if one.shape != other.shape or (one != other)[~hole].any():
            raise MieError("a healed image differs from its original outside the healed area")


PAIR: Final = Template(
    "lesion_or_healed",
    "AS",
    "closed",
    phrasings(
        "These two images [are|look] alike but for one thing. [Which|Which one] shows {a_lesion}?",
        "[Which|Which one] of these two images shows {a_lesion}?",
        "In [which|which one] of these two images {is} {a_lesion} [visible|present]?",
        "Compare these two images. [Where|In which one] {is} {a_lesion} [visible|present]?",
    ),
    rule="the original shows the lesion; the other image is the same one with the lesion taken out",
    several=_pair,
    holds=_shows,
    check=_check_pair,
)


def _among(views: Sequence[View], rng: np.random.Generator) -> Iterator[tuple[Sequence[View], Draft]]:
    """One image with a lesion among images of its data set without it."""
    groups: dict[tuple[str, str], tuple[list[View], list[View]]] = {}
    for view in views:
        for target, names in groups_of(view.targets.values()).items():
            area = view.region(names).area
            if area and area < _LEAST:
                continue
            clear = not area and (not view.healed or bool(set(names) & set(view.healed)))
            positive, negative = groups.setdefault((view.source, target.name), ([], []))
            if area and not view.healed:
                positive.append(view)
            elif clear:
                negative.append(view)
    for (_, name), (positive, negative) in groups.items():
        for number, view in enumerate(positive[: len(negative)]):
            others = [one for one in negative if one.case_id != view.case_id]
            if len(others) < 2:
                continue
            count = min(4, len(others) + 1)
            chosen = [others[(number + step) % len(others)] for step in range(count - 1)]
            at = int(rng.integers(count))
            shown = [*chosen[:at], view, *chosen[at:]]
            options = image_options(count)
            right = options.pop(at)
            target, names = next(
                (group, members)
                for group, members in groups_of(view.targets.values()).items()
                if group.name == name
            )
            yield shown, Draft({"targets": names}, _words(target, view, count), right, options, fixed=True)


AMONG: Final = Template(
    "which_shows_lesion",
    "AS",
    "closed",
    phrasings(
        "[Which|Which one] of these {number} images shows {a_lesion}?",
        "In [which|which one] of these {number} images {is} {a_lesion} [visible|present]?",
        "Only one of these {number} images [shows|contains] {a_lesion}. [Which one|Which]?",
        "[Find|Choose|Point out] the image that shows {a_lesion}.",
    ),
    rule="the one image with a mask of the lesion; in the others it is not marked, or was taken out",
    several=_among,
    holds=_shows,
    check=_check_pair,
)

TEMPLATES: Final = (SCREEN, PAIR, AMONG)
