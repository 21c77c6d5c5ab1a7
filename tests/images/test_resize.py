import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.images.resize import fitted_size, nearest_bin, resize_image, resize_mask
from tests.conftest import crop, ellipse


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_bin_is_the_nearest(height, width):
    chosen = nearest_bin(height, width)
    apart = {size: abs(size - max(height, width)) for size in (128, 256, 512)}
    assert apart[chosen] == min(apart.values())


def test_between_two_bins_the_smaller_wins():
    assert nearest_bin(384, 200) == 256
    assert nearest_bin(10, 192) == 128


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([128, 256, 512]))
def test_the_longer_side_fits_exactly_and_the_shape_is_kept(height, width, longer):
    h, w = fitted_size(height, width, longer)
    assert max(h, w) == longer
    assert min(h, w) >= 1
    assert abs(min(h, w) - min(height, width) * longer / max(height, width)) <= 1


def test_shrinking_by_a_whole_factor_is_the_block_mean():
    image = crop(1, 64, 96)
    small = resize_image(image, (32, 48))
    blocks = image.reshape(32, 2, 48, 2, 3).astype(float).mean(axis=(1, 3))
    assert np.abs(small - blocks).max() <= 0.5 + 1e-9


def test_an_image_of_the_right_size_is_left_alone():
    image = crop(2)
    assert resize_image(image, image.shape[:2]) is image


@pytest.mark.parametrize("size", [(80, 80), (53, 211), (320, 320)])
def test_masks_stay_in_place(size):
    mask = ellipse(3)
    scaled = resize_mask(mask, size)
    assert scaled.dtype == bool
    assert scaled.shape == size
    rows, columns = np.nonzero(mask)
    new_rows, new_columns = np.nonzero(scaled)
    assert (new_rows.mean() + 0.5) / size[0] == pytest.approx((rows.mean() + 0.5) / 160, abs=0.01)
    assert (new_columns.mean() + 0.5) / size[1] == pytest.approx((columns.mean() + 0.5) / 160, abs=0.01)
    assert scaled.mean() == pytest.approx(mask.mean(), rel=0.05)
