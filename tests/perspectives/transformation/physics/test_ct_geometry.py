import numpy as np
import pytest
from skimage.transform import iradon, radon

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.ct import (
    KERNELS,
    backproject,
    embed,
    enough_views,
    even_angles,
    fbp,
    filter_sinogram,
    hu_to_attenuation,
    project,
)
from tests.perspectives.transformation.physics.ct_slices import inside, real_slice

UNEVEN = np.array([-30.0, 0.0, 12.3, 45.0, 89.9, 90.0, 135.5, 180.0, 271.0])


def noise(size, seed=0):
    image = np.random.default_rng(seed).random((size, size)).astype(np.float32)
    return image * inside(size, size // 2 - 1)


@pytest.mark.parametrize("size", [16, 17, 64, 101])
@pytest.mark.parametrize("angles", [even_angles(31), UNEVEN], ids=["even", "uneven"])
def test_projection_equals_scikit_image(size, angles):
    image = noise(size)
    expected = radon(image.astype(np.float64), angles, circle=True)
    assert project(image, angles) == pytest.approx(expected, abs=1e-5 * expected.max())


def test_projection_of_a_real_slice_equals_scikit_image():
    body, _ = embed(hu_to_attenuation(real_slice()), 0)
    expected = radon(body.astype(np.float64), UNEVEN, circle=True)
    assert project(body, UNEVEN) == pytest.approx(expected, abs=1e-5 * expected.max())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [16, 33, 100])
def test_reconstruction_equals_scikit_image(size, kernel):
    for angles in (even_angles(40), UNEVEN):
        sinogram = radon(noise(size).astype(np.float64), angles)
        expected = iradon(sinogram, angles, filter_name=kernel)
        ours = fbp(sinogram.astype(np.float32), angles, kernel)
        assert ours == pytest.approx(expected, abs=1e-4 * np.ptp(expected))


def test_a_smaller_reconstruction_equals_scikit_image():
    sinogram = radon(noise(80).astype(np.float64), UNEVEN)
    expected = iradon(sinogram, UNEVEN, output_size=51)
    ours = fbp(sinogram.astype(np.float32), UNEVEN, "ramp", 51)
    assert ours == pytest.approx(expected, abs=1e-4 * np.ptp(expected))


def test_a_real_slice_comes_back():
    """Above 35 dB inside the field of view; the range is the slice's own, 2063 HU."""
    hu = real_slice()
    body, place = embed(hu_to_attenuation(hu), 0)
    angles = even_angles(enough_views(len(body)))
    back = fbp(project(body, angles), angles, "ramp")
    error = (back - body)[inside(len(body), len(body) // 2)]
    value_range = np.ptp(body[place])
    assert 20 * np.log10(value_range / np.sqrt(np.mean(error**2))) > 35


def test_back_projection_is_linear_in_the_views():
    filtered = filter_sinogram(project(noise(40), UNEVEN), "ramp")
    alone = sum(backproject(filtered[:, [k]], UNEVEN[[k]], 40) for k in range(len(UNEVEN)))
    assert backproject(filtered, UNEVEN, 40) == pytest.approx(alone / len(UNEVEN), abs=1e-4)


@pytest.mark.parametrize("shape", [(40, 60), (61, 40), (33, 33)])
def test_embedding_keeps_the_picture_and_clears_the_corners(shape):
    image = np.random.default_rng(1).random(shape).astype(np.float32) + 1
    big, place = embed(image, 0.5)
    assert np.array_equal(big[place], image)
    assert big.sum() == pytest.approx(image.sum(), rel=1e-6)
    assert not big[~inside(len(big), len(big) // 2 - 2)].any()
    # Air in the corners need not fit in.
    assert embed(np.where(image > 1.5, image, 0.1).astype(np.float32), 5)[0].shape == (max(shape),) * 2


def test_wrong_use_is_refused():
    with pytest.raises(ImageError, match="square"):
        project(np.zeros((20, 21), np.float32), UNEVEN)
    with pytest.raises(ConfigError, match="kernel"):
        fbp(np.zeros((20, 9), np.float32), UNEVEN, "ramps")
    with pytest.raises(ConfigError, match="views and angles"):
        fbp(np.zeros((20, 8), np.float32), UNEVEN, "ramp")
    with pytest.raises(ConfigError, match="detector"):
        fbp(np.zeros((20, 9), np.float32), UNEVEN, "ramp", 21)
