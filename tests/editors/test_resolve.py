"""`resolve:EDITOR`: what conversations lead to, read from their sentences alone."""

from __future__ import annotations

import numpy as np
import pytest

from mie.editors import Request, Turn, open_editor
from mie.editors.run import run_editor
from mie.errors import ConfigError
from mie.images.overlay import paint
from mie.perspectives.dialogue.state import State
from mie.perspectives.dialogue.understanding import Listener, full_instructions, understood
from tests.conftest import crop
from tests.perspectives.dialogue.cases import conversations, turns
from tests.scoring.benchmarks.runs import write_samples


def test_every_conversation_is_understood_but_for_targets_that_are_not_there() -> None:
    for number in range(6):
        for talk in conversations(number):
            areas = {target["name"]: target["area"] for target in talk[0].params["targets"]}
            for n in range(1, len(talk) + 1):
                sentences = [turn.prompt for turn in talk[:n]]
                if any("haemorrhages" in sentence or "optic cup" in sentence for sentence in sentences):
                    continue  # that the image does not have them is not in the sentence
                larger = lambda a, b: max(a.target, b.target, key=areas.__getitem__)  # noqa: B023
                state, notes = understood(sentences, larger)
                expected = State.from_json(talk[n - 1].params["after"])
                assert (state.shown, notes) == (expected.shown, []), sentences


@pytest.mark.parametrize(
    ("sentences", "instructions"),
    [
        (["Paint the liver red.", "Make it blue."], ["Highlight the liver in blue."]),
        (
            ["From now on mark everything in green. Start with the liver.", "Now the spleen."],
            ["Highlight the liver in green and the spleen in green."],
        ),
        (
            [
                "Of the liver and the spleen, paint the liver red first.",
                "And the other one in blue.",
                "What is red now should be green.",
            ],
            ["Highlight the liver in green and the spleen in blue."],
        ),
        (["Paint the liver red.", "Undo that.", "Undo that."], []),
        (
            ["Paint the liver red.", "Change the liver to blue.", "As after the first turn, please."],
            ["Highlight the liver in red."],
        ),
        (["Paint the liver red.", "Just the outline."], ["Draw only the outline of the liver in red."]),
        (
            ["Denoise this MRI slice.", "Highlight the brain tumour in red."],
            ["Denoise this MRI slice.", "Highlight the brain tumour in red."],
        ),
        # Not one of our phrasings: parsed as an instruction of its own.
        (["Could you colour the kidney in blue, please"], ["Highlight the kidney in blue."]),
    ],
)
def test_full_instructions(sentences, instructions) -> None:
    state, notes = understood(sentences, lambda a, b: None)
    assert (full_instructions(state), notes) == (instructions, [])


def test_what_is_not_understood_is_said_and_counts_as_a_turn() -> None:
    listener = Listener()
    for sentence in ("Paint the liver red.", "What is your favourite colour?", "Undo that."):
        listener.hear(sentence)
    assert listener.notes == ["What is your favourite colour?"]
    assert [one.target for one in listener.talk.now.overlays] == ["liver"]


class _Painter:
    """Two squares, by the words of the instruction."""

    def __call__(self, image, instruction):
        for name, corner in (("liver", 2), ("spleen", 30)):
            for colour in ("red", "green", "blue"):
                if f"the {name} in {colour}" in instruction:
                    mask = np.zeros(image.shape[:2], bool)
                    side = 20 if name == "liver" else 10
                    mask[corner : corner + side, corner : corner + side] = True
                    image = paint(image, mask, colour)
        return image


def test_it_edits_the_first_image_and_measures_which_overlay_is_larger(monkeypatch) -> None:
    from mie.editors.base import FunctionEditor

    editor = open_editor("resolve:identity")
    editor._inner = FunctionEditor(_Painter())
    original = crop(0, 64, 64) // 2
    painter = _Painter()
    both = painter(original, "the liver in red and the spleen in blue")
    history = [Turn("Paint the liver red.", original), Turn("Paint the spleen blue.", both)]
    request = Request(both, "Make the larger of the two green.", history=history, original=original)
    edited = editor.edit_request(request)
    assert edited.meta["resolved"] == ["Highlight the liver in green and the spleen in blue."]
    assert np.array_equal(edited.image, painter(original, "the liver in green and the spleen in blue"))
    undone = editor.edit_request(Request(both, "Undo all of it.", history=history, original=original))
    assert undone.meta["resolved"] == []
    assert np.array_equal(undone.image, original)


def test_it_runs_over_a_dataset_and_says_what_it_wraps(tmp_path) -> None:
    dataset = write_samples(turns(0), tmp_path / "dataset")
    run = run_editor(dataset, "resolve:identity", tmp_path / "run", workers=1)
    assert (run.info["editor"]["spec"], run.info["counts"]["failed"]) == ("resolve:identity", 0)
    assert run.info["editor"]["meta"]["editor"] == "identity"
    with pytest.raises(ConfigError, match="needs an argument"):
        open_editor("resolve")
    with pytest.raises(ConfigError, match="no editor named 'compat'"):
        open_editor("resolve:compat")
