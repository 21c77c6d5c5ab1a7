"""Conversations as samples, and their proof."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mie.errors import ConfigError
from mie.perspectives import PERSPECTIVES
from mie.perspectives.dialogue import TASKS
from mie.perspectives.dialogue.bases import SPOKEN
from mie.perspectives.dialogue.families import FAMILIES, PLANS, Plan, World, make_plan, scale_pair
from mie.perspectives.dialogue.phrasings import PHRASINGS, fill_in, read_back
from mie.perspectives.dialogue.proof import prove, prove_group
from mie.perspectives.dialogue.samples import Dialogue
from mie.perspectives.dialogue.state import ORIGINAL, kind_of, without_name
from mie.perspectives.modification import phrasings as modification
from mie.perspectives.transformation import phrasings as transformation
from mie.records import Rejection
from mie.words import parse
from tests.perspectives.dialogue.cases import SIDE, TARGETS, case, conversations, turns

WORLD = World(
    areas={"optic disc": 700, "optic cup": 200, "hard exudates": 380},
    hollow=frozenset({"optic disc", "hard exudates"}),
    absent=("haemorrhages",),
)
ONE = World(areas={"optic disc": 700}, hollow=frozenset({"optic disc"}))
WINDOW = replace(WORLD, windows=("window: lung",))
LESION = replace(WORLD, removable=("hard exudates",))
RESTORED = replace(WORLD, start="degraded: MRI noise")


def test_every_conversation_proves_itself() -> None:
    for number in range(3):
        for talk in conversations(number):
            assert prove_group(talk) == []
            assert [problem for turn in talk for problem in prove(turn)] == []
            assert 2 <= len(talk) <= 16


def test_all_families_are_there_and_scale_pairs_share_their_beginning() -> None:
    assert TASKS == FAMILIES
    talks = conversations(0)
    assert Counter(talk[0].task for talk in talks) == {**dict.fromkeys(FAMILIES, 1), "scale": 2}
    low, high = (talk for talk in talks if talk[0].task == "scale")
    assert (low[0].params["level"], high[0].params["level"]) == ("low", "high")
    assert low[0].params["context"] == high[0].params["context"]
    assert np.array_equal(low[0].target_image, high[0].target_image)
    assert low[0].prompt == high[0].prompt
    assert [turn.params["kind"] for turn in low] == ["E", "A"]


def test_the_targets_of_a_conversation_lie_apart() -> None:
    names = {target["name"] for sample in turns(0) for target in sample.params["targets"]}
    assert names == {"optic disc", "hard exudates", "fovea"}  # the cup lies in the disc


def test_the_same_seed_gives_the_same_conversations() -> None:
    again = list(Dialogue(per_case=6, bins=(SIDE,)).samples(case(0), "test", 7))
    assert [(s.id, s.prompt) for s in again] == [(s.id, s.prompt) for s in turns(0)]
    other = list(Dialogue(per_case=6, bins=(SIDE,)).samples(case(0), "test", 8))
    assert [s.prompt for s in other] != [s.prompt for s in turns(0)]


@pytest.mark.parametrize(
    "world",
    [WORLD, ONE, WINDOW, LESION, RESTORED],
    ids=["three targets", "one target", "window", "lesion", "degraded"],
)
@pytest.mark.parametrize("family", PLANS)
def test_plans_keep_what_their_family_promises(family, world) -> None:
    for seed in range(40):
        plan = make_plan(family, world, seed)
        states = plan.talk.states
        changes = [a.shown != b.shown for a, b in itertools.pairwise(states)]
        assert 2 <= plan.talk.turns <= 16
        silent = [at for at, changed in enumerate(changes) if not changed]
        if family == "no-op":
            assert silent
        elif family == "memory":  # a new premise alone shows nothing
            assert all(plan.steps[at].key == "premise_only" for at in silent)
            assert any(step.key == "paint_premise" for step in plan.steps)
        else:
            assert not silent
        if family == "backtracking":
            assert {"undo", "back", "put_back"} & {step.operation.name for step in plan.steps}
        if family == "chain":
            assert plan.talk.turns >= 6
        _bases_are_first_seen_bare(plan)


def _bases_are_first_seen_bare(plan: Plan) -> None:
    """What `mie verify` needs to read a base back from the stored images."""
    seen = {plan.talk.states[0].base}
    for state in plan.talk.states[1:]:
        assert state.base in seen or not state.overlays
        seen.add(state.base)


def test_scale_pairs_differ_in_the_last_turn_alone_and_in_its_kind() -> None:
    asked: dict[str, Counter[str]] = {"A": Counter(), "E": Counter()}
    for world, seed in itertools.product((WORLD, ONE, WINDOW, LESION, RESTORED), range(40)):
        pair = scale_pair(world, seed)
        assert pair[0].steps[:-1] == pair[1].steps[:-1]
        for plan, kind in zip(pair, "AE", strict=True):
            before, after = plan.talk.states[-2:]
            assert before.shown != after.shown
            assert kind_of(plan.steps[-1].operation, before, after) == kind
            asked[kind][plan.steps[-1].operation.name] += 1
            _bases_are_first_seen_bare(plan)
    assert set(asked["A"]) == {"recolour", "outline", "window"}
    assert set(asked["E"]) == {"remove", "put_back", "replace", "clear"}
    assert min(*asked["A"].values(), *asked["E"].values()) >= 5, asked


def test_a_lesion_is_put_back_under_overlays_and_a_window_returns() -> None:
    pairs = [scale_pair(world, seed) for world, seed in itertools.product((WINDOW, LESION), range(40))]
    last = [(plan.steps[-1].operation.name, plan.talk.states[-2:]) for pair in pairs for plan in pair]
    put_back = [states for name, states in last if name == "put_back"]
    assert all(before.base == without_name("hard exudates") for before, _ in put_back)
    returned = [states for name, states in last if name == "window"]
    for before, after in [*put_back, *returned]:
        assert after.base == ORIGINAL
        assert before.overlays == after.overlays != ()


def test_switches_of_chains_are_about_uniform() -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        plan = make_plan("chain", WORLD, seed)
        states = plan.talk.states
        kinds = [kind_of(step.operation, *states[at : at + 2]) for at, step in enumerate(plan.steps)]
        counts.update(a + b for a, b in itertools.pairwise(kinds))
    shares = [counts[switch] / counts.total() for switch in ("AA", "AE", "EA", "EE")]
    assert min(shares) > 0.15, shares


def test_each_key_has_twelve_phrasings_and_each_phrasing_one_key() -> None:
    assert min(len(set(found)) for found in PHRASINGS.values()) >= 12
    assert len(set(modification.PHRASINGS["removal"])) >= 12
    for key, found in SPOKEN.items():
        assert len({*found, *transformation.PHRASINGS[key]}) >= 12
        words = {"artifacts": "hair", "window": "lung", "level": "-600", "width": "1500", "factor": "2"}
        named = transformation.NAMED.get(key, ())
        for sentence in (template.format(**words) for template in found):
            asked = parse(sentence)
            assert (asked.operation, read_back(sentence)) == ("transformation", None), sentence
            assert all(words[name] in sentence for name in named)
    every = [(key, phrasing) for key, found in PHRASINGS.items() for phrasing in found]
    assert len(every) == len({phrasing for _, phrasing in every})
    words = {"target": "hard exudates", "other": "optic cup", "colour": "red", "old": "blue", "turn": "third"}
    for key, phrasing in every:
        text = fill_in(
            phrasing,
            "fundus",
            target=TARGETS["hard exudates"],
            other=TARGETS["optic cup"],
            colour="red",
            old="blue",
            turn=3,
        )
        found = read_back(text)
        assert found is not None, phrasing
        assert found[0] == key, (phrasing, found)
        assert all(found[1][name] == word for name, word in words.items() if f"{{{name}}}" in phrasing)


def test_a_target_that_is_not_there_is_a_turn_that_changes_nothing() -> None:
    plan = Plan(WORLD, np.random.default_rng(0))
    plan.paint("haemorrhages")
    assert plan.talk.now.shown == plan.talk.states[0].shown


def test_proof_finds_a_changed_pixel_a_swapped_and_a_missing_turn() -> None:
    talk = next(talk for talk in conversations(0) if talk[0].task == "chain")
    image = talk[-1].target_image.copy()
    image[30, 30] ^= 1
    changed = [*talk[:-1], replace(talk[-1], target_image=image)]
    assert [check for check, _ in prove_group(changed)] == ["pixels"]
    inner = talk[2].target_image.copy()
    inner[0, 0] ^= 1
    problems = prove_group([*talk[:2], replace(talk[2], target_image=inner), *talk[3:]])
    assert problems == [("chain", "turn 4 does not start from the truth of turn 3")]
    swapped = [replace(talk[1], turn=1), replace(talk[0], turn=2), *talk[2:]]
    assert {check for check, _ in prove_group(swapped)} == {"chain"}
    for missing in (0, 3, len(talk) - 1):
        ((check, reason),) = prove_group([turn for at, turn in enumerate(talk) if at != missing])
        assert check == "chain"
        assert f"turns 1 to {len(talk)} are needed" in reason
    strangers = [replace(talk[0], patient_id="drawn/other"), *talk[1:]]
    assert any("more than one patient_id" in reason for _, reason in prove_group(strangers))
    operation = {**talk[1].params["operation"], "name": "clear_all"}
    lied = [talk[0], replace(talk[1], params={**talk[1].params, "operation": operation}), *talk[2:]]
    assert {check for check, _ in prove_group(lied)} == {"state"}


def test_a_turn_says_whether_its_image_changes() -> None:
    turn = conversations(0)[0][0]
    lied = replace(turn, target_image=turn.input)
    assert [check for check, _ in prove(lied)] == ["turn"]


def test_an_image_without_a_usable_target_is_rejected() -> None:
    (found,) = Dialogue(per_case=1, bins=(SIDE,)).samples(replace(case(0), masks={}), "test", 7)
    assert isinstance(found, Rejection)
    small = {"optic cup": np.zeros((SIDE, SIDE), bool)}
    small["optic cup"][3, 3:6] = True
    (found,) = Dialogue(per_case=1, bins=(SIDE,)).samples(replace(case(0), masks=small), "test", 7)
    assert (found.gate, found.source) == ("targets", "drawn")


def test_its_recipe() -> None:
    config = PERSPECTIVES["dialogue"].config
    with pytest.raises(ValueError, match="no wide wordings"):
        config(wordings="wide")
    with pytest.raises((ValueError, ConfigError)):
        config(families=())
