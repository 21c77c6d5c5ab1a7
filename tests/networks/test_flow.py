"""The flow network: colours, what surrounds a hole, and the path from noise to what is drawn."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need the extra `models`")

from mie.images.families import FAMILIES  # noqa: E402
from mie.networks.flow import (  # noqa: E402
    Bands,
    Conditions,
    FlowConfig,
    FlowNet,
    Steps,
    colours,
    differences,
    draw,
    enlarged,
)
from mie.networks.flow import scene as scene_of  # noqa: E402

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


def scene(image, hole, lesion, spread=(0.1, 2.0)):
    strengths = torch.tensor(spread).view(1, 2, 1).expand(len(image), -1, 3)
    return scene_of(image, hole, 0 * hole, lesion, strengths)


def noise(seed=1, size=64):
    random = torch.Generator().manual_seed(seed)
    return Bands(*(torch.randn(1, 3, side, side, generator=random) for side in (size // 8, size)))


def test_what_is_under_the_hole_does_not_matter():
    image, hole = surroundings()
    other = torch.where(hole > 0, 1 - image, image)
    a, b = scene(image, hole, 0 * hole), scene(other, hole, 0 * hole)
    assert torch.equal(a.smooth, b.smooth)
    assert torch.equal(a.context, b.context)
    assert torch.equal(a.strength.fine, b.strength.fine)


def test_what_lies_beyond_the_image_does_not_matter_and_is_not_drawn():
    image, hole = surroundings()
    beyond = torch.zeros_like(hole)
    beyond[..., 40:] = 1
    inside = hole * (1 - beyond)
    other = torch.where(beyond > 0, 1 - image, image)
    unit = torch.ones(1, 2, 3)
    a, b = (scene_of(x, inside, beyond, 0 * hole, unit) for x in (image, other))
    assert torch.equal(a.context, b.context)
    assert (a.added(image)[(beyond > 0).expand(-1, 3, -1, -1)] == 0).all()


def test_the_fine_band_is_in_units_of_the_grain_around_the_hole():
    image, hole = surroundings()
    strong, weak = 0.5 + 0.2 * (image - 0.5), 0.5 + 0.1 * (image - 0.5)
    ratio = scene(strong, hole, 0 * hole).strength.fine / scene(weak, hole, 0 * hole).strength.fine
    assert torch.allclose(ratio, torch.full_like(ratio, 2.0), rtol=1e-3)
    flat = scene(torch.full_like(image, 0.5), hole, 0 * hole).strength
    assert torch.allclose(flat.fine.flatten(), 2 * torch.tensor([4 / 255, 2 / 255, 2 / 255]))
    assert torch.allclose(flat.coarse.flatten(), torch.tensor(0.1))


def test_the_bands_of_an_image_compose_it_again():
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)
    added = around.added(image)
    coarse = around.coarse(added)
    # Whatever the coarse band is, the fine one makes up for it.
    for given in (coarse, coarse + 0.3, 0 * coarse):
        fine = around.fine(added, given)
        assert (fine[(hole == 0).expand_as(fine)] == 0).all()
        assert torch.allclose(around.compose(Bands(given, fine)), image, atol=1e-5)
    # A plain change of colour is coarse: away from the hole's edge nothing of it is left to the fine band.
    plain = 0.2 * hole.expand(-1, 3, -1, -1)
    rest = plain - 0.1 * enlarged(around.coarse(plain))
    assert rest[..., 28:36, 28:32].abs().max() < 1e-5


def test_the_sampler_follows_a_flow_exactly_where_velocity_is_linear_in_time():
    """Two-step Adams-Bashforth integrates a velocity a + b t exactly but for its first, Euler, step."""
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)
    zero = Bands(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 64, 64))

    def linear(coarse, fine, t, context, asked):
        return torch.ones_like(coarse if fine is None else fine) * (1 + 4 * t.view(-1, 1, 1, 1))

    for steps, wrong in ((8, 4 / 64 / 2), (16, 4 / 256 / 2)):
        bands = draw(linear, around, conditions(), zero, steps=Steps(steps, steps))
        # The one Euler step of width h errs by b h² / 2.
        assert float(bands.coarse.max()) == pytest.approx(3 - wrong, abs=1e-5)
        assert float(bands.fine.max()) == pytest.approx(3 - wrong, abs=1e-5)
        assert float(bands.fine[hole.expand(-1, 3, -1, -1) == 0].abs().max()) == 0
        assert float(bands.coarse[:, :, 0, 0].abs().max()) == 0, "cells without a hole stay empty"


def test_the_sampler_ends_on_the_picture_where_the_velocity_points_at_it():
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)
    added = around.added(image)
    goal = around.coarse(added)

    def towards(coarse, fine, t, context, asked):
        x, end = (coarse, goal) if fine is None else (fine, around.fine(added, coarse))
        return (end - x) / (1 - t.view(-1, 1, 1, 1))

    bands = draw(towards, around, conditions(), noise(), steps=Steps(8, 8))
    assert torch.allclose(bands.coarse, goal, atol=1e-4)
    assert torch.allclose(around.compose(bands), image, atol=1e-4)
    # With the coarse band given, as for the second pass over a large hole, the fine one follows from it.
    rough = goal + 0.2 * (around.covered > 0)
    again = draw(towards, around, conditions(), noise(), steps=Steps(0, 8), coarse=rough)
    assert torch.equal(again.coarse, rough)
    assert torch.allclose(around.compose(again), image, atol=1e-4)


def test_guidance_moves_away_from_the_unnamed_flow():
    image, hole = surroundings()
    around = scene(image, hole, 0 * hole)

    def named(coarse, fine, t, context, asked):
        return torch.ones_like(coarse if fine is None else fine) * asked.target.view(-1, 1, 1, 1)

    zero = Bands(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 64, 64))
    asked = conditions(target="polyp")
    drawn = [
        float(draw(named, around, asked, zero, steps=Steps(2, 1), guidance=g).coarse.max())
        for g in (1.0, 1.5)
    ]
    assert drawn == pytest.approx([2.0, 3.0])


def test_the_network_hears_every_condition_and_draws_grey_families_in_grey():
    torch.manual_seed(0)
    net = FlowNet(TINY).eval()
    for parameter in net.parameters():
        if not parameter.abs().sum():
            torch.nn.init.normal_(parameter, std=0.1)
    image, hole = surroundings()
    around = scene(image, hole, hole)
    (coarse, fine), t = noise(), torch.tensor([0.3])
    for band, shape in ((None, (1, 3, 8, 8)), (fine, (1, 3, 64, 64))):

        def velocity(time=t, context=around.context, coarse=coarse, band=band, **asked):
            return net(coarse, band, time, context, conditions(**asked))

        plain = velocity()
        assert plain.shape == shape
        assert (plain[:, 1:] == 0).all(), "an MRI has no colour"
        assert (velocity(family="fundus")[:, 1:] != 0).any()
        others = [
            velocity(family="ct"), velocity(target="glioma"), velocity(target=None), velocity(contrast=0.0),
            velocity(time=t + 0.1), velocity(context=scene(image, hole, 0 * hole).context),
            velocity(coarse=coarse + 1),
        ]  # fmt: skip
        assert all((plain - other).abs().max() > 1e-5 for other in others)
    assert net.channels(torch.tensor([FAMILIES.index("mri")])).flatten().tolist() == [1, 0, 0]
    assert net.channels(torch.tensor([FAMILIES.index("fundus")])).flatten().tolist() == [1, 1, 1]
    assert FlowConfig.from_json(TINY.as_json()) == TINY
