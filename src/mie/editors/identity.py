"""The editor that does nothing: the floor of every table, and a perfect background."""

from __future__ import annotations

from collections.abc import Sequence

from mie.editors.base import Edited, Editor, Turn
from mie.records import Pixels


class Identity(Editor):
    """Gives the input back."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return Edited(image)
