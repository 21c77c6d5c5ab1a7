"""Steps across an outline against steps nearby."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.images.texture import seam_energy
from mie.scoring.metrics import MetricError
from tests.conftest import crop, ellipse


def noise(seed, sigma=8, size=160):
    plane = np.random.default_rng(seed).normal(128, sigma, (size, size)).round().clip(0, 255)
    return np.repeat(plane.astype(np.uint8)[..., None], 3, 2)


def test_by_hand_on_a_straight_outline():
    """Rows of constant grey: each curve has one step."""
    levels = np.array([0, 1, 3, 3, 7, 7, 8, 8, 20, 21, 23, 23, 27, 30, 30, 31], float)
    image = np.repeat(np.repeat(levels.astype(np.uint8)[:, None], 12, 1)[..., None], 3, 2)
    mask = np.zeros((16, 12), bool)
    mask[8:] = True  # the outline lies between rows 7 and 8
    step = np.diff(levels) ** 2  # step[i] lies between rows i and i + 1
    inside = np.mean([step[7 + d] for d in (3, 4, 5)])
    outside = np.mean([step[7 - d] for d in (3, 4, 5)])
    expected = np.sqrt((step[7] + 1) / ((inside + outside) / 2 + 1)) - 1
    assert seam_energy(image, mask) == pytest.approx(expected)


def test_no_seam_in_untouched_noise():
    found = [seam_energy(noise(n), ellipse(n)) for n in range(40)]
    assert abs(np.mean(found)) < 0.04
    assert max(map(abs, found)) < 0.25


def test_no_seam_between_smooth_and_noisy():
    image = noise(0)
    for n in range(3):
        image[ellipse(n)] = 128
        assert abs(seam_energy(image, ellipse(n))) < 0.1
        image = noise(n + 1)


def test_a_step_is_a_seam_and_grows_with_its_height():
    mask = ellipse(0)
    found = []
    for height in (0, 10, 20, 40):
        image = noise(5)
        image[mask] = image[mask] + np.uint8(height)
        found.append(seam_energy(image, mask))
    assert found == sorted(found)
    assert abs(found[0]) < 0.1
    # Neighbours in noise of standard deviation 8 differ by 2 * 64 in the square, a step adds its own square.
    assert found[3] == pytest.approx(np.sqrt((128 + 1600 + 1) / 129) - 1, rel=0.1)


def test_a_blurred_outline_is_under_zero():
    image, mask = noise(0), np.zeros((160, 160), bool)
    mask[40:120, 40:120] = True
    image[38:42, 40:120] = image[118:122, 40:120] = image[40:120, 38:42] = image[40:120, 118:122] = 128
    assert seam_energy(image, mask) < -0.5


@given(st.integers(0, 1000))
def test_finite_on_any_region_and_the_same_for_its_complement(seed):
    rng = np.random.default_rng(seed)
    image = crop(seed % 4, 48, 56)
    mask = np.zeros((48, 56), bool)
    y, x = rng.integers(0, 40, 2)
    mask[y : y + rng.integers(1, 40), x : x + rng.integers(1, 40)] = True
    assert np.isfinite(seam_energy(image, mask))


def test_one_pixel_hole_and_hole_at_the_border():
    image = noise(0)
    mask = np.zeros((160, 160), bool)
    mask[80, 80] = True
    image[80, 80] = 255
    assert seam_energy(image, mask) > 5
    mask[:] = False
    mask[:50, :60] = True
    assert abs(seam_energy(noise(1), mask)) < 0.2


def test_no_outline_no_number():
    image = noise(0)
    for mask in (np.zeros((160, 160), bool), np.ones((160, 160), bool)):
        with pytest.raises(MetricError, match="no outline"):
            seam_energy(image, mask)
    thin = np.zeros((160, 160), bool)
    thin[::2] = True
    with pytest.raises(MetricError, match="nothing to compare"):
        seam_energy(image, thin)
