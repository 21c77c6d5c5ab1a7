"""Datasets to a pack: pixels, class numbers, folds and words are those of the stored samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.images.overlay import paint
from mie.perspectives.perception.samples import Perception
from mie.training.pack import TRAIN, VALIDATION, join_packs, part_of
from mie.training.pack_datasets import class_numbers, pack_datasets
from mie.training.wordings import held_out_templates
from mie.vocabulary import COLOURS
from tests.conftest import crop, make_case
from tests.training.conftest import painted, same, write_samples


def rgb(image: np.ndarray) -> np.ndarray:
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)


def test_the_stored_overlay_comes_back_from_image_mask_and_colours(overlays) -> None:
    pack = pack_datasets([overlays])
    stored = {s.id: s for s in Dataset(overlays).samples("train")}
    assert stored.keys() == {row.id for row in pack.rows}
    assert len(pack.images) == 40, "an image that several rows share is there once"
    assert {row.classes for row in pack.rows} == {1, 3}
    for row in pack.rows:
        sample = stored[row.id]
        shown = rgb(pack.images[row.input])
        assert (row.task, row.source, row.patient_id) == (sample.task, sample.source, sample.patient_id)
        for k, colour in enumerate((sample.colour or "").split(","), start=1):
            shown = paint(shown, pack.masks[row.mask] == k, colour)
        assert same(shown, sample.target_image)


def test_words_are_those_of_the_recipe_in_correct_grammar(overlays) -> None:
    pack = pack_datasets([overlays], wordings=1000)
    stored = {s.id: s for s in Dataset(overlays).samples("train")}
    for row in pack.rows:
        ask, sample = pack.instructions[row.instruction], stored[row.id]
        said = {w.prompt: w for w in (*ask.wordings, *ask.held_out)}
        seen = {w.prompt for w in ask.wordings}
        assert (sample.prompt in seen) == (sample.prompt_template not in held_out_templates(row.task))
        if sample.prompt in said:
            assert said[sample.prompt].colours == tuple((sample.colour or "").split(","))
    plural = next(a for a in pack.instructions if a.key == "perception/lesion/hard exudates/fundus")
    assert any("them" in w.prompt.split() for w in plural.wordings)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_class_numbers_undo_the_stored_grey_values(count) -> None:
    numbers = np.arange(count + 1, dtype=np.uint8)[None]
    stored = np.array([[round(255 * k / count) for k in range(count + 1)]], np.uint8)
    assert same(class_numbers(stored, count), numbers)


def test_larger_images_are_scaled_down_and_masks_stay_class_numbers(overlays) -> None:
    whole, small = pack_datasets([overlays]), pack_datasets([overlays], longest=64)
    for a, b in zip(whole.rows, small.rows, strict=True):
        image, mask = small.images[b.input], small.masks[b.mask]
        assert max(image.shape) == max(mask.shape) == 64
        assert set(np.unique(mask)) <= set(range(b.classes + 1))
        expected = cv2.resize(whole.images[a.input], (64, 64), interpolation=cv2.INTER_AREA)
        assert same(rgb(image), rgb(expected))
        share = [(m > 0).mean() for m in (whole.masks[a.mask], mask)]
        assert share[0] == pytest.approx(share[1], abs=0.02)


def test_no_patient_is_in_both_folds_and_the_seed_draws(overlays) -> None:
    folds = {}
    for seed in (0, 1):
        rows = pack_datasets([overlays], validation=0.3, seed=seed).rows
        folds[seed] = {row.patient_id: row.fold for row in rows}
        assert all(folds[seed][row.patient_id] == row.fold for row in rows)
        share = sum(fold == VALIDATION for fold in folds[seed].values()) / len(folds[seed])
        assert 0.1 < share < 0.5
    assert folds[0] != folds[1]
    assert {row.fold for row in pack_datasets([overlays], validation=0).rows} == {TRAIN}


def test_a_small_data_set_is_seen_in_validation_too(tmp_path) -> None:
    samples = painted(range(4), 1) + painted(range(4, 7), 1, source="three", case_id="other")
    rows = pack_datasets([write_samples(samples, tmp_path / "small")], validation=1e-9).rows
    assert Counter((row.source, row.fold) for row in rows) == {
        ("test", TRAIN): 3,
        ("test", VALIDATION): 1,
        ("three", TRAIN): 3,
    }


@pytest.mark.parametrize("seed", range(6))
def test_every_data_set_gives_its_share_and_no_more(tmp_path, seed) -> None:
    samples = painted(range(6), 1) + painted(range(6, 26), 1, source="twenty", case_id="other")
    rows = pack_datasets([write_samples(samples, tmp_path / "both")], validation=0.1, seed=seed).rows
    apart = Counter(row.source for row in rows if row.fold == VALIDATION)
    assert apart == {"test": 1, "twenty": 2}


def test_patients_who_share_an_image_nearly_go_together(tmp_path) -> None:
    twins = []
    for number in range(12):
        for name, image in (("a", crop(number)), ("b", cv2.add(crop(number), 3))):
            case = {"patient_id": f"{name}/{number}", "image": image, "case_id": f"{name}{number}"}
            twins += Perception().samples(make_case(number, 1, **case), "train", 3)
    folder = write_samples(twins, tmp_path / "twins")
    fold = {row.patient_id: row.fold for row in pack_datasets([folder], validation=0.5).rows}
    assert {fold[f"a/{n}"] for n in range(12)} == {TRAIN, VALIDATION}
    assert [fold[f"a/{n}"] for n in range(12)] == [fold[f"b/{n}"] for n in range(12)]


def test_what_another_dataset_tests_on_is_left_out(overlays, tmp_path) -> None:
    """Patient p3 by name, and the image of p40 under another name."""
    tested = painted(range(3, 4), 1, split="test", source="other")
    renamed = [replace(s, id=f"y{s.id}", patient_id="new", split="train") for s in painted(range(40, 41), 1)]
    other = write_samples(tested + renamed, tmp_path / "other")
    alone = pack_datasets([other])
    assert [row.patient_id for row in alone.rows] == ["new"]
    both = pack_datasets([overlays, other])
    assert both.facts["left_out"] == {"patient": 4, "image": 1}
    assert not {row.patient_id for row in both.rows} & {"test/p3", "new"}


def test_other_tools_prompts_stay_as_they_are(imported) -> None:
    pack = pack_datasets([imported])
    assert pack.rows
    for row in pack.rows:
        (wording,) = pack.instructions[row.instruction].wordings
        assert wording.prompt == f"do it to the {row.target}"
        assert len(wording.colours) == row.classes
        assert pack.instructions[row.instruction].held_out == ()


def test_pairs_keep_their_pixels_and_say_how_to_simulate_again(pairs) -> None:
    pack = pack_datasets([pairs])
    stored = {s.id: s for s in Dataset(pairs).samples("train")}
    for row in pack.rows:
        sample = stored[row.id]
        assert same(rgb(pack.images[row.input]), sample.input)
        assert same(rgb(pack.images[row.goal]), sample.target_image)
        assert (row.key, row.mask, row.classes) == (sample.params["key"], None, 0)
        assert (row.simulate is None) == (sample.params["made"] == "pair")
        assert not pack.instructions[row.instruction].key.startswith("stored/")
    ct = next(row for row in pack.rows if row.key == "low_dose_ct_soft")
    assert ct.simulate == {"fixed": {"kernel": "hann"}, "hu_range": [-160.0, 240.0], "field_mm": 360.0}
    factors = {row.simulate["fixed"]["factor"] for row in pack.rows if row.key == "super_resolution"}
    assert factors == {2, 4}
    keys = {pack.instructions[row.instruction].key for row in pack.rows if row.key == "mri_sequence"}
    assert keys == {
        "transformation/mri_sequence/MRI/brain/goal=T2/source=T1",
        "transformation/mri_sequence/MRI/brain/goal=T1/source=T2",
    }


def test_parts_and_joints(overlays, pairs) -> None:
    whole = pack_datasets([overlays, pairs])
    parts = [part_of(whole, lambda row, p=p: row.perspective == p) for p in ("perception", "transformation")]
    joined = join_packs(parts)
    assert len(parts[0].images) + len(parts[1].images) == len(whole.images)
    for pack in (*parts, joined):
        found = {row.id: row for row in pack.rows}
        for row in whole.rows:
            if row.id not in found:
                continue
            other = found[row.id]
            assert pack.images[other.input] is whole.images[row.input]
            assert row.goal is None or pack.images[other.goal] is whole.images[row.goal]
            assert row.mask is None or pack.masks[other.mask] is whole.masks[row.mask]
            assert pack.instructions[other.instruction] == whole.instructions[row.instruction]
    assert len(joined.rows) == len(whole.rows)


def test_a_dataset_without_a_train_split(tmp_path) -> None:
    folder = write_samples(painted(range(1), 1, split="test"), tmp_path / "tests-only")
    with pytest.raises(MieError, match="nothing to train on"):
        pack_datasets([folder])


def test_all_colours_are_asked_for(overlays) -> None:
    pack = pack_datasets([overlays])
    for ask in pack.instructions:
        assert {c for w in ask.wordings for c in w.colours} == set(COLOURS)
