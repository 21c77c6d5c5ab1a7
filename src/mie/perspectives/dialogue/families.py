"""Plans of conversations: which operations follow each other, and how each is said.

| family | what a turn needs besides its own sentence |
| --- | --- |
| memory | a premise of an earlier turn: a colour that is not named again |
| understanding | what "it", "the other one" or "the larger of the two" is |
| backtracking | the states of earlier turns |
| no-op | that nothing is to be done: the overlay is not there, the target is not in the image |
| chain | six to sixteen turns; edits of attributes (A) and of entities (E) alternate at random |
| scale | one image and first turn, then a low-scale and a high-scale edit: two conversations, one context |

A plan never draws on the pixels: the same targets and seed give the same plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from mie.perspectives.dialogue.state import FILL, ORIGINAL, OUTLINE, Operation, Talk, kind_of, without_name
from mie.vocabulary import COLOURS

MOST_TURNS: Final = 16
_CHAIN: Final = (6, MOST_TURNS)
_LARGER: Final = 1.3  # times the area of the other, to be called the larger of the two


@dataclass(frozen=True, slots=True)
class World:
    """What an image offers to a conversation."""

    areas: Mapping[str, int]  # its targets, and their pixels
    hollow: frozenset[str] = frozenset()  # targets whose outline is clearly less than their fill
    absent: tuple[str, ...] = ()  # targets that the data set marks elsewhere, and not here
    start: str = ORIGINAL  # the first image: the original, or a degraded one
    windows: tuple[str, ...] = ()  # other bases that show the same anatomy
    removable: tuple[str, ...] = ()  # lesions for which there is a base without them

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.areas)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of a plan: what it asks for, and the phrasings that say so."""

    operation: Operation
    key: str  # of `phrasings.PHRASINGS`; "restore", "window" and "remove" have phrasings elsewhere
    old: str | None = None  # the colour that the phrasing refers to
    mention: str | None = None  # a target that it names and does not change


@dataclass
class Plan:
    """A conversation as it grows."""

    world: World
    draw: np.random.Generator
    talk: Talk = field(init=False)
    steps: list[Step] = field(default_factory=list)
    focus: str | None = None  # what "it" is

    def __post_init__(self) -> None:
        self.talk = Talk.start(self.world.start)
        if self.world.start != ORIGINAL:
            self.add(Operation("restore", base=ORIGINAL), "restore")
        elif self.world.windows:
            self.add(Operation("window", base=self.one_of(self.world.windows)), "window")

    def add(self, operation: Operation, key: str, old: str | None = None, mention: str | None = None) -> None:
        self.talk = self.talk.after(operation, self.present)
        self.steps.append(Step(operation, key, old, mention))
        if operation.name in ("undo", "back", "clear", "clear_all", "remove", "restore", "window"):
            self.focus = None
        else:
            self.focus = operation.other or operation.target or self.focus

    def present(self, target: str) -> bool:
        return target in self.world.areas

    def one_of(self, found: Sequence[str]) -> str:
        return str(found[int(self.draw.integers(len(found)))])

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.draw.random() < share)

    @property
    def marked(self) -> list[str]:
        return [one.target for one in self.talk.now.overlays]

    @property
    def unmarked(self) -> list[str]:
        gone = self.talk.now.base
        return [name for name in self.world.targets if name not in self.marked and without_name(name) != gone]

    def colour_of(self, target: str) -> str:
        found = self.talk.now.overlay(target)
        return "" if found is None else found.colour

    def new_colour(self, target: str | None = None) -> str:
        """Another colour than the target has; if there is one, a colour that nothing has."""
        used = {one.colour for one in self.talk.now.overlays}
        free = [colour for colour in COLOURS if colour not in used]
        return self.one_of(free or [c for c in COLOURS if target is None or c != self.colour_of(target)])

    def paint(self, target: str, key: str = "paint", colour: str | None = None) -> None:
        self.add(Operation("paint", target, colour=colour or self.new_colour()), key)

    def recolour_it(self) -> None:
        assert self.focus is not None  # noqa: S101 (the callers have just marked it)
        self.add(Operation("recolour", self.focus, colour=self.new_colour(self.focus)), "recolour_it")

    def change_it(self) -> None:
        """Another colour, or only its outline."""
        assert self.focus is not None  # noqa: S101
        overlay = self.talk.now.overlay(self.focus)
        if self.focus in self.world.hollow and overlay is not None and self.chance():
            style = FILL if overlay.style == OUTLINE else OUTLINE
            self.add(Operation(style, self.focus), f"{style}_it")
        else:
            self.recolour_it()

    def larger_of_two(self) -> tuple[str, str] | None:
        """The larger and the smaller of two marked targets in two colours."""
        if len(self.marked) != 2 or len({self.colour_of(name) for name in self.marked}) != 2:
            return None
        smaller, larger = sorted(self.marked, key=lambda name: self.world.areas[name])
        return (larger, smaller) if self.world.areas[larger] > _LARGER * self.world.areas[smaller] else None


