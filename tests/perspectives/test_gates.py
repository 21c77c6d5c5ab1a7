from dataclasses import replace

import numpy as np
import pytest

from mie.perspectives import PERSPECTIVES, GateConfig
from mie.perspectives.perception.samples import Perception, cut_off, proof, proof_gate, prove, visible_gate
from mie.perspectives.perspective import TrivialGate
from tests.conftest import crop, make_case
from tests.perspectives.modification.lesions import lesion_case


def sample_with(mask, image=None):
    image = crop(0) if image is None else image
    return next(Perception().samples(make_case(0, image=image, masks={"optic disc": mask}), "test", 0))


def square(side, size=160):
    mask = np.zeros((size, size), bool)
    mask[10 : 10 + side, 20 : 20 + side] = True
    return mask


@pytest.mark.parametrize(
    ("mask", "gate", "word"),
    [
        (square(0), "area", "empty"),
        (square(4), "area", "too small"),
        (np.ones((160, 160), bool), "area", "fills 100.0%"),
    ],
)
def test_trivial_regions_are_refused(mask, gate, word):
    rejection = TrivialGate()(sample_with(mask))
    assert rejection is not None
    assert rejection.gate == gate
    assert word in rejection.reason


def test_a_sound_sample_passes():
    sample = sample_with(square(40))
    assert TrivialGate()(sample) is None
    assert proof_gate(sample) is None
    assert min(proof(sample).values()) >= 0.99


def test_an_image_of_one_colour_is_refused():
    rejection = TrivialGate()(sample_with(square(40), np.full((160, 160, 3), 77, np.uint8)))
    assert rejection is not None
    assert rejection.gate == "blank"


def test_what_the_image_does_not_show_is_refused():
    mask = square(40)
    black = crop(0)
    black[:80, :80] = 0  # the region and around it, as a window cuts off
    rejection = visible_gate(sample_with(mask, black))
    assert rejection is not None
    assert rejection.gate == "invisible"
    assert rejection.numbers["cut_off"] == 1
    assert visible_gate(sample_with(mask)) is None
    outlined = crop(0)
    outlined[mask] = 0
    outlined[~mask] = np.maximum(outlined[~mask], 30)
    assert visible_gate(sample_with(mask, outlined)) is None


def test_cut_off_worked_by_hand():
    image = np.full((200, 200), 50, np.uint8)
    region = np.zeros((200, 200), bool)
    region[100:120, 100:120] = True  # looked at with 3 pixels around it
    assert cut_off(image, region) == 0
    image[97:123, 97:123] = 2
    assert cut_off(image, region) == 1
    assert cut_off(255 - image, region) == 1
    image[100:105] = 3  # a quarter of the region, and 5 of its surroundings' 6 pixels wide rows
    assert cut_off(image, region) == 0.75
    image[region] = 255
    assert cut_off(image, region) == 0
    assert cut_off(image, np.zeros_like(region)) == 0


def test_a_region_that_cannot_be_read_back_is_refused():
    """On a region that already has the overlay's colour, painting changes nothing."""
    mask = square(60)
    outcomes = {}
    for number in range(12):  # the colour is drawn by the content
        image = crop(number)
        image[mask] = (255, 0, 0)
        sample = sample_with(mask, image)
        outcomes.setdefault(sample.colour, []).append(proof_gate(sample))
    assert set(outcomes) == {"red", "green", "blue"}
    for rejection in outcomes["red"]:
        assert (rejection.gate, rejection.numbers) == ("proof", {"red": pytest.approx(0, abs=1e-6)})
    assert outcomes["green"] + outcomes["blue"] == [None] * (12 - len(outcomes["red"]))


@pytest.mark.parametrize(("unpainted", "sound"), [(30, True), (75, False), (400, False)])
def test_the_read_back_region_must_agree_to_a_hundredth(unpainted, sound):
    """Of 3600 pixels 30, 75 or 400 are not painted: DICE 0.996, 0.990 (just below), 0.941."""
    sample = sample_with(square(60))
    rows, columns = np.nonzero(sample.mask)
    target = sample.target_image.copy()
    gone = rows[:unpainted], columns[:unpainted]
    target[gone] = sample.input[gone]
    worse = replace(sample, target_image=target)
    (dice,) = proof(worse).values()
    assert dice == pytest.approx(2 * (3600 - unpainted) / (7200 - unpainted), abs=0.002)
    assert (proof_gate(worse) is None) == sound
    assert ("overlay" in {check for check, _ in prove(worse)}) != sound


@pytest.mark.parametrize(("black_rows", "kept"), [(22, True), (28, False), (36, False)])
def test_what_may_be_cut_off_is_bounded_on_both_sides(black_rows, kept):
    """All that surrounds the region is black, and so many of its own 40 rows."""
    mask = square(40)
    image = np.maximum(crop(0), 30)
    shown = np.zeros_like(mask)
    shown[10 + black_rows : 50] = mask[10 + black_rows : 50]
    image[:80, :80] = np.where(shown[:80, :80, None], image[:80, :80], 0)
    rejection = visible_gate(sample_with(mask, image))
    assert (rejection is None) == kept
    if rejection is not None:
        assert rejection.numbers["cut_off"] == pytest.approx(black_rows / 40)


def first_refusal(perspective, sample):
    """What a build says of the sample: the first of its perspective's gates that rejects it."""
    of = PERSPECTIVES[perspective]
    gates = of.gates(of.config(), GateConfig())
    return next((rejection.gate for gate in gates if (rejection := gate(sample)) is not None), None)


def test_a_build_uses_every_gate_of_perception():
    mask = square(60)
    sound = sample_with(mask)
    assert first_refusal("perception", sound) is None
    assert first_refusal("perception", replace(sound, mask=np.zeros_like(sound.mask))) == "area"
    assert first_refusal("perception", replace(sound, target_image=sound.input)) == "proof"
    black = crop(0)
    black[:90, :100] = 0
    assert first_refusal("perception", sample_with(mask, black)) == "invisible"


def test_a_build_uses_every_gate_of_modification():
    from mie.perspectives.modification.samples import Modification

    made = Modification(inpainter="telea", detector=None, candidates=1, kinds=("removal",))
    (sound,) = made.samples(lesion_case(), "train", 0)
    assert first_refusal("modification", sound) is None
    assert first_refusal("modification", replace(sound, target_image=sound.input)) == "background"
    assert first_refusal("modification", replace(sound, mask=np.zeros_like(sound.mask))) == "area"


def test_a_build_uses_every_gate_of_transformation():
    from mie.perspectives.transformation.samples import Transformation
    from mie.records import Pairing

    pairing = Pairing("mri_sequence", "T1-weighted MRI", "T2-weighted MRI")
    case = make_case(0, masks={}, pair=255 - crop(0), pairing=pairing, modality="MRI", anatomy="brain")
    (sound,) = Transformation().samples(case, "test", 0)
    assert first_refusal("transformation", sound) is None
    assert first_refusal("transformation", replace(sound, target_image=sound.input)) == "identical"
    flat = np.full_like(sound.input, 9)
    assert first_refusal("transformation", replace(sound, input=flat)) == "blank"
