"""An image continued into its holes: kept where it is known, and made of nothing but what is known."""

import pytest

torch = pytest.importorskip("torch", reason="networks need the extra `models`")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mie.networks.fill import pull_push  # noqa: E402

HALVINGS = pytest.mark.parametrize("halvings", [None, 5])


@st.composite
def holed(draw):
    """An image of a random size and which of its pixels are known: few or many, in one place or scattered."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    dice = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    known = (torch.rand(1, 1, height, width, generator=dice) < draw(st.floats(0.05, 1))).float()
    known[..., draw(st.integers(0, height)) :, draw(st.integers(0, width)) :] = 0
    known[..., 0, 0] = 1
    return torch.rand(1, 3, height, width, generator=dice), known


@HALVINGS
@settings(max_examples=60, deadline=None)
@given(case=holed())
def test_known_pixels_stay_and_others_do_not_count(halvings, case):
    image, known = case
    done = pull_push(image, known, halvings)
    assert done.shape == image.shape
    assert torch.equal(done * known, image * known)
    spoilt = torch.where(known > 0, image, torch.full_like(image, 9.0))
    assert torch.equal(pull_push(spoilt, known, halvings), done)


@HALVINGS
@settings(max_examples=60, deadline=None)
@given(case=holed())
def test_a_fill_lies_between_what_is_known(halvings, case):
    """To the last pixel: with a mean at the end there is no hole that nothing reaches."""
    image, known = case
    done = pull_push(image, known, halvings)
    for channel, filled in zip(image[0], done[0], strict=True):
        there = channel[known[0, 0] > 0]
        assert there.min() - 1e-5 <= filled.min()
        assert filled.max() <= there.max() + 1e-5


@HALVINGS
def test_a_ramp_goes_on(halvings):
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64)
    known = torch.ones(1, 1, 64, 64)
    known[..., 20:40, 24:44] = 0
    hole = (known < 1).expand_as(ramp)
    done = pull_push(ramp, known, halvings)
    # Far closer to the ramp than the mean of what is around the hole is.
    assert (done - ramp)[hole].abs().mean() < 0.4 * (ramp[hole] - 0.5).abs().mean()


def test_a_square_that_is_halved_to_one_pixel_is_the_same_either_way():
    dice = torch.Generator().manual_seed(0)
    image, known = torch.rand(2, 3, 32, 32, generator=dice), torch.ones(2, 1, 32, 32)
    known[..., 3:29, 5:31] = 0
    torch.testing.assert_close(pull_push(image, known, 5), pull_push(image, known))


@HALVINGS
def test_a_hole_as_large_as_the_image_is_filled_with_something_finite(halvings):
    assert torch.isfinite(pull_push(torch.ones(1, 3, 64, 96), torch.zeros(1, 1, 64, 96), halvings)).all()
