"""What only shows across samples: duplicates, patients and images on both sides of a split."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from mie.datasets.leaks import Traces, content_key, duplicates, image_leaks, patient_leaks
from mie.datasets.recipe import SplitConfig, split_of
from mie.images.hashes import near_pairs, perceptual
from tests.conftest import crop, make_case


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


@pytest.mark.parametrize(("low", "high"), [("train", "val"), ("train", "test"), ("val", "test")])
def test_every_two_splits_are_compared(low, high):
    """Each pair of splits by itself, so that validation is looked at as closely as test."""
    rows = [
        {"split": high, "patient": "p1", "image": 4},
        {"split": low, "patient": "p1", "image": 9},
        {"split": low, "patient": "p2", "image": 4},
        {"split": low, "patient": "p3", "image": 11},
    ]
    assert [(o.index, o.other) for o in patient_leaks(traces(rows))] == [(1, 0)]
    assert [(o.index, o.other) for o in image_leaks(traces(rows))] == [(2, 0)]


@pytest.mark.parametrize(("bits", "near"), [(0, True), (6, True), (10, True), (11, False), (18, False)])
def test_images_are_near_up_to_ten_bits_of_their_hashes(bits, near):
    _, thumb = perceptual(crop(3, 256, 256))
    thumbs = np.frombuffer(thumb, np.uint8).reshape(1, 256)
    one, other = np.array([0], np.uint64), np.array([2**bits - 1], np.uint64)
    assert near_pairs(one, thumbs, other, thumbs) == ([(0, 0)] if near else [])


def test_what_makes_two_samples_the_same():
    one = {"input": b"a", "target_image": b"b", "mask": None}
    other = {**one, "target_image": b"c"}
    assert content_key(one, "image") != content_key(other, "image")
    painted, repainted = {**one, "mask": b"m"}, {**other, "mask": b"m"}
    assert content_key(painted, "overlay") == content_key(repainted, "overlay")  # in another colour
    # One white hole, filled with healthy tissue or with a lesion.
    assert content_key(painted, "area") != content_key(repainted, "area")


def test_shares_are_those_of_the_recipe():
    """Drawn anew, from the definition: 30 % test, then 20 % validation, by a hash of seed and patient."""
    shares, seed = SplitConfig(test=0.3, val=0.2), 5
    found = {}
    for number in range(3000):
        patient = f"cohort/p{number}"
        text = json.dumps(["split", seed, patient], separators=(",", ":"))
        place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        split = split_of(make_case(0, patient_id=patient), shares, seed)
        assert split == ("test" if place < 0.3 else "val" if place < 0.5 else "train")
        found[split] = found.get(split, 0) + 1
    assert found["test"] == pytest.approx(900, abs=100)
    assert found["val"] == pytest.approx(600, abs=90)


def test_a_data_sets_own_split_and_unknown_patients():
    shares = SplitConfig(test=0.5)
    assert split_of(make_case(0, split="val", patient_id="p"), shares, 1) == "val"
    alone = {split_of(make_case(0, case_id=f"c{n}"), shares, 1) for n in range(40)}
    assert alone == {"train", "test"}
    together = {split_of(make_case(0, case_id=f"c{n}", patient_id="p"), shares, 1) for n in range(40)}
    assert len(together) == 1


def test_a_target_image_in_training_that_is_an_input_in_test_leaks_across_perspectives():
    """A clean image that a transformation leads to, and that perception tests on."""
    alone = traces([{"split": "train", "image": 1}, {"split": "test", "image": 2}])
    assert image_leaks(alone) == []
    hash_, thumb = perceptual(crop(2, 256, 256))
    shown = replace(
        alone,
        goal_owners=np.array([0]),
        goal_hashes=np.array([hash_], np.uint64),
        goal_thumbs=np.frombuffer(thumb, np.uint8)[None],
    )
    (offence,) = image_leaks(shown)
    assert (offence.index, offence.other) == (0, 1)
