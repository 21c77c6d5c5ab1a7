"""A modification sample that changes anything but its mask is refused, whatever kind it is."""

from dataclasses import replace

import numpy as np
import pytest

from mie.perspectives.modification.proof import background_gate, background_problems, prove
from mie.perspectives.modification.samples import Modification
from tests.perspectives.modification.lesions import lesion_case


def samples(**changes):
    made = Modification(inpainter="telea", detector=None, candidates=1)
    case = lesion_case(**changes)
    return {s.task: s for s in made.samples(case, "train", 0)}


@pytest.fixture(scope="module")
def sound():
    return samples()


@pytest.fixture(scope="module")
def grey():
    return samples(grey=True, modality="ultrasound", anatomy="breast")


@pytest.mark.parametrize("task", ["removal", "addition", "inpainting", "simulation"])
@pytest.mark.parametrize("image", ["input", "target_image"])
def test_one_grey_level_of_one_pixel_outside_is_found(sound, task, image):
    sample = sound[task]
    assert background_problems(sample) == []
    changed = getattr(sample, image).copy()
    row, column = np.argwhere(sample.mask == 0)[137]
    changed[row, column, 1] ^= 1
    rejection = background_gate(replace(sample, **{image: changed}))
    assert rejection is not None
    assert rejection.gate == "background"
    assert rejection.numbers == {"outside": 1}


@pytest.mark.parametrize("task", ["inpainting", "simulation"])
def test_a_hole_that_is_not_white_is_found(sound, task):
    sample = sound[task]
    leaking = sample.input.copy()
    leaking[tuple(np.argwhere(sample.mask > 0)[40])] = 254
    (problem,) = background_problems(replace(sample, input=leaking))
    assert problem[1] == {"not_white": 1}


@pytest.mark.parametrize("task", ["removal", "addition"])
def test_nothing_changed_is_found(sound, task):
    assert background_gate(replace(sound[task], target_image=sound[task].input)) is not None


@pytest.mark.parametrize("task", ["removal", "addition", "inpainting"])
def test_colour_in_a_grey_picture_is_found(grey, task):
    sample = grey[task]
    name = "input" if task == "addition" else "target_image"
    tinted = getattr(sample, name).copy()
    tinted[tuple(np.argwhere(sample.mask > 0)[7])] = (9, 8, 7)
    problems = background_problems(replace(sample, **{name: tinted}))
    assert [reason for reason, _ in problems] == ["a grey picture was filled with colour"]


def test_a_mask_is_needed(sound):
    sample = sound["removal"]
    for mask in (None, np.zeros_like(sample.mask), np.full_like(sample.mask, 255)):
        assert background_problems(replace(sample, mask=mask))


@pytest.mark.parametrize("task", ["removal", "addition", "inpainting", "simulation"])
def test_drawn_tissue_is_marked_from_version_2_on(sound, task):
    sample = sound[task]
    assert prove(sample) == []
    unmarked = replace(sample, params={k: v for k, v in sample.params.items() if k != "synthetic"})
    assert [kind for kind, _ in prove(unmarked)] == ["synthetic"]
    assert prove(replace(unmarked, recipe_version=1)) == [], "as an earlier mie built it"
    lesion = replace(sample, params={**sample.params, "synthetic": "lesion"}, recipe_version=1)
    assert [kind for kind, _ in prove(lesion)] == ["synthetic"], "only a painted one is marked so"
