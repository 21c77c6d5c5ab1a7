import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mie.errors import ConfigError, ImageError
from mie.images.windows import apply_window, to_8bit
from tests.images.phantom import l_phantom


def by_hand(value, low, high):
    share = min(max((float(value) - low) / (high - low), 0.0), 1.0)
    return math.floor(share * 255 + 0.5)


def test_phantom_is_different_after_every_flip_transpose_and_rotation():
    image = l_phantom(40, 40)
    turned = [np.rot90(base, k) for base in (image, image.T) for k in range(4)]
    assert all((turned[i] != turned[j]).any() for i in range(8) for j in range(i))


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", ">u2", "u4", "i8", "f2", "f4", "f8"])
def test_given_range_is_the_formula(dtype):
    values = np.linspace(-100, 120, 56).clip(0 if "u" in dtype else -100, 120).astype(dtype).reshape(7, 8)
    out, step = to_8bit(values, low=-40, high=77)
    assert out.tolist() == [[by_hand(v, -40, 77) for v in row] for row in values.tolist()]
    assert step == {"step": "window", "low": -40, "high": 77, "from": "given"}


def test_half_is_rounded_up():
    out, _ = to_8bit(np.array([0, 1, 3, 510], np.int32))  # 0.5 and 1.5 in 0..255
    assert out.tolist() == [0, 1, 2, 255]


@given(
    hnp.arrays(
        st.sampled_from([np.int16, np.uint16, np.float32, np.int32]),
        hnp.array_shapes(min_dims=1, max_dims=3),
        elements=st.integers(0, 30000),
    )
)
def test_default_is_min_to_max(values):
    out, step = to_8bit(values)
    low, high = values.min(), values.max()
    assert out.shape == values.shape
    assert (step["low"], step["high"], step["from"]) == (low, high, "min-max")
    if low == high:
        assert step["constant"] is True
        assert not out.any()
    else:
        assert out.min() == 0
        assert out.max() == 255
        assert out.ravel().tolist() == [by_hand(v, float(low), float(high)) for v in values.ravel()]


def test_percentiles_agree_with_numpy_and_are_recorded():
    values = np.random.default_rng(0).normal(300, 50, (40, 50)).astype(np.float32)
    low, high = np.percentile(values, (1, 99))
    out, step = to_8bit(values, percentiles=(1, 99))
    assert step == {"step": "window", "low": low, "high": high, "from": "percentiles", "percentiles": [1, 99]}
    assert out[values <= low].max() == 0
    assert out[values >= high].min() == 255


def test_percentiles_on_one_value_fall_back_to_min_max():
    values = np.zeros((50, 50), np.int16)
    values[3, 4] = 900
    out, step = to_8bit(values, percentiles=(1, 99))
    assert (step["low"], step["high"], step["from"]) == (0, 900, "min-max")
    assert out[3, 4] == 255


def test_constant_image_becomes_black_and_says_so():
    out, step = to_8bit(np.full((3, 4), 7.5, np.float32))
    assert not out.any()
    assert step == {"step": "window", "low": 7.5, "high": 7.5, "from": "min-max", "constant": True}


def test_uint8_is_left_alone_unless_a_range_is_given():
    image = l_phantom()
    out, step = to_8bit(image)
    assert out is image
    assert step is None
    stretched, step = to_8bit(image, low=10, high=100)
    assert stretched[0, 0] == by_hand(image[0, 0], 10, 100)
    assert step["from"] == "given"


def test_pieces_give_the_same_as_the_whole(monkeypatch):
    values = np.random.default_rng(0).integers(-2000, 2000, (9, 11, 13)).astype(np.int16)
    whole = apply_window(values, {"low": -160, "high": 240})
    monkeypatch.setattr("mie.images.windows._BLOCK", 200)
    assert (apply_window(values, {"low": -160, "high": 240}) == whole).all()
    as_float = apply_window(values.astype(np.float32)[:, ::-1], {"low": -160, "high": 240})
    assert (as_float == whole[:, ::-1]).all()


def test_nan_and_infinite_pixels_are_counted():
    values = np.ones((4, 5), np.float32)
    values[0, :2] = np.nan
    values[1, 0], values[1, 1] = np.inf, -np.inf
    with pytest.raises(ImageError, match="2 NaN and 2 infinite of 20") as caught:
        to_8bit(values, low=0, high=1, where="scan.tif")
    assert caught.value.where == "scan.tif"


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": 5, "high": 5},
        {"low": 1},
        {"high": 1},
        {"low": float("nan"), "high": 2},
        {"low": 0, "high": 1, "percentiles": (1, 99)},
        {"percentiles": (99, 1)},
        {"percentiles": (-1, 50)},
    ],
)
def test_a_range_that_makes_no_sense(wrong):
    with pytest.raises(ConfigError):
        to_8bit(np.arange(6, dtype=np.int16), **wrong)


@pytest.mark.parametrize("values", [np.zeros((0, 3), np.int16), np.zeros(3, complex), np.zeros(3, bool)])
def test_arrays_that_are_not_pictures(values):
    with pytest.raises(ImageError):
        to_8bit(values)
