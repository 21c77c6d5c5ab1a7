"""The flow network: colours, what surrounds a hole, and the path from noise to what is drawn."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need the extra `models`")

from mie.images.families import FAMILIES  # noqa: E402
from mie.networks.flow import (  # noqa: E402
    Conditions,
    FlowConfig,
    FlowNet,
    colours,
    differences,
    draw,
    scene,
    velocity_target,
)

TINY = FlowConfig(("polyp", "glioma"), FAMILIES, (8, 8, 16), (1, 1, 1), (1, 1, 1), 16)


def conditions(count=1, family="mri", target="healthy", contrast=np.nan):
    return Conditions(
        torch.full((count,), FAMILIES.index(family)),
        torch.full((count,), TINY.target(target)),
        torch.full((count,), contrast),
    )


def surroundings(seed=0, size=64):
    random = torch.Generator().manual_seed(seed)
    image = torch.rand(1, 3, size, size, generator=random)
    hole = torch.zeros(1, 1, size, size)
    hole[..., 20:44, 16:40] = 1
    return image, hole


def test_colours_come_back_and_grey_has_no_differences():
    image = torch.rand(2, 3, 8, 8)
    assert torch.allclose(colours(differences(image)), image, atol=1e-6)
    grey = image[:, :1].expand(-1, 3, -1, -1)
    assert (differences(grey)[:, 1:] == 0).all()
    values = differences(grey)
    assert (colours(values) == values[:, :1]).all()


def test_what_is_under_the_hole_does_not_matter():
    image, hole = surroundings()
    other = torch.where(hole > 0, 1 - image, image)
    for a, b in zip(scene(image, hole, 0 * hole), scene(other, hole, 0 * hole), strict=True):
        assert torch.equal(a, b)


def test_scale_is_the_grain_around_the_hole():
    image, hole = surroundings()
    strong, weak = 0.5 + 0.2 * (image - 0.5), 0.5 + 0.1 * (image - 0.5)
    ratio = scene(strong, hole, 0 * hole).scale / scene(weak, hole, 0 * hole).scale
    assert torch.allclose(ratio, torch.full_like(ratio, 2.0), rtol=1e-3)
    flat = scene(torch.full_like(image, 0.5), hole, 0 * hole).scale
    assert torch.allclose(flat.flatten(), torch.tensor([4 / 255, 2 / 255, 2 / 255]))


def test_the_residual_of_an_image_composes_it_again():
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)
    residual = around.residual(image)
    assert (residual[(hole == 0).expand_as(residual)] == 0).all()
    assert torch.allclose(around.compose(residual), image, atol=1e-5)


def test_the_sampler_follows_a_flow_exactly_where_velocity_is_linear_in_time():
    """Two-step Adams-Bashforth integrates a velocity a + b t exactly but for its first, Euler, step."""
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)
    start = torch.zeros(1, 3, 64, 64)

    def linear(x, t, context, asked):
        return torch.ones_like(x) * (1 + 4 * t.view(-1, 1, 1, 1))

    errors = [abs(float(draw(linear, around, conditions(), start, steps=n).mean()) - 3) for n in (8, 16)]
    # The one Euler step of width h errs by b h² / 2.
    assert errors == pytest.approx([4 / 64 / 2, 4 / 256 / 2], abs=1e-5)


def test_the_sampler_ends_on_the_picture_where_the_velocity_points_at_it():
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)
    goal = around.residual(image)

    def towards(x, t, context, asked):
        return hole * (goal - x) / (1 - t.view(-1, 1, 1, 1))

    noise = hole * torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(draw(towards, around, conditions(), noise, steps=8), goal, atol=1e-4)
    # Continued from a coarse draw, it starts from a mix with the noise at that time.
    x, velocity = velocity_target(goal, noise, torch.tensor([0.6]))
    assert torch.allclose(x + 0.4 * velocity, goal, atol=1e-5)
    again = draw(towards, around, conditions(), noise, steps=3, start=goal, since=0.6)
    assert torch.allclose(again, goal, atol=1e-4)


def test_guidance_moves_away_from_the_unnamed_flow():
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)

    def named(x, t, context, asked):
        return torch.ones_like(x) * asked.target.view(-1, 1, 1, 1)

    start = torch.zeros(1, 3, 64, 64)
    asked = conditions(target="polyp")
    drawn = [float(draw(named, around, asked, start, steps=2, guidance=g).mean()) for g in (1.0, 1.5)]
    assert drawn == pytest.approx([2.0, 3.0])


def test_the_network_hears_every_condition_and_draws_grey_families_in_grey():
    torch.manual_seed(0)
    net = FlowNet(TINY).eval()
    for parameter in net.parameters():
        if not parameter.abs().sum():
            torch.nn.init.normal_(parameter, std=0.1)
    image, hole = surroundings()
    around = scene(image, hole, hole)
    x, t = torch.randn(1, 3, 64, 64), torch.tensor([0.3])

    def velocity(time=t, context=around.context, **asked):
        return net(x, time, context, conditions(**asked))

    plain = velocity()
    others = [
        velocity(family="ct"), velocity(target="glioma"), velocity(target=None), velocity(contrast=0.0),
        velocity(time=t + 0.1), velocity(context=scene(image, hole, 0 * hole).context),
    ]  # fmt: skip
    assert all((plain - other).abs().max() > 1e-5 for other in others)
    assert net.channels(torch.tensor([FAMILIES.index("mri")])).flatten().tolist() == [1, 0, 0]
    assert net.channels(torch.tensor([FAMILIES.index("fundus")])).flatten().tolist() == [1, 1, 1]
    assert FlowConfig.from_json(TINY.as_json()) == TINY
