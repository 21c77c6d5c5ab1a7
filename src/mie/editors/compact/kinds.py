"""What an edit does to the pixels of an image: all that the compact editor must know of a perspective."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class EditKind(Enum):
    OVERLAY = "overlay"  # paints regions over the image, and changes nothing else
    AREA = "area"  # changes an area, and keeps every pixel outside it
    IMAGE = "image"  # maps the whole image to another one


EDIT_KINDS: Final[Mapping[str, EditKind]] = {
    "perception": EditKind.OVERLAY,
    "modification": EditKind.AREA,
    "transformation": EditKind.IMAGE,
}
PERSPECTIVE_OF: Final[Mapping[EditKind, str]] = {kind: name for name, kind in EDIT_KINDS.items()}
