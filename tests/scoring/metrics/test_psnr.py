import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio

from mie.scoring.metrics import psnr
from tests.scoring.metrics.pairs import KINDS, constant_pair, random_pair


@pytest.mark.parametrize("kind", KINDS)
def test_equals_scikit_image(kind):
    for height, width in [*((n, n) for n in range(1, 65)), (3, 50), (512, 512), (511, 333)]:
        if kind == "real" and min(height, width) < 2:
            continue
        a, b = KINDS[kind](height, width)
        assert psnr(a, b) == pytest.approx(peak_signal_noise_ratio(a, b), abs=1e-10), (height, width)


@given(height=st.integers(1, 12), width=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_by_hand(height, width, seed):
    a, b = random_pair(height, width, seed)
    squares = sum((int(x) - int(y)) ** 2 for x, y in zip(a.ravel(), b.ravel(), strict=True))
    expected = math.inf if squares == 0 else 10 * math.log10(255**2 * a.size / squares)
    assert psnr(a, b) == pytest.approx(expected, abs=1e-10)


def test_the_ends_of_the_scale():
    black, white = constant_pair(1, 1, 0, 255)
    assert psnr(black, black) == math.inf
    assert psnr(black, white) == 0
    # The largest possible sum of squares is far above 32 bits.
    assert psnr(np.zeros((700, 700, 3), np.uint8), np.full((700, 700, 3), 255, np.uint8)) == 0
