"""What a LoRA is shown: healthy tissue around a hole, never a lesion, never an image kept for validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

from mie.errors import ConfigError, MieError
from mie.training.flux_lora import HealthyTissue
from mie.training.pack import TRAIN, VALIDATION
from tests.training.flux_tiny import skin_pack


def test_holes_lie_beside_the_lesions() -> None:
    pack = skin_pack()
    for image, mask in zip(pack.images, pack.masks, strict=True):
        image[..., 2] = 200  # so that no tissue is pure red
        image[mask > 0] = (255, 0, 0)
    tissue = HealthyTissue([pack], "dermoscopy", 64)
    rng = np.random.default_rng(0)
    areas, red = [], 0
    for _ in range(40):
        image, hole = tissue.draw(rng)
        assert image.shape == (64, 64, 3)
        assert hole.shape == (64, 64)
        lesion = (image[..., 0] > 250) & (image[..., 2] < 5)
        assert not lesion[hole].any()
        red += lesion.any()
        areas.append(hole.mean())
    assert red > 20, "lesions are seen, only not under the hole"
    assert 0 < min(areas) < max(areas) < 0.9


def test_folds_are_kept_apart() -> None:
    pack = skin_pack()
    for place, image in enumerate(pack.images):
        image[:] = 100 if place <= 5 else 200  # rows 6 and 7 are for validation
    tissue = HealthyTissue([pack], "dermoscopy", 64)
    rng = np.random.default_rng(0)
    assert {int(tissue.draw(rng, TRAIN).image.max()) for _ in range(20)} == {100}
    assert {int(tissue.draw(rng, VALIDATION).image.max()) for _ in range(20)} == {200}


def test_outlines_come_from_training_lesions_alone() -> None:
    pack = skin_pack()
    shapes = HealthyTissue([pack], "dermoscopy", 64).shapes
    pack.rows = [row for row in pack.rows if row.fold == TRAIN]
    assert len(shapes) == len(HealthyTissue([pack], "dermoscopy", 64).shapes)


def test_pictures_with_an_upright_are_not_turned() -> None:
    pack = skin_pack()
    for image in pack.images:
        image[:] = np.linspace(60, 250, image.shape[0]).astype(np.uint8)[:, None, None]

    def downwards(family: str) -> set[bool]:
        pack.rows = [replace(r, modality={"ct": "CT"}.get(family, family)) for r in pack.rows]
        tissue, rng = HealthyTissue([pack], family, 64), np.random.default_rng(0)
        seen = [tissue.draw(rng).image[..., 0].astype(int) for _ in range(20)]
        return {bool(image[40].mean() > image[10].mean() + 5) for image in seen}

    assert downwards("ct") == {True}
    assert downwards("dermoscopy") == {True, False}


def test_without_room_for_a_hole_it_says_so() -> None:
    pack = skin_pack()
    for mask in pack.masks:
        mask[2:-2, 2:-2] = 1
    with pytest.raises(MieError, match="no place for a hole"):
        HealthyTissue([pack], "dermoscopy", 64).draw(np.random.default_rng(0))


def test_a_family_without_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="no xray images to train on"):
        HealthyTissue([skin_pack()], "xray", 64)


def test_same_generator_same_lesson() -> None:
    tissue = HealthyTissue([skin_pack()], "dermoscopy", 64)
    first, second = (tissue.draw(np.random.default_rng(4)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
