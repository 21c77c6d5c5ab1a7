"""Size policy: which size a model sees, and how its output returns to the image's grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.editors.sizes import AUTO, NATIVE, SizeRule, check_size, place
from mie.errors import ConfigError

sides = st.integers(1, 90)


def _image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), np.uint8)


@given(sides, sides, st.sampled_from([1, 8, 16, 32]))
def test_native_pads_and_crops_without_touching_a_pixel(height: int, width: int, multiple: int) -> None:
    image = _image(height, width)
    seen, placement = place(image, NATIVE, SizeRule(multiple, 1))
    assert seen.shape[0] % multiple == 0
    assert seen.shape[1] % multiple == 0
    assert seen.shape[:2] == placement.given
    assert max(seen.shape[0] - height, seen.shape[1] - width) < multiple
    back, steps = placement.back(seen)
    assert np.array_equal(back, image)
    assert bool(steps) == bool(placement.steps) == (placement.given != (height, width))


def test_native_scales_down_what_is_too_large_and_keeps_the_shape() -> None:
    seen, placement = place(_image(100, 380), NATIVE, SizeRule(16, 16, most=10_000))
    assert placement.scaled == (48, 184)
    assert seen.shape == (48, 192, 3)  # 51 x 195 has 10,000 pixels too, but not once it is padded
    assert [step["step"] for step in placement.steps] == ["resize", "pad"]
    back, steps = placement.back(seen)
    assert back.shape == (100, 380, 3)
    assert steps == [
        {"step": "crop", "from": [48, 192], "to": [48, 184]},
        {"step": "resize", "from": [48, 184], "to": [100, 380]},
    ]


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([8, 16, 32]))
def test_what_the_model_sees_is_never_too_large(height: int, width: int, multiple: int) -> None:
    rule = SizeRule(multiple, 64)
    seen, placement = place(np.zeros((height, width, 3), np.uint8), NATIVE, rule)
    assert seen.shape[0] * seen.shape[1] <= rule.most
    if min(height, width) >= rule.least and -(-height // 32) * -(-width // 32) <= 2**10:
        assert placement.scaled == (height, width)


def test_native_enlarges_what_is_too_small() -> None:
    seen, placement = place(_image(8, 10), NATIVE, SizeRule(16, 32))
    assert placement.scaled == (32, 40)
    assert seen.shape == (32, 48, 3)


def test_a_given_size_is_width_then_height() -> None:
    assert place(_image(30, 50), "64x48", SizeRule(16))[0].shape == (48, 64, 3)
    assert place(_image(30, 50), "64", SizeRule(16))[0].shape == (64, 64, 3)


def test_auto_leaves_the_image_alone_and_brings_any_output_back() -> None:
    image = _image(33, 47)
    seen, placement = place(image, AUTO, SizeRule())
    assert np.array_equal(seen, image)
    assert placement.steps == []
    back, steps = placement.back(_image(64, 96))
    assert back.shape == image.shape
    assert steps == [{"step": "resize", "from": [64, 96], "to": [33, 47]}]


@pytest.mark.parametrize("size", ["big", "0", "8", "9999", "10x", "x10", "512 ", -1])
def test_what_is_no_size_is_said(size: str | int) -> None:
    with pytest.raises(ConfigError, match="not a size"):
        check_size(size)


def test_sizes_are_texts_or_numbers() -> None:
    assert [check_size(size) for size in ("Native", 512, "768x512")] == ["native", "512", "768x512"]
