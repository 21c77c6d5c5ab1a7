"""How a clinician would ask for a lesion to go or to come: phrasings for the four kinds of modification.

Places: {lesion} "malignant breast lesion", {is} and {its} for it; {a_lesion} "a small malignant breast
lesion"; {location} "in the upper left quadrant of the image"; {anatomy}; {tissue} "breast tissue"; {picture}
the modality's noun ("CT slice"). Additions say where and how large; kinds with a hole name the white area.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mie.perspectives.perception.phrasings import listed
from mie.records import Target
from mie.vocabulary import MODALITIES

REMOVAL: Final = (
    "Remove the {lesion} from this {picture} of the {anatomy}.",
    "Take out the {lesion} and restore healthy {tissue}.",
    "Show how this {picture} of the {anatomy} would look without the {lesion}.",
    "Replace the {lesion} with healthy {tissue}.",
    "Edit the {picture} so that the {lesion} {is} no longer there; the rest of the {anatomy} stays as it is.",
    "Please erase the {lesion} and fill in normal {tissue}.",
    "Make a lesion-free version of this {picture} of the {anatomy}: the {lesion} must go.",
    "What would the {anatomy} look like had the {lesion} never been there? Show me.",
    "Resolve the {lesion} as after successful treatment and leave the remaining {anatomy} unchanged.",
    "Generate the healthy counterpart of this {picture} by removing the {lesion} from the {anatomy}.",
    "Delete the {lesion} {location} and continue the surrounding {tissue} in {its} place.",
    "I need the {anatomy} without the {lesion} for comparison; change nothing else.",
    "Turn the area of the {lesion} back into normal {tissue}.",
    "Clear the {lesion} {location} from this {picture} of the {anatomy}.",
)

ADDITION: Final = (
    "Add {a_lesion} {location} on this {picture} of the {anatomy}.",
    "Insert {a_lesion} into the {anatomy}, {location}.",
    "Show this {anatomy} with {a_lesion} {location}.",
    "Place {a_lesion} {location}; leave the rest of the {anatomy} untouched.",
    "Simulate {a_lesion} of the {anatomy} {location}.",
    "Let this healthy {anatomy} develop {a_lesion} {location}.",
    "Edit the {picture}: {a_lesion} should appear in the {anatomy}, {location}.",
    "Make a teaching example from this healthy {anatomy}: draw {a_lesion} {location}.",
    "How would {a_lesion} {location} look in this {anatomy}? Put it into the {picture}.",
    "Please create {a_lesion} within the {tissue}, {location}.",
    "Turn this normal {picture} of the {anatomy} into one with {a_lesion} {location}.",
    "Introduce {a_lesion} {location}, as this patient's {anatomy} might show it.",
    "Replace healthy {tissue} by {a_lesion} {location}.",
    "The {anatomy} is normal here. Add {a_lesion} {location} and change nothing else.",
)

INPAINTING: Final = (
    "Fill the white area of this {picture} of the {anatomy} with healthy {tissue}.",
    "Complete the white-masked region with normal {tissue}.",
    "The white area is missing: restore it as healthy {tissue}.",
    "Inpaint the white region so that the {anatomy} looks healthy throughout.",
    "Replace the white mask by healthy {tissue} that continues its surroundings.",
    "Reconstruct what healthy {tissue} would look like under the white mask.",
    "Paint normal {tissue} into the white part of this {picture} of the {anatomy}.",
    "Part of the {anatomy} is blanked out in white; fill it in without any lesion.",
    "Close the white gap with healthy {tissue} and leave everything else as it is.",
    "Please complete this {picture} of the {anatomy}: the white area should show no abnormality.",
    "Extend the healthy {tissue} around the white region into it.",
    "Draw healthy {anatomy} where the {picture} is white.",
    "Make the white-masked part of the {anatomy} indistinguishable from the normal {tissue} next to it.",
)

SIMULATION: Final = (
    "Fill the white area of this {picture} of the {anatomy} with {a_lesion}.",
    "Place {a_lesion} in the white-masked region of the {anatomy}.",
    "Draw {a_lesion} exactly where the {anatomy} is white.",
    "The white mask marks where {a_lesion} should appear in the {anatomy}: synthesise it there.",
    "Simulate {a_lesion} of the {anatomy} inside the white region.",
    "Complete the white area of the {anatomy} so that it shows {a_lesion}.",
    "Replace the white mask by {a_lesion} and blend it into the surrounding {tissue}.",
    "Inpaint {a_lesion} into the white part of this {picture} of the {anatomy}.",
    "Show {a_lesion} within the white region; the {anatomy} around it must not change.",
    "Put {a_lesion} into the blanked-out part of the {anatomy}.",
    "In this {picture} of the {anatomy} the white area hides {a_lesion}. Show it.",
    "Generate {a_lesion} confined to the white-masked {tissue}.",
    "Please render {a_lesion} in the white gap of this {picture} of the {anatomy}.",
)

PHRASINGS: Final[dict[str, tuple[str, ...]]] = {
    "removal": REMOVAL,
    "addition": ADDITION,
    "inpainting": INPAINTING,
    "simulation": SIMULATION,
}

DESCRIPTIONS: Final[dict[str, str]] = {
    "removal": "The {lesion} {location} {is} gone: healthy {tissue} lies in {its} place, without a visible "
    "border. Everything else is unchanged.",
    "addition": "The {anatomy}, healthy there before, now shows {a_lesion} {location}, believable on this "
    "{picture}. Everything else is unchanged.",
    "inpainting": "The white area {location} is filled with healthy {tissue} that continues its surroundings "
    "without a visible border; no lesion is left in it. Everything else is unchanged.",
    "simulation": "The white area {location} now shows {a_lesion}, and {tissue} around it that continues its "
    "surroundings without a visible border. Everything else is unchanged.",
}

# What fills the place of a lesion, where "<anatomy> tissue" is not what a clinician says.
_TISSUES: Final = {
    "skin": "skin",
    "colon": "mucosa",
    "digestive tract": "mucosa",
    "stomach": "mucosa",
    "oesophagus": "mucosa",
    "retina": "retina",
    "skeleton": "bone",
    "abdomen": "abdominal tissue",
    "teeth": "tooth tissue",
}
_PLURAL: Final = ("teeth", "cells")  # anatomies that are many
_AGREEING: Final = {"is": "are", "looks": "look", "shows": "show"}
# Last words of names that have no "a" before them: "an area of peritumoural oedema".
_UNCOUNTED: Final = ("oedema", "consolidation", "dysplasia", "oesophagus", "cancer", "haemorrhage", "caries")
_VOWELS: Final = tuple("aeiou")


def words(
    targets: Sequence[Target], *, anatomy: str, modality: str, location: str, size: str
) -> dict[str, str]:
    """What fills the places of a template. `targets` are named in this order; several count as plural."""
    many = len(targets) > 1 or (targets[0].plural and not targets[0].name.endswith(_UNCOUNTED))
    return {
        "lesion": listed([targets[0].name, *(f"the {target.name}" for target in targets[1:])]),
        "a_lesion": listed([_sized(target, size) for target in targets]),
        "is": "are" if many else "is",
        "its": "their" if many else "its",
        "location": location,
        "anatomy": anatomy,
        "tissue": _tissue(anatomy, targets),
        "picture": MODALITIES[modality],
    }


def ask(template: str, words: Mapping[str, str]) -> str:
    """Fill in a template; verbs and pronouns agree with an anatomy in the plural.

    >>> ask("The {anatomy} is normal here.", {"anatomy": "teeth"})
    'The teeth are normal here.'
    """
    text, anatomy = template.format(**words), words["anatomy"]
    if anatomy not in _PLURAL:
        return text
    text = re.sub(rf"\b([Tt]h)is ((?:healthy )?{anatomy})\b", r"\1ese \2", text)
    text = re.sub(rf"(?<=rest of the {anatomy}) stays as it is", " stay as they are", text)
    # "Part of the teeth is": the subject is the part.
    verb = re.compile(rf"(?<!of the )\b({anatomy}(?:,[^,]+, now)?) ({'|'.join(_AGREEING)})\b")
    return verb.sub(lambda found: f"{found[1]} {_AGREEING[found[2]]}", text)


def _tissue(anatomy: str, targets: Sequence[Target]) -> str:
    if anatomy == "chest" and any("lung" in target.name for target in targets):
        return "lung tissue"
    return _TISSUES.get(anatomy, f"{anatomy} tissue")


def _sized(target: Target, size: str) -> str:
    """The lesion with its size and article.

    >>> _sized(Target("epidural haematoma", "lesion"), "small")
    'a small epidural haematoma'
    """
    if target.name.endswith(_UNCOUNTED):
        return f"a {size} area of {target.name}"
    if target.plural:
        return f"{size} {target.name}"
    return f"{'an' if size.startswith(_VOWELS) else 'a'} {size} {target.name}"
