"""IMI: imaging modality, MRI sequence and slice plane, from the catalogue and the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mie.questions.templates.template import Draft, Params, Template
from mie.questions.views import View
from mie.questions.words import MODALITY_NAMES, SEQUENCES, other_modalities, phrasings, picture
from mie.vocabulary import PLANES

_NUMBERED: Final = 4  # images of a question about several
NUMBERS: Final = ("two", "three", "four", "five")


def image_options(count: int) -> list[str]:
    """The options "Image 1", "Image 2" and so on."""
    return [f"Image {number + 1}" for number in range(count)]


def _modality(view: View, _: np.random.Generator) -> Iterator[Draft]:
    if view.modality in MODALITY_NAMES:
        others = other_modalities(view.modality)
        yield Draft({}, {}, MODALITY_NAMES[view.modality], [MODALITY_NAMES[name] for name in others])


def _is_modality(views: Sequence[View], _: Params, option: str) -> bool:
    return MODALITY_NAMES.get(views[0].modality) == option


MODALITY: Final = Template(
    "modality",
    "IMI",
    "closed",
    phrasings(
        "[Which|What] imaging modality [was used to acquire|produced] this image?",
        "[With which|By which] imaging technique was this image [acquired|obtained|made]?",
        "[Which|What] kind of imaging does this picture show?",
        "How was this medical image acquired?",
        "Identify the imaging modality of this image.",
        "Name the imaging technique behind this image.",
    ),
    rule="the modality that the catalogue states for the data set",
    drafts=_modality,
    holds=_is_modality,
    opens=True,
)


def _sequence(view: View, _: np.random.Generator) -> Iterator[Draft]:
    if view.modality == "MRI" and view.submodality in SEQUENCES:
        others = [name for label, name in SEQUENCES.items() if label != view.submodality]
        yield Draft({}, {"anatomy": view.anatomy}, SEQUENCES[view.submodality], others)


def _is_sequence(views: Sequence[View], _: Params, option: str) -> bool:
    return SEQUENCES.get(views[0].submodality) == option


SEQUENCE: Final = Template(
    "sequence",
    "IMI",
    "closed",
    phrasings(
        "[Which|What] MRI sequence is [shown here|this]?",
        "[Which|What] pulse sequence [was used for|produced] this MRI slice of the {anatomy}?",
        "How is this MRI slice of the {anatomy} weighted?",
        "[Which|What] MRI contrast does this slice of the {anatomy} show?",
        "Identify the MRI sequence of this image.",
        "Judging by its contrast, which MRI sequence is this?",
        "To which MRI sequence does this slice of the {anatomy} belong?",
    ),
    rule="the sequence that the catalogue states for the data set",
    drafts=_sequence,
    holds=_is_sequence,
    opens=True,
)


def _plane(view: View, _: np.random.Generator) -> Iterator[Draft]:
    if view.plane in PLANES and view.oriented:
        others = [name.capitalize() for name in PLANES if name != view.plane]
        yield Draft(
            {}, {"image": picture(view.modality), "anatomy": view.anatomy}, view.plane.capitalize(), others
        )


def _is_plane(views: Sequence[View], _: Params, option: str) -> bool:
    return views[0].plane == option.lower()


PLANE: Final = Template(
    "plane",
    "IMI",
    "closed",
    phrasings(
        "In [which|what] anatomical plane [was this {image} taken|does this {image} lie|is this "
        "{image} cut]?",
        "[Which|What] plane [does this {image} of the {anatomy} show|is shown here]?",
        "[Identify|Name|State] the plane of this {image} of the {anatomy}.",
        "What is the orientation of this {image}?",
    ),
    rule="the plane in which the volume was cut",
    drafts=_plane,
    holds=_is_plane,
)


def _odd(views: Sequence[View], rng: np.random.Generator) -> Iterator[tuple[Sequence[View], Draft]]:
    """One image of another modality among images of one."""
    by_modality: dict[str, list[View]] = {}
    for view in views:
        if view.modality in MODALITY_NAMES and not view.healed:
            by_modality.setdefault(view.modality, []).append(view)
    for modality, group in by_modality.items():
        strangers = [view for other in other_modalities(modality) for view in by_modality.get(other, ())]
        for start in range(0, len(group) - _NUMBERED + 2, _NUMBERED - 1):
            if not strangers:
                break
            chosen = group[start : start + _NUMBERED - 1]
            stranger = strangers[int(rng.integers(len(strangers)))]
            at = int(rng.integers(_NUMBERED))
            shown = [*chosen[:at], stranger, *chosen[at:]]
            options = image_options(_NUMBERED)
            right = options.pop(at)
            yield shown, Draft({}, {"number": NUMBERS[_NUMBERED - 2]}, right, options, fixed=True)


def _is_odd(views: Sequence[View], _: Params, option: str) -> bool:
    names = [view.modality for view in views]
    return names.count(names[image_options(len(views)).index(option)]) == 1


ODD_MODALITY: Final = Template(
    "odd_modality",
    "IMI",
    "closed",
    phrasings(
        "[Which|Which one] of these {number} images was [acquired|made] with a different imaging "
        "modality[ from the others|]?",
        "One of these {number} images [was acquired with a different modality|comes from another "
        "modality]. Which one?",
        "All but one of these {number} images [share|have] the same modality. Which one [differs|is "
        "different]?",
    ),
    rule="the one image whose modality in the catalogue differs from that of all others",
    several=_odd,
    holds=_is_odd,
)


def _which(views: Sequence[View], rng: np.random.Generator) -> Iterator[tuple[Sequence[View], Draft]]:
    """Images of one part of the body in different sequences."""
    by_anatomy: dict[str, dict[str, list[View]]] = {}
    for view in views:
        if view.modality == "MRI" and view.submodality in SEQUENCES and not view.healed:
            by_anatomy.setdefault(view.anatomy, {}).setdefault(view.submodality, []).append(view)
    for anatomy, sequences in by_anatomy.items():
        names = sorted(sequences)
        if len(names) < 2:
            continue
        for turn in range(max(map(len, sequences.values()))):
            order = [names[int(at)] for at in rng.permutation(len(names))][:_NUMBERED]
            shown = [sequences[name][turn % len(sequences[name])] for name in order]
            at = int(rng.integers(len(shown)))
            options = image_options(len(shown))
            right = options.pop(at)
            words = {"sequence": _SPOKEN[order[at]], "anatomy": anatomy, "number": NUMBERS[len(shown) - 2]}
            yield shown, Draft({"sequence": order[at]}, words, right, options, fixed=True, subject=order[at])


_SPOKEN: Final = {
    "T1W": "T1-weighted without contrast",
    "T1CE": "T1-weighted with contrast",
    "T2W": "T2-weighted",
    "FLAIR": "a FLAIR image",
    "DWI": "diffusion-weighted",
    "SWI": "susceptibility-weighted",
    "PD": "proton density-weighted",
    "MRA": "an MR angiogram",
}


def _is_which(views: Sequence[View], params: Params, option: str) -> bool:
    return views[image_options(len(views)).index(option)].submodality == params["sequence"]


WHICH_SEQUENCE: Final = Template(
    "which_sequence",
    "IMI",
    "closed",
    phrasings(
        "[Which|Which one] of these {number} MRI slices [of the {anatomy} |]is {sequence}?",
        "[Among|Of] these {number} MRI slices, [which|which one] is {sequence}?",
        "One of these {number} MRI slices of the {anatomy} is {sequence}. [Which one|Which]?",
        "[Point out|Choose] the MRI slice that is {sequence}.",
        "Compare these {number} MRI slices. Which is {sequence}?",
    ),
    rule="the one image whose sequence in the catalogue is the one that is asked for",
    several=_which,
    holds=_is_which,
)

TEMPLATES: Final = (MODALITY, SEQUENCE, PLANE, ODD_MODALITY, WHICH_SEQUENCE)
