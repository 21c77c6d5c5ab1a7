"""Fresh simulations: new severities from the same clean images, the same for any number of workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest

from mie.perspectives.transformation.targets import TARGETS
from mie.training.pack import TRAIN, VALIDATION, Pack, join_packs
from mie.training.pack_datasets import pack_datasets
from mie.training.simulate import add_pairs, fresh_pairs, own_jobs, wide_jobs
from tests.conftest import crop
from tests.training.conftest import same


@pytest.fixture(scope="module")
def pack(pairs) -> Pack:
    return pack_datasets([pairs], validation=0.2, seed=1)


@pytest.fixture(scope="module")
def fresh(pack):
    return fresh_pairs(pack, per_row=2, size=160, workers=1, seed=5)


def test_only_training_rows_that_physics_made(pack) -> None:
    jobs = own_jobs(pack, 2)
    assert {row.fold for row in pack.rows} == {TRAIN, VALIDATION}
    allowed = {at for at, row in enumerate(pack.rows) if row.fold == TRAIN and row.key != "mri_sequence"}
    assert Counter(job.row for job in jobs) == dict.fromkeys(allowed, 2)


def test_pairs_differ_from_the_stored_ones_and_from_each_other(pack, fresh) -> None:
    assert len(fresh) == len(own_jobs(pack, 2))
    for first, second in zip(fresh[::2], fresh[1::2], strict=True):
        assert first.job.row == second.job.row
        assert not same(first.input, second.input)
    for pair in fresh:
        assert pair.input.shape == pair.goal.shape
        assert max(pair.input.shape) == 160
        assert pair.input.ndim == 2
        assert not same(pair.input, pair.goal)


def test_the_same_for_any_number_of_workers_and_another_for_another_seed(pack, fresh) -> None:
    again = fresh_pairs(pack, per_row=2, size=160, workers=2, seed=5)
    assert [pair.job for pair in again] == [pair.job for pair in fresh]
    for a, b in zip(again, fresh, strict=True):
        assert same(a.input, b.input)
        assert same(a.goal, b.goal)
        assert a.words == b.words
    other = fresh_pairs(pack, jobs=own_jobs(pack)[:4], size=160, workers=1, seed=6)
    assert not any(same(a.input, b.input) for a, b in zip(other, fresh[::2], strict=False))


def test_a_window_of_an_mri_is_cut_out_of_the_degraded_whole(pack, fresh) -> None:
    """Without a window of its own the goal is a piece of the stored clean image, to the pixel."""
    found = 0
    for pair in fresh:
        row = pack.rows[pair.job.row]
        if row.modality != "MRI" or "white" in row.simulate:
            continue
        clean = pack.images[row.goal]
        views = np.lib.stride_tricks.sliding_window_view(clean, pair.goal.shape)
        corner = (views[..., 0, 0] == pair.goal[0, 0]) & (views[..., -1, -1] == pair.goal[-1, -1])
        found += any((views[y, x] == pair.goal).all() for y, x in np.argwhere(corner))
    assert found > 5


def test_ct_is_scaled_whole_and_its_field_of_view_stays(pack) -> None:
    jobs = [job for job in own_jobs(pack) if job.key == "low_dose_ct_soft"]
    (pair,) = fresh_pairs(pack, jobs=jobs[:1], size=64, workers=1)
    clean = pack.images[pair.job.image]
    expected = cv2.resize(clean, (64, 64), interpolation=cv2.INTER_AREA)
    assert np.abs(pair.goal.astype(int) - expected).max() <= 1
    assert pair.job.facts["field_mm"] == 360.0


def test_bent_ct_is_another_patient_with_other_pixels_and_the_rest_stays(pack, fresh) -> None:
    bent = fresh_pairs(pack, per_row=2, size=160, bent=1, workers=1, seed=5)
    sizes = set()
    for pair, straight in zip(bent, fresh, strict=True):
        if TARGETS[pair.job.key].domain == "HU":
            assert pair.input.shape == pair.goal.shape
            assert not same(pair.goal, straight.goal)
            sizes.add(max(pair.goal.shape))
            size = pair.goal.shape[::-1]
            usual = cv2.resize(straight.goal, size, interpolation=cv2.INTER_AREA)
            alike = np.corrcoef(usual.ravel(), pair.goal.ravel())[0, 1]
            assert 0.1 < alike < 0.99, "moved, not made up"
        else:
            assert same(pair.input, straight.input)
            assert same(pair.goal, straight.goal)
    assert len(sizes) > 3
    assert 96 <= min(sizes) <= max(sizes) <= 160
    again = fresh_pairs(pack, per_row=2, size=160, bent=1, workers=2, seed=5)
    assert all(same(a.input, b.input) for a, b in zip(again, bent, strict=True))


def test_bent_ct_is_also_shown_in_windows_for_soft_tissue(pack, monkeypatch) -> None:
    """Input and goal through one window: level and width are read back from the grey levels."""
    jobs = [job for job in own_jobs(pack, 2) if "hu_range" in job.facts]
    shown = {}
    for chance in (0, 1):
        monkeypatch.setattr("mie.training.simulate._NARROW", chance)
        shown[chance] = fresh_pairs(pack, jobs=jobs, size=160, bent=1, workers=1, seed=5)
    assert len(shown[0]) > 3
    found = set()
    for wide, narrow in zip(shown[0], shown[1], strict=True):
        low, high = wide.job.facts["hu_range"]
        before, after = (np.concatenate([pair.input.ravel(), pair.goal.ravel()]) for pair in (wide, narrow))
        grey_of = dict(zip(before.tolist(), after.tolist(), strict=True))
        assert [grey_of[grey] for grey in before.tolist()] == after.tolist(), "one window for both"
        inside = [(grey, new) for grey, new in sorted(grey_of.items()) if 0 < new < 255]
        slope, offset = np.polyfit(*np.array(inside, float).T, 1)
        width = 255 / slope * (high - low) / 255
        level = low + (127.5 - offset) / slope * (high - low) / 255
        assert 240 < width < 720
        assert -60 < level < 130
        found.add(round(width))
    assert len(found) > 3


def test_a_darkened_clean_image_is_brightened_first(pack) -> None:
    at, row = next((at, r) for at, r in enumerate(pack.rows) if r.key == "mri_noise" and r.fold == TRAIN)
    clean = np.minimum(crop(4, 128, 128)[..., 1], 200)
    dark = np.floor(clean * (255 / 400) + 0.5).astype(np.uint8)
    facts = {"fixed": {"percent": 3.0}, "white": 400.0}
    changed = Pack([*pack.images, dark], [], [*pack.rows], pack.instructions, {})
    changed.rows[at] = replace(row, goal=len(pack.images), simulate=facts)
    (job,) = [job for job in own_jobs(changed) if job.row == at]
    (pair,) = fresh_pairs(changed, jobs=[job], workers=1)
    assert np.abs(pair.goal.astype(int) - clean).max() <= 1


def test_wide_jobs_use_every_clean_image_for_every_target_that_fits(pack, overlays) -> None:
    painted = pack_datasets([overlays], validation=0.2)
    mri = [replace(r, modality="MRI", anatomy="brain") for r in painted.rows]
    joined = join_packs([pack, replace(painted, rows=mri)])
    jobs = wide_jobs(joined, 60, seed=2)
    counts = Counter(job.key for job in jobs)
    assert set(counts.values()) == {60}
    assert "mri_sequence" not in counts
    for key in ("mri_noise", "super_resolution"):
        mine = [job for job in jobs if job.key == key]
        assert all(joined.rows[job.row].modality in TARGETS[key].modalities for job in mine)
        assert all(joined.rows[job.row].fold == TRAIN for job in mine)
        assert {joined.rows[job.row].perspective for job in mine} == {"perception", "transformation"}
    noise = [job for job in jobs if job.key == "mri_noise"]
    assert len({job.image for job in noise}) >= 35
    factors = Counter(job.facts["fixed"]["factor"] for job in jobs if job.key == "super_resolution")
    assert factors.keys() == {2, 4}
    ct = {job.image for job in jobs if job.key == "low_dose_ct_soft"}
    assert ct == {r.goal for r in joined.rows if r.key == "low_dose_ct_soft" and r.fold == TRAIN}


def test_ct_pictures_of_perception_are_clean_images_in_an_assumed_window(pack, overlays) -> None:
    """Large ones only, in turns with CT of known units; what is black is air, and stays black."""
    painted = pack_datasets([overlays], validation=0.2)
    rows = [replace(row, modality="CT", anatomy="liver") for row in painted.rows if row.fold == TRAIN][:2]
    body = np.zeros((300, 300), np.uint8)
    cv2.circle(body, (150, 150), 110, 120, -1)
    rows[0] = replace(rows[0], input=len(painted.images))
    rows[1] = replace(rows[1], input=len(painted.images) + 1)
    pictures = [*painted.images, body, np.ascontiguousarray(body[100:300, 50:250])]
    joined = join_packs([pack, replace(painted, images=pictures, rows=rows)])
    jobs = [job for job in wide_jobs(joined, 8, seed=2) if job.key == "low_dose_ct_soft"]
    assert ["hu_range" in job.facts for job in jobs] == [True, False] * 4
    assumed = [job for job in jobs if "hu_range" not in job.facts]
    assert len({job.image for job in assumed}) == 1
    pairs = fresh_pairs(joined, jobs=assumed, size=300, workers=1, seed=3)
    inside, outside = body > 0, cv2.dilate(body, np.ones((5, 5))) == 0
    noise = []
    for pair in pairs:
        assert np.array_equal(pair.goal, body)
        difference = pair.input.astype(float) - body
        assert abs(difference[inside].mean()) < 2
        assert np.abs(difference[outside]).max() == 0, "noise of air is far below what the window shows"
        noise.append(difference[inside].std())
    assert min(noise) > 1
    assert max(noise) > 1.5 * min(noise)  # other doses, other windows


def test_an_image_that_physics_refuses_gives_no_pair(pack) -> None:
    at, row = next((at, r) for at, r in enumerate(pack.rows) if r.key == "mri_noise" and r.fold == TRAIN)
    changed = Pack([*pack.images, crop(1)], [], [*pack.rows], pack.instructions, {})
    changed.rows[at] = replace(row, goal=len(pack.images))
    jobs = [job for job in own_jobs(changed) if job.key == "mri_noise"]
    made = fresh_pairs(changed, jobs=jobs, workers=1)
    assert len(made) == len(jobs) - 1
    assert at not in {pair.job.row for pair in made}


def test_pairs_become_rows_with_their_own_words(pack, fresh) -> None:
    before = len(pack.rows), len(pack.images), len(pack.instructions)
    grown = add_pairs(pack, fresh)
    assert (len(pack.rows), len(pack.images), len(pack.instructions)) == before
    added = grown.rows[len(pack.rows) :]
    assert len({row.id for row in grown.rows}) == len(grown.rows)
    for row, pair in zip(added, fresh, strict=True):
        assert same(grown.images[row.input], pair.input)
        assert same(grown.images[row.goal], pair.goal)
        assert (row.key, row.fold, row.perspective) == (pair.job.key, TRAIN, "transformation")
        ask = grown.instructions[row.instruction]
        assert ask.key.startswith(f"transformation/{row.key}/")
        if row.key == "mri_undersampling":
            assert any(pair.words["factor"] in w.prompt for w in ask.wordings)
