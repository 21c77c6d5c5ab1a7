"""Joining a fill to its image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mie.errors import ConfigError, ImageError
from mie.images.families import FAMILIES
from mie.images.overlay import is_grey
from mie.images.texture import seam_energy
from mie.perspectives.modification.inpainters.blend import BLEND, KINDS, blend
from tests.conftest import crop, ellipse
from tests.perspectives.modification.inpainters.regions import regions


def smooth(height=100, width=100):
    y, x = np.mgrid[:height, :width]
    plane = 60 + 60 * np.sin(y / 30) ** 2 + 50 * np.cos(x / 40) ** 2
    return np.repeat(plane.round().astype(np.uint8)[..., None], 3, 2)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(case=regions(), grey=st.booleans(), seed=st.integers(0, 99))
def test_outside_is_the_original_and_grey_stays_grey(kind, case, grey, seed):
    original, mask = case
    original = np.repeat(original[..., :1], 3, 2) if grey else original
    fill = np.random.default_rng(seed).integers(0, 256, original.shape, np.uint8)
    before = original.copy()
    joined = blend(kind, original, fill, mask)
    assert joined.dtype == np.uint8
    assert np.array_equal(joined[~mask], original[~mask])
    assert np.array_equal(original, before)
    assert not grey or is_grey(joined)
    # Only the fill inside and the original outside count.
    swapped = blend(
        kind,
        np.where(mask[..., None], original if grey else fill, original),
        np.where(mask[..., None], fill, np.uint8(9)),
        mask,
    )
    assert np.array_equal(joined, swapped)
    painted = blend(kind, np.where(mask[..., None], np.uint8(255), original), fill, mask)
    assert np.array_equal(joined, painted)


def test_none_takes_the_fill_as_it_is():
    original, mask, fill = crop(0), ellipse(0), crop(1)
    assert np.array_equal(blend("none", original, fill, mask)[mask], fill[mask])


def test_a_fill_that_fits_stays():
    original, mask = smooth(), ellipse(0, 100, 100)
    for kind in KINDS:
        change = np.abs(blend(kind, original, original, mask).astype(int) - original)
        # The pyramid continues both images flat over the outline, and slopes suffer.
        assert change[mask].mean() < (4 if kind == "laplacian" else 1), kind


@pytest.mark.parametrize("step", [-30, 25])
def test_poisson_removes_a_step(step):
    original, mask = smooth(), ellipse(1, 100, 100)
    wrong = np.clip(original.astype(int) + step, 0, 255).astype(np.uint8)
    joined = blend("poisson", original, wrong, mask)
    assert np.abs(joined.astype(int) - original)[mask].max() <= 5
    assert np.abs(joined.astype(int) - original)[mask].mean() < 1.5


@pytest.mark.parametrize("kind", ["feather", "poisson", "laplacian"])
def test_each_lessens_a_visible_seam(kind):
    rng = np.random.default_rng(0)
    original = np.clip(smooth().astype(int) + rng.normal(0, 3, (100, 100, 1)), 0, 255).astype(np.uint8)
    mask = ellipse(2, 100, 100)
    wrong = np.clip(original.astype(int) + 30, 0, 255).astype(np.uint8)
    plain, joined = (seam_energy(blend(k, original, wrong, mask), mask) for k in ("none", kind))
    assert plain > 3
    assert joined < plain / 4


def test_poisson_keeps_the_texture_of_the_fill():
    rng = np.random.default_rng(0)
    original = np.repeat(rng.normal(100, 9, (90, 90, 1)).round().astype(np.uint8), 3, 2)
    fill = np.repeat(rng.normal(130, 9, (90, 90, 1)).round().astype(np.uint8), 3, 2)
    mask = ellipse(0, 90, 90)
    joined = blend("poisson", original, fill, mask)[mask][:, 0]
    assert joined.std() == pytest.approx(9, rel=0.15)
    assert joined.mean() == pytest.approx(100, abs=2)


def test_every_family_has_a_blend():
    assert set(BLEND) == set(FAMILIES)
    assert set(BLEND.values()) <= set(KINDS)


def test_what_cannot_be_joined():
    image, mask = crop(0), ellipse(0)
    with pytest.raises(ConfigError, match="no blend named 'poison'"):
        blend("poison", image, image, mask)
    with pytest.raises(ImageError, match="whole image"):
        blend("none", image, image, np.ones((160, 160), bool))
    with pytest.raises(ImageError, match="does not fit"):
        blend("none", image, image[:100], mask)
