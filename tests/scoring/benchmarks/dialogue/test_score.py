"""The benchmark on conversations of our own: the ceiling, the floor, editors that break in known places."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.datasets.verify import verify
from mie.editors import Edited, EditError, Editor
from mie.editors.run import run_editor
from mie.images.overlay import deblend, dice
from mie.scoring.conversations import survival
from mie.scoring.score import score
from tests.perspectives.dialogue.cases import turns
from tests.scoring.benchmarks.runs import write_samples

IMAGES = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    samples = [sample for number in range(IMAGES) for sample in turns(number)]
    return write_samples(samples, tmp_path_factory.mktemp("dialogue") / "dataset")


def scored(dataset, editor, folder, turns: str):
    run = run_editor(dataset, editor, folder, turns=turns, workers=1)
    assert run.info["config"]["turns"] == turns
    return score(run, "dialogue", workers=1)


def test_the_dataset_is_sound_and_turns_may_lie_apart(dataset, tmp_path) -> None:
    assert verify(dataset.folder, workers=1).problems == []
    # Every second sample first: no conversation stands together any more.
    samples = list(dataset.samples())
    shuffled = write_samples([*samples[::2], *samples[1::2]], tmp_path / "shuffled")
    assert verify(shuffled.folder, workers=1).problems == []
    left = [sample for sample in samples[::2] + samples[1::2] if sample.id != samples[5].id]
    broken = write_samples(left, tmp_path / "broken")
    (problem,) = verify(broken.folder, workers=1).problems
    assert (problem.check, problem.where) == ("chain", f"conversation {samples[5].group}")


@pytest.mark.parametrize("turns", ["free", "forced"])
def test_the_oracle_is_perfect(dataset, tmp_path, turns) -> None:
    found = scored(dataset, "oracle", tmp_path / "run", turns)
    assert float(found["passed"]) == float(found["overlay_dice"]) == float(found["colour"]) == 1
    assert float(found["leak"]) == 0
    assert float(found["b_psnr"]) == float(found["return_psnr"]) == 100
    document = found.document
    assert document["fed"] == turns
    assert document["survival"]["half_life"] is None
    longest = max(sample.turn for sample in dataset)
    assert [point["survival"] for point in document["survival"]["curve"]] == [1.0] * longest
    assert document["whole"]["mean"] == 1
    assert document["turn_slope"]["mean"] == document["scale_gap"]["mean"] == 0
    assert document["first_failures"]["operator"] == {}
    assert document["recovery"]["n"] == 0  # nothing had failed


@pytest.mark.parametrize("turns", ["free", "forced"])
def test_identity_passes_exactly_where_nothing_is_to_be_done(dataset, tmp_path, turns) -> None:
    found = scored(dataset, "identity", tmp_path / "run", turns)
    passed = found.values("passed")
    first = {s.group: s.input for s in dataset if s.turn == 1}
    for sample in dataset:
        shown = sample.input if turns == "forced" else first[sample.group]
        assert passed[sample.id] == np.array_equal(shown, sample.target_image), sample.prompt
    assert 0 < passed.mean() < 0.5
    if turns == "forced":
        quiet = {s.id for s in dataset if s.params["before"]["overlays"] == s.params["after"]["overlays"]}
        assert quiet == set(passed.index[passed == 1])


class Fails(Editor):
    """The oracle, except that it fails at every second turn of a conversation."""

    needs_target = True
    deterministic = True

    def edit(self, image, instruction, *, seed, history):
        raise NotImplementedError

    def edit_request(self, request):
        if len(request.history) == 1:
            raise EditError("out of memory")
        return Edited(request.sample.target_image)


def test_turns_after_a_failed_edit_are_unscored_and_never_zero(dataset, tmp_path) -> None:
    free = scored(dataset, Fails(), tmp_path / "free", "free")
    count = len({sample.group for sample in dataset})
    assert float(free["passed"]) == 1
    assert free["passed"].n == count
    reasons = {reason for _, reason in free.reasons}
    assert {"edit failed: out of memory", "edit failed: the turn before has no output"} <= reasons
    assert free.document["survival"]["first_failures"] == {}
    assert (free.document["whole"]["n"], free.document["whole"]["unscored"]) == (0, count)
    forced = scored(dataset, Fails(), tmp_path / "forced", "forced")
    assert forced["passed"].unscored == count  # the second turns alone


class Remembers(Editor):
    """Returns the first image of its history whatever is asked, and keeps what it was shown."""

    deterministic = True
    needs_original = True

    def __init__(self) -> None:
        self.seen: dict[str, list] = {}
        self.originals: dict[str, np.ndarray] = {}

    def edit(self, image, instruction, *, seed, history):
        raise NotImplementedError

    def edit_request(self, request):
        self.seen[request.sample.id] = [request.image.copy(), *(turn.image for turn in request.history)]
        self.originals[request.sample.id] = request.original
        return Edited(request.image)


def test_forced_turns_have_references_as_history_and_know_the_first_image(dataset, tmp_path) -> None:
    editor = Remembers()
    run_editor(dataset, editor, tmp_path / "run", turns="forced", workers=1)
    groups: dict[str, list] = {}
    for sample in dataset:
        groups.setdefault(sample.group, []).append(sample)
    for talk in groups.values():
        assert editor.originals[talk[0].id] is None
        for at, sample in enumerate(talk):
            image, *history = editor.seen[sample.id]
            assert np.array_equal(image, sample.input)
            assert len(history) == at
            assert all(np.array_equal(a, b.target_image) for a, b in zip(history, talk, strict=False))
            if at:
                assert np.array_equal(editor.originals[sample.id], talk[0].input)


class Forgets(Editor):
    """The oracle where a sentence names all that it needs; it leaves the rest as it is."""

    needs_target = True
    deterministic = True
    alone = frozenset(
        {"paint", "paint_first", "recolour", "outline", "fill", "clear", "clear_all", "replace"}
    )

    def edit(self, image, instruction, *, seed, history):
        raise NotImplementedError

    def edit_request(self, request):
        knows = request.sample.params["phrasing"] in self.alone
        return Edited(request.sample.target_image if knows else request.image)


def test_an_editor_that_ignores_history_fails_where_history_is_needed(dataset, tmp_path) -> None:
    found = scored(dataset, Forgets(), tmp_path / "run", "forced")
    passed = found.values("passed")
    for sample in dataset:
        changed = not np.array_equal(sample.input, sample.target_image)
        alone = sample.params["phrasing"] in Forgets.alone
        assert passed[sample.id] == (alone or not changed), (sample.params["phrasing"], sample.prompt)
    groups = found.document["groups"]
    shares = {
        item["group"]["phrasing"]: item["metrics"]["passed@1"]["mean"]
        for item in groups
        if list(item["group"]) == ["phrasing"]
    }
    assert {shares[name] for name in ("recolour_it", "paint_other", "paint_premise")} == {0}
    first = set(found.document["first_failures"]["phrasing"])
    assert first <= set(shares) - Forgets.alone
    assert "recolour_it" in first


class WrongColour(Editor):
    """The oracle with red and blue exchanged."""

    needs_target = True
    deterministic = True

    def edit(self, image, instruction, *, seed, history):
        raise NotImplementedError

    def edit_request(self, request):
        before, after = request.image, request.sample.target_image
        return Edited(np.where((before != after).any(2, keepdims=True), after[..., ::-1], after))


def test_colour_dice_and_leak_agree_with_plain_arithmetic(dataset, tmp_path) -> None:
    found = scored(dataset, WrongColour(), tmp_path / "run", "forced").frame.set_index("id")
    checked = 0
    for sample in dataset:
        if sample.params["operation"]["name"] != "paint" or sample.params["before"]["overlays"]:
            continue
        overlays = sample.params["after"]["overlays"]
        if len(overlays) != 1:
            continue
        (_, colour, _), row = overlays[0], found.loc[sample.id]
        output = np.where(
            (sample.input != sample.target_image).any(2, keepdims=True),
            sample.target_image[..., ::-1],
            sample.target_image,
        )
        region = (sample.input != sample.target_image).any(2)
        expected = dice(deblend(sample.input, output, colour), region)
        assert row["overlay_dice"] == pytest.approx(expected, abs=0.02)
        assert row["colour"] == (colour == "green")
        assert row["passed"] == (colour == "green")
        checked += 1
    assert checked > 8


def test_survival_is_the_product_limit(dataset, tmp_path) -> None:
    found = scored(dataset, "identity", tmp_path / "run", "free")
    table = found.table
    passed = dict(zip(table.ids, table.select("passed", 1).values, strict=True))
    groups: dict[str, list] = {}
    for sample in dataset:
        groups.setdefault(sample.group, []).append(passed[sample.id])
    share, expected = 1.0, []
    for n in range(16):
        risk = [p for p in groups.values() if len(p) > n and all(p[:n])]
        if not risk:
            break
        share *= sum(p[n] for p in risk) / len(risk)
        expected.append((n + 1, pytest.approx(share), len(risk)))
    curve = found.document["survival"]["curve"]
    assert [(p["turn"], p["survival"], p["at_risk"]) for p in curve] == expected
    assert found.document["survival"]["half_life"] == 1
    assert survival(table, "passed", [])["curve"] == []
    json.dumps(found.document)
