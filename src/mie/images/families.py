"""Modality families: images so alike that one inpainter and one detector serve them all.

Pure data, so that training on a bare machine can import it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FAMILIES: Final = ("dermoscopy", "endoscopy", "ultrasound", "mri", "ct", "fundus", "xray", "microscopy")

# Families whose images have three equal channels; whatever fills them must too.
GREY: Final = frozenset({"ultrasound", "mri", "ct", "xray"})

_OF: Final = {
    "CT": "ct",
    "MRI": "mri",
    "X-ray": "xray",
    "ultrasound": "ultrasound",
    "endoscopy": "endoscopy",
    "fundus": "fundus",
    "dermoscopy": "dermoscopy",
    "microscopy": "microscopy",
}
_NEAREST: Final = {**_OF, "surgical photo": "endoscopy"}


class Margin(NamedTuple):
    """How far a lesion is dilated before it is filled: the larger of the two."""

    share: float  # of the lesion's equivalent diameter, 2 sqrt(area / pi)
    least: int  # pixels


# Ultrasound lesions cast halos, pigment and polyp rims fade out slowly; exudates and scans are crisp.
MARGIN: Final[dict[str, Margin]] = {
    "dermoscopy": Margin(0.2, 6),
    "endoscopy": Margin(0.10, 4),
    "ultrasound": Margin(0.12, 4),
    "mri": Margin(0.10, 3),
    "ct": Margin(0.10, 3),
    "fundus": Margin(0.15, 3),
    "xray": Margin(0.15, 4),
    "microscopy": Margin(0.08, 4),
}


def family_of(modality: str) -> str | None:
    """The family of a name in `vocabulary.MODALITIES`; None where there is none (OCT, PET, ...)."""
    return _OF.get(modality)


def nearest_family(modality: str) -> str | None:
    """`family_of`, or the family that looks most like it: a stand-in that a user has to allow."""
    return _NEAREST.get(modality)
