"""The shift between two images of one place, within and across modalities."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mie.errors import ImageError
from mie.perspectives.transformation.alignment import measure_alignment, register
from tests.conftest import shipped


def place() -> np.ndarray:
    """A real image with structure in every direction."""
    return np.ascontiguousarray(cv2.resize(shipped("ihc.png"), (256, 256), interpolation=cv2.INTER_AREA))


def other_modality(image: np.ndarray) -> np.ndarray:
    """The same place with grey values that neither rise nor fall with the first image's, and noise."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    shown = 127 + 120 * np.sin(grey / 30) + np.random.default_rng(0).normal(0, 6, grey.shape)
    return np.repeat(np.clip(shown, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


@pytest.mark.parametrize("shift", [(0, 0), (3, -2), (-5, 4), (0, 7)])
def test_a_known_shift_is_found_across_modalities(shift) -> None:
    moved = np.roll(other_modality(place()), shift, (0, 1))
    found = measure_alignment(place(), moved)
    # The answer takes the second image back onto the first.
    assert np.allclose(found.shift, (-shift[0], -shift[1]), atol=0.6)
    assert (found.evidence > 0.1) == (shift != (0, 0))


def test_large_images_are_measured_in_their_own_pixels() -> None:
    large = cv2.resize(place(), (1024, 1024), interpolation=cv2.INTER_CUBIC)
    found = measure_alignment(large, np.roll(other_modality(large), 8, 0))
    assert found.shift[0] == pytest.approx(-8, abs=1.5)
    assert abs(found.shift[1]) < 1.5


def test_a_direction_without_structure_gives_no_evidence() -> None:
    layers = np.repeat(np.arange(128, dtype=np.uint8)[:, None] * 2, 128, axis=1)
    noisy = np.clip(layers + np.random.default_rng(1).normal(0, 20, layers.shape), 0, 255).astype(np.uint8)
    assert measure_alignment(layers, noisy).evidence < 0.04


def test_an_image_and_its_repaired_copy_are_aligned_whatever_was_painted_over() -> None:
    image = place()
    painted = image.copy()
    cv2.circle(painted, (128, 128), 100, (10, 10, 10), -1)
    found = measure_alignment(image, painted)
    assert (found.error, found.evidence) == (0.0, 0.0)


def test_registration_brings_a_turned_and_shifted_pair_back() -> None:
    first, second = place(), other_modality(place())
    turn = cv2.getRotationMatrix2D((127.5, 127.5), 4.0, 1.0)
    turn[:, 2] += (5, -3)
    moved = cv2.warpAffine(second, turn, (256, 256), flags=cv2.INTER_LINEAR)
    back, done = register(first, moved)
    assert abs(done["degrees"]) == pytest.approx(4.0, abs=0.5)
    assert measure_alignment(first, back).information > measure_alignment(first, moved).information + 0.02
    assert measure_alignment(first, back).error < 1.0
    inner = (slice(40, -40), slice(40, -40))
    before, after = (np.abs(i[inner].astype(int) - second[inner]).mean() for i in (moved, back))
    assert after < before / 2
    assert np.array_equal(register(first, moved)[0], back)


def test_sizes_must_agree() -> None:
    with pytest.raises(ImageError, match="differ in size"):
        measure_alignment(place(), place()[1:])
