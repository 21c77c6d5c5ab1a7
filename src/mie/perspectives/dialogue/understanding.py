"""What a conversation asks for by now, read from its sentences alone: the rule inverse of the phrasings.

A sentence of ours is read by the phrasing that it fills. Any other one is parsed as a single instruction.
"It" is what was spoken of last; "the other one" is what was named before and not marked. Which of two
overlays is the larger cannot be read from a sentence: the caller measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mie.perspectives.dialogue.phrasings import TURNS, read_back
from mie.perspectives.dialogue.state import ORIGINAL, Operation, Overlay, State, Talk
from mie.perspectives.perception.phrasings import listed
from mie.words import parse

# The larger of two overlays, of an image that shows both; None where that cannot be seen.
Larger = Callable[[Overlay, Overlay], str | None]
_NAMED = {  # phrasings that name all that they need -> operation
    "paint": "paint",
    "paint_first": "paint",
    "paint_premise": "paint",
    "same": "same",
    "replace": "replace",
    "premise": "premise",
    "premise_only": "premise",
    "recolour": "recolour",
    "outline": "outline",
    "fill": "fill",
    "clear": "clear",
    "clear_all": "clear_all",
}


@dataclass
class Listener:
    """Follows a conversation, one sentence after the other."""

    larger: Larger = lambda _first, _second: None
    talk: Talk = field(default_factory=Talk.start)
    focus: str | None = None  # what "it" is
    mentioned: str | None = None  # what "the other one" is
    notes: list[str] = field(default_factory=list)  # sentences that were not understood

    def hear(self, sentence: str) -> None:
        """One turn more. What is not understood changes nothing, and is noted."""
        operations = self._operations(sentence)
        if operations is None:
            self.notes.append(sentence)
            operations = []
        before = self.talk
        for operation in operations:
            self.talk = self.talk.after(operation)
        if len(operations) != 1:  # still one turn
            states, now = (*before.states, self.talk.now), self.talk.now
            self.talk = Talk(states, (*before.stack, now))
        for operation in operations:
            gone = operation.name in ("undo", "back", "clear", "clear_all", "remove")
            self.focus = None if gone else operation.other or operation.target or self.focus

    def _operations(self, sentence: str) -> list[Operation] | None:
        found = read_back(sentence)
        if found is None:
            return _parsed(sentence)
        key, words = found
        target, other, colour = (words.get(name) for name in ("target", "other", "colour"))
        if key == "paint_first":
            self.mentioned, other = other, None
        operation: Operation | None
        if key in _NAMED:
            operation = Operation(_NAMED[key], target, other, colour)
        elif key == "paint_other":
            operation = (self.mentioned and Operation("paint", self.mentioned, colour=colour)) or None
        elif key in ("undo", "undo_two"):
            operation = Operation("undo", count=1 + (key == "undo_two"))
        elif key in ("back", "back_start", "back_recolour"):
            turn = TURNS.index(words["turn"]) + 1 if "turn" in words else 0
            operation = Operation("back", target, colour=colour, turn=turn)
        elif key == "put_back":
            operation = Operation("put_back", target, base=ORIGINAL)
        elif key == "window_back":
            operation = Operation("window", base=ORIGINAL)
        else:
            target = self._referred(key, words.get("old"))
            operation = (target and Operation(key.partition("_")[0], target, colour=colour)) or None
        return None if operation is None else [operation]

    def _referred(self, key: str, old: str | None) -> str | None:
        """What "it", "the red one" or "the larger of the two" is."""
        overlays = self.talk.now.overlays
        if key == "recolour_old":
            return next((one.target for one in overlays if one.colour == old), None)
        if key in ("recolour_larger", "recolour_smaller"):
            if len(overlays) != 2:
                return None
            larger = self.larger(*overlays)
            others = [one.target for one in overlays if one.target != larger]
            return larger if key == "recolour_larger" or larger is None else others[0]
        return self.focus or (overlays[-1].target if overlays else None)


def _parsed(sentence: str) -> list[Operation] | None:
    """A sentence that is not one of ours. A change of the image is kept as it was said: the base's name."""
    asked = parse(sentence)
    if asked.operation == "perception":
        found = [Operation("paint", one.name, colour=one.colour) for one in asked.targets]
        return found or None
    if asked.operation == "removal" and asked.targets:
        return [Operation("remove", asked.targets[0].name, base=sentence)]
    if asked.operation == "transformation":
        return [Operation("restore", base=sentence)]
    return None


def understood(sentences: Sequence[str], larger: Larger) -> tuple[State, list[str]]:
    """The state that the sentences lead to, and those that were not understood."""
    listener = Listener(larger)
    for sentence in sentences:
        listener.hear(sentence)
    return listener.talk.now, listener.notes


def full_instructions(state: State) -> list[str]:
    """What leads from the first image to the state: a change of the image, then all overlays at once."""
    found = [] if state.base == ORIGINAL else [state.base]
    parts = [f"the {one.target} in {one.colour}" for one in state.overlays if one.style == "fill"]
    lines = [f"the {one.target} in {one.colour}" for one in state.overlays if one.style != "fill"]
    if parts:
        found.append(f"Highlight {listed(parts)}.")
    if lines:
        found.append(f"Draw only the outline of {listed(lines)}.")
    return found
