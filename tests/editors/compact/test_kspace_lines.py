"""Lines that numpy leaves out, from an image with a phase of another family, are found and kept."""

import cv2
import numpy as np
import pytest

from mie.editors.compact.consistency import agree
from mie.editors.compact.kspace_lines import keep_lines
from mie.editors.compact.understanding import question
from tests.conftest import shipped

SIDE = 192


def head():
    grey = cv2.cvtColor(shipped("ihc.png"), cv2.COLOR_RGB2GRAY)[:SIDE, :SIDE].astype(np.float32)
    inside = cv2.ellipse(np.zeros(grey.shape), (SIDE // 2, SIDE // 2), (80, 66), 15, 0, 360, 1, -1)
    return np.rint(grey * cv2.GaussianBlur(inside, (0, 0), 1))


def phase():
    """A quadratic bowl and a slope: not one of the cosines that are fitted."""
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    return np.exp(1j * (1.2 * x**2 - 0.8 * (y - 0.2) ** 2 + 0.5 * x * y))


def measured_lines():
    lines = np.random.default_rng(5).random(SIDE) < 0.3
    lines[SIDE // 2 - 8 : SIDE // 2 + 8] = True
    return np.fft.ifftshift(lines)


def undersampled(image):
    kspace = np.fft.fft2(image * phase())
    kspace[~measured_lines()] = 0
    return np.abs(np.fft.ifft2(kspace))


def in_8_bits(image):
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def error(one, other):
    return float(np.sqrt(np.square(one.astype(np.float64) - other).mean()))


@pytest.mark.parametrize("turned", [False, True])
def test_the_image_comes_nearer_to_the_clean_one_and_to_what_was_measured(turned):
    clean = head()
    image = in_8_bits(undersampled(clean))
    guess = (0.6 * clean + 0.4 * image).astype(np.float32)  # a network that removes most of the aliases
    if turned:
        kept = keep_lines(np.ascontiguousarray(image.T), np.ascontiguousarray(guess.T))
    else:
        kept = keep_lines(image, guess)
    assert kept is not None
    moved = kept[0].T if turned else kept[0]
    assert error(moved, clean) < 0.8 * error(guess, clean)
    assert error(undersampled(moved), image) < 0.7 * error(undersampled(guess), image)
    assert abs(kept[1] - measured_lines().mean()) < 0.3
    assert np.array_equal(keep_lines(image, guess)[0], keep_lines(image, guess)[0])


def test_a_change_that_no_lines_explain_is_left_alone():
    clean = head()
    noise = np.random.default_rng(2).normal(0, 9, clean.shape)
    assert keep_lines(in_8_bits(clean + noise), clean.astype(np.float32)) is None
    assert keep_lines(in_8_bits(clean), clean.astype(np.float32)) is None


def test_only_when_undersampling_is_asked_for():
    clean = head()
    image = in_8_bits(undersampled(clean))
    maps = [(0.6 / 255 * (clean - image)).astype(np.float32)] * 3
    colour = np.repeat(image[..., None], 3, 2)
    agreed = agree(colour, maps, question("Remove the undersampling artifacts from this MRI."))
    assert agreed is not None
    assert list(agreed.facts) == ["lines"]
    assert error(agreed.image[..., 0], clean) < 0.8 * error(image + 255 * maps[0], clean)
    assert agree(colour, maps, question("Remove the noise from this MRI.")) is None
