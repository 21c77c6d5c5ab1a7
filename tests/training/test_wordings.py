"""Wordings: every phrasing in every colour, in correct grammar, and some that are never trained on."""

from __future__ import annotations

import pytest

from mie.perspectives.perception.phrasings import PHRASINGS, SEVERAL, ask_for_one
from mie.perspectives.transformation.phrasings import PHRASINGS as TRANSFORMS
from mie.records import Target
from mie.training.wordings import held_out_templates, perception_instruction, transformation_instruction
from mie.vocabulary import COLOURS

LISTS = {**PHRASINGS, **TRANSFORMS}


@pytest.mark.parametrize("kind", LISTS)
def test_about_one_template_in_six_is_held_out(kind) -> None:
    held = held_out_templates(kind)
    assert held <= set(LISTS[kind])
    assert 2 <= len(held) <= len(LISTS[kind]) / 4
    others = {t for other, templates in LISTS.items() if other != kind for t in templates}
    assert not held & others, "trained on under another name"


def test_the_held_out_ones_never_change() -> None:
    """Published numbers on unseen wordings rest on these."""
    assert held_out_templates("lesion") == {
        "Find the {target} and colour {it} {colour}.",
        "Paint the {target} {colour} on this {picture}.",
        "Flag the {target} with a {colour} overlay and leave the healthy tissue as it was.",
    }


def test_one_class_in_all_colours() -> None:
    target = Target("hard exudates", "lesion", True)
    ask = perception_instruction("lesion", [target], "fundus", limit=24)
    assert ask.key == "perception/lesion/hard exudates/fundus"
    assert len({w.prompt for w in ask.wordings}) == len(ask.wordings) == 24
    assert {w.template for w in ask.wordings} == set(PHRASINGS["lesion"]) - held_out_templates("lesion")
    counts = [sum(w.colours == (c,) for w in ask.wordings) for c in COLOURS]
    assert min(counts) >= 7
    assert {w.template for w in ask.held_out} <= held_out_templates("lesion")
    assert len({w.prompt for w in ask.held_out}) == 6
    for wording in (*ask.wordings, *ask.held_out):
        assert wording.prompt == ask_for_one(wording.template, target, wording.colours[0], "fundus")


def test_all_that_there_is_when_more_is_wanted() -> None:
    ask = perception_instruction("structure", [Target("liver", "anatomy")], "CT", limit=1000)
    assert len({w.prompt for w in ask.wordings}) == len(ask.wordings) == 3 * (18 - 3)


def test_without_a_number_the_sentences_fit_one_and_many() -> None:
    asks = [
        perception_instruction(
            "lesion", [Target("polyp", "lesion", plural)], "endoscopy", numbered=False, limit=1000
        )
        for plural in (False, True)
    ]
    assert asks[0] == asks[1]
    assert len(asks[0].wordings) > 15


def test_several_classes_in_every_order_of_colours() -> None:
    targets = [Target("liver", "anatomy"), Target("spleen", "anatomy"), Target("stomach", "anatomy")]
    ask = perception_instruction("holistic", targets, "CT", several=True)
    assert len({w.colours for w in ask.wordings}) == 6
    assert {w.template for w in ask.wordings} <= set(SEVERAL)
    for wording in ask.wordings:
        pairs = [(n.name, c) for n, c in zip(targets, wording.colours, strict=True)]
        # "the liver in red" or "liver: red": each class beside its own colour.
        assert all(f"{n} in {c}" in wording.prompt or f"{n}: {c}" in wording.prompt for n, c in pairs)


def test_transformations_are_asked_for_with_what_is_known() -> None:
    ask = transformation_instruction("super_resolution", "MRI", "brain", {"factor": "4"})
    assert ask.key == "transformation/super_resolution/MRI/brain/factor=4"
    assert all("4" in w.prompt and w.colours == () for w in (*ask.wordings, *ask.held_out))
    assert len(ask.wordings) == 9
    unknown = transformation_instruction("ct_sparse_view", "CT", "chest", {})
    assert unknown.wordings
    assert all("{views}" not in w.template for w in unknown.wordings)
    assert transformation_instruction("mri_noise", "MRI", "heart", {}) == transformation_instruction(
        "mri_noise", "MRI", "heart", {}
    )
