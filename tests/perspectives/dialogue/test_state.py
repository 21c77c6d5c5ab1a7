"""The state machine of a conversation, and the images of its states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import MieError
from mie.images.overlay import deblend, dice, paint
from mie.perspectives.dialogue.state import (
    ORIGINAL,
    Operation,
    Overlay,
    State,
    Talk,
    as_labels,
    from_labels,
    kind_of,
    outline,
    regions,
    render,
    replay,
)
from mie.vocabulary import COLOURS
from tests.perspectives.dialogue.cases import SIDE, case, disc, masks

MASKS = masks()
BASES = {ORIGINAL: case(0).image, "other": case(1).image}
names = st.sampled_from(sorted(MASKS))
colours = st.sampled_from(sorted(COLOURS))
overlays = st.builds(Overlay, names, colours, st.sampled_from(["fill", "outline"]))
states = st.lists(overlays, max_size=3, unique_by=lambda one: one.target).map(
    lambda found: State(tuple(found))
)
operations = st.one_of(
    st.builds(lambda t, c: Operation("paint", t, colour=c), names, colours),
    st.builds(lambda t, c: Operation("recolour", t, colour=c), names, colours),
    st.builds(lambda n, t: Operation(n, t), st.sampled_from(["clear", "outline", "fill", "same"]), names),
    st.just(Operation("clear_all")),
    st.just(Operation("restore", base="other")),
    st.builds(lambda c: Operation("premise", colour=c), colours),
)


def picture(state: State) -> np.ndarray:
    return render(state, BASES, MASKS)


@given(st.lists(operations, max_size=4), operations)
def test_undo_gives_back_the_same_pixels(past, operation) -> None:
    before = replay(past, ORIGINAL, MASKS.__contains__)
    after = before.after(operation, MASKS.__contains__).after(Operation("undo", count=1))
    assert after.now == before.now
    assert np.array_equal(picture(after.now), picture(before.now))


@given(states, names, colours, colours)
def test_each_operation_has_an_inverse(state, name, first, second) -> None:
    talk = Talk((state,), (state,))
    image = picture(state)
    marked = state.overlay(name)
    if marked is None:
        there = talk.after(Operation("paint", name, colour=first))
        back = there.after(Operation("clear", name))
    else:
        there = talk.after(Operation("recolour", name, colour=second))
        back = there.after(Operation("recolour", name, colour=marked.colour))
        style = "fill" if marked.style == "outline" else "outline"
        both = talk.after(Operation(style, name)).after(Operation(marked.style, name))
        assert np.array_equal(picture(both.now), image)
    assert np.array_equal(picture(back.now), image)


@given(st.permutations(sorted(MASKS)), st.lists(colours, min_size=4, max_size=4))
def test_overlays_commute(order, chosen) -> None:
    """In whatever order targets are marked, the image is the same, also where one lies in another."""
    wanted = dict(zip(sorted(MASKS), chosen, strict=True))
    state = State(tuple(Overlay(name, wanted[name]) for name in order))
    usual = State(tuple(Overlay(name, wanted[name]) for name in sorted(MASKS)))
    assert np.array_equal(picture(state), picture(usual))


@given(states)
def test_overlays_can_be_read_back(state) -> None:
    image, seen = picture(state), regions(state, MASKS)
    for colour in COLOURS:
        drawn = [seen[one.target] for one in state.overlays if one.colour == colour]
        expected = np.logical_or.reduce([np.zeros((SIDE, SIDE), bool), *drawn])
        assert dice(deblend(BASES[ORIGINAL], image, colour), expected) > 0.99
    covered = np.logical_or.reduce([np.zeros((SIDE, SIDE), bool), *seen.values()])
    assert np.array_equal(image[~covered], BASES[ORIGINAL][~covered])
    assert sum(int(region.sum()) for region in seen.values()) == covered.sum()  # one overlay a pixel


def test_one_overlay_is_what_perception_paints() -> None:
    state = State((Overlay("optic disc", "red"),))
    assert np.array_equal(picture(state), paint(BASES[ORIGINAL], MASKS["optic disc"], "red"))


def test_what_cannot_apply_changes_nothing() -> None:
    start = Talk.start()
    for operation in (
        Operation("undo", count=1),
        Operation("undo", count=5),
        Operation("recolour", "optic disc", colour="red"),
        Operation("clear", "optic disc"),
        Operation("clear_all"),
        Operation("outline", "optic disc"),
        Operation("paint", "haemorrhages", colour="red"),
        Operation("paint", "optic disc"),  # in no colour that was agreed on
        Operation("replace", "optic disc", other="optic cup"),
    ):
        assert start.after(operation, MASKS.__contains__).now == start.now, operation
    with pytest.raises(MieError, match="unknown operation"):
        start.after(Operation("polish"))


def test_a_premise_colours_what_names_no_colour_until_it_changes() -> None:
    talk = replay(
        [
            Operation("premise", "optic disc", colour="blue"),
            Operation("paint", "optic cup"),
            Operation("premise", colour="green"),
            Operation("paint", "hard exudates"),
        ],
        ORIGINAL,
        MASKS.__contains__,
    )
    found = {one.target: one.colour for one in talk.now.overlays}
    assert found == {"optic disc": "blue", "optic cup": "blue", "hard exudates": "green"}
    assert talk.states[2].shown == talk.states[3].shown


def test_undo_goes_further_back_each_time_and_back_names_a_turn() -> None:
    talk = Talk.start()
    for colour in ("red", "green", "blue"):
        talk = talk.after(Operation("paint", "optic disc", colour=colour))
    undone = talk.after(Operation("undo", count=1)).after(Operation("undo", count=1))
    assert undone.now == talk.states[1]
    assert talk.after(Operation("undo", count=2)).now == talk.states[1]
    back = talk.after(Operation("back", "optic disc", colour="blue", turn=1))
    assert back.now.overlays == (Overlay("optic disc", "blue"),)
    assert back.after(Operation("undo", count=1)).now == talk.now


def test_a_removed_lesion_cannot_be_marked() -> None:
    talk = Talk.start().after(Operation("paint", "hard exudates", colour="red"))
    gone = talk.after(Operation("remove", "hard exudates", base="without hard exudates"))
    assert gone.now.overlays == ()
    assert gone.after(Operation("paint", "hard exudates", colour="red")).now == gone.now
    back = gone.after(Operation("put_back", "hard exudates", base=ORIGINAL))
    assert back.now == talk.states[0]
    assert kind_of(Operation("undo"), gone.now, talk.now) == "E"


def test_labels_hold_regions_that_lie_in_each_other() -> None:
    labels, pieces, count = as_labels(MASKS)
    assert count == 4  # the cup, the disc around it, and the others
    params = {"targets": [{"name": n, "pieces": pieces[n]} for n in pieces], "pieces": count}
    for name, mask in from_labels(labels, params).items():
        assert np.array_equal(mask, MASKS[name])


def test_an_outline_is_the_border_also_at_the_edge_of_the_picture() -> None:
    region = disc((0, 0), 20)
    line = outline(region)
    assert line.sum() < region.sum()
    assert not (line & ~region).any()
    assert line[0, :18].all()
