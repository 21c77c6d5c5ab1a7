"""A hole through several slices."""

import numpy as np
import pytest
from scipy import ndimage

from mie.errors import ImageError
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.inpainters.blend import blend
from mie.perspectives.modification.inpainters.volume import fill_volume


def stack(count=7, size=96):
    """Slices of a smooth body with noise of their own, and a round hole that grows and shrinks."""
    rng = np.random.default_rng(0)
    body = ndimage.gaussian_filter(rng.normal(size=(count + 8, size, size)), (2.5, 6, 6))[4:-4]
    planes = 110 + 30 * body / body.std() + rng.normal(0, 5, body.shape)
    slices = [np.repeat(np.clip(p.round(), 0, 255).astype(np.uint8)[..., None], 3, 2) for p in planes]
    y, x = np.mgrid[:size, :size]
    radii = [0, 11, 15, 17, 15, 11, 0][:count]
    return slices, [(y - 50) ** 2 + (x - 45) ** 2 < r * r for r in radii]


class Moody:
    """Fills with a brightness of the slice's own: the worst flicker."""

    name = "moody"

    def __init__(self):
        self.seeds = []

    def fill(self, image, mask, *, seed):
        self.seeds.append(seed)
        level = int(image[~mask].mean()) + (int(image[0, 0, 0]) % 9 - 4) * 8
        return np.where(mask[..., None], np.uint8(level), image)


def flicker(slices, masks):
    """Mean absolute difference of neighbouring slices, smoothed, where both have a hole."""
    found = []
    for a, b, m, n in zip(slices, slices[1:], masks, masks[1:], strict=False):
        if (m & n).any():
            change = ndimage.gaussian_filter(a[..., 0].astype(float) - b[..., 0], 2)
            found.append(np.abs(change)[m & n].mean())
    return np.mean(found)


@pytest.mark.parametrize("make", [lambda: make_inpainter("exemplar", family="ct"), Moody])
def test_less_flicker_than_slice_by_slice(make):
    slices, masks = stack()
    together = fill_volume(make(), slices, masks, seed=3, blend="none")
    apart = [
        blend("none", s, make().fill(s, m, seed=3 + k), m) if m.any() else s
        for k, (s, m) in enumerate(zip(slices, masks, strict=True))
    ]
    assert flicker(together, masks) < 0.7 * flicker(apart, masks)


@pytest.mark.parametrize("kind", ["none", "poisson"])
def test_outside_is_the_original_in_every_slice(kind):
    slices, masks = stack()
    before = [s.copy() for s in slices]
    filled = fill_volume(make_inpainter("telea", family="ct"), slices, masks, seed=0, blend=kind)
    for old, given, new, mask in zip(before, slices, filled, masks, strict=True):
        assert np.array_equal(old, given)
        assert np.array_equal(old[~mask], new[~mask])
        assert np.array_equal(new[..., 0], new[..., 1])
    assert np.array_equal(filled[0], slices[0])


def test_one_seed_for_all_and_the_same_bytes_again():
    slices, masks = stack()
    moody = Moody()
    fill_volume(moody, slices, masks, seed=11, blend="none")
    assert moody.seeds == [11] * 5
    inpainter = make_inpainter("exemplar", family="ct")
    first, again = (fill_volume(inpainter, slices, masks, seed=2, blend="poisson") for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_separate_holes_and_none_at_all():
    slices, masks = stack()
    masks[3] = np.zeros_like(masks[3])
    filled = fill_volume(make_inpainter("telea", family="ct"), slices, masks, seed=0, blend="none")
    assert np.array_equal(filled[3], slices[3])
    assert not np.array_equal(filled[4], slices[4])
    nothing = [np.zeros_like(m) for m in masks]
    same = fill_volume(make_inpainter("telea", family="ct"), slices, nothing, seed=0, blend="none")
    assert all(np.array_equal(a, b) for a, b in zip(same, slices, strict=True))


def test_one_slice_is_a_plain_fill():
    slices, masks = stack()
    inpainter = make_inpainter("exemplar", family="ct")
    (filled,) = fill_volume(inpainter, slices[3:4], masks[3:4], seed=0, blend="poisson")
    assert np.array_equal(
        filled, blend("poisson", slices[3], inpainter.fill(slices[3], masks[3], seed=0), masks[3])
    )


def test_slices_and_holes_that_do_not_fit():
    slices, masks = stack()
    with pytest.raises(ImageError, match="do not fit together"):
        fill_volume(make_inpainter("telea", family="ct"), slices, masks[:-1], seed=0, blend="none")
