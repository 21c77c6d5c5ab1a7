import cv2
import numpy as np
import pytest

from mie.images.overlay import paint
from mie.scoring.metrics import (
    deblend_dice,
    deblend_dice_any,
    dice_and_guarded,
    dice_and_guarded_any,
    dice_guarded,
    dice_guarded_any,
)
from mie.vocabulary import COLOURS
from tests.conftest import crop, ellipse
from tests.scoring.metrics.pairs import random_pair

EVERYWHERE = np.ones((160, 160), bool)
NOWHERE = np.zeros((160, 160), bool)


def slow_mask(image, output, colour):
    """alpha > 0.5 and a residual of at most half the shift along C - I, in floats, from the vectors."""
    i = image.astype(np.float64)
    d, c = output - i, np.array(COLOURS[colour]) - i
    length = np.maximum(np.linalg.norm(c, axis=-1, keepdims=True), 1e-12)
    along = (d * c).sum(-1, keepdims=True) / length
    across = np.linalg.norm(d - along * c / length, axis=-1)
    along = along[..., 0]
    return (along / length[..., 0] > 0.5) & (across <= along / 2 + 1e-9)


@pytest.mark.parametrize("colour", COLOURS)
def test_equals_the_formula(colour):
    for seed in range(3):
        image, output = random_pair(60, 61, seed)
        reference = ellipse(seed, 60, 61)
        mask = slow_mask(image, output, colour)
        expected = (2 * (mask & reference).sum() + 1e-6) / (mask.sum() + reference.sum() + 1e-6)
        assert dice_guarded(image, output, reference, colour) == pytest.approx(expected, abs=1e-9)
    union = np.any([slow_mask(image, output, c) for c in COLOURS], axis=0)
    expected = (2 * (union & reference).sum() + 1e-6) / (union.sum() + reference.sum() + 1e-6)
    assert dice_guarded_any(image, output, reference) == pytest.approx(expected, abs=1e-9)


def test_the_published_weakness():
    """Grey 30 -> 200 has alpha 0.535 for every colour."""
    dark, bright = np.full((160, 160, 3), 30, np.uint8), np.full((160, 160, 3), 200, np.uint8)
    for colour in COLOURS:
        assert deblend_dice(dark, bright, EVERYWHERE, colour) == 1.0
        assert dice_guarded(dark, bright, EVERYWHERE, colour) < 1e-9
    assert dice_guarded_any(dark, bright, EVERYWHERE) < 1e-9


def test_no_change_of_grey_level_counts_for_any_colour():
    before, after = (g.astype(np.uint8)[..., None].repeat(3, 2) for g in np.indices((256, 256)))
    nothing = np.zeros((256, 256), bool)
    assert deblend_dice_any(before, after, nothing) < 1e-9  # plain DICE counts many
    assert dice_guarded_any(before, after, nothing) == 1.0
    for colour in COLOURS:
        assert dice_guarded(before, after, nothing, colour) == 1.0


def test_noisy_inversion_of_a_grey_image_does_not_count():
    grey = crop(0)[..., :1].repeat(3, 2)
    noise = np.random.default_rng(0).normal(0, 5, grey.shape)
    inverted = np.clip(255.0 - grey + noise, 0, 255).astype(np.uint8)
    _, guarded = dice_and_guarded_any(grey, inverted, EVERYWHERE)
    assert guarded < 0.001


@pytest.mark.parametrize("other", [(255, 255, 0), (255, 0, 255), (0, 255, 255), (255, 255, 255)])
def test_other_paints_on_grey_do_not_count(other):
    image = np.full((160, 160, 3), 70, np.uint8)
    output = (0.4 * image + 0.6 * np.array(other)).round().astype(np.uint8)
    for colour in COLOURS:
        assert dice_guarded(image, output, NOWHERE, colour) == 1.0


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("number", range(4))
def test_true_overlays_count_as_before(number, colour):
    image, region = crop(number), ellipse(number)
    for opacity in (0.55, 0.6, 0.7, 0.9):
        plain, guarded = dice_and_guarded(image, paint(image, region, colour, opacity), region, colour)
        assert plain > 0.99
        assert guarded > plain - 0.01
    assert dice_guarded(image, paint(image, region, colour), region, colour) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("number", range(4))
def test_soft_noisy_and_compressed_overlays_still_count(number, colour):
    image, region = crop(number), ellipse(number)
    soft = cv2.GaussianBlur(region.astype(np.float32), (0, 0), 2)[..., None] * 0.65
    blended = (1 - soft) * image + soft * np.array(COLOURS[colour])
    noise = np.random.default_rng(number).normal(0, 6, image.shape)
    noisy = np.clip(blended + noise, 0, 255).astype(np.uint8)
    _, jpeg = cv2.imencode(
        ".jpg", paint(image, region, colour, 0.65)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 60]
    )
    compressed = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)[..., ::-1]
    for output in (noisy, compressed):
        plain, guarded = dice_and_guarded(image, output, region, colour)
        assert plain > 0.8
        assert guarded > plain - 0.02


def test_fused_equals_alone():
    image, output = random_pair(50, 40)
    reference = ellipse(1, 50, 40)
    for colour in COLOURS:
        assert dice_and_guarded(image, output, reference, colour) == (
            deblend_dice(image, output, reference, colour),
            dice_guarded(image, output, reference, colour),
        )
    assert dice_and_guarded_any(image, output, reference) == (
        deblend_dice_any(image, output, reference),
        dice_guarded_any(image, output, reference),
    )
