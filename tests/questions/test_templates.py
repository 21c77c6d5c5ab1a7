"""Every template: its phrasings, and keys that an independent measurement confirms."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage, stats
from scipy.spatial.distance import pdist

from mie.errors import MieError
from mie.questions.label import label_task
from mie.questions.make import Made, Maker
from mie.questions.proof import prove
from mie.questions.record import Question
from mie.questions.templates import TEMPLATES, find_template
from mie.questions.templates.features import bin_of, shape_of
from mie.questions.views import Region, View, direction_of, gap_between, overlap, quadrant_of
from mie.questions.words import common_name, groups_of, other_modalities, other_structures
from mie.records import Rejection, Target
from tests.questions.made import TARGETS, disc, view


@pytest.fixture(scope="module")
def made() -> list[Made]:
    """Every question about eighteen views, some of them healed, of other sequences or of another modality."""
    views = [view(number) for number in range(8)]
    views += [
        replace(one, masks={"ventricle": one.masks["ventricle"]}, healed=("glioma",), hole=disc(26, 26, 20))
        for one in views[:3]
    ]
    views += [view(number, submodality="T1W") for number in range(20, 23)]
    views += [view(number, modality="CT", submodality="", masks={}) for number in range(30, 34)]
    views += [view(40, masks={"glioma": disc(24, 24, 7) | disc(70, 70, 8), "meningioma": disc(60, 30, 6)})]
    views += [view(50, masks={"ventricle": disc(70, 24, 9), "pituitary tumour": disc(30, 30, 9)})]
    maker = Maker(seed=1, per_image=99)
    found = [outcome for one in views for outcome in maker.about(one)]
    found += list(maker.across(views))
    assert not [one for one in found if isinstance(one, Rejection)]
    return [one for one in found if isinstance(one, Made)]


def test_every_template_has_twelve_phrasings_and_says_its_rule() -> None:
    for template in TEMPLATES.values():
        assert len(set(template.phrasings)) >= 12, template.name
        assert template.rule
        assert (template.drafts is None) != (template.several is None)
        assert (template.holds is None) != (template.value is None)


def test_the_views_give_questions_of_most_templates_and_each_is_proved(made: list[Made]) -> None:
    names = Counter(one.question.template for one in made)
    # Not here: parts of a lesion, several haemorrhages, lesions that are counted by their plural.
    rare = {"outlined_part", "class_present", "class_absent", "lesion_count", "shape"}
    assert set(TEMPLATES) - set(names) <= rare
    for one in made:
        assert prove(one.question), one.question.template
        assert "{" not in one.question.text
        assert "[" not in one.question.text.replace("[x, y]", "").replace("[0, 0]", "").replace(
            "[left, top,", ""
        )


def test_the_key_is_the_only_true_option(made: list[Made]) -> None:
    """Any other option as the key, and any two true options, are refused."""
    closed = [one.question for one in made if one.question.kind == "closed"]
    for question in closed:
        other = next(option for option in question.options if option != question.answer)
        with pytest.raises(MieError, match=r"contradicts the key|several options"):
            prove(replace(question, answer=other))


def test_letters_are_uniform(made: list[Made]) -> None:
    maker = Maker(seed=2, per_image=1, templates=["modality"], open_share=0.0)
    views = [view(0, masks={}, case_id=f"c{number}") for number in range(300)]
    letters = Counter(one.question.letter for v in views for one in maker.about(v) if isinstance(one, Made))
    assert set(letters) == set("ABCDE")
    assert stats.chisquare(list(letters.values())).pvalue > 0.001


def test_two_true_options_are_an_evidence_conflict() -> None:
    """Two names for the same region: which one is outlined cannot be told."""
    same = disc(70, 24, 9)
    masks = {"ventricle": same, "cerebellum": same, "pons": disc(30, 70, 8)}
    maker = Maker(seed=1, per_image=99, templates=["outlined_structure"], open_share=0.0)
    outcomes = [
        o
        for n in range(12)
        for o in maker.about(view(n, masks=masks, targets={k: TARGETS[k] for k in masks}))
    ]
    refused = [one for one in outcomes if isinstance(one, Rejection)]
    assert refused
    assert all(one.gate == "evidence" and "several options are true" in one.reason for one in refused)
    kept = [one.question for one in outcomes if isinstance(one, Made)]
    assert not [
        one for one in kept if one.answer != "Pons" and {"Ventricle", "Cerebellum"} <= set(one.options)
    ]


def test_measurements_agree_with_scipy() -> None:
    mask = disc(30, 40, 11) | disc(70, 60, 9)
    region = Region(mask)
    rows, columns = ndimage.center_of_mass(mask)
    assert region.centre == pytest.approx(((columns + 0.5) / 96, (rows + 0.5) / 96))
    assert region.count == ndimage.label(mask, np.ones((3, 3)))[1] == 2
    one = Region(disc(30, 40, 11))
    assert one.diameter == pytest.approx(pdist(np.argwhere(one.mask)).max() + 1, abs=0.5)
    x, y, radius = one.core
    assert (x * 96, y * 96) == pytest.approx((30.5, 40.5), abs=1.1)
    assert radius * 96 == pytest.approx(11, abs=1.2)
    other = Region(disc(70, 60, 9))
    distances = ndimage.distance_transform_edt(~other.mask)[one.mask]
    assert gap_between(one, other) == pytest.approx(distances.min(), rel=0.03)
    left, top, right, bottom = one.box
    assert one.mask[top:bottom, left:right].sum() == one.area
    assert overlap((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)


def test_a_part_that_not_everybody_would_count_leaves_the_number_open() -> None:
    assert Region(disc(30, 40, 12) | disc(70, 60, 3)).count is None
    assert Region(disc(30, 40, 12)).count == 1


def test_places_and_shapes_are_told_only_where_they_are_clear() -> None:
    assert quadrant_of(disc(24, 24, 8)) == "Upper left"
    assert quadrant_of(disc(72, 70, 8)) == "Lower right"
    assert quadrant_of(disc(48, 48, 8)) == "Centre"
    assert quadrant_of(disc(48, 20, 8)) is None
    assert direction_of(Region(disc(20, 50, 5)), Region(disc(70, 48, 5))) == "To the left"
    assert direction_of(Region(disc(20, 20, 5)), Region(disc(70, 70, 5))) is None
    assert (bin_of(0.004), bin_of(0.03), bin_of(0.0101), bin_of(0.5)) == (
        *("Less than 1 %", "1 to 5 %"),
        None,
        "More than 30 %",
    )
    assert shape_of(Region(disc(40, 40, 12))) == "Round or oval"
    bar = np.zeros((96, 96), np.bool_)
    bar[40:48, 10:80] = True
    assert shape_of(Region(bar)) == "Elongated"
    bar[40:90, 10:18] = True
    assert shape_of(Region(bar)) == "Irregular with an indented outline"


def test_brightness_compares_with_the_ring_around_a_lesion() -> None:
    image = np.full((96, 96, 3), 90, np.uint8)
    mask = disc(40, 40, 10)
    image[mask] = 150
    found = Region(mask).contrast(image, mask)
    assert found == pytest.approx(60, abs=0.5)
    image[~mask] = 0  # air says nothing about tissue
    assert Region(mask).contrast(image, mask) is None


def test_classes_and_parts_have_a_common_name() -> None:
    names = ["benign breast lesion", "malignant breast lesion"]
    targets = [Target(name, "lesion") for name in names]
    assert groups_of(targets) == {Target("breast lesion", "lesion"): names}
    parts = [Target(name, "lesion") for name in ("necrotic tumour core", "enhancing tumour")]
    assert common_name(parts[0], parts).name == "brain tumour"
    assert common_name(Target("polyp", "lesion"), parts).name == "polyp"


def test_wrong_options_cannot_be_right_by_another_name() -> None:
    assert "kidneys" not in other_structures("left kidney", "liver", ["liver"])
    assert "left kidney" in other_structures("right kidney", "abdomen", ["left kidney", "right kidney"])
    assert "endoscopy" not in other_modalities("surgical photo")


def test_a_mark_that_is_not_drawn_fails_the_proof(made: list[Made]) -> None:
    question = next(one.question for one in made if one.question.template == "outlined_structure")
    plain = replace(
        question, images=(next(m.question.images[0] for m in made if m.question.template == "modality"),)
    )
    with pytest.raises(MieError, match="outline"):
        prove(plain)


def test_a_healed_image_must_equal_its_original_elsewhere(made: list[Made]) -> None:
    question: Question = next(one.question for one in made if one.question.template == "lesion_or_healed")
    assert question.flags == ("counterfactual",)
    strange = next(
        one.question for one in made if one.question.modality == "CT" and len(one.question.images) == 1
    )
    with pytest.raises(MieError, match="differs from its original"):
        prove(replace(question, images=(question.images[0], strange.images[0])))


def test_the_words_of_a_question_lead_to_its_task(made: list[Made]) -> None:
    same = [label_task(one.question.text) == one.question.task for one in made]
    assert np.mean(same) > 0.85


def test_an_unknown_template_is_answered_with_the_nearest() -> None:
    with pytest.raises(MieError, match="modality"):
        find_template("modalty")


def test_a_view_is_rebuilt_from_its_facts() -> None:
    one = view(3)
    again = View.from_facts(one.facts(), one.image, one.masks)
    assert again.facts() == one.facts()
    assert again.targets == one.targets