def memory(plan: Plan) -> None:
    first, *others = plan.draw.permutation(plan.world.targets).tolist()
    plan.add(Operation("premise", first, colour=plan.new_colour()), "premise")
    for other in others:
        plan.add(Operation("paint", other), "paint_premise")
        if plan.chance(0.3):
            break
    if plan.chance() or not others:
        plan.add(Operation("clear", first), "clear")
        if plan.chance():
            colour = plan.one_of([c for c in COLOURS if c != plan.talk.now.premise])
            plan.add(Operation("premise", colour=colour), "premise_only")
        plan.add(Operation("paint", first), "paint_premise")


def understanding(plan: Plan) -> None:
    targets = plan.draw.permutation(plan.world.targets).tolist()
    if len(targets) == 1:
        plan.paint(targets[0])
        plan.change_it()
        if plan.chance(0.7):
            old = plan.colour_of(targets[0])
            operation = Operation("recolour", targets[0], colour=plan.new_colour(targets[0]))
            plan.add(operation, "recolour_old", old)
        if plan.chance(0.7):
            plan.focus = targets[0]
            plan.change_it()
        if plan.chance():
            plan.add(Operation("clear", targets[0]), "clear_it")
        return
    first, second = targets[:2]
    plan.add(Operation("paint", first, colour=plan.new_colour()), "paint_first", mention=second)
    if plan.chance():
        plan.change_it()
    plan.paint(second, "paint_other")
    pair = plan.larger_of_two()
    if pair is not None and plan.chance(0.7):
        which = int(plan.draw.integers(2))
        operation = Operation("recolour", pair[which], colour=plan.new_colour(pair[which]))
        plan.add(operation, ("recolour_larger", "recolour_smaller")[which])
    else:
        plan.change_it()
    if plan.chance(0.4):
        plan.focus = plan.steps[-1].operation.target
        plan.add(Operation("clear", plan.focus), "clear_it")


def backtracking(plan: Plan) -> None:
    targets = plan.draw.permutation(plan.world.targets).tolist()
    if plan.world.removable and plan.chance(0.7):
        _remove_and_return(plan, plan.one_of(plan.world.removable))
        return
    first = targets[0]
    plan.paint(first)
    anchor = plan.talk.turns
    if len(targets) > 1 and plan.chance():
        if plan.chance():
            plan.paint(targets[1])
        else:
            plan.add(Operation("replace", first, other=targets[1]), "replace")
    else:
        plan.change_it()
    kind = int(plan.draw.integers(4))
    if kind == 0:
        plan.add(Operation("undo", count=1), "undo")
        if plan.chance():
            plan.add(Operation("recolour", first, colour=plan.new_colour(first)), "recolour")
    elif kind == 1:
        _third_colour(plan, anchor)
        plan.add(Operation("undo", count=2), "undo_two")
    elif kind == 2:
        used = [state.overlay(first) for state in (plan.talk.states[anchor], plan.talk.now)]
        colour = plan.one_of([c for c in COLOURS if c not in [one.colour for one in used if one]])
        plan.add(Operation("back", first, colour=colour, turn=anchor), "back_recolour")
    else:
        _third_colour(plan, anchor)
        plan.add(Operation("back", turn=anchor), "back")
    if plan.chance(0.3) and plan.talk.now.shown != plan.talk.states[0].shown:
        plan.add(Operation("back", turn=0), "back_start")


