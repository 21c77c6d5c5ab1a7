"""Random views: image and mask together, handedness kept where it must be, grey left grey."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

import torch
from torch import Tensor

from mie.training.augment import (
    STRENGTHS,
    Draw,
    crop_pairs,
    cut_out,
    milder,
    mix_histograms,
    recolour,
    warp,
)
from tests.conftest import crop, ellipse

COUNT, SIDE = 24, 96


def draw(seed: int = 0, count: int = COUNT) -> Draw:
    return Draw(count, torch.Generator().manual_seed(seed))


def views(
    images: Tensor, masks: Tensor | None = None, *, flips: bool = True, turns: bool = False, **changes
) -> tuple[Tensor, Tensor, Tensor]:
    count = len(images)
    options = {"seed": 0, "filled": torch.ones(count, 2), "window": torch.ones(count), **changes}
    return warp(
        draw(options["seed"], count),
        images,
        images[:, :1] if masks is None else masks,
        options["filled"],
        side=SIDE,
        window=options["window"],
        flips=torch.full((count,), flips),
        turns=torch.full((count,), turns),
        strength=options.get("strength", STRENGTHS["usual"]),
    )


def coordinates(count: int = COUNT, side: int = 128) -> Tensor:
    """Channels x and y from -1 to 1: a view of them says where it looks."""
    at = (torch.arange(side) + 0.5) / side * 2 - 1
    y, x = torch.meshgrid(at, at, indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).expand(count, -1, -1, -1)


def handedness(seen: Tensor) -> Tensor:
    """The sign of the determinant of d(x, y) / d(column, row), by its median: warps are local."""
    dx = seen[:, :2, :-1, 1:] - seen[:, :2, :-1, :-1]
    dy = seen[:, :2, 1:, :-1] - seen[:, :2, :-1, :-1]
    determinant = dx[:, 0] * dy[:, 1] - dx[:, 1] * dy[:, 0]
    return determinant.flatten(1).median(1).values.sign()


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("turns", [False, True])
def test_image_and_mask_move_together(turns: bool, strength: str) -> None:
    regions = np.stack([ellipse(n, 128, 128) for n in range(COUNT)])
    masks = torch.from_numpy(regions)[:, None].float()
    how = {"turns": turns, "strength": STRENGTHS[strength], "window": torch.full((COUNT,), 0.9)}
    seen, mask, _ = views(masks.expand(-1, 3, -1, -1), masks, **how)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    shown = seen[:, :1] > 0.5
    assert ((shown.sum((1, 2, 3)) > 0) == (mask.sum((1, 2, 3)) > 0)).all()
    there = mask.sum((1, 2, 3)) > 100
    assert there.sum() > COUNT / 2
    both = (shown * mask).sum((1, 2, 3))
    dice = 2 * both / (shown.sum((1, 2, 3)) + mask.sum((1, 2, 3)))
    assert (dice[there] > 0.97).all()
    assert (shown.float() != torch.nn.functional.interpolate(masks, size=(SIDE, SIDE))).any((1, 2, 3)).all()


def test_flips_only_where_allowed() -> None:
    assert (handedness(views(coordinates(), flips=False)[0]) == 1).all()
    assert (handedness(views(coordinates(100), flips=False, turns=True)[0]) == 1).all()
    some = handedness(views(coordinates(200), flips=True)[0])
    assert 0.35 < (some < 0).float().mean() < 0.65


def test_an_upright_picture_stays_upright_and_others_turn_freely() -> None:
    def angles(turns: bool) -> Tensor:
        seen, _, _ = views(coordinates(120), flips=False, turns=turns)
        middle = seen[:, :2, SIDE // 4 : -SIDE // 4, SIDE // 4 : -SIDE // 4]
        down = (middle[:, :, 1:] - middle[:, :, :-1]).flatten(2).median(2).values
        return torch.atan2(down[:, 0], down[:, 1]).abs().rad2deg()

    assert angles(turns=False).max() < 25 + 6  # and a little for the warp
    assert (angles(turns=True) > 90).float().mean() > 0.3


def test_what_is_counted_is_the_image_and_not_its_repeated_edge() -> None:
    filled = torch.tensor([0.5, 0.8]).expand(COUNT, 2)  # height, width
    seen, _, inside = views(coordinates(), filled=filled)
    x, y = seen[:, :1], seen[:, 1:2]
    expected = (x.abs() <= 0.8) & (y.abs() <= 0.5)
    assert inside.shape == (COUNT, 1, SIDE, SIDE)
    assert (inside == expected).float().mean() > 0.999
    assert 0.2 < inside.float().mean() < 0.6


def test_a_window_shows_a_part_anywhere_in_the_image() -> None:
    seen, _, inside = views(coordinates(100), window=torch.full((100,), 0.4), flips=False)
    centre = seen[:, :2, SIDE // 2, SIDE // 2]
    assert centre.min() < -0.3
    assert centre.max() > 0.3
    width = (seen[:, 0].amax((1, 2)) - seen[:, 0].amin((1, 2))) / 2
    assert width.max() < 0.4 * 1.29 * 1.13 * 1.4  # zoom, stretch, and the diagonal of a turn
    assert inside.float().mean() > 0.9


def test_the_same_seed_gives_the_same_views() -> None:
    images = torch.from_numpy(np.stack([crop(n, 128, 128) for n in range(4)])).permute(0, 3, 1, 2) / 255
    grey = torch.zeros(4, dtype=torch.bool)
    for make in (
        lambda seed: views(images, seed=seed)[0],
        lambda seed: recolour(draw(seed, 4), images, grey),
        lambda seed: crop_pairs(draw(seed, 4), images, 64, grey),
    ):
        first = make(7)
        torch.rand(3)  # the global generator is not asked
        assert torch.equal(make(7), first)
        assert not torch.equal(make(8), first)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_grey_stays_exactly_grey_and_colour_changes(strength: str) -> None:
    pictures = [crop(n % 8, 64, 64) for n in range(60)]
    colour = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 255
    flat = torch.from_numpy(np.stack([cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in pictures])) / 255
    images = torch.cat([colour, flat[:, None].expand(-1, 3, -1, -1)])
    made = recolour(draw(3, 120), images, torch.arange(120) >= 60, STRENGTHS[strength])
    assert made.min() >= 0
    assert made.max() <= 1
    assert torch.equal(made[60:, 0], made[60:, 1])
    assert torch.equal(made[60:, 0], made[60:, 2])
    still = (made[:60, 0] == made[:60, 1]).flatten(1).all(1).float().mean()
    assert still < 0.2, "a few pictures lose their colour, most keep it"
    assert ((made - images).abs().mean((1, 2, 3)) > 1e-3).all(), "each is changed"
    alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(made[60:, 0].flatten(1), flat.flatten(1), strict=True)]
    assert np.median(alike) > 0.9, "and shows what it showed"


@pytest.mark.parametrize("turns", [False, True])
def test_both_halves_of_a_pair_are_cut_alike(turns: bool) -> None:
    images = torch.from_numpy(np.stack([crop(n, 96, 96) for n in range(COUNT)])).permute(0, 3, 1, 2) / 255
    cut = crop_pairs(draw(1), torch.cat([images, 1 - images], 1), 64, torch.full((COUNT,), turns))
    assert cut.shape == (COUNT, 6, 64, 64)
    torch.testing.assert_close(cut[:, 3:], 1 - cut[:, :3], rtol=0, atol=1e-7)


def test_a_cut_keeps_pixels_and_turns_only_what_may() -> None:
    """By coordinates: steps of one pixel along an axis, mirrored or turned by quarters."""
    place = coordinates(200, 96)[:, :2] * 48  # in pixels
    for turns in (False, True):
        cut = crop_pairs(draw(2, 200), place, 64, torch.full((200,), turns))
        down, right = (cut.diff(dim=axis)[:, :, :63, :63].mean((2, 3)).round().abs() for axis in (2, 3))
        axes = torch.cat([down, right], 1)
        upright = (axes == torch.tensor([0.0, 1, 1, 0])).all(1)
        turned = (axes == torch.tensor([1.0, 0, 0, 1])).all(1)
        assert (upright | turned).all()
        assert 0.3 < turned.float().mean() < 0.7 if turns else not turned.any()
        upside = cut[:, 1, -1, 0] < cut[:, 1, 0, 0]
        assert upside.any() == turns
        mirrored = cut[:, 0, 0, -1] < cut[:, 0, 0, 0]
        assert 0.2 < mirrored[upright].float().mean() < 0.8
    corners = {tuple(c) for c in cut[:, :, 0, 0].round().tolist()}
    assert len(corners) > 50, "windows lie everywhere"


def test_a_pair_that_just_fits_is_shown_whole() -> None:
    pairs = torch.rand(8, 6, 64, 64, generator=torch.Generator().manual_seed(0))
    cut = crop_pairs(draw(4, 8), pairs, 64, torch.zeros(8, dtype=torch.bool))
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(2)) for a, b in zip(cut, pairs, strict=True))


def test_a_strong_view_goes_further() -> None:
    def zooms(strength: str) -> Tensor:
        seen, _, _ = views(coordinates(200), flips=False, strength=STRENGTHS[strength])
        across = seen[:, 0, SIDE // 2, SIDE // 4] - seen[:, 0, SIDE // 2, -SIDE // 4]
        return across.abs().log()

    assert zooms("strong").std() > 1.3 * zooms("usual").std()


def test_histograms_are_mixed_with_the_partner_s() -> None:
    """Dark and bright pictures: at full chance each goes some way towards the other, in the same order."""
    draws = torch.rand(40, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    images = torch.cat([0.4 * draws[:20], 0.6 + 0.4 * draws[20:]]).expand(-1, 3, -1, -1)
    partner = torch.arange(40).roll(20)
    made = mix_histograms(draw(0, 40), images, partner, 1.0)
    assert torch.equal(made[:, 0], made[:, 2])
    lifted, sunk = (made - images)[:20].mean((1, 2, 3)), (made - images)[20:].mean((1, 2, 3))
    assert (lifted > -1e-3).all()
    assert lifted.max() > 0.4
    assert (sunk < 1e-3).all()
    order = np.corrcoef(made[:20].flatten(1), images[:20].flatten(1))[range(20), range(20, 40)]
    assert (order > 0.99).all()
    assert torch.equal(mix_histograms(draw(0, 40), images, partner, 0.0), images)
    alone = mix_histograms(draw(0, 40), images, torch.arange(40), 1.0)
    torch.testing.assert_close(alone, images, rtol=0, atol=0.02)


def test_what_is_cut_out_is_flat_and_not_counted() -> None:
    images = torch.rand(60, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    counted = torch.ones(60, 1, 64, 64, dtype=torch.bool)
    made, left = cut_out(draw(3, 60), images, counted, 0.5)
    hidden = ~left
    some = hidden.any((1, 2, 3))
    assert 0.3 < some.float().mean() < 0.7
    assert torch.equal(made[left.expand_as(made)], images[left.expand_as(images)])
    for at in torch.nonzero(some)[:, 0]:
        inside = made[at][hidden[at].expand(3, -1, -1)]
        assert inside.unique().numel() == 1
        assert 0.005 < hidden[at].float().mean() < 0.13


def test_a_window_around_a_point_shows_it() -> None:
    place = coordinates(100, 128)[:, :2] * 64 + 64  # in pixels (x, y)
    around = torch.rand(100, 2, generator=torch.Generator().manual_seed(5)) * 128
    none = torch.zeros(100, dtype=torch.bool)
    cut = crop_pairs(draw(2, 100), place, 64, none, none, around)
    for axis, channel in ((0, 1), (1, 0)):
        low, high = cut[:, channel].flatten(1).min(1).values, cut[:, channel].flatten(1).max(1).values
        assert ((low - 1 <= around[:, axis]) & (around[:, axis] <= high + 1)).all()
    assert (cut[:, 0, 0, -1] > cut[:, 0, 0, 0]).all(), "not mirrored where it may not be"


def test_a_milder_input_lies_between_itself_and_its_goal() -> None:
    draw = Draw(64, torch.Generator().manual_seed(1))
    pairs = torch.rand(64, 6, 8, 8, generator=draw.generator)
    scales = torch.arange(64) % 2 == 0
    shown = milder(draw, pairs, scales, 1.0)
    assert torch.equal(shown[:, 3:], pairs[:, 3:])
    assert torch.allclose(shown[~scales], pairs[~scales], atol=1e-6)  # a transfer is shown as it is
    before = (pairs[:, :3] - pairs[:, 3:]).abs().mean((1, 2, 3))
    after = (shown[:, :3] - shown[:, 3:]).abs().mean((1, 2, 3))
    share = (after / before)[scales]
    assert share.max() <= 1
    assert share.min() < 0.2
    assert 0.3 < share.mean() < 0.7
