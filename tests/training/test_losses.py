"""The losses: SSIM is the protocol's, and less is better in the order that an eye would give."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import torch
from torch import Tensor

from mie.scoring.metrics import ssim as reference_ssim
from mie.training.losses import Texture, change_loss, overlay_loss, restoration_loss, ssim
from tests.conftest import crop, ellipse

ONE_ASKED = torch.tensor([[True, False, False]])


def tensor(image: np.ndarray) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def noisy(image: np.ndarray, sigma: float) -> np.ndarray:
    draw = np.random.default_rng(0).normal(0, sigma, image.shape)
    return np.clip(np.round(image + draw), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(("number", "sigma"), [(0, 5), (1, 20), (2, 60), (3, 0)])
def test_ssim_is_that_of_the_protocol(number: int, sigma: float) -> None:
    clean = crop(number, 96, 130)
    other = noisy(clean, sigma)
    found = ssim(tensor(clean), tensor(other))
    assert found.shape == (1,)
    assert found.item() == pytest.approx(reference_ssim(clean, other), abs=1e-4)


def test_ssim_is_one_value_per_image() -> None:
    clean = [crop(n, 64, 64) for n in range(3)]
    other = [noisy(image, 30) for image in clean]
    found = ssim(torch.cat([tensor(i) for i in clean]), torch.cat([tensor(i) for i in other]))
    expected = [reference_ssim(a, b) for a, b in zip(clean, other, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.fixture
def wanted() -> Tensor:
    region = torch.zeros(1, 3, 64, 64)
    region[0, 0] = torch.from_numpy(ellipse(3, 64, 64)).float()
    return region


def test_an_overlay_costs_less_the_nearer_it_is(wanted: Tensor) -> None:
    counted = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    signs = 2 * wanted - 1
    scales = (-4, -1, 0, 1, 4, 12)
    costs = [overlay_loss(scale * signs, wanted, counted, ONE_ASKED).item() for scale in scales]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)
    assert costs[-1] < 1e-3


def test_what_is_not_counted_has_no_influence(wanted: Tensor) -> None:
    counted = torch.zeros(1, 1, 64, 64, dtype=torch.bool)
    counted[..., 16:, :] = True
    logits = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    first = overlay_loss(logits, wanted, counted, ONE_ASKED)
    (slope,) = torch.autograd.grad(first.sum(), logits)
    assert not slope[..., :16, :].any()
    assert slope[..., 16:, :].all()
    other = wanted.clone()
    other[..., :16, :] = 1 - other[..., :16, :]
    changed = logits.detach().clone()
    changed[..., :16, :] = 9
    assert torch.equal(overlay_loss(changed, other, counted, ONE_ASKED), first.detach())


def test_colours_that_are_not_asked_for_have_no_dice(wanted: Tensor) -> None:
    """Without any, what is left is the cross-entropy; of an empty map, by the formula softplus(logit)."""
    counted = torch.ones(1, 1, 64, 64)
    logits = torch.full((1, 3, 64, 64), -2.0)
    nothing = overlay_loss(logits, torch.zeros_like(wanted), counted, torch.zeros(1, 3))
    assert nothing.item() == pytest.approx(3 * np.log1p(np.exp(-2.0)), rel=1e-5)
    with_dice = overlay_loss(logits, wanted, counted, ONE_ASKED)
    without = overlay_loss(logits, wanted, counted, torch.zeros(1, 3))
    p = 1 / (1 + np.exp(2.0))
    area = wanted.sum().item()
    dice = 1 - (2 * p * area + 1) / (p * 64 * 64 + area + 1)
    assert (with_dice - without).item() == pytest.approx(dice, rel=1e-4)


def test_a_small_region_counts_for_more_than_its_pixels() -> None:
    """A missed lesion of 4 x 4 pixels costs more than as many pixels painted in vain."""
    counted, asked = torch.ones(1, 1, 64, 64), torch.zeros(1, 3)
    lesion = torch.zeros(1, 3, 64, 64)
    lesion[:, 0, 8:12, 8:12] = 1
    sure = torch.full_like(lesion, -8.0)
    in_vain = sure.clone()
    in_vain[:, 0, 8:12, 8:12] = 8
    missed = overlay_loss(sure, lesion, counted, asked)
    assert missed.item() > 2 * overlay_loss(in_vain, torch.zeros_like(lesion), counted, asked).item()


def test_restorations_are_ordered_as_they_look() -> None:
    clean = crop(0, 96, 96)
    made = torch.cat([tensor(noisy(clean, sigma)) for sigma in (0, 2, 8, 30)])
    blurred = torch.nn.functional.avg_pool2d(tensor(clean), 9, 1, 4)
    cost = restoration_loss(torch.cat([made, blurred]), tensor(clean).expand(5, -1, -1, -1))
    assert cost.shape == (5,)
    assert cost[:4].tolist() == sorted(cost[:4].tolist())
    assert cost[4] > cost[1]
    # Exact: 2 + 10 log10(1e-5) / 20, no structure or edge lost.
    assert cost[0].item() == pytest.approx(-0.5, abs=1e-4)


@pytest.mark.parametrize("sigma", [3, 25])
def test_restoration_is_decibels_structure_and_edges(sigma: float) -> None:
    clean = crop(1, 64, 80)
    made = noisy(clean, sigma)
    a, b = made / 255, clean / 255
    edges = sum(np.abs(np.diff(a, axis=axis) - np.diff(b, axis=axis)).mean() for axis in (0, 1))
    expected = (
        2 + np.log10(((a - b) ** 2).mean() + 1e-5) / 2 + 0.7 * (1 - reference_ssim(made, clean)) + 2 * edges
    )
    assert restoration_loss(tensor(made), tensor(clean)).item() == pytest.approx(expected, abs=1e-3)


def test_a_change_counts_inside_its_area_alone() -> None:
    clean, area = crop(1, 64, 80), ellipse(1, 64, 80)
    made = noisy(clean, 12)
    inside = torch.from_numpy(area)[None, None].float()
    a, b = made / 255, clean / 255
    error = ((a - b)[area] ** 2).mean()
    edges = 0.0
    for axis in (0, 1):
        both = np.take(area, range(1, area.shape[axis]), axis) & np.take(
            area, range(area.shape[axis] - 1), axis
        )
        edges += np.abs(np.diff(a, axis=axis) - np.diff(b, axis=axis))[both].sum() / (3 * area.sum())
    expected = 2 + np.log10(error + 1e-4) / 2 + 2 * edges
    assert change_loss(tensor(made), tensor(clean), inside).item() == pytest.approx(expected, abs=1e-4)
    beside = np.where(area[..., None], made, 255 - made)
    assert change_loss(tensor(beside), tensor(clean), inside).item() == pytest.approx(expected, abs=1e-4)
    assert change_loss(tensor(made), tensor(clean), torch.zeros_like(inside)).item() == 0


def test_texture_costs_what_is_too_smooth_and_what_is_too_rough() -> None:
    texture, area = Texture("cpu"), torch.from_numpy(ellipse(0, 96, 96))[None, None].float()
    draw = np.random.default_rng(1)
    grain = np.clip(120 + draw.normal(0, 20, (96, 96, 1)), 0, 255).astype(np.uint8).repeat(3, 2)
    again = np.clip(120 + draw.normal(0, 20, (96, 96, 1)), 0, 255).astype(np.uint8).repeat(3, 2)
    rough = np.clip(120 + draw.normal(0, 45, (96, 96, 1)), 0, 255).astype(np.uint8).repeat(3, 2)
    flat = np.full_like(grain, 120)
    same_, other, rougher, mean = (
        texture(tensor(x), tensor(grain), area).item() for x in (grain, again, rough, flat)
    )
    assert same_ == 0
    assert other < 0.25 < rougher < mean, "another draw of the same grain costs little"
    assert ((flat - grain.astype(float)) ** 2).mean() < ((again - grain.astype(float)) ** 2).mean()
    assert texture(tensor(flat), tensor(grain), torch.zeros_like(area)).item() == 0


def test_smoothed_masks_ask_for_less_than_certainty(wanted: Tensor) -> None:
    counted = torch.ones(1, 1, 64, 64)
    nothing = torch.zeros(1, 3)

    def cost(scale: float, smooth: float) -> float:
        logits = scale * (2 * wanted - 1)
        return overlay_loss(logits, wanted, counted, nothing, torch.tensor([smooth])).item()

    assert cost(3, 0) == overlay_loss(3 * (2 * wanted - 1), wanted, counted, nothing).item()
    assert cost(10, 0) < cost(3, 0)
    assert cost(10, 0.1) > cost(3, 0.1)
