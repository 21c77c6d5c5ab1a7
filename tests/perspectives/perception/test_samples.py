from collections import Counter

import numpy as np
import pytest

from mie.images.overlay import deblend, dice
from mie.perspectives.perception.phrasings import PHRASINGS, ask_for_all, ask_for_one
from mie.perspectives.perception.samples import Perception
from mie.records import Target
from mie.vocabulary import COLOURS, MODALITIES
from tests.conftest import crop, ellipse, make_case


def samples(case, split="train", seed=1, **options):
    return list(Perception(**options).samples(case, split, seed))


def test_one_sample_per_target_and_one_for_all():
    found = samples(make_case(0, n_targets=3))
    assert [(s.task, s.target) for s in found[:3]] == [
        ("structure", "optic disc"),
        ("lesion", "hard exudates"),
        ("structure", "cup"),
    ]
    assert found[3].task == "holistic"
    assert set(found[3].target.split(", ")) == {"optic disc", "hard exudates", "cup"}


def test_training_is_scaled_to_its_bin_and_test_keeps_its_size():
    case = make_case(0)
    (train,) = samples(case)
    (test,) = samples(case, "test")
    assert (train.bin, train.input.shape) == (128, (128, 128, 3))
    assert (test.bin, test.input.shape) == (None, (160, 160, 3))
    assert np.array_equal(test.input, case.image)
    assert train.id == test.id  # the same triplet, whatever its size


def test_painted_after_scaling_so_the_blend_is_exact():
    (sample,) = samples(make_case(3))
    region = sample.mask > 0
    expected = (4 * sample.input.astype(int) + 6 * np.array(COLOURS[sample.colour]) + 5) // 10
    assert np.array_equal(sample.target_image[region], expected[region])
    assert np.array_equal(sample.target_image[~region], sample.input[~region])
    assert dice(deblend(sample.input, sample.target_image, sample.colour), region) > 0.99


def test_the_smaller_class_lies_on_top():
    disc = ellipse(0)
    cup = np.zeros_like(disc)
    rows, columns = np.nonzero(disc)
    cup[rows[: len(rows) // 4], columns[: len(rows) // 4]] = True
    case = make_case(0, n_targets=0, masks={"optic disc": disc, "cup": cup})
    whole = samples(case, "test")[-1]
    names = [c["target"] for c in whole.params["classes"]]
    assert names == ["optic disc", "cup"]
    assert np.array_equal(whole.mask == 255, cup)
    assert np.array_equal(whole.mask == 128, disc & ~cup)


def test_more_than_three_classes_are_drawn_by_seed():
    names = [f"part {n}" for n in range(6)]
    masks = {n: np.zeros((160, 160), bool) for n in names}
    for k, mask in enumerate(masks.values()):
        mask[20 * k : 20 * k + 15, 10:150] = True
    targets = {n: Target(n, "anatomy") for n in names}
    drawn = [
        samples(make_case(0, masks=masks, targets=targets, case_id=str(n)), "test")[-1] for n in range(30)
    ]
    assert all(len(s.params["classes"]) == 3 for s in drawn)
    assert len({c["target"] for s in drawn for c in s.params["classes"]}) == 6
    assert not any(word in s.prompt for s in drawn for word in ("whole", "full", "every", "map"))


def test_everything_follows_from_case_and_seed():
    first, again, other = (samples(make_case(5, n_targets=2), seed=s) for s in (1, 1, 2))
    assert [(s.id, s.prompt, s.colour) for s in first] == [(s.id, s.prompt, s.colour) for s in again]
    assert [s.id for s in first] == [s.id for s in other]
    assert [s.seed for s in first] != [s.seed for s in other]


def test_colours_and_phrasings_are_spread():
    found = [samples(make_case(0, case_id=str(n)))[0] for n in range(300)]
    colours = Counter(s.colour for s in found)
    assert set(colours) == set(COLOURS)
    assert min(colours.values()) > 60
    assert len({s.prompt_template for s in found}) == len(PHRASINGS["structure"])


def test_other_pixels_give_another_id():
    ids = {samples(make_case(0, image=crop(n)))[0].id for n in range(5)}
    assert len(ids) == 5


@pytest.mark.parametrize("task", PHRASINGS)
def test_phrasings_name_target_and_colour_in_good_grammar(task):
    assert len(set(PHRASINGS[task])) == len(PHRASINGS[task]) >= 15
    for template in PHRASINGS[task]:
        for modality in MODALITIES:
            if task == "holistic":
                painted = [(Target("liver", "anatomy"), "red"), (Target("kidneys", "anatomy", True), "blue")]
                texts = [ask_for_all(template, painted, modality)]
                words = ["liver", "kidneys", "red", "blue"]
            else:
                texts = [
                    ask_for_one(template, Target("lesion", "lesion"), "green", modality),
                    ask_for_one(template, Target("hard exudates", "lesion", True), "green", modality),
                ]
                words = ["green"]
                assert "lesion" in texts[0]
                assert "hard exudates" in texts[1]
                assert not {" them", " are "} & {w for w in (" them", " are ") if w in texts[0]}
                assert " it " not in texts[1].replace("as it was", "")
                assert " is " not in texts[1]
            for text in texts:
                assert all(word in text for word in words)
                assert text[0].isupper()
                assert text[-1] in ".?"
                assert "{" not in text
                assert "  " not in text


def test_the_steps_that_made_the_pixels_are_kept():
    steps = ({"step": "window", "low": -160, "high": 240},)
    (sample,) = samples(make_case(0, steps=steps, spacing=(0.5, 0.7)))
    assert sample.params["image_steps"] == [dict(steps[0])]
    assert sample.params["spacing"] == [0.5, 0.7]
    assert sample.params["original_size"] == [160, 160]
