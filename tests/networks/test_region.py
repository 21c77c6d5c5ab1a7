"""The region detector's network: what it sees of an image, and what its answer depends on."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need the extra `models`")

from mie.networks.region import (  # noqa: E402
    AROUND,
    NARROWEST,
    SIDE,
    RegionConfig,
    RegionNet,
    parts_of,
    probabilities,
    square,
)


def box(shape, top, left, height, width):
    mask = np.zeros(shape, np.bool_)
    mask[top : top + height, left : left + width] = True
    return mask


def test_a_square_shows_the_outline_in_its_middle_at_a_fixed_share():
    image = np.zeros((300, 400, 3), np.uint8)
    mask = box((300, 400), 100, 50, 60, 30)
    image[mask] = 200
    seen = square(image, mask)
    rows, columns = np.nonzero(seen.outline)
    assert abs(rows.mean() - SIDE / 2) < 1.5
    assert abs(columns.mean() - SIDE / 2) < 1.5
    assert np.ptp(rows) + 1 == pytest.approx(SIDE / AROUND, abs=2)
    assert np.ptp(columns) + 1 == pytest.approx(SIDE / AROUND / 2, abs=2)
    assert (seen.image[seen.outline] > 90).all(), "the picture lies where its outline does"
    assert (seen.image[~seen.outline] < 110).all()


def test_beyond_the_image_its_edge_is_repeated_and_the_outline_ends():
    image = np.full((60, 60, 3), 90, np.uint8)
    image[:, 0] = 250
    mask = box((60, 60), 20, 0, 20, 20)
    seen = square(image, mask)
    outside = seen.image[SIDE // 2, :20]
    assert (outside == 250).all()
    assert not seen.outline[:, :20].any()


def test_a_small_outline_is_not_enlarged_without_end():
    image = np.zeros((200, 200, 3), np.uint8)
    seen = square(image, box((200, 200), 90, 90, 2, 2))
    side = np.ptp(np.nonzero(seen.outline)[0]) + 1
    assert side == pytest.approx(2 * SIDE / NARROWEST, abs=1.5)


def test_parts_that_lie_near_each_other_are_one_largest_first():
    region = box((120, 120), 10, 10, 6, 6) | box((120, 120), 10, 19, 6, 6) | box((120, 120), 70, 70, 20, 20)
    parts = parts_of(region)
    assert [int(part.sum()) for part in parts] == [400, 72]
    assert (np.logical_or.reduce(parts) == region).all()
    assert parts_of(np.zeros((9, 9), np.bool_)) == []


def test_the_answer_depends_on_image_outline_and_family():
    torch.manual_seed(0)
    net = RegionNet(RegionConfig(("ct", "mri"), width=8, blocks=1)).eval()
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (90, 90, 3), np.uint8)
    near, far = box((90, 90), 10, 10, 20, 20), box((90, 90), 50, 50, 20, 20)
    first, second = probabilities(net, image, [near, far], "ct")
    assert first != second
    assert probabilities(net, image, [near], "ct")[0] == pytest.approx(first, abs=1e-5)
    assert probabilities(net, image, [near], "mri")[0] != pytest.approx(first, abs=1e-6)
    assert probabilities(net, 255 - image, [near], "ct")[0] != pytest.approx(first, abs=1e-6)
    assert probabilities(net, image, [], "ct") == []
