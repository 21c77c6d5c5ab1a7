"""How a clinician would ask for an overlay: phrasings per kind of perception task, and their grammar.

Places: {target} "optic disc", {is} is/are, {it} it/them, {colour} "red", {picture} the
modality's noun ("CT slice"). The holistic ones list every class with its own colour: {painted} "the liver in
red and the kidneys in blue", {names} "the liver and the kidneys", {key} "liver: red; kidneys: blue".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mie.records import Target
from mie.vocabulary import MODALITIES

STRUCTURE: Final = (
    "Highlight the {target} in {colour}.",
    "Paint the {target} {colour}.",
    "Mark the {target} on this {picture} with a {colour} overlay.",
    "Please outline and fill the {target} in {colour}.",
    "Show me where the {target} {is}: tint {it} {colour}.",
    "Segment the {target} and display {it} as a translucent {colour} overlay.",
    "Overlay the {target} in {colour} and leave everything else untouched.",
    "On this {picture}, colour the {target} {colour}.",
    "Shade the {target} in {colour} so that the anatomy underneath stays visible.",
    "Identify the {target} and mark {it} in {colour}.",
    "Delineate the {target} with a semi-transparent {colour} mask.",
    "Which pixels belong to the {target}? Fill {it} with {colour}.",
    "Label the {target} in {colour} on the {picture}.",
    "I need the {target} shown in {colour} for the teaching file.",
    "Cover the full extent of the {target} with a {colour} overlay.",
    "Trace the {target} and fill {it} in {colour}.",
    "Apply a {colour} tint to the {target} only.",
    "Bring out the {target} in {colour} without altering the background.",
)

LESION: Final = (
    "Highlight the {target} in {colour}.",
    "Mark the {target} in {colour}.",
    "Where {is} the {target}? Show {it} in {colour}.",
    "Paint the {target} {colour} on this {picture}.",
    "Please mark the {target} with a translucent {colour} overlay.",
    "Find the {target} and colour {it} {colour}.",
    "Delineate the {target} in {colour} for the report.",
    "Segment the {target} and overlay {it} in {colour}.",
    "Show the extent of the {target} in {colour}.",
    "Tint the {target} {colour}; do not change the surrounding tissue.",
    "Localise the {target} on this {picture} and fill {it} with {colour}.",
    "Cover the {target} with a semi-transparent {colour} mask.",
    "Point out the {target} by shading {it} {colour}.",
    "Detect the {target} and display {it} in {colour}.",
    "Outline and fill the {target} in {colour}.",
    "Indicate the {target} in {colour} so that I can measure {it}.",
    "Flag the {target} with a {colour} overlay and leave the healthy tissue as it was.",
    "The {target} should stand out in {colour}.",
)

# True of any number of classes, also when an image holds more than the three that can be painted.
SEVERAL: Final = (
    "Paint {painted}.",
    "Highlight {painted}.",
    "Please mark {painted}.",
    "On this {picture}, show {painted}.",
    "Segment {names} and display {painted}.",
    "Overlay {painted}, and leave the rest of the image unchanged.",
    "Mark {names} with translucent overlays, one colour each: {key}.",
    "Colour-code {names} on this {picture}: {key}.",
    "Delineate {painted} in one picture.",
    "I need {names} told apart: paint {painted}.",
    "Separate {names} by colour: {key}.",
    "Tint {painted}; keep the background as it is.",
    "Fill {painted} with translucent colour.",
    "Shade {painted} so that the image stays visible underneath.",
    "Outline and fill {painted} for the teaching file.",
)
# Only true when every class of the image is painted.
HOLISTIC: Final = (
    *SEVERAL,
    "Give every structure its own colour: {painted}.",
    "Label the whole {picture}: {key}.",
    "Show a full segmentation with {painted}.",
    "Draw the segmentation map over the {picture}: {key}.",
)

PHRASINGS: Final[dict[str, tuple[str, ...]]] = {
    "structure": STRUCTURE,
    "lesion": LESION,
    "holistic": HOLISTIC,
}


def ask_for_one(template: str, target: Target, colour: str, modality: str) -> str:
    return template.format(
        target=target.name,
        colour=colour,
        picture=MODALITIES[modality],
        **{"is": "are" if target.plural else "is"},
        it="them" if target.plural else "it",
    )


def ask_for_all(template: str, painted: Sequence[tuple[Target, str]], modality: str) -> str:
    return template.format(
        painted=listed([f"the {target.name} in {colour}" for target, colour in painted]),
        names=listed([f"the {target.name}" for target, _ in painted]),
        key="; ".join(f"{target.name}: {colour}" for target, colour in painted),
        picture=MODALITIES[modality],
    )


def describe(painted: Sequence[tuple[Target, str]], opacity: float) -> str:
    """The change in one sentence, for judges and readers."""
    parts = listed([f"the {target.name} in {colour}" for target, colour in painted])
    return f"A translucent overlay ({opacity:.0%} opacity) marks {parts}; everything else is unchanged."


def listed(words: Sequence[str]) -> str:
    """Words joined as in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
