import numpy as np
import pytest
from skimage.metrics import structural_similarity

from mie.scoring.metrics import MetricError, psnr, ssim, ssim_gaussian, ssim_psnr
from tests.conftest import crop
from tests.scoring.metrics.pairs import KINDS, constant_pair, random_pair, real_pair

SIZES = [(n, n) for n in range(7, 65)] + [(7, 64), (33, 8), (101, 57), (512, 512), (511, 333)]


def reference(a, b):
    return structural_similarity(a, b, channel_axis=2)


def reference_gaussian(a, b):
    return structural_similarity(
        a, b, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )


@pytest.mark.parametrize("kind", KINDS)
def test_equals_scikit_image_at_every_size(kind):
    for height, width in SIZES:
        a, b = KINDS[kind](height, width)
        assert ssim(a, b) == pytest.approx(reference(a, b), abs=1e-10), (height, width)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_equals_scikit_image_at_every_size(kind):
    for height, width in SIZES:
        if min(height, width) < 11:
            continue
        a, b = KINDS[kind](height, width)
        assert ssim_gaussian(a, b) == pytest.approx(reference_gaussian(a, b), abs=1e-10), (height, width)


@pytest.mark.parametrize("levels", [(0, 255), (255, 255), (0, 0), (255, 254)])
def test_extreme_sums_do_not_overflow(levels):
    a, b = constant_pair(40, 30, *levels)
    assert ssim(a, b) == pytest.approx(reference(a, b), abs=1e-10)
    checkers = np.indices((40, 30)).sum(0)[..., None].repeat(3, 2) % 2 * np.uint8(255)
    board = checkers.astype(np.uint8)
    for other in (255 - board, a, b):
        assert ssim(board, other) == pytest.approx(reference(board, other), abs=1e-10)
        assert ssim_gaussian(board, other) == pytest.approx(reference_gaussian(board, other), abs=1e-10)


@pytest.mark.parametrize("number", range(4))
def test_channels_are_not_mixed_up(number):
    image = crop(number, 60, 70)
    swapped = image[..., ::-1]  # not contiguous: must be read as it is
    assert ssim(image, swapped) == pytest.approx(reference(image, swapped), abs=1e-10)
    assert ssim_gaussian(image, swapped) == pytest.approx(reference_gaussian(image, swapped), abs=1e-10)


def test_identical_images_score_exactly_one():
    for image in (crop(0), random_pair(31, 45)[0], constant_pair(11, 13)[0]):
        assert ssim(image, image) == 1.0
        assert ssim_gaussian(image, image) == pytest.approx(1, abs=1e-10)


def test_fused_equals_alone():
    a, b = real_pair(65, 90)
    assert ssim_psnr(a, b) == (ssim(a, b), psnr(a, b))


def test_read_only_arrays_are_fine():
    a, b = real_pair(20, 20)
    expected = ssim_psnr(a, b)
    a.flags.writeable = b.flags.writeable = False
    assert ssim_psnr(a, b) == expected


@pytest.mark.parametrize("size", [(1, 1), (6, 6), (6, 40), (40, 6)])
def test_images_smaller_than_the_window_have_no_value(size):
    a, b = random_pair(*size)
    for metric in (ssim, ssim_psnr, ssim_gaussian):
        with pytest.raises(MetricError, match="smaller than the SSIM window"):
            metric(a, b)


def test_gaussian_needs_eleven_pixels():
    a, b = random_pair(10, 30)
    with pytest.raises(MetricError, match="11x11"):
        ssim_gaussian(a, b)


@pytest.mark.parametrize("metric", [ssim, ssim_psnr, ssim_gaussian, psnr])
def test_pairs_that_cannot_be_compared(metric):
    a, _ = random_pair(20, 20)
    with pytest.raises(MetricError, match="differ in size"):
        metric(a, a[:19])
    with pytest.raises(MetricError, match="8-bit RGB"):
        metric(a.astype(float), a.astype(float))
    with pytest.raises(MetricError, match="8-bit RGB"):
        metric(a[..., 0], a[..., 0])
