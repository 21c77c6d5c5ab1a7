import math

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from mie.scoring.metrics import (
    MetricError,
    background_as_released,
    background_psnr,
    background_ssim,
    background_ssim_psnr,
    psnr,
    ssim,
)
from tests.conftest import crop, ellipse
from tests.scoring.metrics.pairs import KINDS, random_pair, real_pair

PAPER = (background_psnr, background_ssim, background_ssim_psnr)


def slow_ssim(a, b, region):
    """scikit-image's map, averaged over the windows that a plain loop finds free."""
    _, full = structural_similarity(a, b, channel_axis=2, full=True)
    height, width = region.shape
    values = []
    for y in range(3, height - 3):
        for x in range(3, width - 3):
            if not any(region[y + dy, x + dx] for dy in range(-3, 4) for dx in range(-3, 4)):
                values.extend(full[y, x])
    return sum(values) / len(values)


def slow_psnr(a, b, region):
    squares, count = 0, 0
    for y, x in np.ndindex(region.shape):
        if not region[y, x]:
            squares += sum((int(p) - int(q)) ** 2 for p, q in zip(a[y, x], b[y, x], strict=True))
            count += 3
    return 10 * math.log10(255**2 * count / squares)


def regions(height, width):
    empty = np.zeros((height, width), bool)
    corner, pixel, band = empty.copy(), empty.copy(), empty.copy()
    corner[: height // 3, -(width // 4) :] = True
    pixel[0, 0] = True
    band[height // 2] = True
    scattered = np.random.default_rng(height * width).random((height, width)) < 0.01
    return [empty, corner, pixel, band, scattered, ellipse(3, height, width)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(24, 24), (17, 40), (41, 23)])
def test_equals_the_slow_reference(kind, size):
    a, b = KINDS[kind](*size)
    for region in regions(*size):
        found = background_ssim_psnr(a, b, region)
        assert found == pytest.approx((slow_ssim(a, b, region), slow_psnr(a, b, region)), abs=1e-10)
        assert found == (background_ssim(a, b, region), background_psnr(a, b, region))


def test_without_a_region_it_is_the_whole_image():
    a, b = real_pair(70, 81)
    nowhere = np.zeros((70, 81), bool)
    assert background_ssim(a, b, nowhere) == pytest.approx(ssim(a, b), abs=1e-12)
    assert background_psnr(a, b, nowhere) == psnr(a, b)


def test_what_happens_inside_the_region_does_not_matter():
    image, region = crop(1), ellipse(1)
    output = image.copy()
    output[region] = 255 - output[region]
    assert background_ssim_psnr(image, output, region) == (1.0, math.inf)
    # A change next to the region does.
    y, x = np.argwhere(~region)[0]
    output[y, x] ^= 255
    assert background_ssim(image, output, region) < 1
    assert background_psnr(image, output, region) < 100


def test_region_covers_everything():
    a, b = random_pair(12, 12)
    for metric in PAPER:
        with pytest.raises(MetricError):
            metric(a, b, np.ones((12, 12), bool))


def test_background_without_a_whole_window_still_has_a_psnr():
    a, b = random_pair(20, 20)
    region = np.ones((20, 20), bool)
    region[:6] = False
    assert background_psnr(a, b, region) == pytest.approx(slow_psnr(a, b, region), abs=1e-10)
    with pytest.raises(MetricError, match="no 7x7 window"):
        background_ssim(a, b, region)
    region[6, 5:12] = False  # exactly one window
    assert background_ssim(a, b, region) == pytest.approx(slow_ssim(a, b, region), abs=1e-10)


def test_one_pixel_and_small_images():
    a, b = random_pair(1, 1)
    nowhere = np.zeros((1, 1), bool)
    assert background_psnr(a, b, nowhere) == psnr(a, b)
    for size in ((1, 1), (6, 9)):
        a, b = random_pair(*size)
        for metric in (background_ssim, background_ssim_psnr, background_as_released):
            with pytest.raises(MetricError, match="smaller than the SSIM window"):
                metric(a, b, np.zeros(size, bool))


def released(gt, pred, mask):
    """The public script's steps: an integer array as index, so whole rows are painted."""
    gt, pred = gt.copy(), pred.copy()
    inv = (1 - mask).astype(np.uint8)
    gt[inv] = 255
    pred[inv] = 255
    with np.errstate(divide="ignore"):
        return structural_similarity(gt, pred, channel_axis=2), peak_signal_noise_ratio(gt, pred)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(7, 7), (24, 31), (160, 160), (255, 129)])
def test_as_released(kind, size):
    a, b = KINDS[kind](*size)
    for region in (*regions(*size), np.ones(size, bool)):
        expected = released(a, b, region.astype(np.uint8))
        assert background_as_released(a, b, region) == pytest.approx(expected, abs=1e-10)


def test_as_released_leaves_its_arguments_alone():
    a, b = real_pair(30, 30)
    before = a.copy(), b.copy()
    background_as_released(a, b, ellipse(0, 30, 30))
    assert np.array_equal(a, before[0])
    assert np.array_equal(b, before[1])


def test_masks_must_fit():
    a, b = random_pair(20, 20)
    for metric in (*PAPER, background_as_released):
        with pytest.raises(MetricError, match="does not fit"):
            metric(a, b, np.zeros((20, 19), bool))
        with pytest.raises(MetricError, match="does not fit"):
            metric(a, b, np.zeros((20, 20), np.uint8))
