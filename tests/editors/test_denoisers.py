"""Non-local means and the bilateral filter, with a strength that follows the noise."""

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio

from mie.editors import open_editor
from mie.editors.baselines import noise_level
from tests.conftest import crop, shipped


def noisy(clean, sigma, seed=0):
    grey = (clean == clean[..., :1]).all()
    draw = np.random.default_rng(seed).normal(0, sigma, (*clean.shape[:2], 1 if grey else 3))
    return np.clip(np.rint(clean + draw), 0, 255).astype(np.uint8)


GREY = np.ascontiguousarray(shipped("cell.png")[200:456, 150:406])


@pytest.mark.parametrize("sigma", [4, 10, 25])
def test_the_noise_level_is_the_one_that_was_added(sigma):
    flat = np.full((200, 301, 3), 128, np.uint8)
    assert noise_level(noisy(flat, sigma)) == pytest.approx(sigma, rel=0.06, abs=0.4)
    framed = np.zeros((400, 400, 3), np.uint8)  # a scan on black: only a quarter of the image has noise
    framed[100:300, 100:300] = noisy(flat[:, :200], sigma)
    assert noise_level(framed) == pytest.approx(sigma, rel=0.06, abs=0.4)


@pytest.mark.parametrize("name", ["nlm", "bilateral"])
@pytest.mark.parametrize("sigma", [6, 15])
@pytest.mark.parametrize("clean", [GREY, crop(0, 256, 256)], ids=["grey", "colour"])
def test_noise_goes(name, sigma, clean):
    image = noisy(clean, sigma)
    edited = open_editor(name).edit(image, "Remove the noise.", seed=0, history=())
    before, after = (peak_signal_noise_ratio(clean, x) for x in (image, edited.image))
    assert after > before + 3
    assert edited.image.shape == clean.shape
    if clean is GREY:
        assert (edited.image == edited.image[..., :1]).all()


@pytest.mark.parametrize("name", ["nlm", "bilateral"])
def test_without_noise_nothing_changes(name):
    image = np.full((32, 40, 3), 77, np.uint8)
    edited = open_editor(name).edit(image, "Remove the noise.", seed=0, history=())
    assert np.array_equal(edited.image, image)
    assert edited.meta == {"noise": 0.0}
    tiny = np.full((1, 1, 3), 77, np.uint8)
    assert np.array_equal(open_editor(name).edit(tiny, "", seed=0, history=()).image, tiny)
