"""Lesions found and missed, counted against cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mie.perspectives.modification.detectors import Finding
from mie.perspectives.modification.detectors.quality import (
    Counts,
    area_under_curve,
    count,
    measure,
    summarise,
)


def drawn(*boxes: tuple[int, int, int, int]) -> np.ndarray:
    """(top, left, height, width) of each region in a picture of 40 by 50."""
    mask = np.zeros((40, 50), np.bool_)
    for top, left, height, width in boxes:
        mask[top : top + height, left : left + width] = True
    return mask


def test_two_lesions_one_found_one_missed_and_a_false_finding() -> None:
    reference = drawn((0, 0, 10, 10), (20, 20, 10, 10))
    found = drawn((0, 0, 10, 5), (35, 40, 3, 3))
    # 50 of 100 pixels of the first lesion; 9 pixels of nothing. DICE = 2 * 50 / (59 + 200).
    assert count(found, reference) == Counts(2, 1, 2, 1, pytest.approx(100 / 259))


@pytest.mark.parametrize(("pixels", "hit"), [(9, 0), (10, 1)])
def test_a_tenth_of_a_lesion_finds_it(pixels: int, hit: int) -> None:
    counts = count(drawn((0, 0, 1, pixels)), drawn((0, 0, 10, 10)))
    assert (counts.found, counts.false) == (hit, 0)


@pytest.mark.parametrize(("width", "false"), [(40, 0), (41, 1)])
def test_a_finding_with_less_than_a_tenth_on_the_lesion_is_false(width: int, false: int) -> None:
    reference = drawn((0, 0, 10, 4))
    assert count(drawn((0, 0, 10, width)), reference).false == false


def test_a_mask_of_everything_finds_nothing_unless_the_lesions_are_large() -> None:
    counts = count(np.ones((40, 50), np.bool_), drawn((0, 0, 3, 3), (30, 30, 5, 5)))
    assert (counts.lesions, counts.found, counts.findings, counts.false) == (2, 0, 1, 1)
    counts = count(np.ones((40, 50), np.bool_), drawn((0, 0, 3, 3), (20, 20, 20, 20)))
    assert (counts.lesions, counts.found, counts.findings, counts.false) == (2, 2, 1, 0)


def test_specks_of_the_reference_are_no_lesions_and_diagonals_are_one() -> None:
    assert count(drawn(), drawn((5, 5, 1, 3), (20, 20, 2, 2))).lesions == 1
    assert count(drawn(), drawn((0, 0, 3, 3), (3, 3, 3, 3))).lesions == 1


def test_an_image_without_lesions_has_no_dice() -> None:
    assert count(drawn(), drawn()) == Counts(0, 0, 0, 0, None)
    assert count(drawn((1, 1, 4, 4)), drawn()) == Counts(0, 0, 1, 1, None)


def test_many_images_together() -> None:
    counts = [Counts(3, 2, 4, 2, 0.6), Counts(1, 1, 1, 0, 1.0), Counts(0, 0, 1, 1, None)]
    quality = summarise(counts, [0.9, 0.5, 0.7])
    assert quality.as_json() == {
        "images": 2,
        "healthy": 1,
        "lesions": 4,
        "sensitivity": 3 / 4,
        "precision": 0.5,
        "false_positives_per_image": 1.0,
        "dice": pytest.approx(0.8),
        "auc": 0.5,
    }


def test_what_cannot_be_measured_is_no_number() -> None:
    assert set(summarise([], []).as_json().values()) == {0, None}
    only_healthy = summarise([Counts(0, 0, 0, 0, None)], [0.1])
    assert (only_healthy.sensitivity, only_healthy.precision, only_healthy.dice, only_healthy.auc) == (
        None,
    ) * 4
    assert only_healthy.false_positives_per_image == 0


def test_the_area_under_the_curve() -> None:
    assert area_under_curve([3, 2, 1, 0], [True, True, False, False]) == 1
    assert area_under_curve([0, 1, 1, 0], [True, False, True, False]) == 0.5
    assert area_under_curve([1, 1], [True, True]) is None


class Bright:
    """Finds what is brighter than 100."""

    name = "bright"

    def find(self, image: np.ndarray) -> Finding:
        return Finding(image[..., 0] > 100, float(image.max() / 255))

    def quality(self) -> None:
        return None


def test_a_detector_is_measured_on_images() -> None:
    lesion, healthy = np.full((40, 50, 3), 20, np.uint8), np.full((40, 50, 3), 30, np.uint8)
    lesion[10:20, 10:20] = 200
    quality = measure(Bright(), [(lesion, drawn((10, 10, 10, 10))), (healthy, drawn())])
    assert (quality.sensitivity, quality.false_positives_per_image, quality.dice, quality.auc) == (1, 0, 1, 1)


@given(arrays(np.bool_, (9, 11)), arrays(np.bool_, (9, 11)), st.integers(0, 3))
def test_counts_are_bounded_and_do_not_depend_on_the_view(a: np.ndarray, b: np.ndarray, turns: int) -> None:
    counts = count(a, b)
    assert 0 <= counts.found <= counts.lesions
    assert 0 <= counts.false <= counts.findings
    assert (counts.dice is None) == (not b.any())
    assert count(np.rot90(a, turns).copy(), np.rot90(b, turns).copy()) == counts
    same = count(b, b)
    assert (same.found, same.false) == (same.lesions, 0)