def _remove_and_return(plan: Plan, lesion: str) -> None:
    if plan.chance():
        plan.paint(lesion)
    plan.add(Operation("remove", lesion, base=without_name(lesion)), "remove")
    others = plan.unmarked
    if others and plan.chance():
        plan.paint(plan.one_of(others))
        plan.add(Operation("undo", count=2), "undo_two")
    elif plan.chance():
        plan.add(Operation("undo", count=1), "undo")
    else:
        plan.add(Operation("put_back", lesion, base=ORIGINAL), "put_back")


def _third_colour(plan: Plan, anchor: int) -> None:
    """Change the last overlay to a colour that it has neither now nor had at the anchor."""
    last = plan.talk.now.overlays[-1]
    before = {one.colour for one in plan.talk.states[anchor].overlays}
    colour = plan.one_of([c for c in COLOURS if c != last.colour and c not in before])
    plan.add(Operation("recolour", last.target, colour=colour), "recolour_it")


def no_op(plan: Plan) -> None:
    first = plan.one_of(plan.world.targets)
    kind = int(plan.draw.integers(5))
    if kind == 0 and plan.talk.turns == 0:
        plan.add(Operation("undo", count=1), "undo")
        plan.paint(first)
    elif kind == 1 and plan.world.absent:
        plan.add(Operation("paint", plan.one_of(plan.world.absent), colour=plan.new_colour()), "paint")
        plan.paint(first)
    elif kind == 2:
        plan.paint(first)
        plan.add(Operation("clear", first), "clear_it")
        plan.add(Operation("recolour", first, colour=plan.one_of(list(COLOURS))), "recolour")
    elif kind == 3:
        plan.paint(first)
        plan.add(Operation("paint", first, colour=plan.colour_of(first)), "paint")
        plan.add(Operation("fill", first), "fill")
    else:
        plan.add(Operation("clear", first), "clear")
        plan.paint(first)
    if plan.chance(0.3):
        plan.add(Operation("clear_all"), "clear_all")
        plan.add(Operation("clear_all"), "clear_all")


def chain(plan: Plan) -> None:
    length = int(plan.draw.integers(_CHAIN[0], _CHAIN[1] + 1))
    while plan.talk.turns < length:
        wanted = "AE"[int(plan.draw.integers(2))]
        by_name: dict[str, dict[str, list[Step]]] = {"A": defaultdict(list), "E": defaultdict(list)}
        for step in _candidates(plan):
            after = plan.talk.after(step.operation, plan.present).now
            if after.shown != plan.talk.now.shown:
                kind = kind_of(step.operation, plan.talk.now, after)
                by_name[kind][step.operation.name].append(step)
        found = by_name[wanted] or by_name["A" if wanted == "E" else "E"]
        steps = found[plan.one_of(sorted(found))]
        step = steps[int(plan.draw.integers(len(steps)))]
        plan.add(step.operation, step.key, step.old)


def _candidates(plan: Plan) -> list[Step]:
    """Every turn that could come next, each in every way to say it."""
    now = plan.talk.now
    found: list[Step] = []

    def offer(operation: Operation, *keys: str, old: str | None = None) -> None:
        found.extend(Step(operation, key, old) for key in keys)

    for name in plan.unmarked:
        offer(Operation("paint", name, colour=plan.new_colour()), "paint")
        if now.overlays:
            if plan.focus == plan.marked[-1]:  # "the same" as what was just spoken of
                offer(Operation("same", name), "same")
            offer(Operation("replace", plan.marked[-1], other=name), "replace")
    for name in plan.marked:
        colour, it = plan.new_colour(name), plan.focus == name
        offer(Operation("recolour", name, colour=colour), "recolour", *(["recolour_it"] if it else []))
        old = plan.colour_of(name)
        if [one.colour for one in now.overlays].count(old) == 1:
            offer(Operation("recolour", name, colour=colour), "recolour_old", old=old)
        overlay = now.overlay(name)
        style = OUTLINE if overlay is not None and overlay.style == FILL else FILL
        if name in plan.world.hollow:
            offer(Operation(style, name), style, *([f"{style}_it"] if it else []))
        offer(Operation("clear", name), "clear", *(["clear_it"] if it else []))
    pair = plan.larger_of_two()
    for which, key in enumerate(("recolour_larger", "recolour_smaller")) if pair else ():
        assert pair is not None  # noqa: S101
        offer(Operation("recolour", pair[which], colour=plan.new_colour(pair[which])), key)
    if len(now.overlays) > 1:
        offer(Operation("clear_all"), "clear_all")
    last = plan.steps[-1].operation.name if plan.steps else "undo"
    if last not in ("undo", "back") and plan.chance(0.4):
        offer(Operation("undo", count=1), "undo")
        if len(plan.talk.stack) > 3:
            offer(Operation("undo", count=2), "undo_two")
        if plan.talk.turns > 2:
            offer(Operation("back", turn=int(plan.draw.integers(1, plan.talk.turns - 1))), "back")
    _offer_bases(plan, offer)
    return found


