"""DDR, narrowly: the class of a lesion, where masks are by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mie.questions.templates.anatomy import capital
from mie.questions.templates.template import Draft, Params, Template
from mie.questions.views import View
from mie.questions.words import groups_of, is_classes, phrasings, picture

_LEAST: Final = 40  # pixels


def _classes(view: View) -> Iterator[tuple[str, list[str], list[str]]]:
    """(common name, its classes, those that are marked in this image), where all marked ones can be seen."""
    for target, names in groups_of(view.targets.values()).items():
        marked = [name for name in names if name in view.masks]
        if is_classes(names) and marked and all(view.regions[name].area >= _LEAST for name in marked):
            yield target.name, names, marked


def _class(view: View, _: np.random.Generator) -> Iterator[Draft]:
    for name, names, marked in _classes(view):
        if len(marked) == 1:
            wrong = [capital(other) for other in names if other not in marked]
            words = {"lesion": name, "image": picture(view.modality)}
            yield Draft({"classes": names}, words, capital(marked[0]), wrong, subject=name)


def _is_class(views: Sequence[View], params: Params, option: str) -> bool:
    return any(capital(name) == option and name in views[0].masks for name in params["classes"])


CLASS: Final = Template(
    "lesion_class",
    "DDR",
    "closed",
    phrasings(
        "[Which|What] [kind|type] of {lesion} [is shown|is seen] [in|on] this {image}?",
        "What is the most likely diagnosis for the {lesion} [in|on] this {image}?",
        "[How|As what] would you classify the {lesion} on this {image}?",
    ),
    rule="the class whose mask is in this image; the data set marks all classes, and no other is here",
    drafts=_class,
    holds=_is_class,
    opens=True,
)


def _also(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    for name, names, marked in _classes(view):
        absent = [other for other in names if other not in marked]
        if len(marked) > 1 and len(absent) > 1:
            right = marked[int(rng.integers(len(marked)))]
            words = {"lesion": name, "image": picture(view.modality)}
            wrong = [capital(other) for other in absent]
            yield Draft({"classes": names}, words, capital(right), wrong, subject=name)


ALSO: Final = Template(
    "class_present",
    "DDR",
    "closed",
    phrasings(
        "This {image} shows more than one kind of {lesion}. [Which|Which one] of these is [among "
        "them|present|one of them]?",
        "[Which|Which one] of these kinds of {lesion} [is present|can be seen] [in|on] this {image}?",
    ),
    rule="the one option with a mask in this image; the data set marks the others, but not here",
    drafts=_also,
    holds=_is_class,
)


def _absent(view: View, rng: np.random.Generator) -> Iterator[Draft]:
    for name, names, marked in _classes(view):
        absent = [other for other in names if other not in marked]
        if len(marked) > 1 and absent:
            right = absent[int(rng.integers(len(absent)))]
            words = {"lesion": name, "image": picture(view.modality)}
            yield Draft(
                {"classes": names}, words, capital(right), [capital(other) for other in marked], subject=name
            )


def _is_absent(views: Sequence[View], params: Params, option: str) -> bool:
    return any(capital(name) == option and name not in views[0].masks for name in params["classes"])


ABSENT: Final = Template(
    "class_absent",
    "DDR",
    "closed",
    phrasings(
        "[Which|Which one] of these kinds of {lesion} is not [present|visible|seen] [in|on] this {image}?",
        "All but one of these kinds of {lesion} [are present|can be seen] on this {image}. Which one "
        "is [absent|missing]?",
    ),
    rule="the one option without a mask in this image",
    drafts=_absent,
    holds=_is_absent,
)

TEMPLATES: Final = (CLASS, ALSO, ABSENT)
