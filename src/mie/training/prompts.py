"""The prompts of a training, numbered, with the colours that each asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mie.training.pack import Ask
from mie.vocabulary import COLOURS

MOST_CLASSES: Final = 8
NOTHING: Final = len(COLOURS)  # the "colour" of what is not painted


@dataclass(slots=True)
class Prompts:
    """Every distinct prompt once, and for each ask its wordings: a prompt and the colour of every class."""

    texts: list[str] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)
    wordings: list[list[tuple[int, NDArray[np.int64]]]] = field(default_factory=list)

    def add(self, ask: Ask) -> int:
        ways = []
        for wording in ask.wordings:
            colours = np.full(MOST_CLASSES + 1, NOTHING)
            for k, colour in enumerate(wording.colours, start=1):
                colours[k] = list(COLOURS).index(colour)
            ways.append((self._at(wording.prompt), colours))
        self.wordings.append(ways)
        return len(self.wordings) - 1

    def _at(self, text: str) -> int:
        if text not in self.place:
            self.place[text] = len(self.texts)
            self.texts.append(text)
        return self.place[text]
