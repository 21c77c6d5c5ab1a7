from dataclasses import replace

import numpy as np
import pytest

from mie.datasets.leaks import Traces, duplicates, image_leaks, patient_leaks
from mie.images.hashes import perceptual
from mie.perspectives.gates import TrivialGate
from mie.perspectives.perception.samples import Perception, cut_off, proof, proof_gate, visible_gate
from tests.conftest import crop, make_case


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
    refusal = TrivialGate()(sample_with(mask))
    assert refusal is not None
    assert refusal.gate == gate
    assert word in refusal.reason


def test_a_sound_sample_passes():
    sample = sample_with(square(40))
    assert TrivialGate()(sample) is None
    assert proof_gate(sample) is None
    assert min(proof(sample).values()) >= 0.99


def test_an_image_of_one_colour_is_refused():
    refusal = TrivialGate()(sample_with(square(40), np.full((160, 160, 3), 77, np.uint8)))
    assert refusal is not None
    assert refusal.gate == "blank"


def test_what_the_image_does_not_show_is_refused():
    mask = square(40)
    black = crop(0)
    black[:80, :80] = 0  # the region and around it, as a window cuts off
    refusal = visible_gate(sample_with(mask, black))
    assert refusal is not None
    assert refusal.gate == "invisible"
    assert refusal.numbers["cut_off"] == 1
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
    sample = sample_with(square(60))
    pure = np.zeros((160, 160, 3), np.uint8)
    pure[..., {"red": 0, "green": 1, "blue": 2}[sample.colour]] = 255
    lost = sample_with(square(60), pure)
    assert lost.colour == sample.colour or proof_gate(lost) is None
    lost = replace(sample, input=pure, target_image=pure)
    refusal = proof_gate(lost)
    assert refusal is not None
    assert refusal.gate == "proof"
    assert refusal.numbers[sample.colour] < 0.01


def traces(rows):
    images = [crop(r.get("image", n), 256, 256) for n, r in enumerate(rows)]
    marks = [perceptual(i) for i in images]
    return Traces(
        ids=[f"id{n}" for n in range(len(rows))],
        splits=[r["split"] for r in rows],
        sources=["s"] * len(rows),
        case_ids=[r.get("case", f"c{n}") for n, r in enumerate(rows)],
        patients=[r.get("patient") for r in rows],
        content=[r.get("content", f"{n}").encode() for n, r in enumerate(rows)],
        hashes=np.array([h for h, _ in marks], np.uint64),
        thumbs=np.frombuffer(b"".join(t for _, t in marks), np.uint8).reshape(-1, 256),
    )


def test_of_two_equal_samples_the_test_one_stays():
    found = duplicates(
        traces(
            [
                {"split": "train", "content": "a"},
                {"split": "test", "content": "a"},
                {"split": "train", "content": "b"},
            ]
        )
    )
    assert [(o.index, o.other, o.gate) for o in found] == [(0, 1, "duplicate")]


def test_of_two_equal_samples_in_one_split_the_first_stays():
    found = duplicates(traces([{"split": "train", "content": "a"}, {"split": "train", "content": "a"}]))
    assert [(o.index, o.other) for o in found] == [(1, 0)]


def test_a_patient_on_both_sides_leaves_training():
    found = patient_leaks(
        traces(
            [
                {"split": "train", "patient": "p1"},
                {"split": "val", "patient": "p1"},
                {"split": "test", "patient": "p1"},
                {"split": "train", "patient": "p2"},
                {"split": "train"},
                {"split": "test"},
            ]
        )
    )
    assert [(o.index, o.other) for o in found] == [(0, 2), (1, 2)]
    assert "patient p1 is also in test" in found[0].reason


def test_a_case_without_patient_stands_for_itself():
    found = patient_leaks(traces([{"split": "train", "case": "x"}, {"split": "test", "case": "x"}]))
    assert [(o.index, o.other) for o in found] == [(0, 1)]


def test_near_duplicate_images_leave_training():
    rows = [{"split": "train", "image": 4}, {"split": "train", "image": 5}, {"split": "test", "image": 4}]
    assert [(o.index, o.other, o.gate) for o in image_leaks(traces(rows))] == [(0, 2, "leak")]
    assert image_leaks(traces([{"split": "train", "image": 4}, {"split": "train", "image": 4}])) == []
