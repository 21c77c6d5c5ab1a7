"""What a conversation has asked for so far, and the image that shows it.

A state is what is visible after a turn: overlays, and the base that they lie on. Its image is rendered from
the base and the masks, never from the image of the turn before, so that sixteen turns are as exact as one.
Where overlays meet, the smaller region lies on top: each pixel shows one overlay, and overlays commute.

An operation that cannot apply (a colour for what is not marked, an undo before the first turn, a target that
the image does not have) changes nothing. That is its truth, not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np

from mie.errors import MieError
from mie.images.overlay import paint
from mie.records import Mask, Pixels
from mie.vocabulary import OPACITY

ORIGINAL: Final = "original"
FILL: Final = "fill"
OUTLINE: Final = "outline"
_LINE: Final = 0.012  # of the longer side: half the width of an outline's pen, at least one pixel

# What Omni IIE calls the kind of an edit: of an attribute (A) or of an entity (E). An undo is what it undoes.
KINDS: Final = {
    "paint": "E",
    "same": "E",
    "replace": "E",
    "clear": "E",
    "clear_all": "E",
    "remove": "E",
    "put_back": "E",
    "recolour": "A",
    "outline": "A",
    "fill": "A",
    "premise": "A",
    "restore": "A",
    "window": "A",
}
OPERATIONS: Final = (*KINDS, "undo", "back")


@dataclass(frozen=True, slots=True)
class Overlay:
    """A marked target."""

    target: str
    colour: str
    style: str = FILL


@dataclass(frozen=True, slots=True)
class State:
    """What an image shows: overlays, in the order in which they were asked for, on a base."""

    overlays: tuple[Overlay, ...] = ()
    base: str = ORIGINAL
    premise: str | None = None  # the colour that holds from now on; it is not seen

    def overlay(self, target: str) -> Overlay | None:
        return next((one for one in self.overlays if one.target == target), None)

    @property
    def shown(self) -> tuple[str, frozenset[Overlay]]:
        """Two states that are equal here have the same image."""
        return self.base, frozenset(self.overlays)

    def with_overlay(self, overlay: Overlay) -> State:
        """The overlay in the place of the target's earlier one, or as the last."""
        if self.overlay(overlay.target) is None:
            return replace(self, overlays=(*self.overlays, overlay))
        return replace(
            self, overlays=tuple(overlay if one.target == overlay.target else one for one in self.overlays)
        )

    def without(self, target: str) -> State:
        return replace(self, overlays=tuple(one for one in self.overlays if one.target != target))

    def as_json(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "overlays": [[one.target, one.colour, one.style] for one in self.overlays],
            **({} if self.premise is None else {"premise": self.premise}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> State:
        overlays = tuple(Overlay(*map(str, one)) for one in body["overlays"])
        return cls(overlays, str(body["base"]), body.get("premise"))


@dataclass(frozen=True, slots=True)
class Operation:
    """One turn's wish. Which fields count depends on `name`, one of `OPERATIONS`."""

    name: str
    target: str | None = None
    other: str | None = None  # of `replace`: what is marked instead
    colour: str | None = None
    count: int | None = None  # of `undo`: how many turns
    turn: int | None = None  # of `back`: the turn to return to, 0 for the start
    base: str | None = None  # of `restore`, `window`, `remove` and `put_back`

    def as_json(self) -> dict[str, Any]:
        fields = ("name", "target", "other", "colour", "count", "turn", "base")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Operation:
        return cls(**body)


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: the state after every turn, and those that an undo can return to."""

    states: tuple[State, ...]  # [n] after turn n; [0] at the start
    stack: tuple[State, ...]  # the last is the state now

    @classmethod
    def start(cls, base: str = ORIGINAL) -> Talk:
        state = State(base=base)
        return cls((state,), (state,))

    @property
    def now(self) -> State:
        return self.states[-1]

    @property
    def turns(self) -> int:
        return len(self.states) - 1

    def after(self, operation: Operation, present: Callable[[str], bool] = lambda _: True) -> Talk:
        """The conversation with one turn more. `present` says whether the image has a target.

        Only an undo takes something off the stack: two of them in a row go back two turns, and do not cancel.
        """
        if operation.name == "undo":
            count = min(operation.count or 1, len(self.stack) - 1)
            stack = self.stack[: len(self.stack) - count]
            return Talk((*self.states, stack[-1]), stack)
        state = self._next(operation, present)
        return Talk((*self.states, state), (*self.stack, state))

    def _next(self, operation: Operation, present: Callable[[str], bool]) -> State:
        now, target, name = self.now, operation.target or "", operation.name
        marked = now.overlay(target)
        if name == "premise":
            now = replace(now, premise=operation.colour)
            if not target:
                return now
        if name in ("paint", "same", "premise"):
            last = now.overlays[-1] if now.overlays else None
            colour = operation.colour or (last.colour if name == "same" and last else now.premise)
            if not present(target) or colour is None or now.base == without_name(target):
                return now
            style = last.style if name == "same" and last else FILL
            return now.with_overlay(Overlay(target, colour, style))
        if name == "replace":
            other = operation.other or ""
            if marked is None or not present(other) or now.base == without_name(other):
                return now
            return now.without(target).with_overlay(replace(marked, target=other))
        if name == "recolour":
            return now if marked is None else now.with_overlay(replace(marked, colour=operation.colour or ""))
        if name in ("outline", "fill"):
            return now if marked is None else now.with_overlay(replace(marked, style=name))
        if name == "clear":
            return now.without(target)
        if name == "clear_all":
            return replace(now, overlays=())
        if name == "back":
            turn = operation.turn or 0
            past = self.states[turn] if turn < len(self.states) else now
            marked = past.overlay(target)
            if marked is None or operation.colour is None:
                return past
            return past.with_overlay(replace(marked, colour=operation.colour))
        if name in ("restore", "window", "remove", "put_back"):
            return replace(now.without(target), base=operation.base or now.base)
        raise MieError("unknown operation of a conversation", expected=", ".join(OPERATIONS), found=name)


def without_name(target: str) -> str:
    """The base from which a lesion was removed."""
    return f"without {target}"


def kind_of(operation: Operation, before: State, after: State) -> str:
    """A or E: whether a turn changes how things look, or which things there are."""
    if operation.name in KINDS:
        return "E" if operation.name == "premise" and operation.target else KINDS[operation.name]
    names = [{one.target for one in state.overlays} for state in (before, after)]
    healed = [state.base.startswith(without_name("")) for state in (before, after)]
    return "E" if names[0] != names[1] or healed[0] != healed[1] else "A"


def replay(operations: list[Operation], start: str, present: Callable[[str], bool]) -> Talk:
    """The conversation that these turns lead to."""
    talk = Talk.start(start)
    for operation in operations:
        talk = talk.after(operation, present)
    return talk


def outline(mask: Mask) -> Mask:
    """The border of a region, inside it."""
    reach = max(1, round(_LINE * max(mask.shape)))
    kernel = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
    # What lies outside the picture is not the region: a region cut off by the edge has a line there.
    inner = cv2.erode(mask.view(np.uint8), kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return np.asarray(mask & (inner == 0))


def regions(state: State, masks: Mapping[str, Mask]) -> dict[str, Mask]:
    """The pixels in which each overlay is seen, by target."""
    found: dict[str, Mask] = {}
    covered: Mask | None = None
    by_area = sorted(state.overlays, key=lambda one: (int(np.count_nonzero(masks[one.target])), one.target))
    for one in by_area:
        mask = masks[one.target]
        visible = mask if covered is None else mask & ~covered
        found[one.target] = visible if one.style == FILL else visible & outline(mask)
        covered = found[one.target] if covered is None else covered | found[one.target]
    return {one.target: found[one.target] for one in state.overlays}


def render(state: State, bases: Mapping[str, Pixels], masks: Mapping[str, Mask]) -> Pixels:
    """The image of a state, `(H, W, 3) uint8`; the base itself where nothing is marked."""
    image = bases[state.base]
    seen = regions(state, masks)
    for one in state.overlays:
        image = paint(image, seen[one.target], one.colour, OPACITY)
    return image


# Targets may lie in each other, so a label image holds the pieces that they cut each other into: a target is
# some of the pieces.


def as_labels(masks: Mapping[str, Mask]) -> tuple[Pixels, dict[str, list[int]], int]:
    """One image for all masks, the pieces of each, and how many pieces there are.

    Piece k of n, counted from 1, has the value round(255 k / n).
    """
    names = list(masks)
    code = np.zeros(masks[names[0]].shape, np.uint8)  # a bit for each mask
    for at, name in enumerate(names):
        code |= masks[name].view(np.uint8) << np.uint8(at)
    codes = [int(value) for value in np.flatnonzero(np.bincount(code.ravel(), minlength=256)) if value]
    table = np.zeros(256, np.uint8)
    table[codes] = [level(k, len(codes)) for k in range(1, len(codes) + 1)]
    labels = np.asarray(cv2.LUT(code, table))
    pieces = {
        name: [k for k, value in enumerate(codes, start=1) if value >> at & 1]
        for at, name in enumerate(names)
    }
    return labels, pieces, len(codes)


def from_labels(labels: Pixels, params: Mapping[str, Any]) -> dict[str, Mask]:
    """The masks of the targets, and of filled holes by the name of their base, as a turn's `params` say."""
    pieces = {str(target["name"]): target["pieces"] for target in params["targets"]}
    pieces |= params.get("holes", {})
    table = np.zeros(256, np.uint8)
    masks: dict[str, Mask] = {}
    for name, found in pieces.items():
        table[:] = 0
        table[[level(int(k), int(params["pieces"])) for k in found]] = 1
        masks[name] = np.asarray(cv2.LUT(labels, table)).view(np.bool_)
    return masks


def level(piece: int, count: int) -> int:
    return round(255 * piece / count)
