"""What an edit does to the pixels of an image: all that the compact editor must know of a perspective."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from mie.perspectives import PERSPECTIVES
from mie.vocabulary import PERSPECTIVES as NAMES


class EditKind(Enum):
    OVERLAY = "overlay"  # paints regions over the image, and changes nothing else
    AREA = "area"  # changes an area, and keeps every pixel outside it
    IMAGE = "image"  # maps the whole image to another one


# The network has a head for each of our perspectives, in the order of the vocabulary.
EDIT_KINDS: Final[Mapping[str, EditKind]] = {name: EditKind(PERSPECTIVES[name].edit) for name in NAMES}
PERSPECTIVE_OF: Final[Mapping[EditKind, str]] = {kind: name for name, kind in EDIT_KINDS.items()}
