"""Gates look at a whole volume's slices below each other, a few rows at a time: as if at all at once."""

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest

from mie.core import scratch
from mie.images.overlay import deblend, deblend_any, paint
from mie.perspectives.modification.proof import background_problems
from mie.perspectives.perception.samples import cut_off, proof
from mie.perspectives.perspective import TrivialGate
from mie.perspectives.transformation.samples import _contrast, _difference
from mie.records import Sample
from tests.conftest import make_case
from tests.perspectives.perception.test_samples import samples

SHAPES = [(1, 1), (1, 9), (9, 1), (2, 40), (40, 2), (64, 77), (1500, 40), (33, 600)]


@pytest.fixture(params=[1, 1 << 12, 1 << 30])
def slabs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "BLOCK", request.param)
    monkeypatch.setattr(scratch, "_IN_MEMORY", 0)


def two_images(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(shape[0])
    a, b = draw.integers(0, 256, (2, *shape, 3), np.uint8)
    return a, np.where(draw.random(shape)[..., None] < 0.1, b, a)


@pytest.mark.parametrize("shape", SHAPES)
def test_difference_and_contrast(slabs: None, shape: tuple[int, int]) -> None:
    a, b = two_images(shape)
    squared = np.square(a.astype(np.float64) - b).mean(axis=2)
    side = max(1, max(shape) // 8)
    assert _difference(a, b) == pytest.approx(math.sqrt(cv2.blur(squared, (side, side)).max()), rel=1e-9)
    assert _contrast(a) == pytest.approx(np.std(a.astype(np.float64).mean(axis=2)), rel=1e-9, abs=1e-9)


def cut_off_at_once(image: np.ndarray, region: np.ndarray) -> float:
    around = max(1, round(0.015 * max(region.shape)))
    box = np.ones((2 * around + 1, 2 * around + 1), np.uint8)
    outside = (cv2.dilate(region.view(np.uint8), box) > 0) & ~region
    if not (region.any() and outside.any()):
        return 0.0
    grey = image.mean(2)
    return max(min(cut[region].mean(), cut[outside].mean()) for cut in (grey <= 2, grey >= 253))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_what_is_cut_off(slabs: None, shape: tuple[int, int], share: float) -> None:
    draw = np.random.default_rng(shape[1])
    image = np.repeat(draw.choice([0, 2, 3, 90, 252, 253, 255], (*shape, 1)), 3, axis=2).astype(np.uint8)
    region = draw.random(shape) < share
    assert cut_off(image, region) == cut_off_at_once(image, region)


def test_a_painted_region_is_read_back(slabs: None) -> None:
    image, _ = two_images((300, 50))
    region = np.zeros((300, 50), bool)
    region[20:70, 10:30] = region[200:280, 5:40] = True
    painted = paint(image, region, "green")
    lies = np.square(painted.astype(int) - image).sum(2) > np.square(painted.astype(int) - [0, 255, 0]).sum(2)
    np.testing.assert_array_equal(deblend(image, painted, "green"), lies)
    assert (deblend_any(image, painted) >= lies).all()


def painted_sample() -> Sample:
    return next(iter(samples(make_case(), split="test")))


def test_proof_and_size_of_a_region(slabs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = painted_sample()
    found, gate = proof(sample), TrivialGate(min_pixels=10**6)(sample)
    assert gate is not None
    assert sample.mask is not None
    assert gate.numbers["pixels"] == np.count_nonzero(sample.mask)
    monkeypatch.setattr(scratch, "BLOCK", 1 << 30)
    assert proof(sample) == found
    flat = replace(sample, input=np.full_like(sample.input, 7))
    assert TrivialGate()(flat).gate == "blank"


def test_what_changes_outside_a_hole(slabs: None) -> None:
    before, after = two_images((400, 30))
    mask = np.zeros((400, 30), np.uint8)
    mask[100:300] = 255
    sample = replace(painted_sample(), input=before, target_image=after, mask=mask, task="removal", params={})
    outside = ((before != after).any(axis=2) & (mask == 0)).sum()
    numbers = background_problems(sample)[0][1]
    assert numbers == {"outside": outside}
    still = replace(sample, target_image=np.where(mask[..., None] > 0, before, after))
    assert "inside the mask the images differ by 0.00" in str(background_problems(still))
    white = replace(still, task="inpainting")
    coloured = ((before != 255).any(axis=2) & (mask > 0)).sum()
    assert {"not_white": coloured} in [numbers for _, numbers in background_problems(white)]
