"""Words of the questions: names of modalities, sequences, lesions and structures, and phrasings.

A phrasing may give alternatives in square brackets: "[Which|What] modality is this?" is two phrasings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mie.perspectives.modification.lesions import spoken_targets
from mie.records import Target
from mie.vocabulary import MODALITIES

_ALTERNATIVES: Final = re.compile(r"\[([^\[\]]*)\]")
LEAST_PHRASINGS: Final = 12


def phrasings(*lines: str) -> tuple[str, ...]:
    """Every phrasing that the lines spell out; at least twelve, all different.

    >>> phrasings("[Which|What] [organ|structure|body part] is [outlined|marked]?")[:2]
    ('Which organ is outlined?', 'Which organ is marked?')
    """
    spelt = []
    for line in lines:
        pieces = _ALTERNATIVES.split(line)
        choices = [piece.split("|") if at % 2 else [piece] for at, piece in enumerate(pieces)]
        spelt += ["".join(choice) for choice in itertools.product(*choices)]
    if len(spelt) < LEAST_PHRASINGS or len(set(spelt)) != len(spelt):
        raise ValueError(f"{len(set(spelt))} different phrasings, at least {LEAST_PHRASINGS}: {lines[0]!r}")
    return tuple(spelt)


# Modality -> the option's text. PET and SPECT are no modality of `mie`'s editors, but of questions.
MODALITY_NAMES: Final[dict[str, str]] = {
    "CT": "Computed tomography (CT)",
    "MRI": "Magnetic resonance imaging (MRI)",
    "X-ray": "Plain radiography (X-ray)",
    "ultrasound": "Ultrasound",
    "PET": "Positron emission tomography (PET)",
    "SPECT": "Single-photon emission CT (SPECT)",
    "microscopy": "Microscopy",
    "endoscopy": "Endoscopy",
    "fundus": "Fundus photography",
    "dermoscopy": "Dermoscopy",
    "OCT": "Optical coherence tomography (OCT)",
    "surgical photo": "Surgical photography",
}
# Modalities that a layman might confuse: the wrong options come from the same group.
_LOOK_ALIKE: Final = (
    ("CT", "MRI", "PET", "SPECT", "X-ray", "ultrasound"),
    ("microscopy", "endoscopy", "fundus", "dermoscopy", "OCT", "surgical photo"),
)
# A laparoscope is an endoscope; an OCT angiogram looks at the fundus; SPECT is often read beside CT.
_BOTH_TRUE: Final = (
    frozenset({"surgical photo", "endoscopy"}),
    frozenset({"SPECT", "CT"}),
    frozenset({"OCT", "fundus"}),
)

# MRI sequences: label -> the option's text. Disjoint by name: T1 says whether contrast was given.
SEQUENCES: Final[dict[str, str]] = {
    "T1W": "T1-weighted without contrast",
    "T1CE": "T1-weighted with contrast",
    "T2W": "T2-weighted",
    "FLAIR": "FLAIR",
    "DWI": "Diffusion-weighted (DWI)",
    "SWI": "Susceptibility-weighted (SWI)",
    "PD": "Proton density-weighted",
    "MRA": "MR angiography",
}
# The words of a catalogue's pairing -> (modality, sequence).
_PAIRED: Final = {
    "T1-weighted MRI": ("MRI", "T1W"),
    "contrast-enhanced T1-weighted MRI": ("MRI", "T1CE"),
    "T2-weighted MRI": ("MRI", "T2W"),
    "FLAIR MRI": ("MRI", "FLAIR"),
    "PET": ("PET", ""),
    "SPECT": ("SPECT", ""),
    "CT": ("CT", ""),
    "MRI": ("MRI", ""),
}


def paired_modality(said: str, modality: str) -> tuple[str, str]:
    """(modality, sequence) of one half of a pair that the catalogue calls so."""
    return _PAIRED.get(said, (modality, ""))


def other_modalities(modality: str) -> list[str]:
    """Modalities that look alike, and that an image of this one certainly is not."""
    near = next((group for group in _LOOK_ALIKE if modality in group), ())
    return [m for m in near if m != modality and frozenset({m, modality}) not in _BOTH_TRUE]


def picture(modality: str) -> str:
    """What an image is called in a sentence: "CT slice"."""
    return MODALITIES.get(modality, f"{modality} image")


# Lesions: classes and parts are asked about as such, and together by a common name.

_GROUPS: Final[tuple[tuple[frozenset[str], Target], ...]] = (
    (frozenset({"meningioma", "glioma", "pituitary tumour"}), Target("intracranial tumour", "lesion")),
    (
        frozenset(
            f"{kind} haemorrhage"
            for kind in ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
        ),
        Target("intracranial haemorrhage", "lesion"),
    ),
)
_CLASS: Final = re.compile(r"^(benign|malignant) ")
# Last words of names that have no "a" before them.
_UNCOUNTED: Final = ("oedema", "consolidation", "dysplasia", "oesophagus", "cancer", "core", "penumbra")


def common_name(target: Target, others: Iterable[Target]) -> Target:
    """The lesion that a class or a part belongs to: "benign breast lesion" is a "breast lesion".

    `others` are all lesions that the data set marks.
    """
    if _CLASS.match(target.name):
        return Target(_CLASS.sub("", target.name), target.kind, target.plural)
    for names, whole in _GROUPS:
        if target.name in names:
            return whole
    for other in others:
        spoken = spoken_targets((target, other)) if other.name != target.name else ()
        if len(spoken) == 1:
            return spoken[0]
    return target


def groups_of(targets: Iterable[Target]) -> dict[Target, list[str]]:
    """Common name -> the lesions of a data set that it covers, as the masks name them."""
    lesions = [target for target in targets if target.kind == "lesion"]
    found: dict[Target, list[str]] = {}
    for target in lesions:
        found.setdefault(common_name(target, lesions), []).append(target.name)
    return found


def is_classes(names: Sequence[str]) -> bool:
    """Whether the lesions of a group exclude each other by name (classes), and are no parts of one lesion."""
    return len(names) > 1 and (
        all(_CLASS.match(name) for name in names) or any(set(names) <= members for members, _ in _GROUPS)
    )


def a_lesion(target: Target) -> str:
    """With its article: "a polyp", "an ischaemic stroke lesion", "hard exudates", "consolidation"."""
    if target.plural or target.name.endswith(_UNCOUNTED):
        return target.name
    return f"{'an' if target.name[0].lower() in 'aeiou' else 'a'} {target.name}"


def lesion_words(target: Target) -> dict[str, str]:
    """What fills the places of a phrasing about one target."""
    return {
        "lesion": target.name,
        "a_lesion": a_lesion(target),
        "is": "are" if target.plural else "is",
        "Is": "Are" if target.plural else "Is",
        "does": "do" if target.plural else "does",
        "them": "them" if target.plural else "it",
    }


# Structures of a part of the body that are no part of each other. Wrong options come from here where a data
# set marks too few structures itself; a name that shares a word with the right one is never taken.
STRUCTURES: Final[dict[str, tuple[str, ...]]] = {
    "abdomen": (
        "liver",
        "spleen",
        "pancreas",
        "stomach",
        "gallbladder",
        "aorta",
        "urinary bladder",
        "duodenum",
    ),
    "kidney": ("liver", "spleen", "pancreas", "aorta", "psoas muscle", "stomach", "gallbladder"),
    "liver": ("spleen", "pancreas", "stomach", "kidneys", "aorta", "gallbladder"),
    "pancreas": ("liver", "spleen", "stomach", "kidneys", "aorta", "gallbladder"),
    "chest": ("liver", "spleen", "vertebrae", "oesophagus", "thyroid gland", "sternum"),
    "lung": ("liver", "heart", "vertebrae", "oesophagus", "sternum"),
    "heart": ("vertebrae", "liver", "oesophagus", "trachea", "sternum"),
    "brain": ("cerebellum", "brainstem", "lateral ventricles", "corpus callosum", "orbits"),
    "retina": ("optic disc", "retinal vessels", "macula", "iris", "optic cup"),
    "lumbar spine": ("vertebrae", "intervertebral discs", "spinal canal", "sacroiliac joints", "ribs"),
    "prostate": ("urinary bladder", "rectum", "seminal vesicles", "femoral head", "pubic bone"),
    "blood": ("red blood cell", "platelet", "air bubble", "stain deposit"),
    "colon": ("blood vessels", "smooth muscle", "fat cells", "lymph follicles"),
    "cells": ("cell membranes", "mitochondria", "collagen fibres", "red blood cells"),
    "fetal head": ("placenta", "fetal abdomen", "femur", "umbilical cord"),
    "nerve tissue": ("blood vessels", "fat droplets", "collagen fibres", "red blood cells"),
    "breast": ("pectoral muscle", "nipple", "skin", "rib"),
}
# Pairs of which one may contain the other, or is called by its name.
_NESTED: Final = (
    frozenset({"macula", "foveal avascular zone"}),
    frozenset({"heart", "left ventricle"}),
    frozenset({"optic disc", "optic cup"}),
    frozenset({"retinal vessels", "foveal avascular zone"}),
    frozenset({"nerve tissue", "cells"}),
)


def other_structures(name: str, anatomy: str, marked: Sequence[str]) -> list[str]:
    """Names that certainly do not name this structure: those that its data set marks first."""
    pool = [*marked, *(one for one in STRUCTURES.get(anatomy, ()) if one not in marked)]
    return [
        one
        for one in pool
        if one != name
        and (one in marked or not (_stems(one) & _stems(name)))
        and frozenset({one, name}) not in _NESTED
    ]


def _stems(name: str) -> set[str]:
    """The words of a name without their endings: "left kidney" and "kidneys" share one."""
    return {
        word[:5].rstrip("s")
        for word in re.findall(r"[a-z]+", name.lower())
        if word not in ("and", "of", "the")
    }


def filled(phrasing: str, words: Mapping[str, str]) -> str:
    """The phrasing with its words; the first letter of the sentence is a capital."""
    text = phrasing.format(**words)
    return text[:1].upper() + text[1:]
