"""Grain that is copied: as strong as around the hole, from tissue that looks alike, from nowhere barred."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.images.families import FAMILIES
from mie.perspectives.modification.inpainters.grain import GRAIN, Grain, _tiles, graft

PLAIN = Grain(slow=4, likeness=3, tile=20, strength=1.0)


def disc(size, centre, radius):
    rows, columns = np.indices(size)
    return (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2


def noisy(spread, level=120.0, channels=1, size=(160, 160), seed=0):
    """Noise of the given standard deviation, one number or a map."""
    noise = np.random.default_rng(seed).normal(0, 1, (*size, channels))
    return (level + spread * noise).astype(np.float32)


def filled(values, hole, level):
    out = values.copy()
    out[hole] = level[hole] if isinstance(level, np.ndarray) else level
    return out


def test_every_family_with_an_expert_has_its_grain():
    assert set(GRAIN) == set(FAMILIES) - {"microscopy"}


@pytest.mark.parametrize("size", [(160, 160), (400, 330)])
@pytest.mark.parametrize("channels", [1, 3])
def test_strength_and_mean_are_those_of_the_tissue(size, channels):
    hole = disc(size, (size[0] // 2, size[1] // 2), size[1] // 6)
    values = filled(noisy(8.0, channels=channels, size=size), hole, 120.0)
    for strength in (1.0, 0.5):
        grain = graft(values, hole, hole, Grain(4, 3, 20, strength), np.random.default_rng(0))
        assert grain.shape == values.shape
        assert grain[hole].std() == pytest.approx(8 * strength, rel=0.15)
        assert abs(grain[hole].mean()) < 1


def test_an_edge_beside_the_hole_is_not_its_grain():
    values, hole = noisy(3.0), disc((160, 160), (80, 88), 18)
    values[:, 118:] += 120  # twelve pixels from the hole
    values, strength = filled(values, hole, 120.0), {}
    for edges in (False, True):
        grain = graft(values, hole, hole, Grain(4, 2, 18, 1.0, edges=edges), np.random.default_rng(0))
        strength[edges] = grain[hole].std()
    assert strength[True] == pytest.approx(3.0, rel=0.25)
    assert strength[False] > 1.4 * strength[True]


def test_grain_comes_from_tissue_that_looks_alike():
    size = (160, 160)
    left = np.zeros((*size, 1), bool)
    left[:, :80] = True
    level, spread = np.where(left, 180.0, 60.0), np.where(left, 12.0, 2.0)
    for at, expected in ((40, 12.0), (120, 2.0)):
        hole = disc(size, (80, at), 18)
        values = filled(noisy(spread, level), hole, level.astype(np.float32))
        grain = graft(values, hole, hole, PLAIN, np.random.default_rng(0))
        assert grain[hole].std() == pytest.approx(expected, rel=0.3)


def test_nothing_is_copied_from_a_barred_place():
    size, hole = (160, 160), disc((160, 160), (80, 80), 20)
    barred = hole.copy()
    barred[:, 110:] = True
    values = noisy(4.0, size=size)
    values[:, 110:] = noisy(90.0, size=size, seed=1)[:, 110:]
    grain = graft(filled(values, hole, 120.0), hole, barred, PLAIN, np.random.default_rng(0))
    assert np.abs(grain[hole]).max() < 30


def test_lettering_in_a_photograph_is_not_copied():
    size, hole = (160, 160), disc((160, 160), (80, 80), 24)
    values = noisy(2.0, channels=3, size=size)
    letters = np.random.default_rng(5).integers(0, 150, (60, 2))
    for row, column in letters:
        values[row : row + 6, column] = 255
    grain = graft(filled(values, hole, 120.0), hole, hole, PLAIN, np.random.default_rng(0))
    assert grain is not None
    assert grain[hole].max() < 40


def test_the_seed_chooses_and_the_same_seed_chooses_the_same():
    hole = disc((160, 160), (80, 80), 25)
    values = filled(noisy(6.0), hole, 120.0)
    grains = [graft(values, hole, hole, PLAIN, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert (grains[0] == grains[1]).all()
    assert (grains[0] != grains[2]).any()


def test_no_free_place_is_none():
    values, hole = noisy(5.0, size=(60, 60)), np.ones((60, 60), bool)
    assert graft(values, hole, hole, PLAIN, np.random.default_rng(0)) is None
    hole[:3] = False
    assert graft(values, hole, hole, PLAIN, np.random.default_rng(0)) is None


@given(
    st.integers(5, 70), st.integers(5, 70), st.integers(2, 40), st.integers(1, 5), st.integers(0, 2**32 - 1)
)
def test_tiles_cover_the_hole_and_stay_in_the_image(height, width, side, fade, seed):
    hole = np.random.default_rng(seed).random((height, width)) < 0.05
    hole[height // 2, width // 2] = True
    weight = np.zeros((height, width))
    for (rows, columns), share in _tiles(hole, side, fade):
        assert share.shape == hole[rows, columns].shape
        assert (share >= 0).all()
        assert (share <= 1).all()
        weight[rows, columns] += share
    assert (weight[hole] > 0.2).all()
