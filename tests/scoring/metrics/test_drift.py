import cv2
import numpy as np
import pytest
from scipy import ndimage

from mie.images.overlay import paint
from mie.scoring.metrics import MetricError, drift
from tests.conftest import crop, ellipse, shipped
from tests.scoring.metrics.pairs import random_pair

TEXTURED = ("retina.jpg", "ihc.png", "moon.png", "camera.png")


def moved(name, side, dx=0.0, dy=0.0, scale=1.0):
    """The middle of a real picture, and of the same picture after zoom about the centre and shift.

    The picture is larger than the crop, so new content enters at the border, as in a real crop.
    """
    picture = shipped(name)
    grow = (side + 160) / min(picture.shape[:2])
    if grow > 1:
        picture = cv2.resize(picture, None, fx=grow, fy=grow, interpolation=cv2.INTER_CUBIC)
    height, width = picture.shape[:2]
    x, y = (width - side) // 2, (height - side) // 2
    cx, cy = x + (side - 1) / 2, y + (side - 1) / 2
    matrix = np.array([[scale, 0, cx - scale * cx + dx], [0, scale, cy - scale * cy + dy]])
    after = cv2.warpAffine(picture, matrix, (width, height), flags=cv2.INTER_CUBIC)
    return tuple(np.ascontiguousarray(p[y : y + side, x : x + side]) for p in (picture, after))


@pytest.mark.parametrize("name", TEXTURED)
@pytest.mark.parametrize("side", [512, 128])
@pytest.mark.parametrize("shift", [(3, 0), (-5, 8), (2.5, -1.25), (11.3, -14.6)])
def test_known_shifts(name, side, shift):
    found = drift(*moved(name, side, *shift))
    assert (found.dx, found.dy) == pytest.approx(shift, abs=0.3)
    assert found.scale == pytest.approx(1, abs=0.004)
    assert found.flag


def test_a_shift_made_by_fourier_interpolation():
    image = crop(1, 256, 256)
    spectrum = np.fft.fft2(image.astype(float), axes=(0, 1))
    shifted = np.fft.ifft2(ndimage.fourier_shift(spectrum, (1.75, -2.5, 0)), axes=(0, 1)).real
    found = drift(image, np.clip(shifted, 0, 255).astype(np.uint8))
    assert (found.dx, found.dy) == pytest.approx((-2.5, 1.75), abs=0.2)
    assert found.flag


@pytest.mark.parametrize("name", TEXTURED)
@pytest.mark.parametrize("side", [512, 128])
@pytest.mark.parametrize("scale", [0.95, 0.97, 0.985, 1.015, 1.03, 1.05, 1.15])
def test_known_zooms(name, side, scale):
    found = drift(*moved(name, side, scale=scale))
    assert found.scale == pytest.approx(scale, abs=0.006)
    assert (found.dx, found.dy) == pytest.approx((0, 0), abs=0.5)
    assert found.flag


@pytest.mark.parametrize("name", TEXTURED)
def test_zoom_and_shift_together(name):
    found = drift(*moved(name, 512, 4, -3, 1.03))
    assert (found.dx, found.dy, found.scale) == pytest.approx((4, -3, 1.03), abs=0.4)
    assert found.scale == pytest.approx(1.03, abs=0.004)


def test_a_crop_off_the_centre():
    image = crop(0, 512, 512)
    # Columns 20.. and rows 10.. of 480 remain, blown up to 512: (x - 20 + .5) * s - .5.
    scale = 512 / 480
    output = cv2.resize(image[10:490, 20:500], (512, 512), interpolation=cv2.INTER_LINEAR)
    found = drift(image, output)
    expected = [(255.5 - offset + 0.5) * scale - 0.5 - 255.5 for offset in (20, 10)]
    assert found.scale == pytest.approx(scale, abs=0.004)
    assert (found.dx, found.dy) == pytest.approx(expected, abs=0.6)
    assert found.flag


@pytest.mark.parametrize("name", TEXTURED)
@pytest.mark.parametrize("truth", [(0, 0, 1), (4, 3, 1), (0, 0, 0.97)])
def test_paint_in_the_region_does_not_matter(name, truth):
    image, output = moved(name, 256, *truth)
    region = ellipse(3, 256, 256)
    painted = paint(output, np.roll(region, truth[1::-1], (0, 1)), "red")
    found = drift(image, painted, region)
    assert (found.dx, found.dy, found.scale) == pytest.approx(truth, abs=0.4)
    assert found.scale == pytest.approx(truth[2], abs=0.005)
    assert found.flag == (truth != (0, 0, 1))


