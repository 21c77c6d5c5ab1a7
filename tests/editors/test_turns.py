"""Conversations: from the model's own outputs or from the references, and the same after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from mie.editors import Edited, EditError, Editor
from mie.editors.run import preview_run, run_editor
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png
from tests.conftest import crop
from tests.editors.conftest import outputs
from tests.editors.providers import REFUSALS, providers
from tests.scoring.benchmarks.runs import modification, write_samples

TURNS = 3


def samples(talks: int = 2):
    """Conversations of three turns, each from the reference of the turn before, and one sample more."""
    out = []
    for talk in range(talks):
        images = [crop(10 * talk + n, 40, 48) for n in range(TURNS + 1)]
        for turn in range(1, TURNS + 1):
            out.append(
                replace(
                    modification(f"t{talk}{turn}", turn),
                    input=images[turn - 1],
                    target_image=images[turn],
                    prompt=f"Turn {turn}.",
                    group=f"talk {talk}",
                    turn=turn,
                )
            )
    return [*out[::-1], modification("alone", 99)]  # later turns first: order on disk is no order of turns


@pytest.fixture
def dataset(tmp_path):
    return write_samples(samples(), tmp_path / "dataset").folder


class Darker(Editor):
    """Ten grey levels darker at each turn; remembers what it was shown."""

    deterministic = True
    seen: ClassVar[list] = []
    fails: ClassVar[set] = set()

    def edit(self, image, instruction, *, seed, history):
        raise NotImplementedError

    def edit_request(self, request):
        name = request.sample.id
        type(self).seen.append((name, [turn.instruction for turn in request.history]))
        if name in self.fails:
            raise EditError("out of memory")
        return Edited(np.maximum(request.image, 10) - 10)


@pytest.fixture
def editor(use):
    Darker.seen, Darker.fails = [], set()
    return use(Darker)


def image(run, name):
    return decode_png(Run.open(run).output_path(name, 0).read_bytes())


def darker(pixels, times):
    for _ in range(times):
        pixels = np.maximum(pixels, 10) - 10
    return pixels


def test_free_goes_on_from_its_own_output(dataset, editor, tmp_path):
    run_editor(dataset, editor, tmp_path / "run")
    first = crop(0, 40, 48)
    for turn in (1, 2, 3):
        np.testing.assert_array_equal(image(tmp_path / "run", f"t0{turn}"), darker(first, turn))
    assert dict(Darker.seen)["t13"] == ["Turn 1.", "Turn 2."]
    edits = Run.open(tmp_path / "run").edits()
    assert edits["t02", 0].meta["turn_before"] == edits["t01", 0].sha256
    assert "turn_before" not in edits["t01", 0].meta


def test_forced_goes_on_from_the_reference(dataset, editor, tmp_path):
    run_editor(dataset, editor, tmp_path / "run", turns="forced")
    np.testing.assert_array_equal(image(tmp_path / "run", "t03"), darker(crop(2, 40, 48), 1))
    with pytest.raises(MieError, match="another run"):
        run_editor(dataset, editor, tmp_path / "run")
    with pytest.raises(ConfigError, match="fre"):
        run_editor(dataset, editor, tmp_path / "other", turns="fre")


def test_a_failed_turn_ends_its_conversation_until_it_is_tried_again(dataset, editor, tmp_path):
    straight = tmp_path / "straight"
    run_editor(dataset, editor, straight)
    Darker.fails = {"t02"}
    info = run_editor(dataset, editor, tmp_path / "run").info
    assert (info["counts"]["done"], info["counts"]["failed"]) == (5, 2)
    edits = Run.open(tmp_path / "run").edits()
    assert edits["t03", 0].reason == "the turn before has no output"
    Darker.fails, Darker.seen = set(), []
    run_editor(dataset, editor, tmp_path / "run", retry_failed=True)
    assert [name for name, _ in Darker.seen] == ["t02", "t03"]
    assert outputs(tmp_path / "run") == outputs(straight)


@pytest.mark.parametrize("turns", ["free", "forced"])
def test_what_follows_a_missing_turn_is_not_edited(editor, tmp_path, turns):
    broken = [sample for sample in samples() if sample.id != "t02"]
    dataset = write_samples(broken, tmp_path / "broken").folder
    info = run_editor(dataset, editor, tmp_path / "run", turns=turns).info
    assert (info["counts"]["done"], info["counts"]["failed"]) == (5, 1)
    edit = Run.open(tmp_path / "run").edits()["t03", 0]
    assert (edit.state, edit.reason) == ("failed", "turn 2 of its conversation is missing")
    assert "t03" not in dict(Darker.seen)


def test_what_follows_a_lost_output_is_made_again(dataset, editor, tmp_path):
    run = tmp_path / "run"
    run_editor(dataset, editor, run)
    expected = outputs(run)
    Run.open(run).output_path("t02", 0).unlink()
    Darker.seen = []
    run_editor(dataset, editor, run)
    assert [name for name, _ in Darker.seen] == ["t02", "t03"]
    assert outputs(run) == expected
    # Killed between the two: the third turn's line rests on an output that is no longer the one there.
    lines = (run / "edits.jsonl").read_text().splitlines()
    second = next(line for line in reversed(lines) if '"t02"' in line)
    changed = {**json.loads(second), "sha256": "0" * 64}
    (run / "edits.jsonl").write_text("\n".join([*lines, json.dumps(changed)]) + "\n")
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "running"}))
    Darker.seen = []
    run_editor(dataset, editor, run)
    assert [name for name, _ in Darker.seen] == ["t03"]


def test_a_run_from_before_there_were_turns_goes_on(dataset, editor, tmp_path):
    run = tmp_path / "run"
    run_editor(dataset, editor, run)
    info = json.loads((run / "run.json").read_text())
    del info["config"]["turns"]
    (run / "run.json").write_text(json.dumps(info))
    Darker.seen = []
    run_editor(dataset, editor, run)
    assert Darker.seen == []


def test_a_conversation_reaches_a_provider_with_its_earlier_turns(dataset, tmp_path):
    refuse = True

    def fault(handler, number, fields):
        declined = refuse and fields["prompt"] == "Turn 2."
        return declined and (handler.reply(REFUSALS["gemini"][1]) or True)

    with providers() as server:
        spec = server.spec("gemini", ",key_env=NO_SUCH_KEY")
        server.fault = fault
        server.open = True
        wanted = preview_run(dataset, "gemini:m", tmp_path / "other")
        counts = run_editor(dataset, spec, tmp_path / "run").info["counts"]
        assert (counts["done"], counts["refused"], counts["failed"]) == (
            3,
            2,
            2,
        )  # third turns cannot be made
        refuse = False
        server.seen.clear()
        run = run_editor(dataset, spec, tmp_path / "run", retry_refused=True)
        assert run.info["counts"]["done"] == 7
        assert server.wrong == []
        again = [fields for _, _, fields in server.seen]
    assert wanted["images"] == 2 * (1 + 2 + 3) + 1
    for fields in again:
        texts = [part["text"] for turn in fields["contents"] for part in turn["parts"] if "text" in part]
        assert texts == [f"Turn {n + 1}." for n in range(len(texts))]
        assert len(fields["contents"]) == 2 * len(texts) - 1
    assert sorted(len(fields["contents"]) for fields in again) == [3, 3, 5, 5]
    third = next(fields for fields in again if len(fields["contents"]) == 5)
    made = [image(tmp_path / "run", f"t{talk}2") for talk in range(2)]
    assert any(np.array_equal(third["images"][-1], one) for one in made)
    assert np.array_equal(third["images"][-1], third["images"][-2])  # the image is the last turn's output
