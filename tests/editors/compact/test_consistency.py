"""Super-resolution keeps what was measured: compared with k-space that numpy cuts, not the simulator.

Where a CT has little to restore, little is changed.
"""

import cv2
import numpy as np
import pytest

from mie.editors.compact.consistency import agree, keep_low_band, low_resolution_factor, weaken
from mie.editors.compact.understanding import question
from tests.conftest import shipped


def head(height=160, width=192):
    """Real texture inside an ellipse, black around it: an MR slice whose air is exactly zero."""
    grey = cv2.cvtColor(shipped("cell.png"), cv2.COLOR_RGB2GRAY)
    grey = cv2.normalize(grey[:height, :width].astype(np.float32), None, 30, 250, cv2.NORM_MINMAX)
    grain = np.random.default_rng(3).normal(0, 6, grey.shape)
    inside = cv2.ellipse(np.zeros(grey.shape), (width // 2, height // 2), (70, 60), 20, 0, 360, 1, -1)
    return np.clip(np.rint((grey + grain) * inside), 0, 255).astype(np.uint8)


def cut(image, factor):
    """k-space of a real image cut to its middle, in double precision."""
    kspace = np.fft.fftshift(np.fft.fft2(image.astype(np.float64)))
    for axis, side in enumerate(image.shape):
        far = np.abs(np.arange(side) - side // 2) >= side / (2 * factor)
        kspace[(slice(None),) * axis + (far,)] = 0
    return np.fft.ifft2(np.fft.ifftshift(kspace)).real


def in_8_bits(image):
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def error(one, other):
    return float(np.sqrt(np.square(one.astype(np.float64) - other).mean()))


@pytest.mark.parametrize("factor", [2, 4])
def test_the_factor_is_found_in_the_image(factor):
    assert low_resolution_factor(in_8_bits(cut(head(), factor))) == factor


def test_an_image_with_finer_detail_has_no_factor():
    blurred = cv2.GaussianBlur(head(), (0, 0), 0.8)  # coarser to the eye, but its k-space is not cut
    enlarged = cv2.resize(head(80, 96), (192, 160), interpolation=cv2.INTER_CUBIC)
    for image in (head(), blurred, enlarged, np.zeros((160, 192), np.uint8), head()[:6]):
        assert low_resolution_factor(image) is None


@pytest.mark.parametrize("factor", [2, 4])
def test_the_result_degraded_again_is_the_input(factor):
    clean = head()
    coarse = in_8_bits(cut(clean, factor))
    guess = cv2.GaussianBlur(clean, (0, 0), 1.0) + np.float32(5)  # wrong in the measured band
    kept = in_8_bits(keep_low_band(coarse, guess, factor))
    inside = (coarse > 0) & (coarse < 255)
    again, before = cut(kept, factor)[inside], cut(guess, factor)[inside]
    assert error(before, coarse[inside]) > 4
    assert error(again, coarse[inside]) < 0.5  # rounding of both: .29 each


@pytest.mark.parametrize("factor", [2, 4])
def test_nearer_to_the_clean_image_and_never_outside_black_and_white(factor):
    clean = head()
    coarse = in_8_bits(cut(clean, factor))
    nothing = keep_low_band(coarse, coarse.astype(np.float32), factor)
    assert nothing.min() >= 0
    assert nothing.max() <= 255
    # Even without a network: the ringing in air is known to be wrong.
    assert error(nothing, clean) < 0.99 * error(coarse, clean)


def test_only_grey_images_that_are_coarse():
    coarse = in_8_bits(cut(head(), 2))
    maps = [np.full(coarse.shape, value, np.float32) for value in (0.0, 0.03, 0.06)]
    asked = question("Apply super-resolution.")
    finer = agree(np.repeat(coarse[..., None], 3, 2), maps, asked)
    assert finer is not None
    assert finer.facts == {"factor": 2}
    assert (finer.image == finer.image[..., :1]).all()
    assert np.array_equal(finer.image[..., 0], in_8_bits(keep_low_band(coarse, coarse + np.float32(7.65), 2)))
    coloured = np.stack([coarse, coarse, np.flipud(coarse)], 2)
    assert agree(coloured, maps, asked) is None
    assert agree(np.repeat(head()[..., None], 3, 2), maps, asked) is None
    noise = question("Remove the noise from this MRI.")
    assert agree(np.repeat(coarse[..., None], 3, 2), maps, noise) is None


def test_a_small_change_is_weakened_and_a_large_one_kept():
    grey = head()
    for size, share in ((4.0, 0.5), (1.0, 1 / 257), (40.0, 0.9999), (0.0, 0.0)):
        result, found = weaken(grey, grey + np.float32(size), 4)
        assert found == pytest.approx(share, abs=1e-4)
        assert result == pytest.approx(grey + share * size, abs=1e-2)


def test_only_streaks_and_noise_of_ct_are_weakened():
    grey = np.full((96, 96), 100, np.uint8)
    image = np.repeat(grey[..., None], 3, 2)
    for words, halved in (
        ("Remove the streaks of this sparse-view CT.", 4),
        ("Denoise this low-dose CT, soft kernel.", 4),
        ("Denoise this low-dose CT, sharp kernel.", 3),
        ("Denoise this CT.", 4),
    ):
        maps = [np.full(grey.shape, halved / 255, np.float32)] * 3
        agreed = agree(image, maps, question(words))
        assert agreed is not None, words
        assert agreed.facts == {"strength": 0.5}
        assert agreed.note == ""
        assert (agreed.image == 100 + np.rint(halved / 2)).all()
        fainter = agree(image, [half / 2 for half in maps], question(words))
        assert fainter is not None
        assert fainter.note == "there is little to remove: 6% of the change was made"
    for words in ("Denoise this MRI slice.", "Remove the metal artifact from this CT slice."):
        assert agree(image, maps, question(words)) is None, words
