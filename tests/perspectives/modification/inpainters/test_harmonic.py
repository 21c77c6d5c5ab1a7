"""The harmonic fill: flat stays flat, a slope goes on, and no pixel leaves the range of its outline."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mie.errors import ConfigError, ImageError
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.inpainters.blend import _solved, harmonic

HARMONIC = make_inpainter("harmonic", family="ct")


def disc(size, centre, radius):
    rows, columns = np.indices(size)
    return (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2


def test_a_slope_goes_on_through_the_hole():
    slope = np.repeat(np.linspace(20, 220, 100).round()[None, :, None], 80, axis=0)
    image = np.repeat(slope, 3, axis=2).astype(np.uint8)
    hole = disc((80, 100), (40, 50), 20)
    spoilt = np.where(hole[..., None], np.uint8(255), image)
    done = HARMONIC.fill(spoilt, hole, seed=0)
    assert np.abs(done.astype(int) - image).max() <= 4  # along the outline grey levels are averaged
    assert (done[~hole] == image[~hole]).all()
    assert (done == HARMONIC.fill(image, hole, seed=5)).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_each_pixel_is_the_mean_of_its_neighbours_and_within_the_outline(seed):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (24, 30, 1)).astype(np.float32)
    hole = rng.random((24, 30)) < 0.4
    hole[0, 0], hole[10:14, 10:14] = False, True
    drawn = harmonic(image, hole)[..., 0]
    assert (drawn[~hole] == 0).all()
    assert drawn[hole].min() >= image[~hole].min() - 1e-2
    assert drawn[hole].max() <= image[~hole].max() + 1e-2
    inner = np.zeros_like(hole)
    inner[1:-1, 1:-1] = hole[1:-1, 1:-1] & hole[:-2, 1:-1] & hole[2:, 1:-1] & hole[1:-1, :-2] & hole[1:-1, 2:]
    around = sum(np.roll(drawn, step, axis) for step in (1, -1) for axis in (0, 1)) / 4
    assert np.abs(drawn - around)[inner].max(initial=0) < 1e-2


def test_bad_holes_and_options_are_refused():
    with pytest.raises(ImageError, match="whole image"):
        HARMONIC.fill(np.zeros((8, 8, 3), np.uint8), np.ones((8, 8), bool), seed=0)
    with pytest.raises(ConfigError, match="takes no argument"):
        make_inpainter("harmonic:x", family="ct")


def test_it_is_the_solution_of_laplaces_equation():
    """Dense solve, equation by equation, on a hole that touches the border."""
    rng = np.random.default_rng(0)
    hole = rng.random((9, 11)) < 0.6
    hole[0, :5] = True
    values = rng.normal(size=(9, 11, 1)).astype(np.float32)
    rim = np.zeros_like(hole)
    places = np.argwhere(hole)
    index = {tuple(p): k for k, p in enumerate(places)}
    system, right = np.zeros((len(places), len(places))), np.zeros(len(places))
    for k, (y, x) in enumerate(places):
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            if not (0 <= v < 9 and 0 <= u < 11):
                continue
            system[k, k] += 1
            if hole[v, u]:
                system[k, index[v, u]] -= 1
            else:
                rim[v, u] = True
                right[k] += values[v, u, 0]
    assert _solved(values, hole, rim)[hole][:, 0] == pytest.approx(np.linalg.solve(system, right), abs=1e-5)
