"""Images with holes of every kind, for property tests."""

import numpy as np
from hypothesis import strategies as st

from tests.conftest import crop


@st.composite
def regions(draw):
    """A real crop and a hole: blobs (at the border too), one pixel, scattered pixels; never all."""
    height, width = draw(st.integers(1, 60)), draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = np.zeros((height, width), bool)
    kind = draw(st.sampled_from(["empty", "pixel", "blobs", "scattered", "nearly all"]))
    if kind == "pixel":
        mask[rng.integers(height), rng.integers(width)] = True
    elif kind == "blobs":
        for _ in range(rng.integers(1, 4)):
            y, x = rng.integers(height), rng.integers(width)
            mask[max(y - 3, 0) : y + rng.integers(1, 30), max(x - 5, 0) : x + rng.integers(1, 30)] = True
    elif kind == "scattered":
        mask = rng.random((height, width)) < rng.random()
    elif kind == "nearly all":
        mask[:] = True
    mask[rng.integers(height), rng.integers(width)] &= kind == "pixel"
    if mask.all():
        mask[0, 0] = False
    return crop(int(rng.integers(4)), height, width), mask
