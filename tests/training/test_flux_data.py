"""Which tissue a LoRA learns from: never a lesion, never a held-out patient."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

from mie.errors import ConfigError, MieError
from mie.images.families import is_held_out
from mie.training.flux_data import HealthyTissue, _body, _widened
from mie.training.pack import TRAIN, Pack
from tests.training.flux_tiny import skin_pack, skin_row


def marked_pack() -> Pack:
    """Lesions are pure red, the margin around them green; the rest is the picture."""
    pack = skin_pack()
    for image, mask in zip(pack.images, pack.masks, strict=True):
        image[..., 2] = 200  # no picture is red or green by chance
        near = cv2.dilate(mask, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (9, 9)))
        image[near > 0] = (0, 255, 0)
        image[mask > 0] = (255, 0, 0)
    return pack


def test_holes_lie_in_healthy_tissue() -> None:
    tissue = HealthyTissue([marked_pack()], "dermoscopy", [], 64)
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(40):
        image, hole = tissue.draw(rng)
        assert image.shape == (64, 64, 3)
        areas.append(hole.mean())
        under = image[hole].astype(int)
        assert not ((under[:, 0] > 250) & (under[:, 2] < 5)).any(), "a lesion"
        assert not ((under[:, 1] > 250) & (under[:, 2] < 5)).any(), "its margin"
    assert 0 < min(areas) < max(areas) < 0.9


def test_held_out_patients_are_not_learnt_from() -> None:
    pack = skin_pack()
    names = [f"cohort/{n}" for n in range(100)]
    kept = next(name for name in names if is_held_out("skin", name))
    free = next(name for name in names if not is_held_out("skin", name))
    pack.rows = [replace(row, patient_id=kept if row.input == 0 else free, fold=TRAIN) for row in pack.rows]
    tissue = HealthyTissue([pack], "dermoscopy", [], 64)
    assert [len(tissue.folds[held_out]) for held_out in (False, True)] == [7, 1]
    assert tissue.folds[True][0].image is pack.images[0]


def test_all_lesions_of_an_image_are_avoided() -> None:
    pack = skin_pack()
    second = np.zeros_like(pack.masks[0])
    second[-9:, -9:] = 1
    pack.masks.append(second)
    pack.rows.append(skin_row(0, TRAIN, id="again", mask=len(pack.masks) - 1))
    tissue = HealthyTissue([pack], "dermoscopy", [], 64)
    assert np.array_equal(tissue.folds[False][0].lesion, (pack.masks[0] | second) > 0)


def test_images_without_a_lesion_row_count_where_the_source_is_called_healthy() -> None:
    pack = skin_pack()
    pack.rows[0] = replace(pack.rows[0], task="structure", source="normal skin")
    counts = [len(HealthyTissue([pack], "dermoscopy", h, 64).folds[False]) for h in ([], ["normal skin"])]
    assert counts == [5, 6]


def test_only_perception_rows_of_the_family_count() -> None:
    pack = skin_pack()
    pack.rows[0] = replace(pack.rows[0], perspective="transformation")
    pack.rows[1] = replace(pack.rows[1], modality="fundus")
    assert len(HealthyTissue([pack], "dermoscopy", [], 64).folds[False]) == 4
    assert len(HealthyTissue([pack], "fundus", [], 64).folds[False]) == 1


def test_without_room_for_a_hole_it_says_so() -> None:
    pack = skin_pack()
    for mask in pack.masks:
        mask[2:-2, 2:-2] = 1
    with pytest.raises(MieError, match="no place for a hole"):
        HealthyTissue([pack], "dermoscopy", [], 64).draw(np.random.default_rng(0))


def test_lesions_without_an_outline_are_refused() -> None:
    pack = skin_pack()
    for mask in pack.masks:
        mask[:] = 1
    with pytest.raises(ConfigError, match="no lesion of dermoscopy has an outline"):
        HealthyTissue([pack], "dermoscopy", [], 64)


def test_the_black_around_a_body_is_no_tissue() -> None:
    image = np.zeros((100, 100, 3), np.uint8)
    cv2.circle(image, (50, 50), 30, (90, 90, 90), -1)
    image[50:53, 50:53] = 0  # a dark speck inside
    body = _body(image)
    assert body[51, 51]
    assert not body[:10].any()


def test_the_margin_grows_with_the_lesion() -> None:
    mask = np.zeros((200, 200), bool)
    mask[100, 100] = True
    assert np.flatnonzero(_widened(mask, "dermoscopy")[100]).tolist() == list(range(96, 105))
    cv2.circle(canvas := np.zeros((200, 200), np.uint8), (100, 100), 50, 1, -1)
    across = np.flatnonzero(_widened(canvas > 0, "dermoscopy")[100])
    assert (across[0], across[-1]) == (38, 162), "0.12 of a diameter of 100 on each side"


def test_same_generator_same_lesson() -> None:
    tissue = HealthyTissue([skin_pack()], "dermoscopy", [], 64)
    first, second = (tissue.draw(np.random.default_rng(4)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