@pytest.mark.parametrize("side", [512, 128])
@pytest.mark.parametrize(
    ("truth", "flagged"),
    [
        ((0.7, 0, 1), False),
        ((0, -0.7, 1), False),
        ((1.3, 0, 1), True),
        ((0, -1.3, 1), True),
        ((0, 0, 1.006), False),
        ((0, 0, 0.994), False),
        ((0, 0, 1.014), True),
        ((0, 0, 0.986), True),
    ],
)
def test_both_sides_of_one_pixel_and_one_percent(side, truth, flagged):
    """The thresholds are 1 px and 1%; measured to 0.3 px and 0.3%, so that these lie clear of them."""
    found = [drift(*moved(name, side, *truth)).flag for name in TEXTURED]
    assert found == [flagged] * len(TEXTURED)


@pytest.mark.parametrize(("side", "limit"), [(128, 0.21875), (64, 0.4375)])
def test_a_shift_is_believed_from_a_response_on(side, limit):
    """Noise takes the response down; the flag goes where it falls below 28 divided by the side."""
    image, output = moved("camera.png", side, 4, 3)
    found = []
    for level in np.linspace(0, 200, 60):
        noise = np.random.default_rng(5).normal(0, level, output.shape)
        found.append(drift(image, np.clip(output + noise, 0, 255).astype(np.uint8)))
    moving = [one for one in found if max(abs(one.dx), abs(one.dy)) > 1]
    assert any(limit * 0.8 < one.response < limit for one in moving), "the noise passes the limit slowly"
    assert any(limit < one.response < limit * 1.25 for one in moving)
    for one in moving:
        assert one.flag == (one.response >= limit)


def still_outputs(image, region, seed):
    noise = np.random.default_rng(seed).normal(0, 10, image.shape)
    _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 50])
    side = image.shape[0]
    half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return {
        "same": image,
        "noise": np.clip(image + noise, 0, 255).astype(np.uint8),
        "compressed": cv2.imdecode(jpeg, cv2.IMREAD_COLOR),
        "painted": paint(image, region, "green"),
        "erased": np.where(region[..., None], cv2.blur(image, (side // 4, side // 4)), image),
        "brighter": (255 * (image / 255) ** 0.6).astype(np.uint8),
        "softer": cv2.resize(half, (side, side), interpolation=cv2.INTER_LINEAR),
    }


@pytest.mark.parametrize("side", [512, 160, 64])
def test_outputs_that_lie_still_are_not_flagged(side):
    for number in range(12):
        image, region = crop(number, side, side), ellipse(number, side, side)
        for name, output in still_outputs(image, region, number).items():
            for where in (region, None):
                found = drift(image, output, where)
                assert not found.flag, (number, name, found)


def test_unrelated_images_are_not_flagged():
    for number in range(12):
        found = drift(crop(number, 256, 256), crop(number + 1, 256, 256))
        assert found.response < 0.15
        assert not found.flag


def test_a_copy_has_response_one():
    found = drift(crop(1, 512, 512), crop(1, 512, 512))
    assert (found.dx, found.dy, found.scale) == pytest.approx((0, 0, 1), abs=0.01)
    assert found.response == pytest.approx(1, abs=0.1)


def test_wide_and_odd_images():
    picture = shipped("ihc.png")
    image, output = picture[100:301, 20:457], picture[97:298, 26:463]
    found = drift(image, output)
    assert (found.dx, found.dy) == pytest.approx((-6, 3), abs=0.3)


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (31, 200)])
def test_small_images_are_not_measured(size):
    found = drift(*random_pair(*size))
    assert (found.dx, found.dy, found.scale, found.response, found.flag) == (0, 0, 1, 0, False)


def test_nothing_to_see():
    flat = np.full((64, 64, 3), 80, np.uint8)
    assert drift(flat, flat).response == 0
    image, everywhere = crop(0), np.ones((160, 160), bool)
    assert not drift(image, np.roll(image, 5, 0), everywhere).flag


def test_sizes_must_agree():
    with pytest.raises(MetricError, match="differ in size"):
        drift(crop(0), crop(0)[:-1])
