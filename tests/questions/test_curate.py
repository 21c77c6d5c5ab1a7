"""Each step of curation on lines whose outcome is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from mie.images.hashes import perceptual
from mie.questions.curate import curate, features_of, in_domain
from mie.questions.label import agreement
from mie.questions.recipe import CurateConfig
from tests.conftest import crop

PLAIN = CurateConfig(near_duplicates=False, most_same_answer=1.0, most_above_chance=10, blind="off")


def line(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "kind": "closed",
        "text": "Which modality is this?",
        "answer": "CT",
        "letter": "A",
        "options": ["CT", "MRI"],
        "task": "IMI",
        "modality": "CT",
        "anatomy": "brain",
        "template": "modality",
        "subject": "",
        "source": "s",
        "case_id": f"c{number}",
        "patient_id": f"p{number}",
        "split": "test",
        "content": f"{number}",
        "cases": [f"s//c{number}"],
        **changes,
    }


def images(*pictures: np.ndarray) -> dict[str, dict[str, Any]]:
    found = {}
    for number, pixels in enumerate(pictures):
        value, thumb = perceptual(pixels)
        found[f"s//c{number}"] = {"hash": value, "thumb": thumb, "split": "test"}
    return found


def test_the_same_question_about_the_same_pixels_stays_once() -> None:
    result = curate([line(0), line(1, content="0"), line(2)], {}, {}, PLAIN, 0)
    assert result.kept == [0, 2]
    assert [one.gate for one in result.rejections] == ["duplicate"]


def test_nearly_equal_images_give_one_question() -> None:
    first, other = crop(0), crop(1)
    brighter = np.clip(first.astype(int) + 6, 0, 255).astype(np.uint8)
    config = PLAIN.model_copy(update={"near_duplicates": True})
    lines = [line(0), line(1), line(2), line(3, answer="MRI", cases=["s//c1"])]
    result = curate(lines, images(first, brighter, other), {}, config, 0)
    assert result.kept == [0, 2, 3]


def test_questions_outside_the_domain_go() -> None:
    config = PLAIN.model_copy(update={"domain": ("brain",)})
    lines = [
        line(0),
        line(1, anatomy="retina"),
        line(2, anatomy="unknown", text="Which lobe of the lung is affected?"),
        line(3, anatomy="unknown", text="Where is the cerebral infarct?"),
    ]
    assert curate(lines, {}, {}, config, 0).kept == [0, 3]
    assert in_domain("anything", "brain", ("brain",))


def test_one_sided_answers_are_thinned() -> None:
    """Nineteen of twenty say CT: without the image everybody would."""
    config = PLAIN.model_copy(update={"most_same_answer": 0.6})
    lines = [line(number, answer="MRI" if number == 0 else "CT") for number in range(20)]
    kept = curate(lines, {}, {}, config, 0).kept
    assert 0 in kept
    assert len(kept) == 1 + 4  # the few that always stay
    again = curate(lines, {}, {}, config, 0).kept
    assert again == kept


def test_an_option_that_is_mostly_right_where_it_is_offered_is_thinned() -> None:
    """MRI is the key of a third, as often as CT, but nobody offers it as a wrong option."""
    wrong = ("CT", "PET", "SPECT", "X-ray", "ultrasound")
    lines = [
        line(number, answer="MRI", options=["MRI", *(wrong[(number + k) % 5] for k in range(4))])
        for number in range(40)
    ]
    lines += [
        line(100 + number, answer=wrong[number % 5], options=[*wrong], subject=str(number))
        for number in range(80)
    ]
    config = PLAIN.model_copy(update={"most_above_chance": 1.5})
    result = curate(lines, {}, {}, config, 0)
    kept = [lines[at] for at in result.kept]
    assert {one.gate for one in result.rejections} == {"options"}
    # What nobody offers wrongly stays four times; of the others an option is right in at most 3 of 10.
    assert sum(one["answer"] == "MRI" for one in kept) == 4
    assert sum(one["answer"] != "MRI" for one in kept) == 80
    for name in wrong:
        offered = [one for one in kept if name in one["options"]]
        assert sum(one["answer"] == name for one in offered) <= 0.3 * len(offered)
    assert curate(lines, {}, {}, config, 0).kept == result.kept
    assert len(curate(lines, {}, {}, PLAIN, 0).kept) == 120


def test_a_quota_is_spread_over_strata_and_clusters() -> None:
    config = PLAIN.model_copy(update={"keep": 6})
    lines = [
        line(number, task="IMI" if number < 12 else "LL", cases=[f"s//c{number % 3}"]) for number in range(16)
    ]
    result = curate(lines, images(crop(0), crop(1), crop(2)), {}, config, 0)
    chosen = [lines[at] for at in result.kept]
    assert sorted(one["task"] for one in chosen) == ["IMI"] * 3 + ["LL"] * 3
    # Three clusters of IMI: one of each image.
    assert {one["cases"][0] for one in chosen if one["task"] == "IMI"} == {"s//c0", "s//c1", "s//c2"}


def test_sentence_and_image_both_count_as_features() -> None:
    lines = [line(0), line(0), line(0, text="Where does the lesion lie?"), line(1)]
    features = features_of(lines, images(crop(0), crop(1)))
    assert np.allclose(features[0], features[1])
    assert not np.allclose(features[0], features[2])
    assert not np.allclose(features[0], features[3])


def test_what_other_patients_give_away_is_marked_or_refused() -> None:
    lines = [line(number, subject="polyp") for number in range(20)]
    lines += [line(20 + number, subject="stroke", answer=("CT", "MRI")[number % 2]) for number in range(20)]
    marked = curate(lines, {}, {}, PLAIN.model_copy(update={"blind": "mark"}), 0)
    assert marked.blind == set(range(20))
    assert len(marked.kept) == 40
    refused = curate(lines, {}, {}, PLAIN.model_copy(update={"blind": "refuse"}), 0)
    assert refused.kept == list(range(20, 40))


def test_agreement_leaves_out_what_is_unknown() -> None:
    assert agreement(["LL", "LL", "AS", "unknown"], ["LL", "AS", "AS", "LL"]) == {
        "questions": 3,
        "agree": 0.6667,
        "kappa": 0.4,
    }
