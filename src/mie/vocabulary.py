"""The closed lists of the field: modalities, perspectives, splits and overlay colours."""

from __future__ import annotations

from typing import Final

# Name -> how a clinician says it inside a sentence ("On this CT slice, ...").
MODALITIES: Final[dict[str, str]] = {
    "CT": "CT slice",
    "MRI": "MRI slice",
    "X-ray": "X-ray",
    "ultrasound": "ultrasound image",
    "microscopy": "microscopy image",
    "endoscopy": "endoscopic image",
    "fundus": "fundus photograph",
    "dermoscopy": "dermoscopic image",
    "OCT": "OCT image",
    "surgical photo": "surgical photograph",
}

# What an import cannot know (modality, task, anatomy or target of somebody else's triplets).
UNKNOWN: Final = "unknown"

# The paper's three perspectives, in the order of the compact editor's outputs, which was trained with it.
# `mie.perspectives.PERSPECTIVES` is the registry, which also knows those of other packages.
PERSPECTIVES: Final = ("perception", "modification", "transformation")

# What a target is; decides which phrasings fit and which gates apply.
TARGET_KINDS: Final = ("anatomy", "lesion")

# The three overlay colours, pure, as (red, green, blue).
COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
}
OPACITY: Final = 0.6

SPLITS: Final = ("train", "val", "test")
# What a further input image of a sample is for; "before" and "after" are the halves of a demonstration.
REFERENCE_ROLES: Final = ("reference", "before", "after")
BINS: Final = (128, 256, 512)
PLANES: Final = ("axial", "coronal", "sagittal")

# What a data set's terms allow, from most to least open.
LICENSE_USES: Final = ("open", "non-commercial", "research", "unknown")
