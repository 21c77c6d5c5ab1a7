"""Images and masks in squares: the same geometry for both, and bytes that come back by index."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import torch

from mie.training.batches import Pool, letterbox, letterbox_mask
from tests.conftest import crop


def phantom(height: int, width: int) -> np.ndarray:
    """An L: one handedness only, and no symmetry that would hide a flip or a transposition."""
    mask = np.zeros((height, width), np.uint8)
    mask[height // 8 : 7 * height // 8, width // 8 : 3 * width // 8] = 1
    mask[5 * height // 8 : 7 * height // 8, width // 8 : 7 * width // 8] = 1
    return mask


@pytest.mark.parametrize("size", [(64, 64), (96, 48), (48, 96), (50, 33), (200, 120), (121, 256), (97, 300)])
def test_image_and_mask_land_on_the_same_pixels(size: tuple[int, int]) -> None:
    side = 128
    mask = phantom(*size)
    image = np.repeat(mask[..., None] * np.uint8(255), 3, axis=2)
    shown, (height, width) = letterbox(image, side)
    boxed = letterbox_mask(mask, side)
    assert shown.shape == (side, side, 3)
    assert boxed.shape == (side, side)
    assert max(height, width) == side
    assert height / width == pytest.approx(size[0] / size[1], rel=0.02)
    seen = shown[..., 0] > 127
    # The phantom is dark at its border, so nothing bright is repeated outwards.
    differ = seen != (boxed == 1)
    border = np.zeros_like(differ)
    for axis in (0, 1):
        border |= boxed != np.roll(boxed, 1, axis)
        border |= boxed != np.roll(boxed, -1, axis)
    assert not (differ & ~border).any(), "they differ at most by the pixel of the edge"
    dice = 2 * (seen & (boxed == 1)).sum() / (seen.sum() + boxed.sum())
    assert dice > 0.97
    assert set(np.unique(boxed)) == {0, 1}


def test_what_already_fits_keeps_its_pixels_in_the_middle() -> None:
    image, mask = crop(0, 64, 40), phantom(64, 40)
    shown, size = letterbox(image, 64)
    assert size == (64, 40)
    assert (shown[:, 12:52] == image).all()
    assert (shown[:, :12] == image[:, :1]).all(), "its edge is repeated"
    assert (letterbox_mask(mask, 64)[:, 12:52] == mask).all()
    assert not letterbox_mask(np.ones((64, 40), np.uint8), 64)[:, :12].any(), "nothing is painted beside it"


def test_nothing_is_enlarged_unless_asked_but_too_much_is_scaled_down() -> None:
    image = crop(1, 40, 31)
    shown, size = letterbox(image, 64, enlarge=False)
    assert size == (40, 31)
    assert (shown[12:52, 16:47] == image).all()
    assert letterbox(image, 64)[1] == (64, 50)
    assert letterbox(crop(1, 80, 62), 64, enlarge=False)[1] == (64, 50)


def test_a_pool_gives_bytes_by_index() -> None:
    arrays = [crop(n, 32, 32) for n in range(4)]
    pool = Pool(arrays, "cpu")
    chosen = pool.gather(torch.tensor([2, 0, 2]))
    assert chosen.dtype == torch.uint8
    assert chosen.shape == (3, 3, 32, 32)
    assert (chosen[1].permute(1, 2, 0).numpy() == arrays[0]).all()
    assert (chosen[0] == chosen[2]).all()
    assert len(pool) == 4
    assert Pool([phantom(32, 32)], "cpu").gather(torch.tensor([0])).shape == (1, 1, 32, 32)
