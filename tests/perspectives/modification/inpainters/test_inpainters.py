"""What every classical inpainter promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mie.errors import ImageError
from mie.images.overlay import is_grey
from mie.images.texture import compare, texture
from mie.perspectives.modification.inpainters import exemplar, make_inpainter
from tests.conftest import crop, ellipse
from tests.perspectives.modification.inpainters.regions import regions

NAMES = ("telea", "navier-stokes", "exemplar")
INPAINTERS = {name: make_inpainter(name, family="fundus") for name in NAMES}


def speckle(seed=0, size=128):
    plane = np.random.default_rng(seed).normal(120, 15, (size, size)).round().clip(0, 255)
    return np.repeat(plane.astype(np.uint8)[..., None], 3, 2)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(case=regions(), grey=st.booleans())
def test_any_hole(name, case, grey):
    image, mask = case
    image = np.repeat(image[..., :1], 3, 2) if grey else image
    filled = INPAINTERS[name].fill(image, mask, seed=1)
    assert filled.shape == image.shape
    assert filled.dtype == np.uint8
    other = np.where(mask[..., None], np.uint8(255), image)
    assert np.array_equal(filled, INPAINTERS[name].fill(other, mask, seed=1)), "the hole shines through"
    assert not grey or is_grey(filled)
    if name == "exemplar":
        assert np.array_equal(filled[~mask], image[~mask])


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_left_alone(name):
    image, mask = crop(0), ellipse(0)
    before = image.copy(), mask.copy()
    INPAINTERS[name].fill(image, mask, seed=0)
    assert np.array_equal(image, before[0])
    assert np.array_equal(mask, before[1])


@pytest.mark.parametrize("name", NAMES)
def test_no_hole_and_nothing_but_hole(name):
    image = crop(1)
    assert np.array_equal(INPAINTERS[name].fill(image, np.zeros((160, 160), bool), seed=0), image)
    with pytest.raises(ImageError, match="whole image"):
        INPAINTERS[name].fill(image, np.ones((160, 160), bool), seed=0)
    with pytest.raises(ImageError, match="does not fit"):
        INPAINTERS[name].fill(image, np.ones((10, 160), bool), seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_flat_image_is_filled_flat(name):
    image = np.full((90, 90, 3), (10, 90, 200), np.uint8)
    change = np.abs(INPAINTERS[name].fill(image, ellipse(0, 90, 90), seed=3).astype(int) - image)
    assert change.max() <= (3 if name == "telea" else 0)  # OpenCV's Telea wanders by some levels


def test_exemplar_draws_texture_where_the_others_do_not():
    image, mask = speckle(), ellipse(0, 128, 128)
    truth = texture(image, mask)
    found = {n: compare(texture(p.fill(image, mask, seed=0), mask), truth) for n, p in INPAINTERS.items()}
    assert 0.7 < found["exemplar"]["variance_ratio"] < 1.3
    assert found["exemplar"]["spectrum_distance"] < 0.35
    assert found["telea"]["variance_ratio"] < 0.5
    assert found["telea"]["spectrum_distance"] > 1


def test_exemplar_goes_on_with_stripes():
    stripes = np.tile((np.arange(120) % 12 < 6) * 150 + 50, (120, 1)).astype(np.uint8)
    image = np.repeat(stripes[..., None], 3, 2)
    mask = np.zeros((120, 120), bool)
    mask[40:80, 45:83] = True
    filled = INPAINTERS["exemplar"].fill(image, mask, seed=0)
    assert np.mean(filled[mask] == image[mask]) > 0.95


def test_exemplar_is_a_function_of_its_seed():
    image, mask = speckle(1), ellipse(1, 128, 128)
    first, again, other = (INPAINTERS["exemplar"].fill(image, mask, seed=s) for s in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def _closed(values, known, guide, centres, draws, half, paste):
    """The plain search: every patch is compared as a whole with the one at the rim that is trusted most."""
    height, width = known.shape
    trust = known.astype(np.float64)
    for draw in draws:
        beside = np.pad(known, 1)
        beside = beside[:-2, 1:-1] | beside[2:, 1:-1] | beside[1:-1, :-2] | beside[1:-1, 2:]
        rim = np.argwhere(~known & beside)
        if not len(rim):
            return values
        sums = [trust[max(y - half, 0) : y + half + 1, max(x - half, 0) : x + half + 1].sum() for y, x in rim]
        y, x = rim[np.argmax(np.float32(sums))]
        distances = []
        for v, u in centres:
            steps = [
                ((guide[y + a, x + b] - guide[v + a, u + b]) ** 2).sum()
                for a in (-half, 0, half)
                for b in (-half, 0, half)
                if 0 <= y + a < height and 0 <= x + b < width
            ]
            inside = [
                ((values[y + a, x + b] - values[v + a, u + b]) ** 2).sum()
                for a in range(-half, half + 1)
                for b in range(-half, half + 1)
                if 0 <= y + a < height and 0 <= x + b < width and known[y + a, x + b]
            ]
            distances.append(2 * np.mean(steps) + np.sum(inside) / max(len(inside), 1))
        order = np.argsort(distances, kind="stable")[:4]
        fit = sum(distances[m] <= distances[order[0]] * 1.15 for m in order)
        v, u = centres[order[int(draw * fit)]]
        sure = max(sums) / (2 * half + 1) ** 2
        for i in range(max(y - paste, 0), min(y + paste + 1, height)):
            for j in range(max(x - paste, 0), min(x + paste + 1, width)):
                if not known[i, j]:
                    values[i, j], known[i, j], trust[i, j] = values[v + i - y, u + j - x], True, sure
    return values


@pytest.mark.parametrize(("half", "paste", "channels"), [(2, 1, 1), (1, 1, 3), (0, 0, 1)])
def test_exemplar_search_equals_the_plain_one(half, paste, channels):
    rng = np.random.default_rng(half)
    values = rng.integers(0, 256, (22, 24, channels)).astype(np.float32)
    known = np.ones((22, 24), bool)
    known[0:6, 10:17] = False  # at the border, where patches are cut off
    guide = rng.uniform(0, 255, values.shape).astype(np.float32)
    centres = exemplar._whole_patches(known, half).astype(np.int32)
    draws = rng.random(int((~known).sum()))
    values[~known] = 0
    expected = _closed(values.copy(), known.copy(), guide, centres, draws, half, paste)
    exemplar._close(values, known, guide, centres, draws, half, paste)
    assert known.all()
    assert np.array_equal(values, expected)


def test_exemplar_takes_nothing_from_the_hole():
    """A black and a white half: a hole in the white one stays white though the hole was painted black."""
    image = np.full((80, 160, 3), 230, np.uint8)
    image[:, :80] = 20
    mask = np.zeros((80, 160), bool)
    mask[25:55, 105:140] = True
    image[mask] = 0
    assert (INPAINTERS["exemplar"].fill(image, mask, seed=0)[mask] == 230).all()