def _offer_bases(plan: Plan, offer: Callable[..., None]) -> None:
    """A new base is first seen bare, so that it can be read back from the stored images."""
    now = plan.talk.now
    for name in plan.world.removable:
        if now.base == ORIGINAL and set(plan.marked) <= {name}:
            offer(Operation("remove", name, base=without_name(name)), "remove")
        if now.base == without_name(name):
            offer(Operation("put_back", name, base=ORIGINAL), "put_back")
    if now.base in plan.world.windows:  # the first image was seen bare at the start
        offer(Operation("window", base=ORIGINAL), "window_back")
    if not now.overlays:
        for window in plan.world.windows:
            if window != now.base and not now.base.startswith(without_name("")):
                offer(Operation("window", base=window), "window")


def scale_pair(world: World, seed: int) -> tuple[Plan, Plan]:
    """The low-scale and the high-scale conversation of one context: the same image and the same turns first.

    Low changes how things look (another colour, only the outline, the window that the image came in), high
    which things there are (the lesion removed or put back, another target, none).
    """
    low, high = (Plan(world, np.random.Generator(np.random.PCG64(seed))) for _ in range(2))
    # Both draw the same, so they begin alike; only the last turn differs.
    contexts = [_scale_context(plan) for plan in (low, high)]
    first, lesion = contexts[0]
    edits = ["recolour", *(["outline"] if first in world.hollow else []), *(["window"] * len(world.windows))]
    edit = low.one_of(edits)
    if edit == "window":
        low.add(Operation("window", base=ORIGINAL), "window_back")
    else:
        colour = low.new_colour(first) if edit == "recolour" else None
        low.add(Operation(edit, first, colour=colour), edit)
    if lesion is not None and lesion != first:
        high.add(Operation("put_back", lesion, base=ORIGINAL), "put_back")
    elif lesion is not None:
        high.add(Operation("remove", first, base=without_name(first)), "remove")
    elif high.unmarked:
        high.add(Operation("replace", first, other=high.one_of(high.unmarked)), "replace")
    else:
        high.add(Operation("clear", first), "clear")
    return low, high


def _scale_context(plan: Plan) -> tuple[str, str | None]:
    """The turns that both conversations begin with: what they mark, and the lesion that can change."""
    world = plan.world
    lesion = plan.one_of(world.removable) if world.removable and world.start == ORIGINAL else None
    others = [name for name in world.targets if name != lesion]
    if lesion is not None and others and plan.chance():
        plan.add(Operation("remove", lesion, base=without_name(lesion)), "remove")
        first = plan.one_of(others)
    else:
        first = lesion or plan.one_of(world.targets)
    plan.paint(first)
    return first, lesion


PLANS: Final[Mapping[str, Callable[[Plan], None]]] = {
    "memory": memory,
    "understanding": understanding,
    "backtracking": backtracking,
    "no-op": no_op,
    "chain": chain,
}
SCALE: Final = "scale"
FAMILIES: Final = (*PLANS, SCALE)


def make_plan(family: str, world: World, seed: int) -> Plan:
    """A conversation of one of `PLANS`."""
    plan = Plan(world, np.random.Generator(np.random.PCG64(seed)))
    PLANS[family](plan)
    return plan
